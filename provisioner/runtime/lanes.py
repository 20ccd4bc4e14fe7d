"""Limits running and waiting requests. Requests of different flows, such as clients or namespaces, alternate."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

#: Maximum wait in seconds of a request in a lane. The API server waits 5 or 10 s for a webhook.
_PATIENCE_SECONDS = 4.0


class Busy(Exception):  # noqa: N818 - it names the state of the server
    """A request was rejected, because its lane is full, or because it has waited for 4 s."""


class Lane:
    """Queue of requests, of which a limited number run. Used from one event loop. The number of flows is unlimited."""

    def __init__(self, *, places: int, room: int, max_rest_seconds: float = 0.0) -> None:
        """Allow `places` running requests. All requests in the lane weigh at most `room`, unless there is only one.

        After each request, its place remains unused for as long as the request ran, but at most for `max_rest_seconds`.
        """
        self._free, self._room, self._max_rest_seconds = places, room, max_rest_seconds
        #: Flow and weight of each request that runs or waits, and the total weight of each flow.
        self._requests: dict[asyncio.Future[bool], tuple[str, int]] = {}
        self._weights: Counter[str] = Counter()
        #: Waiting requests by flow, next flow first. The result of a future is whether its request may run.
        self._waiting: dict[str, deque[asyncio.Future[bool]]] = {}

    @asynccontextmanager
    async def place(self, weight: int = 1, flow: str = "") -> AsyncIterator[None]:
        """Wait for permission to run. Raises Busy after 4 s, or if the lane is full; heavy flows are rejected first."""
        self._make_room(weight, flow)
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._requests[turn] = flow, weight
        self._weights[flow] += weight
        try:
            await self._wait(turn, flow)
            began = time.monotonic()
            try:
                yield
            finally:
                rest = min(time.monotonic() - began, self._max_rest_seconds)
                asyncio.get_running_loop().call_later(rest, self._release)
        finally:
            self._leave(turn)

    def _make_room(self, weight: int, flow: str) -> None:
        while self._weights and self._weights.total() + weight > self._room:
            heaviest = max(self._waiting, key=self._weights.__getitem__, default=flow)
            if self._weights[heaviest] <= self._weights[flow] + weight:
                raise Busy
            last = self._waiting[heaviest][-1]
            if not last.done():
                last.set_result(False)
            self._leave(last)

    async def _wait(self, turn: asyncio.Future[bool], flow: str) -> None:
        if self._free:
            self._free -= 1
            return
        self._waiting.setdefault(flow, deque()).append(turn)
        has_place = False
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                has_place = await turn
        except TimeoutError as error:
            raise Busy from error
        finally:
            if not has_place and turn.done() and not turn.cancelled() and turn.result():
                # The wait ended in the same step of the event loop in which the request got a place.
                self._release()
        if not has_place:
            raise Busy

    def _leave(self, turn: asyncio.Future[bool]) -> None:
        flow, weight = self._requests.pop(turn, ("", 0))
        self._weights[flow] -= weight
        self._weights += Counter()
        turns = self._waiting.get(flow, deque())
        if turn in turns:
            turns.remove(turn)
        if not turns:
            self._waiting.pop(flow, None)

    def _release(self) -> None:
        while self._waiting:
            flow = next(iter(self._waiting))
            turns = self._waiting.pop(flow)
            turn = turns.popleft()
            if turns:
                self._waiting[flow] = turns
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1
