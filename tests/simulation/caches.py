"""What a controller sees of the cluster: caches that lag, take events out of order, lose some, fall silent, list anew.

They stand for the real list-watches, whose own tests show how they keep what is promised here: an older state never
replaces a newer one, and a list mends everything. Silence lasts until it ends or a list comes; events that are lost
here are lost until the next list (real ones lose none without noticing, so this is harsher than the truth).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from provisioner.cluster.protocol import JsonObject

if TYPE_CHECKING:
    from tests.simulation.process import Process

T = TypeVar("T")
Key = tuple[str, str]


class Cache(Generic[T]):
    """One resource, as far as one controller knows it. Implements the `Watch` protocol."""

    def __init__(
        self, process: Process, resource: str, select: Callable[[JsonObject], bool], parse: Callable[[Any], T | None]
    ) -> None:
        self._process = process
        self._stage = process.stage
        self._resource = resource
        self._select = select
        self._parse = parse
        self._records: dict[Key, T] = {}
        self._versions: dict[str, int] = {}
        self._snapshot: Mapping[Key, T] | None = None
        self._seen_deleted: set[str] = set()
        self._silent_until = 0.0
        self._heard_at = 0.0
        self._listed_at_version = 0
        self.synced = False
        self.problem: str | None = None
        self._stage.store.listeners.append(self._hear)
        self._stage.agenda.after(self._stage.rng.uniform(0.05, 2.0), self.relist)

    # --- Watch

    def start(self) -> None:
        """Do nothing: it runs."""

    def stop(self) -> None:
        """Do nothing: it ends with its process."""

    def records(self) -> Mapping[Key, T]:
        """Return what is known."""
        if self._snapshot is None:
            self._snapshot = MappingProxyType(dict(self._records))
        return self._snapshot

    @property
    def last_contact_monotonic(self) -> float | None:
        """Return when the server was last heard of."""
        return self._heard_at if self._silent else self._stage.agenda.now

    @property
    def _silent(self) -> bool:
        return self._stage.agenda.now < self._silent_until

    def fresh(self, *, max_silence_seconds: float) -> bool:
        """Whether it is synced and was confirmed lately."""
        contact = self.last_contact_monotonic
        return self.synced and contact is not None and self._stage.agenda.now - contact <= max_silence_seconds

    def seen_deleted(self, uid: str) -> bool:
        """Whether an event told of this object's end."""
        return uid in self._seen_deleted

    # --- what happens to it

    def relist(self) -> None:
        """List anew: the truth of this moment."""
        if self._process.dead:
            self.forget()
            return
        if self._silent:
            self._stage.agenda.at(self._silent_until, self.relist)
            return
        self._records.clear()
        for raw in self._stage.store.all(self._resource).values():
            if self._select(raw):
                record = parsed(self._parse, raw)
                if record is not None:
                    self._records[_key(raw)] = record
        self._listed_at_version = self._stage.store.version
        self._versions.clear()
        self._changed()
        self.synced = True

    def fall_silent(self, seconds: float) -> None:
        """Hear nothing for some time."""
        if not self._silent:
            self._heard_at = self._stage.agenda.now
        self._silent_until = self._stage.agenda.now + seconds

    def forget(self) -> None:
        """Listen no more."""
        if self._hear in self._stage.store.listeners:
            self._stage.store.listeners.remove(self._hear)

    def _hear(self, resource: str, path: str, before: JsonObject | None, after: JsonObject | None) -> None:
        if resource != self._resource:
            return
        was = before is not None and self._select(before)
        shown = after if after is not None and self._select(after) else None
        if not was and shown is None:
            return
        lag, lost = self._process.calls.watch_trouble(self._resource)
        if lost:
            return
        version, key = self._stage.store.version, _key(after or before or {})
        uid = before["metadata"]["uid"] if before is not None and after is None else ""
        self._stage.agenda.after(lag, lambda: self._deliver(path, key, version, shown, uid))

    def _deliver(self, path: str, key: Key, version: int, raw: JsonObject | None, deleted_uid: str) -> None:
        if self._silent:
            self._stage.agenda.at(self._silent_until, lambda: self._deliver(path, key, version, raw, deleted_uid))
            return
        if deleted_uid:
            self._seen_deleted.add(deleted_uid)
        if not self.synced or version <= max(self._listed_at_version, self._versions.get(path, 0)):
            return
        self._versions[path] = version
        record = parsed(self._parse, raw) if raw is not None else None
        if record is None:
            self._records.pop(key, None)
        else:
            self._records[key] = record
        self._changed()

    def _changed(self) -> None:
        self._snapshot = None
        self._process.wake()


#: Parsed once for all controllers: records are frozen, objects are never changed in place.
_PARSED: dict[int, tuple[JsonObject, object]] = {}
_KEPT = 5000


def parsed(parse: Callable[[Any], T | None], raw: JsonObject) -> T | None:
    """Return the record of an object."""
    known = _PARSED.get(id(raw))
    if known is None or known[0] is not raw:
        if len(_PARSED) >= _KEPT:
            _PARSED.clear()
        known = (raw, parse(raw))
        _PARSED[id(raw)] = known
    return known[1]  # type: ignore[return-value]


def _key(raw: JsonObject) -> Key:
    return raw["metadata"].get("namespace", ""), raw["metadata"]["name"]
