"""What a list-watch knows and asks for next; watches.py feeds it from a thread, the simulation on virtual time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import structlog

from provisioner.kube import errors, fields
from provisioner.kube.fields import MalformedObject
from provisioner.kube.kept import Kept, Key, NamespaceBound
from provisioner.kube.protocol import PAGE_SIZE, JsonObject, Page, collection_path
from provisioner.kube.wire import decode_object, error_of_status

_log = structlog.get_logger(__name__)

T = TypeVar("T")

#: The shortest and the longest watch.
_WATCH_SECONDS = 45, 60
#: A watch that ends sooner, with nothing said, counts as a failure: else a server could make us spin.
SHORT_WATCH_SECONDS = 1.0
#: A watch may end so much before the agreed time and still be one that the server ended itself.
_EARLY_SECONDS = 5.0
#: After so many fruitless watches the list is taken anew: a restored database refuses our version, not with 410.
WATCHES_BEFORE_RELIST = 3
#: After failures.
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 30.0
#: So many ends are remembered: more than any round could have missed.
_DELETIONS_KEPT = 10_000
#: How often to look for a kind that is not installed, or not permitted (yet).
ABSENT_RETRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """What is watched, in one namespace or in all."""

    #: As people call it.
    name: str
    resource: str
    root: str = "/api/v1"
    #: Empty: all.
    namespace: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    #: What to do where the API server does not know it.
    install_hint: str = ""
    #: Whether the API server need not know it.
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How every list-watch goes about it."""

    #: Seconds from whenever.
    clock: Callable[[], float] = time.monotonic
    #: Spreads what many would do at the same moment.
    rng: random.Random = field(default_factory=random.Random)
    page_size: int = PAGE_SIZE


WATCH_DEFAULTS = WatchOptions()


@dataclass(slots=True)
class Listing(Generic[T]):
    """The objects of one list so far."""

    #: When its first page was asked for.
    started: float
    records: dict[Key, T] = field(default_factory=dict)
    uids: dict[Key, str] = field(default_factory=dict)
    #: Every object of the list, also those that are not wanted or can't be read.
    seen: set[Key] = field(default_factory=set)
    kept: Kept[T] | None = None


