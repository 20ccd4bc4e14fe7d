"""What the API server is asked on behalf of callers, each question once for all who ask it at the same time.

A client that asks about many tokens waits for itself: it has two questions under way at a time, and others are asked
between.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from provisioner.kube.protocol import Api, JsonObject, Timeouts
from provisioner.partitions.rest import identity
from provisioner.partitions.rest.identity import Caller, Unproven

_T = TypeVar("_T")
_TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=5.0)
_AT_ONCE, _EACH_AT_ONCE = 8, 2
#: Of one client, questions that wait for their turn.
_EACH_WAITING = 32
_PATIENCE_SECONDS = 4.0
#: So long an answer counts. A token of a pod that was deleted is taken for as long.
_KEPT_SECONDS = 10.0
_MOST_KEPT = 4096


class Busy(Exception):  # noqa: N818 - it names what the server is
    """There is no turn for a question soon."""


@dataclass(slots=True)
class _Queue:
    """The questions of one client."""

    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_EACH_AT_ONCE))
    waiting: int = 0


class Turns:
    """Places for questions, so that no client takes them all; used from one event loop."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._queues: dict[str, _Queue] = {}

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a place; raise Busy where there is none in time."""
        queue = self._queues.setdefault(client, _Queue())
        if queue.waiting >= _EACH_WAITING:
            raise Busy
        queue.waiting += 1
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS) as patience, queue.places, self._places:
                # What is asked has its own time.
                patience.reschedule(None)
                yield
        except TimeoutError as error:
            raise Busy from error
        finally:
            queue.waiting -= 1
            if not queue.waiting:
                self._queues.pop(client, None)


class Access:
    """Knows callers by their tokens, and their rights; used from one event loop."""

    def __init__(
        self,
        api: Api,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` is the time since 1970."""
        self._api = api
        self._now = now
        self._monotonic = monotonic
        self._turns = Turns()
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="access")
        #: With the moment at which each was asked for.
        self._kept: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._asked: dict[Hashable, asyncio.Future[Any]] = {}

    async def identify(self, authorization: str, client: str) -> Caller:
        """Return who sent a header; raise Unproven, Busy, or ClusterError where the API server does not say."""
        token = identity.token_of(authorization, self._now())
        # Nobody finds a token in this memory.
        key = hashlib.sha256(token.encode()).digest()
        ask = partial(self._api.post, identity.TOKEN_REVIEWS, identity.token_review(token), timeouts=_TIMEOUTS)
        found = await self._once(key, client, lambda: _identified(ask()))
        if isinstance(found, str):
            raise Unproven(found)
        return found

    async def may(self, caller: Caller, verb: str, pod: tuple[str, str], client: str) -> bool:
        """Return whether a caller has a right to a pod (namespace, name); raise Busy or ClusterError."""
        key = (caller.username, caller.uid, caller.groups, repr(caller.extra), verb, pod)
        body = identity.access_review(caller, verb, *pod)
        ask = partial(self._api.post, identity.ACCESS_REVIEWS, body, timeouts=_TIMEOUTS)
        return await self._once(key, client, lambda: identity.read_access_review(ask()))

    async def write(self, change: Callable[[], _T], client: str) -> _T:
        """Change something in the cluster, in a thread and in turn; raise Busy or whatever it raises."""
        async with self._turns.turn(client):
            return await asyncio.get_running_loop().run_in_executor(self._threads, change)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _once(self, key: Hashable, client: str, ask: Callable[[], _T]) -> _T:
        """Return a kept answer, or that to a question which somebody has asked, or ask."""
        kept = self._kept.get(key)
        if kept is not None and self._monotonic() - kept[0] < _KEPT_SECONDS:
            found: _T = kept[1]
            return found
        running: asyncio.Future[_T] | None = self._asked.get(key)
        if running is not None:
            # Whoever goes does not end it for the others.
            return await asyncio.shield(running)
        task = asyncio.ensure_future(self._ask(key, client, ask))
        self._asked[key] = task
        task.add_done_callback(partial(self._forget, key))
        return await asyncio.shield(task)

    def _forget(self, key: Hashable, task: asyncio.Future[Any]) -> None:
        self._asked.pop(key, None)
        if not task.cancelled():
            # Nobody may be left who takes it.
            task.exception()

    async def _ask(self, key: Hashable, client: str, ask: Callable[[], _T]) -> _T:
        async with self._turns.turn(client):
            asked_at = self._monotonic()
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        self._kept[key] = (asked_at, answer)
        self._kept.move_to_end(key)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return answer


def _identified(raw: JsonObject) -> Caller | str:
    """Return who it is, or why nobody knows: that is kept as well."""
    try:
        return identity.read_token_review(raw)
    except Unproven as error:
        return str(error)
