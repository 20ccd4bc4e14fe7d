"""The narrow records of one collection of objects: raw objects go in, records come out, and no JSON is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import structlog

from provisioner.kube import fields
from provisioner.kube.fields import MalformedObject
from provisioner.kube.protocol import JsonObject

_log = structlog.get_logger(__name__)

T = TypeVar("T")
Key = tuple[str, str]

#: So many ends are remembered: more than any round could have missed.
_DELETIONS_KEPT = 10_000


@dataclass(slots=True)
class Listing(Generic[T]):
    """The objects of one list so far."""

    #: When its first page was asked for.
    started: float
    #: Of the page that is asked for now.
    continue_token: str = ""
    records: dict[Key, T] = field(default_factory=dict)
    #: The uid of every record.
    uids: dict[Key, str] = field(default_factory=dict)
    #: Every object of the list, also those that are not wanted or can't be read.
    seen: set[Key] = field(default_factory=set)


class Store(Generic[T]):
    """What is known of one collection. One thread writes, any thread may read.

    `parse` returns None for objects that are not wanted, and raises MalformedObject for those that can't be read:
    these are logged once, under `name`, and keep the last record that could be read. A change from one record to
    another is not told where `quiet` says that it is nothing to act on.
    """

    def __init__(
        self, name: str, parse: Callable[[JsonObject], T | None], *, quiet: Callable[[T, T], bool] | None = None
    ) -> None:
        self.name = name
        self._parse = parse
        self._quiet = quiet
        self._lock = threading.Lock()
        self._records: dict[Key, T] = {}
        #: The uid of every record, for late DELETED events of a namesake.
        self._uids: dict[Key, str] = {}
        self._malformed: dict[Key, str] = {}
        #: The uids of what was seen to end, oldest first; a dict for its order and its look-up.
        self._seen_deleted: dict[str, None] = {}
        self._snapshot: Mapping[Key, T] | None = None

    # --- for everyone

    def records(self) -> Mapping[Key, T]:
        """Return (namespace, name) -> record; a snapshot that never changes, and the same one while nothing does."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = MappingProxyType(dict(self._records))
            return self._snapshot

    def seen_deleted(self, uid: str) -> bool:
        """Whether an object was seen to be deleted or wanted no more, and is not merely missing from a list."""
        with self._lock:
            return uid in self._seen_deleted

    # --- for the one that writes

    def take(self, listing: Listing[T], raw: object) -> None:
        """Add an object to a list, which counts once it is complete (`replace`)."""
        key, uid = _identity(raw)
        listing.seen.add(key)
        record = self._read(key, uid, raw)
        if record is not None:
            listing.records[key] = _same_or_new(self._records.get(key), record)
            listing.uids[key] = uid

    def replace(self, listing: Listing[T]) -> bool:
        """Go by a complete list from now on; tell whether it changed any record, other than quietly."""
        with self._lock:
            changed = listing.records != self._records
            loud = changed and self._is_loud(listing.records)
            if changed:
                self._records = listing.records
                self._snapshot = None
            self._uids = listing.uids
            self._malformed = {key: text for key, text in self._malformed.items() if key in listing.seen}
        return loud

    def _is_loud(self, records: Mapping[Key, T]) -> bool:
        if self._quiet is None or records.keys() != self._records.keys():
            return True
        return any(
            record is not self._records[key] and not self._quiet(self._records[key], record)
            for key, record in records.items()
        )

    def apply(self, raw: JsonObject) -> bool:
        """Take an object that was added or modified; tell whether that changed its record, other than quietly."""
        key, uid = _identity(raw)
        record = self._read(key, uid, raw)
        with self._lock:
            before = self._records.get(key)
            self._uids[key] = uid
            if record is None:
                self._uids.pop(key)
                if before is None:
                    return False
                del self._records[key]
            else:
                if before == record:
                    return False
                self._records[key] = record
            self._snapshot = None
        return record is None or before is None or self._quiet is None or not self._quiet(before, record)

    def remove(self, raw: JsonObject) -> bool:
        """Take note that an object was deleted; tell whether it had a record."""
        key, uid = _identity(raw)
        with self._lock:
            # A namesake that was made since has another uid, and lives.
            if uid and self._uids.get(key, uid) != uid:
                return False
            malformed = self._malformed.pop(key, None) is not None
            self._uids.pop(key, None)
            # Of what is not wanted there may be so much that the others would be forgotten for it.
            if malformed or key in self._records:
                self._note_end(uid)
            if self._records.pop(key, None) is None:
                return False
            self._snapshot = None
        return True

    def _note_end(self, uid: str) -> None:
        self._seen_deleted[uid] = None
        if len(self._seen_deleted) > _DELETIONS_KEPT:
            del self._seen_deleted[next(iter(self._seen_deleted))]

    def _read(self, key: Key, uid: str, raw: Any) -> T | None:
        """Parse one object; what can't be read keeps its last good record, and costs no other object its turn."""
        try:
            record = self._parse(raw)
        except MalformedObject as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - one object must not cost the others their turn
            reason = f"{self.name} {'/'.join(key)}: {error!r}"
        else:
            self._malformed.pop(key, None)
            if record is None and self._uids.get(key) == uid:
                # Nobody wonders where it is.
                with self._lock:
                    self._note_end(uid)
            return record
        if self._malformed.get(key) != reason:
            self._malformed[key] = reason
            _log.warning("watch.object_skipped", watch=self.name, reason=reason)
        return self._records.get(key) if self._uids.get(key) == uid else None


def _same_or_new(before: T | None, record: T) -> T:
    """Keep an equal record that is there already: a relist must not double the memory."""
    return before if before is not None and before == record else record


def _identity(raw: object) -> tuple[Key, str]:
    metadata = fields.mapping(fields.mapping(raw).get("metadata"))
    namespace, name, uid = (fields.text(metadata.get(key)) for key in ("namespace", "name", "uid"))
    return (namespace, name), uid
