"""Read owners of pods as they are at this moment, each once for all who ask at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from provisioner.admission.review import Answer, Judgement
from provisioner.environment import OwnerKey
from provisioner.environment.review import OwnerError
from provisioner.kube import errors
from provisioner.kube.protocol import Timeouts, object_path
from provisioner.kube.reader import Read, Reader

_TIMEOUTS = Timeouts(connect_seconds=1.0, read_seconds=2.0)
#: Longer than a read takes. Webhooks have ten seconds by default, and requests wait for up to four for their turn.
_PATIENCE_SECONDS = 3.5

#: What a read comes to. None: there is no such object. Of an exception nobody may be left who takes it.
_Found = Read | Exception | None


class Pending(Protocol):
    """What there is still to do for an object, as `environment.review.Rest` for a pod."""

    @property
    def key(self) -> OwnerKey | None:
        """What has to be read before; None: nothing."""

    def judge(self, owner: Mapping[str, Any] | None) -> Answer:
        """Answer with what was read; None where there is nothing of that name."""

    def without(self, why: str) -> Answer:
        """Answer although it could not be read."""

    def is_long(self, owner: Mapping[str, Any] | None) -> bool:
        """Whether the answer takes its time."""


class Owners:
    """Reads objects for one event loop; nobody is given what was read before they asked, for it may have changed."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        #: What is being read; and what is read when that ends, for who came after it had begun.
        self._running: set[OwnerKey] = set()
        self._following: dict[OwnerKey, asyncio.Future[_Found]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def finish(self, rest: Pending) -> Judgement:
        """Return what there is to do for an object, once another one was read where it has to be."""
        if rest.key is None:
            return Judgement(judge=lambda: rest.judge({}), quick=not rest.is_long({}))
        try:
            read = await self.read(rest.key)
        except OwnerError as error:
            why = str(error)
            return Judgement(judge=lambda: rest.without(why))
        if read is not None and read.large_bytes:
            return Judgement(judge=lambda: _loaded(rest, read), quick=False, large_bytes=read.large_bytes)
        owner = read.load() if read is not None else None
        return Judgement(judge=lambda: rest.judge(owner), quick=not rest.is_long(owner))

    async def read(self, key: OwnerKey) -> Read | None:
        """Return an object, None where there is none; OwnerError where that cannot be told."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                came = await (self._wait(key) if key in self._running else self._run(key))
        except TimeoutError as error:
            raise OwnerError("the API server does not answer in time") from error
        if isinstance(came, OwnerError):
            # Each who waits has one of his own.
            raise OwnerError(str(came))
        if isinstance(came, Exception):
            raise came
        return came

    async def _wait(self, key: OwnerKey) -> _Found:
        """Return what is read next."""
        found = self._following.get(key)
        if found is None:
            found = self._following[key] = asyncio.get_running_loop().create_future()
        # The others who wait for it go on waiting when this one gives up.
        return await asyncio.shield(found)

    async def _run(self, key: OwnerKey) -> _Found:
        """Read now."""
        self._running.add(key)
        try:
            return await self._fetch(key)
        finally:
            # In one go: who asks from now on is given a read that begins now or later.
            self._running.discard(key)
            following = self._following.pop(key, None)
            if following is not None:
                self._running.add(key)
                task = asyncio.get_running_loop().create_task(self._run_for(key, following))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _run_for(self, key: OwnerKey, found: asyncio.Future[_Found]) -> None:
        found.set_result(await self._run(key))

    async def _fetch(self, key: OwnerKey) -> _Found:
        try:
            path = object_path(key.resource, key.name, namespace=key.namespace, root=key.root)
            return await self._reader.read(path, _TIMEOUTS)
        except errors.NotFound:
            return None
        except (errors.ClusterError, ValueError) as error:
            return OwnerError(str(error))
        except Exception as error:  # noqa: BLE001 - it is raised again by whoever waits
            return error


def _loaded(rest: Pending, read: Read) -> Answer:
    try:
        return rest.judge(read.load())
    except errors.ClusterError as error:
        return rest.without(str(error))
