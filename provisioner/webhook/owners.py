"""Read owners of pods as they are at this moment, each once for all who ask at the same time."""

from __future__ import annotations

import asyncio

from provisioner.admission.review import Judgement
from provisioner.environment import OwnerKey
from provisioner.environment.review import OwnerError, Rest
from provisioner.kube import errors
from provisioner.kube.protocol import Timeouts, object_path
from provisioner.kube.reader import Read, Reader

_TIMEOUTS = Timeouts(connect_seconds=1.0, read_seconds=2.0)
#: Longer than a read takes. Webhooks have ten seconds by default, and requests wait for up to four for their turn.
_PATIENCE_SECONDS = 3.5

#: What a read comes to. None: there is no such object. Of an exception nobody may be left who takes it.
_Found = Read | Exception | None


class Owners:
    """Reads objects for one event loop; nobody is given what was read before they asked, for it may have changed."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        #: Reads under way, and those that begin when these end, for who came after they had begun.
        self._running: dict[OwnerKey, asyncio.Task[None]] = {}
        self._following: dict[OwnerKey, asyncio.Future[_Found]] = {}

    async def finish(self, rest: Rest) -> Judgement:
        """Return what there is to do for a pod, once its owner was read where it has to be."""
        if rest.key is None:
            return Judgement(judge=lambda: rest.judge({}), quick=not rest.is_long({}))
        try:
            read = await self.read(rest.key)
        except OwnerError as error:
            why = str(error)
            return Judgement(judge=lambda: rest.without(why))
        owner = read.object if read is not None else None
        quick = (read is None or read.small) and not rest.is_long(owner)
        return Judgement(judge=lambda: rest.judge(owner), quick=quick)

    async def read(self, key: OwnerKey) -> Read | None:
        """Return an object, None where there is none; OwnerError where that cannot be told."""
        found: asyncio.Future[_Found] | None = self._following.get(key)
        if found is None:
            found = asyncio.get_running_loop().create_future()
            if key in self._running:
                self._following[key] = found
            else:
                self._begin(key, found)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                # The others who wait for it go on waiting when this one gives up.
                came = await asyncio.shield(found)
        except TimeoutError as error:
            raise OwnerError("the API server does not answer in time") from error
        if isinstance(came, OwnerError):
            # Each who waits has one of his own.
            raise OwnerError(str(came))
        if isinstance(came, Exception):
            raise came
        return came

    def _begin(self, key: OwnerKey, found: asyncio.Future[_Found]) -> None:
        self._running[key] = asyncio.get_running_loop().create_task(self._run(key, found))

    async def _run(self, key: OwnerKey, found: asyncio.Future[_Found]) -> None:
        came = await self._fetch(key)
        # In one go: who asks from now on is given a read that begins now or later.
        following = self._following.pop(key, None)
        if following is None:
            del self._running[key]
        else:
            self._begin(key, following)
        found.set_result(came)

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
