"""Read owners of pods as they are at this moment, each once for all who ask at the same time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from provisioner.environment import OwnerKey
from provisioner.environment.review import OwnerError
from provisioner.kube import errors
from provisioner.kube.protocol import Api, Timeouts, object_path

_TIMEOUTS = Timeouts(connect_seconds=1.0, read_seconds=2.0)
#: Longer than a read takes. Webhooks have ten seconds by default, and requests wait for up to four for a thread.
_PATIENCE_SECONDS = 3.5

_Found = Future[Mapping[str, Any] | None]


class Owners:
    """Reads objects for many threads; nobody is given what was read before they asked, for it may have changed."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        #: Reads under way, and those that begin when these end, for who came after they had begun.
        self._running: dict[OwnerKey, _Found] = {}
        self._following: dict[OwnerKey, _Found] = {}

    def read(self, key: OwnerKey) -> Mapping[str, Any] | None:
        """Return an object, None where there is none; OwnerError where that cannot be told."""
        with self._lock:
            before = self._running.get(key)
            mine = self._following.get(key) if before is not None else None
            lead = mine is None
            if mine is None:
                mine = Future()
                (self._running if before is None else self._following)[key] = mine
        if lead:
            self._lead(key, before, mine)
        try:
            return mine.result(_PATIENCE_SECONDS)
        except FutureTimeoutError as error:
            raise OwnerError("the API server does not answer in time") from error

    def _lead(self, key: OwnerKey, before: _Found | None, mine: _Found) -> None:
        """Read for all who wait for `mine`, once what is under way has ended."""
        if before is not None:
            with contextlib.suppress(FutureTimeoutError):
                before.exception(_PATIENCE_SECONDS)
            with self._lock:
                self._following.pop(key, None)
                self._running[key] = mine
        try:
            mine.set_result(self._fetch(key))
        except Exception as error:  # noqa: BLE001 - raised again by all who wait
            mine.set_exception(error)
        finally:
            with self._lock:
                if self._running.get(key) is mine:
                    del self._running[key]

    def _fetch(self, key: OwnerKey) -> Mapping[str, Any] | None:
        try:
            path = object_path(key.resource, key.name, namespace=key.namespace, root=key.root)
            return self._api.get(path, timeouts=_TIMEOUTS)
        except errors.NotFound:
            return None
        except (errors.ClusterError, ValueError) as error:
            raise OwnerError(str(error)) from error
