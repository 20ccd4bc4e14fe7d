"""Saves hints, the part of the planner's memory that is useful after a restart, as text in one ConfigMap.

- the times since which pools are idle; otherwise a deletion delay of an hour would begin again,
- back-off; otherwise a create that blocks the cluster for half an hour, or creates a useless pool, would be repeated,
- the slice that last used each pool, unless the labels of the pool are enough to find this slice,
- the times of the creates of the last hour, for the limit on them,
- the attempt numbers of creates, so that a repeated create has the same pool name.

Losing hints is safe, so invalid sections and entries beyond the size limit are left out, and a failed write does not
raise. A failed read is repeated until it succeeds; otherwise the next write would replace hints that were never read.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
import structlog

from provisioner import constants
from provisioner.kube.errors import ClusterError, NotFound
from provisioner.kube.protocol import Api, collection_path, object_path
from provisioner.model import bounds
from provisioner.model.capacity import Failure, FailureKind, PoolName
from provisioner.model.choices import CapacityKey
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.memory.state import Backoff, Memory, PoolMemory, RefusedPods, SliceMemory

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")
#: Key of the back-off of a capacity or a request. Back-offs of slices are not saved.
_Key = CapacityKey | str
_K = TypeVar("_K", _Key, RefusedPods)
#: Number of an attempt; bounded, so that a corrupt hint does not lead to very long label values.
_Attempt = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]


def to_text(memory: Memory) -> dict[str, str]:
    """Return the hints as data of the ConfigMap. Beyond the size limit, last users of pools are left out first."""
    # Only the back-offs that end last are saved, because their number has no bound: pods can name any reservation.
    of_requests = ((key, last) for key, last in memory.backoffs.items() if last.slice_id is None)
    backoffs = _latest((key, last) for key, last in of_requests if not isinstance(key, SliceId))
    refused = _latest(memory.refusals.items())
    pools = memory.pools.items()
    sections: dict[str, list[Any]] = {
        "creates": sorted(memory.created_at, reverse=True),
        "attempts": sorted(_open_attempts(memory).items()),
        "idle-since": sorted((name, pool.unneeded_since) for name, pool in pools if pool.unneeded_since is not None),
        "back-off": [(key, *_backoff_out(backoff)) for key, backoff in backoffs],
        "refused": [(key, *_backoff_out(backoff)) for key, backoff in refused],
        "last-users": sorted((name, pool.last_user) for name, pool in pools if pool.last_user is not None),
    }
    text: dict[str, str] = {}
    # A section without entries still has its name and two brackets.
    characters = bounds.HINTS - sum(len(name) + 2 for name in sections)
    for name, entries in sections.items():
        text[name] = _cut(entries, characters + 2)
        characters -= len(text[name]) - 2
    return text


def from_text(data: Mapping[str, str]) -> Memory:
    """Return a memory that contains only the saved hints; an invalid section is logged and left out."""
    idle_since = dict(_read(data, "idle-since", list[tuple[PoolName, _Moment]]))
    last_users = dict(_read(data, "last-users", list[tuple[PoolName, SliceId]]))
    attempts = dict(_read(data, "attempts", list[tuple[SliceId, _Attempt]]))
    return Memory(
        pools={
            name: PoolMemory(unneeded_since=idle_since.get(name), last_user=last_users.get(name))
            for name in {**idle_since, **last_users}
        },
        slices={slice_id: SliceMemory(attempt=attempt) for slice_id, attempt in attempts.items()},
        backoffs=dict(_backoffs(data, "back-off", list[tuple[_Key, FailureKind, str, int, _Moment, _Moment]])),
        refusals=dict(_backoffs(data, "refused", list[tuple[RefusedPods, FailureKind, str, int, _Moment, _Moment]])),
        created_at=tuple(sorted(_read(data, "creates", list[_Moment]))),
    )


def _open_attempts(memory: Memory) -> dict[SliceId, int]:
    attempts = {slice_id: entry.attempt for slice_id, entry in memory.slices.items() if entry.attempt}
    for call in memory.creates.values():
        attempt = int(call.request.labels.get(constants.POOL_ATTEMPT, "0"))
        if attempt > 0:
            attempts[call.slice_id] = max(attempt, attempts.get(call.slice_id, 0))
    return attempts


def _latest(backoffs: Iterable[tuple[_K, Backoff]]) -> list[tuple[_K, Backoff]]:
    return sorted(backoffs, key=lambda item: (item[1].until, str(item[0])), reverse=True)[: bounds.HINTED_BACKOFFS]


def _backoff_out(backoff: Backoff) -> tuple[str, str, int, datetime, datetime]:
    message = bounds.cut(backoff.failure.message, bounds.HINTED_WORDS)
    return backoff.failure.kind.value, message, backoff.failures, backoff.since, backoff.until


def _backoffs(
    data: Mapping[str, str], name: str, section: type[list[tuple[_K, FailureKind, str, int, _Moment, _Moment]]]
) -> Iterator[tuple[_K, Backoff]]:
    for key, kind, message, failures, since, until in _read(data, name, section):
        yield key, Backoff(failure=Failure(kind=kind, message=message), failures=failures, since=since, until=until)


def _cut(entries: list[Any], limit: int) -> str:
    """Return entries as JSON of at most `limit` characters; the last entries are left out if necessary."""
    text = _dump(entries)
    while entries and len(text) > limit:
        entries = entries[: max(0, len(entries) * limit // len(text))]
        text = _dump(entries)
    return text


def _dump(entries: list[Any]) -> str:
    return json.dumps(entries, separators=(",", ":"), default=datetime.isoformat)


def _read(data: Mapping[str, str], name: str, section: type[list[_T]]) -> list[_T]:
    try:
        return msgspec.json.decode(data.get(name) or "[]", type=section)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        _log.warning("hints.section_lost", section=name, error=str(error))
        return []


class HintsStore:
    """The ConfigMap `tpu-provisioner-hints` in the provisioner's own namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._path = object_path("configmaps", constants.HINTS_CONFIGMAP_NAME, namespace=namespace)
        self._last_cause = ""

    def load(self) -> dict[str, str]:
        """Return the stored hints; empty without a ConfigMap. Raises ClusterError, and logs it if its cause is new."""
        try:
            stored = dict(self._api.get(self._path).get("data") or {})
        except NotFound:
            _log.info("hints.not_found", namespace=self._namespace, config_map=constants.HINTS_CONFIGMAP_NAME)
            return {}
        except ClusterError as error:
            if self._is_new_cause(error):
                _log.warning("hints.load_failed", namespace=self._namespace, error=str(error))
            raise
        self._last_cause = ""
        return stored

    def save(self, data: Mapping[str, str]) -> bool:
        """Create or update the ConfigMap; return False after a failure, which is logged if the cause is new."""
        try:
            self._write(data)
        except ClusterError as error:
            if self._is_new_cause(error):
                _log.warning("hints.save_failed", namespace=self._namespace, error=str(error))
            return False
        self._last_cause = ""
        return True

    def _is_new_cause(self, error: ClusterError) -> bool:
        before, self._last_cause = self._last_cause, f"{type(error).__name__} {error.status} {error.reason}"
        return before != self._last_cause

    def _write(self, data: Mapping[str, str]) -> None:
        """Create the ConfigMap or change its data. Labels and annotations are not changed: a user may have set them."""
        try:
            self._api.patch(self._path, {"data": dict(data)})
        except NotFound:
            metadata = {
                "name": constants.HINTS_CONFIGMAP_NAME,
                "namespace": self._namespace,
                "labels": {"app.kubernetes.io/managed-by": constants.MANAGER},
            }
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}
            self._api.post(collection_path("configmaps", namespace=self._namespace), body)
