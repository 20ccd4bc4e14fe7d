"""The configuration of partitions, as V-IPU servers have it: a slow server keeps nobody from the answers of others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from provisioner.partitions.vipu.protocol import Vipu
from provisioner.partitions.vipu.records import PartitionState

#: Of one server.
_AT_ONCE, _MOST_WAITING = 2, 128
#: A read goes on when nobody waits any more, and its answer is kept for whoever comes again.
_PATIENCE_SECONDS = 15.0
_KEPT_SECONDS = 5.0


class Slow(Exception):  # noqa: N818 - it names what the server is
    """A V-IPU server does not answer soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A partition as its server has it."""

    #: None: the server has none of this id.
    state: PartitionState | None
    #: The server's own word.
    state_text: str = ""
    #: The IPUoF configuration, where it is active.
    configuration: str = ""


@dataclass(slots=True)
class _Reads:
    """The reads from one server."""

    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="vipu-read")
    )
    #: By id, with the moment at which each that has ended did.
    by_id: dict[str, tuple[asyncio.Future[Found], list[float]]] = field(default_factory=dict)


class Servers:
    """Reads from V-IPU servers; used from one event loop."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._by_address: dict[str, _Reads] = {}

    async def find(self, address: str, vipu: Vipu, partition_id: str) -> Found:
        """Return a partition as a server has it; raise VipuError, or Slow."""
        reads = self._by_address.setdefault(address, _Reads())
        self._forget(reads)
        known = reads.by_id.get(partition_id)
        if known is None:
            if len(reads.by_id) >= _MOST_WAITING:
                raise Slow
            future = asyncio.get_running_loop().run_in_executor(reads.threads, lambda: _read(vipu, partition_id))
            ended: list[float] = []
            future.add_done_callback(partial(self._note, ended))
            known = reads.by_id[partition_id] = (future, ended)
        try:
            # Who asked before and has gone may have begun it.
            return await asyncio.wait_for(asyncio.shield(known[0]), _PATIENCE_SECONDS)
        except TimeoutError as error:
            raise Slow from error

    def close(self) -> None:
        """Let the threads end."""
        for each in self._by_address.values():
            each.threads.shutdown(wait=False, cancel_futures=True)

    def _note(self, ended: list[float], future: asyncio.Future[Found]) -> None:
        ended.append(self._monotonic())
        if not future.cancelled():
            # Nobody may be left who takes it.
            future.exception()

    def _forget(self, reads: _Reads) -> None:
        now = self._monotonic()
        for each, (future, ended) in list(reads.by_id.items()):
            if ended and (now - ended[0] >= _KEPT_SECONDS or not _is_lasting(future)):
                del reads.by_id[each]


def _is_lasting(future: asyncio.Future[Found]) -> bool:
    """Whether an answer is worth keeping: what is not there yet may be there the next moment."""
    return not future.cancelled() and future.exception() is None and bool(future.result().configuration)


def _read(vipu: Vipu, partition_id: str) -> Found:
    listed = {each.id: each for each in vipu.list_partitions()}
    partition = listed.get(partition_id)
    if partition is None:
        return Found(state=None)
    active = partition.state is PartitionState.ACTIVE
    configuration = vipu.ipuof_config(partition_id) if active else ""
    return Found(state=partition.state, state_text=partition.state_text, configuration=configuration)
