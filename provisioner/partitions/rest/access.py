"""What is asked on behalf of callers, each question once for all who ask it at the same time.

A client that asks much waits behind the others, and a slow V-IPU server holds up its own callers alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Any, TypeVar

from provisioner.kube.protocol import Api, Timeouts
from provisioner.partitions.rest import wire
from provisioner.partitions.rest.wire import Caller, Refused
from provisioner.partitions.vipu.protocol import PartitionState, Vipu
from provisioner.runtime.resources import Busy, Lane

_T = TypeVar("_T")
_TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=5.0)
#: Questions to the API server under way, and with those that wait for their turn.
_AT_ONCE, _MOST = 8, 256
#: So long an answer counts. A token of a pod that was deleted is taken for as long.
_KEPT_SECONDS = 10.0
_MOST_KEPT = 4096
#: Of one V-IPU server.
_READS_AT_ONCE, _MOST_READS = 2, 128
#: A read goes on when nobody waits any more, and its answer is kept for whoever comes again.
_READ_PATIENCE_SECONDS, _READ_KEPT_SECONDS = 15.0, 5.0


class Shared:
    """Questions that are under way, and answers that count for a while; used from one event loop."""

    def __init__(self, kept_seconds: float, *, most: float = inf) -> None:
        self._kept_seconds, self._most = kept_seconds, most
        #: Each ends with an answer and the moment from which it counts.
        self._asked: dict[Hashable, asyncio.Future[tuple[float, Any]]] = {}

    async def once(self, key: Hashable, ask: Callable[[], Awaitable[tuple[float, _T]]]) -> _T:
        """Return a kept answer, or what `ask` returns beside the moment from which it counts; raise Busy, too."""
        task: asyncio.Future[tuple[float, _T]] | None = self._asked.get(key)
        if task is None or not self._counts(task):
            self._asked.pop(key, None)
            self._forget()
            if sum(not each.done() for each in self._asked.values()) >= self._most:
                raise Busy
            task = self._asked[key] = asyncio.ensure_future(ask())
            # Nobody may be left who takes it.
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
        # Whoever goes does not end it for the others.
        found: tuple[float, _T] = await asyncio.shield(task)
        return found[1]

    def _counts(self, task: asyncio.Future[tuple[float, Any]]) -> bool:
        if not task.done():
            return True
        failed = task.cancelled() or task.exception() is not None
        return not failed and time.monotonic() - task.result()[0] < self._kept_seconds

    def _forget(self) -> None:
        """Forget the oldest where they do not count any more, or where there are too many."""
        while self._asked and (len(self._asked) >= _MOST_KEPT or not self._counts(next(iter(self._asked.values())))):
            del self._asked[next(iter(self._asked))]


class Access:
    """Knows callers by their tokens, and their rights; used from one event loop."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lane = Lane(places=_AT_ONCE, room=_MOST)
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="access")
        self._shared = Shared(_KEPT_SECONDS)

    async def identify(self, authorization: str, client: str) -> Caller:
        """Return who sent a header; raise Refused, Busy, or ClusterError where the API server does not say."""
        token = wire.token_of(authorization)
        # Nobody finds a token in this memory.
        key = hashlib.sha256(token.encode()).digest()
        ask = partial(self._api.post, wire.TOKEN_REVIEWS, wire.token_review(token), timeouts=_TIMEOUTS)
        # That nobody knows who it is counts for a while as well.
        found = await self._shared.once(key, lambda: self.in_turn(lambda: wire.read_token_review(ask()), client))
        if isinstance(found, str):
            raise Refused(401, found)
        return found

    async def may(self, caller: Caller, verb: str, pod: tuple[str, str], client: str) -> bool:
        """Return whether a caller has a right to a pod (namespace, name); raise Busy or ClusterError."""
        key = (caller.username, caller.uid, caller.groups, repr(caller.extra), verb, pod)
        body = wire.access_review(caller, verb, *pod)
        ask = partial(self._api.post, wire.ACCESS_REVIEWS, body, timeouts=_TIMEOUTS)
        return await self._shared.once(key, lambda: self.in_turn(lambda: wire.read_access_review(ask()), client))

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def in_turn(self, ask: Callable[[], _T], client: str) -> tuple[float, _T]:
        """Ask or write in a thread; return the moment and the answer, or raise Busy without a place in time."""
        async with self._lane.place(flow=client):
            asked_at = time.monotonic()
            return asked_at, await asyncio.get_running_loop().run_in_executor(self._threads, ask)


class Servers:
    """Reads from V-IPU servers; used from one event loop."""

    def __init__(self) -> None:
        self._by_address: dict[str, tuple[ThreadPoolExecutor, Shared]] = {}

    async def find(self, address: str, vipu: Vipu, partition_id: str) -> tuple[str, str]:
        """Return how a partition is, and its configuration, empty unless it is active; raise VipuError or Busy."""
        if address not in self._by_address:
            threads = ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="vipu-read")
            self._by_address[address] = threads, Shared(_READ_KEPT_SECONDS, most=_MOST_READS)
        threads, shared = self._by_address[address]

        async def ask() -> tuple[float, tuple[str, str]]:
            found = await asyncio.get_running_loop().run_in_executor(threads, _read, vipu, partition_id)
            # What is not there yet may be there the next moment.
            return (time.monotonic() if found[1] else -inf), found

        try:
            return await asyncio.wait_for(shared.once(partition_id, ask), _READ_PATIENCE_SECONDS)
        except TimeoutError as error:
            raise Busy from error

    def close(self) -> None:
        """Let the threads end."""
        for threads, _ in self._by_address.values():
            threads.shutdown(wait=False, cancel_futures=True)


def _read(vipu: Vipu, partition_id: str) -> tuple[str, str]:
    partition = next((each for each in vipu.list_partitions() if each.id == partition_id), None)
    if partition is None:
        return "the V-IPU server does not have the partition yet", ""
    if partition.state is not PartitionState.ACTIVE:
        return f"the partition is {partition.state_text or partition.state.value}", ""
    return "the partition is active", vipu.ipuof_config(partition_id)
