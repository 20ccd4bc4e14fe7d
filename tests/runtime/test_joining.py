"""Pieces of an answer that are sent together: nothing is lost, nothing overtakes, and no head waits for its body."""

from __future__ import annotations

import asyncio
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from provisioner.runtime.joining import JoinedWrites


class Written(asyncio.WriteTransport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def joined(below: Written) -> JoinedWrites:
    return JoinedWrites(cast(asyncio.Transport, below), asyncio.get_running_loop())


_PIECES = st.lists(st.one_of(st.binary(max_size=5), st.just(b"x" * 70_000)), max_size=6)


@given(pieces=_PIECES, turns=st.sets(st.integers(0, 6)), closes=st.booleans())
def test_all_is_written_in_its_order(pieces: list[bytes], turns: set[int], closes: bool):
    async def play() -> Written:
        below = Written()
        writes = joined(below)
        for number, piece in enumerate(pieces):
            writes.write(piece)
            if number in turns:
                await asyncio.sleep(0)
        if closes:
            writes.close()
            assert writes.is_closing()
        await asyncio.sleep(0)
        return below

    below = asyncio.run(play())
    assert b"".join(below.pieces) == b"".join(pieces)
    assert below.closed == closes


def test_a_head_goes_with_its_body_or_alone_in_the_next_turn():
    async def play() -> None:
        below = Written()
        writes = joined(below)
        writes.write(b"head")
        assert below.pieces == []
        writes.write(b"body")
        writes.write(b"more")
        assert below.pieces == [b"headbody", b"more"]
        alone = joined(below)
        alone.write(b"head of a stream")
        await asyncio.sleep(0)
        assert below.pieces[2:] == [b"head of a stream"]

    asyncio.run(play())


def test_nothing_is_written_to_a_connection_that_was_cut_meanwhile():
    async def play() -> None:
        below = Written()
        joined(below).write(b"head")
        below.closed = True
        await asyncio.sleep(0)
        assert below.pieces == []

    asyncio.run(play())