class Reflector(Generic[T]):
    """The records of one collection, kept current by what it is fed: no JSON is kept.

    `parse` returns None for objects that are not wanted; those of which it raises MalformedObject keep their last
    record. `on_change` is called after every change but `quiet` ones, and must not block. The one that feeds it lists
    or watches, as `begin` says, and hands over each page, each line, the clean end of a watch, and whatever failed;
    `watch_ended` and `failed` return how many seconds to wait.
    """

    def __init__(
        self,
        collection: Collection,
        *,
        parse: Callable[[JsonObject], T | None],
        on_change: Callable[[], None],
        quiet: Callable[[T, T], bool] | None = None,
        options: WatchOptions = WATCH_DEFAULTS,
        bound: NamespaceBound[T] | None = None,
    ) -> None:
        self.name = f"{collection.name} in {collection.namespace}" if collection.namespace else collection.name
        self.path = collection_path(collection.resource, namespace=collection.namespace, root=collection.root)
        self.query, self.page_size = collection.query, options.page_size
        self._collection = collection
        self._parse, self._quiet, self._on_change = parse, quiet, on_change
        self._options = options
        self._bound = bound
        self._kept: Kept[T] | None = None
        self._clock = options.clock
        self._lock = threading.Lock()
        self._records: dict[Key, T] = {}
        #: The uid of every record, for late DELETED events of a namesake.
        self._uids: dict[Key, str] = {}
        self._malformed: dict[Key, str] = {}
        #: The uids of what was seen to end, oldest first; a dict for its order and its look-up.
        self._seen_deleted: dict[str, None] = {}
        self._snapshot: Mapping[Key, T] | None = None

        #: Whether a full list was read, and the kind exists and may be read as far as the server last said.
        self.synced = False
        #: When a list (its start), an event, a bookmark or a watch of full length last confirmed the records.
        self.last_contact_monotonic: float | None = None
        self.problem: str | None = None
        #: Whether the API server said last that it does not know the kind.
        self.missing = False
        #: Time since which no list has succeeded because the API server does not know the kind, None if one has.
        self._missing_since: float | None = None
        self._relist = False

        # Only the one that feeds it uses these.
        self._resource_version = ""
        self._failures = 0
        self._fruitless_watches = 0
        self._listing: Listing[T] | None = None
        self._watch_began, self._watch_seconds = 0.0, 0
        #: Whether anything was said that proves that the watch works.
        self._heard = False

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

    def fresh(self, *, max_silence_seconds: float) -> bool:
        """Whether it is synced and was confirmed lately; a healthy watch is silent for up to a minute."""
        with self._lock:
            contact = self.last_contact_monotonic
            return self.synced and contact is not None and self._clock() - contact <= max_silence_seconds

    def missing_seconds(self) -> float:
        """Return for how long the API server has not known the kind, 0 if it knows the kind."""
        since = self._missing_since
        return self._clock() - since if self.missing and since is not None else 0.0

    def relist(self) -> None:
        """Have the list taken anew when the watch that runs ends, because `parse` would say otherwise by now."""
        self._relist = True

    # --- for the one that feeds it

    def begin(self) -> Mapping[str, str] | None:
        """Begin to list or to watch, whichever is due; return the query of the watch, None for the first page."""
        if self._relist:
            self._relist, self._resource_version = False, ""
        if not self._resource_version:
            kept = Kept(self._bound) if self._bound is not None else None
            self._listing = Listing(self._clock(), kept=kept)
            return None
        self._listing = None
        seconds = self._options.rng.randint(*_WATCH_SECONDS)
        self._watch_began, self._watch_seconds, self._heard = self._clock(), seconds, False
        return {
            **self.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._resource_version,
            "timeoutSeconds": str(seconds),
        }

    def take_page(self, page: Page) -> str:
        """Take the page that was asked for; return the token of the next one, empty after the last."""
        listing = self._listing
        if listing is None:
            raise ValueError(f"list of {self.name}: a page that was not requested")
        for raw in page.items:
            self._add(listing, raw)
        if not page.continue_token:
            self._listed(listing, page.resource_version)
        return page.continue_token

    def _listed(self, listing: Listing[T], version: str) -> None:
        changed = self._replace(listing) or not self.synced
        with self._lock:
            self.synced = True
            # What the first page shows was current when it was asked for, not when the last page arrived.
            self.last_contact_monotonic = listing.started
        self._listing = None
        self._resource_version = version
        self._fruitless_watches = 0
        self.missing, self._missing_since = False, None
        self._set_problem(None)
        _log.debug("watch.listed", watch=self.name, records=len(listing.records), objects=len(listing.seen))
        if changed:
            self._notify()

    def watch_ended(self) -> float:
        """Take note that the server ended the watch cleanly; return the seconds to wait before the next request."""
        lasted = self._clock() - self._watch_began
        if not self._heard and lasted < SHORT_WATCH_SECONDS:
            return self._fruitless("the API server ends each watch at once")
        self._succeeded()
        if lasted >= self._watch_seconds - _EARLY_SECONDS:
            with self._lock:
                self.last_contact_monotonic = self._clock()
        # A server that says one thing and hangs up, again and again, must not make us spin either.
        return 0.0 if lasted >= SHORT_WATCH_SECONDS else self._jittered(_SHORTEST_PAUSE_SECONDS)

    def take_line(self, line: bytes) -> None:
        """Apply one line of a watch."""
        self.take_event(decode_object(f"watch of {self.name}", line))

    def take_event(self, event: JsonObject) -> None:
        """Apply one event of a watch. Raises the ClusterError that an ERROR event stands for, or Malformed."""
        kind = event.get("type")
        raw = event.get("object")
        if not isinstance(raw, dict):
            raise errors.Malformed(f"watch of {self.name}: a {kind} event without an object")
        if kind == "ERROR":
            raise error_of_status(raw)
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            _log.warning("watch.event_ignored", watch=self.name, type=str(kind)[:40])
            return
        metadata = raw.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        changed = False
        if kind == "DELETED":
            changed = self._remove(raw)
        elif kind != "BOOKMARK":
            changed = self._apply(raw)
        if isinstance(version, str) and version:
            self._resource_version = version
        with self._lock:
            self.last_contact_monotonic = self._clock()
        self._heard = True
        self._succeeded()
        if changed:
            self._notify()

    def _succeeded(self) -> None:
        self._failures = 0
        self._fruitless_watches = 0
        self._set_problem(None)

    def failed(self, error: Exception) -> float:
        """Take note of what failed, whatever it is; return the seconds to wait before the next request."""
        verb = "watch" if self._resource_version else "list"
        self._listing = None
        self.missing = isinstance(error, errors.NotFound)
        if self.missing and self._missing_since is None:
            self._missing_since = self._clock()
        if not isinstance(error, errors.ClusterError):
            # A dead watch is a controller that sees nothing.
            _log.error("watch.step_failed", watch=self.name, exc_info=error)
            self._resource_version = ""
            self._set_problem(f"the {self.name} watch failed: {error!r}; listing again")
            return self._next_pause()
        if isinstance(error, errors.Gone):
            _log.info("watch.expired", watch=self.name, error=str(error))
            self._resource_version = ""
            if not self.synced:
                self._set_problem(f"list of {self.name} takes longer than the API server keeps it: {error}")
            return self._next_pause()
        if isinstance(error, errors.NotFound):
            hint = f"; {self._collection.install_hint}" if self._collection.install_hint else ""
            return self._absent(f"there are no {self.name} (404 on {self.path}){hint}, retrying")
        if isinstance(error, errors.Forbidden):
            resource = self._collection.resource
            return self._absent(
                f"RBAC does not allow the provisioner to {verb} {resource}: grant get, list and watch on {resource} "
                f"({error.message}), retrying"
            )
        problem = f"{verb} of {self.name} failed: {error}"
        if verb == "watch":
            delay = self._fruitless(problem)
        else:
            self._set_problem(problem)
            delay = self._next_pause()
        if isinstance(error, errors.TooManyRequests):
            delay = max(delay, min(error.retry_after_seconds, 60.0))
        return delay

    def _absent(self, problem: str) -> float:
        """Note that the kind can't be read at all: what we hold may be untrue from now on."""
        self._resource_version = ""
        self._set_problem(problem)
        with self._lock:
            was_synced, self.synced = self.synced, False
        if was_synced:
            self._notify()
        return min(self._next_pause(), ABSENT_RETRY_SECONDS)

    def _fruitless(self, problem: str) -> float:
        self._fruitless_watches += 1
        if self._fruitless_watches >= WATCHES_BEFORE_RELIST:
            self._resource_version = ""
        self._set_problem(problem)
        return self._next_pause()

    def _next_pause(self) -> float:
        """Count a failure; return how long to wait: longer each time, and jittered, so that clients spread."""
        # The exponent is bounded because 2.0 ** 1024 overflows after a long outage.
        step = min(_LONGEST_PAUSE_SECONDS, _SHORTEST_PAUSE_SECONDS * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return self._jittered(step)

    def _jittered(self, seconds: float) -> float:
        return seconds * self._options.rng.uniform(0.5, 1.0)

    def _set_problem(self, problem: str | None) -> None:
        if problem == self.problem:
            return
        if problem is None:
            _log.info("watch.recovered", watch=self.name)
        else:
            log = _log.info if self.missing and self._collection.optional else _log.warning
            log("watch.failed", watch=self.name, problem=problem)
        self.problem = problem

    def _notify(self) -> None:
        try:
            self._on_change()
        except Exception:  # noqa: BLE001 - the listener's bug is not the watch's
            _log.exception("watch.listener_failed", watch=self.name)

    # --- its records

    def _add(self, listing: Listing[T], raw: object) -> None:
        """Add an object to a list, which counts once it is complete (`_replace`)."""
        key, uid = _identity(raw)
        listing.seen.add(key)
        record = self._read(key, uid, raw)
        if record is not None:
            listing.records[key] = _same_or_new(self._records.get(key), record)
            listing.uids[key] = uid
            for other, reduced in _reduced(listing.kept, key, listing.records).items():
                listing.records[other] = _same_or_new(self._records.get(other), reduced)

    def _replace(self, listing: Listing[T]) -> bool:
        """Go by a complete list from now on; tell whether it changed any record, other than quietly."""
        with self._lock:
            changed = listing.records != self._records
            loud = changed and self._is_loud(listing.records)
            if changed:
                self._records = listing.records
                self._snapshot = None
            self._uids, self._kept = listing.uids, listing.kept
            self._malformed = {key: text for key, text in self._malformed.items() if key in listing.seen}
        return loud

    def _is_loud(self, records: Mapping[Key, T]) -> bool:
        if self._quiet is None or records.keys() != self._records.keys():
            return True
        return any(
            record is not self._records[key] and not self._quiet(self._records[key], record)
            for key, record in records.items()
        )

    def _apply(self, raw: JsonObject) -> bool:
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
                self._drop(key)
            else:
                self._records[key] = record
                reduced = _reduced(self._kept, key, self._records) if record is not before else {}
                self._records.update(reduced)
                record = self._records[key]
                if before == record and reduced.keys() <= {key}:
                    return False
                self._relist_if_room(key[0])
            self._snapshot = None
        return record is None or before is None or self._quiet is None or not self._quiet(before, record)

    def _remove(self, raw: JsonObject) -> bool:
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
            self._drop(key)
            self._snapshot = None
        return True

    def _drop(self, key: Key) -> None:
        if self._kept is not None:
            self._kept.drop(key)
            self._relist_if_room(key[0])

    def _relist_if_room(self, namespace: str) -> None:
        """Have the list taken again if it can show more of a namespace's records in full: no JSON is kept."""
        self._relist = self._relist or (self._kept is not None and self._kept.has_room(namespace))

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


def _reduced(kept: Kept[T] | None, key: Key, records: Mapping[Key, T]) -> dict[Key, T]:
    """Count a new record; return the records, perhaps this one, that are beyond the bound of its namespace, reduced."""
    if kept is None:
        return {}
    bound = kept.bound
    return {each: bound.reduce(records[each], bound.problem) for each in kept.add(key, records[key])}


def _identity(raw: object) -> tuple[Key, str]:
    metadata = fields.mapping(fields.mapping(raw).get("metadata"))
    namespace, name, uid = (fields.text(metadata.get(key)) for key in ("namespace", "name", "uid"))
    return (namespace, name), uid
