"""Send the head of an answer along with its body: one piece to encrypt, to send and to wake the client for."""

from __future__ import annotations

import asyncio

#: Joining larger ones would cost more than it saves.
_MOST_BYTES = 64 * 1024


class JoinedWrites(asyncio.WriteTransport):
    """What one answer is written to: its first piece waits for the second, until the event loop's next turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held: bytes | None = None
        self._begun = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write a piece, after what is held."""
        if not self._begun:
            self._begun = True
            self._held = bytes(data)
            self._loop.call_soon(self.flush)
            return
        held, self._held = self._held, None
        if held is not None and len(data) <= _MOST_BYTES:
            self._transport.write(held + data)
            return
        if held is not None:
            self._transport.write(held)
        self._transport.write(data)

    def flush(self) -> None:
        """Write what is held."""
        held, self._held = self._held, None
        if held is not None and not self._transport.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        """Close the connection once everything is written."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is closed, or will be."""
        return self._transport.is_closing()
