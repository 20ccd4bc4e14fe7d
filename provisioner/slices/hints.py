"""The part of the memory that is worth keeping over a crash, as text in one ConfigMap.

Kept: since when pools are idle (or an hour's timer would start anew), back-off (or a create that blocks the cluster for
half an hour would be repeated), where slices last ran, the creates of the last hour (for a limit on them), and the
attempt of creates that no list confirms yet (so that the same name is sent again, and no other). Anything that cannot
be read back, or has no room, is left out: losing it is safe. So no failed exchange raises, and the last writer wins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

import structlog

from provisioner import constants
from provisioner.kube.errors import ClusterError, Conflict, NotFound
from provisioner.kube.protocol import Api, JsonObject, collection_path, object_path
from provisioner.model import bounds
from provisioner.model.capacity import Failure, FailureKind, PoolName
from provisioner.model.workloads import GroupKey, WorkloadUid
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.memory.state import Backoff, Memory

#: More than any slice will ever need; keeps a spoilt hint from making absurd names.
_MOST_ATTEMPTS = 1_000_000

_log = structlog.get_logger(__name__)
_K = TypeVar("_K")
_V = TypeVar("_V")


def to_text(memory: Memory) -> dict[str, str]:
    """Write the hints; keys are those of the ConfigMap's data.

    What has no room is left out. Where slices last ran goes first: of all but those between two restarts, pods tell it.
    """
    latest = sorted(memory.created_at, reverse=True)
    # Those that last longest: users name the reservations that they are kept by.
    shared = (item for item in memory.backoffs.items() if item[1].slice_id is None)
    backoffs = sorted(shared, key=lambda item: (item[1].until, item[0]), reverse=True)[: bounds.HINTED_BACKOFFS]
    entries: dict[str, Mapping[str, Any]] = {
        "creates": {str(place): moment.isoformat() for place, moment in enumerate(latest)},
        "attempts": {str(slice_id): attempt for slice_id, attempt in sorted(_open_attempts(memory).items())},
        "idle-since": {name: since.isoformat() for name, since in sorted(memory.unneeded_since.items())},
        "back-off": {key: _backoff_out(each) for key, each in backoffs},
        "last-users": {name: str(slice_id) for name, slice_id in sorted(memory.last_users.items())},
    }
    text: dict[str, str] = {}
    left = bounds.HINTS - sum(map(len, entries))
    for key, each in entries.items():
        text[key] = _cut(each, left)
        left -= len(text[key])
    return text


def from_text(data: Mapping[str, str]) -> Memory:
    """Read the hints back; what is not understood is left out."""
    return Memory(
        unneeded_since=dict(_read(data.get("idle-since"), PoolName, _moment)),
        last_users=dict(_read(data.get("last-users"), PoolName, _slice_id)),
        backoffs=dict(_read(data.get("back-off"), str, _backoff_in)),
        created_at=tuple(sorted(at for _, at in _read(data.get("creates"), str, _moment))),
        attempts=dict(_read(data.get("attempts"), _slice_id, _attempt)),
    )


def _open_attempts(memory: Memory) -> dict[SliceId, int]:
    attempts = dict(memory.attempts)
    for call in memory.creates.values():
        attempt = _attempt(call.request.labels.get(constants.POOL_ATTEMPT, "0"))
        if attempt > 0:
            attempts[call.slice_id] = max(attempt, attempts.get(call.slice_id, 0))
    return attempts


def _cut(entries: Mapping[str, Any], most: int) -> str:
    """Write the first entries, as many as have room."""
    text = _dump(entries)
    while entries and len(text) > most:
        entries = dict(islice(entries.items(), max(0, len(entries) * most // len(text))))
        text = _dump(entries)
    return text


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _read(text: str | None, read_key: Callable[[str], _K], read_value: Callable[[Any], _V]) -> Iterator[tuple[_K, _V]]:
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return
    for key, value in content.items() if isinstance(content, dict) else ():
        try:
            yield read_key(key), read_value(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            continue


def _moment(text: Any) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _attempt(number: Any) -> int:
    attempt = int(number)
    if not 0 <= attempt <= _MOST_ATTEMPTS:
        raise ValueError(number)
    return attempt


def _slice_id(text: Any) -> SliceId:
    uid, separator, group_key = str(text).partition("/")
    if not separator:
        raise ValueError(text)
    return SliceId(workload_uid=WorkloadUid(uid), group_key=GroupKey(group_key))


def _backoff_out(each: Backoff) -> dict[str, Any]:
    return {
        "kind": each.failure.kind.value,
        "message": bounds.cut(each.failure.message, bounds.HINTED_WORDS),
        "failures": each.failures,
        "since": each.since.isoformat(),
        "until": each.until.isoformat(),
    }


def _backoff_in(content: Any) -> Backoff:
    return Backoff(
        failure=Failure(kind=FailureKind(content["kind"]), message=str(content["message"])),
        failures=int(content["failures"]),
        since=_moment(content["since"]),
        until=_moment(content["until"]),
    )


class HintsStore:
    """The ConfigMap `tpu-provisioner-hints` in the provisioner's own namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._path = object_path("configmaps", constants.HINTS_CONFIGMAP_NAME, namespace=namespace)
        self._last_cause = ""
        #: The object as it was last read or written; None: read it before it is written.
        self._read: JsonObject | None = None

    def load(self) -> dict[str, str]:
        """Return the stored hints; empty where there are none or they can't be read."""
        try:
            self._read = self._api.get(self._path)
        except NotFound:
            _log.info("hints.not_found", namespace=self._namespace, config_map=constants.HINTS_CONFIGMAP_NAME)
            return {}
        except ClusterError as error:
            _log.warning("hints.load_failed", namespace=self._namespace, error=str(error))
            return {}
        return dict(self._read.get("data") or {})

    def save(self, data: Mapping[str, str]) -> bool:
        """Create or update the hints; False when that failed, which is logged once per cause.

        Keys that are stored and not given stay: another release may know them.
        """
        try:
            self._read = self._written(data)
        except ClusterError as error:
            # What is there now is not known.
            self._read = None
            cause = f"{type(error).__name__} {error.status} {error.reason}"
            if cause != self._last_cause:
                self._last_cause = cause
                _log.warning("hints.save_failed", namespace=self._namespace, error=str(error))
            return False
        self._last_cause = ""
        return True

    def _written(self, data: Mapping[str, str]) -> JsonObject:
        """Update the data and nothing else: labels and annotations belong to whoever installed the object."""
        try:
            if self._read is not None:
                try:
                    return self._api.put(self._path, _updated(self._read, data))
                except Conflict:
                    # Somebody else wrote: their metadata is kept.
                    _log.debug("hints.changed_meanwhile", namespace=self._namespace)
            return self._api.put(self._path, _updated(self._api.get(self._path), data))
        except NotFound:
            return self._api.post(
                collection_path("configmaps", namespace=self._namespace),
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {
                        "name": constants.HINTS_CONFIGMAP_NAME,
                        "namespace": self._namespace,
                        "labels": {"app.kubernetes.io/managed-by": constants.MANAGER},
                    },
                    "data": dict(data),
                },
            )


def _updated(raw: JsonObject, data: Mapping[str, str]) -> JsonObject:
    return {**raw, "data": {**(raw.get("data") or {}), **data}}
