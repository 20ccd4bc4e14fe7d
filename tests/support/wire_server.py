"""HTTP server with configured responses for each method and path."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.recording_server import DROP, HANG, Answer, Recorded, RecordingServer

__all__ = ["DROP", "HANG", "Answer", "WireServer", "as_json", "running"]


class WireServer:
    """Responds from the queue of "METHOD path" or "WATCH path", whose last response is repeated; 404 if it is empty."""

    def __init__(self) -> None:
        self._answers: dict[str, deque[Answer]] = defaultdict(deque)
        self._arrived = threading.Condition()
        self._server = RecordingServer()
        self._server.answer = self._next
        self._server.__enter__()
        self.url = self._server.url
        self.requests = self._server.requests

    def answer(self, what: str, *answers: Answer) -> None:
        self._answers[what].extend(answers)

    def wait_for(self, what: str, count: int) -> bool:
        """Wait until `count` requests of "METHOD path" were received; return False after 5 s."""
        with self._arrived:
            return self._arrived.wait_for(
                lambda: [_what(request) for request in list(self.requests)].count(what) >= count, timeout=5.0
            )

    def close(self) -> None:
        self._server.__exit__(None, None, None)

    def _next(self, request: Recorded) -> Answer:
        with self._arrived:
            self._arrived.notify_all()
        queue = self._answers[_what(request)]
        return (queue.popleft() if len(queue) > 1 else queue[0]) if queue else Answer(status=404)


def _what(request: Recorded) -> str:
    return f"{'WATCH' if 'watch' in request.query else request.method} {request.path.partition('?')[0]}"


def as_json(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    return Answer(body=body, status=status, headers=headers or {})


@contextmanager
def running() -> Iterator[WireServer]:
    server = WireServer()
    try:
        yield server
    finally:
        server.close()
