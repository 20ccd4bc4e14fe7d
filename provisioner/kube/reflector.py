"""State of a list-watch: its records and its next request. `ListWatch` or a simulation sends the requests."""

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

_WATCH_SECONDS = 45, 60
#: A watch without events that ends within this number of seconds counts as failed, which prevents a busy loop.
SHORT_WATCH_SECONDS = 1.0
#: Seconds by which a watch may end before the requested duration and still count as a watch of full length.
_EARLY_SECONDS = 5.0
#: Number of failed watches in a row before a new list. After a restore of etcd, watches fail, but not with status 410.
WATCHES_BEFORE_RELIST = 3
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 30.0
#: Maximum number of UIDs that `seen_deleted` knows: usually more than are deleted between two decisions.
_DELETIONS_KEPT = 10_000
#: Maximum pause in seconds between two lists of a kind that is not installed or is forbidden.
ABSENT_RETRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """Objects of one kind that are watched: in one namespace, or in all namespaces if `namespace` is empty."""

    name: str
    resource: str
    root: str = "/api/v1"
    namespace: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    #: Advice to users if the API server does not know the kind; may be empty.
    install_hint: str = ""
    #: Whether the kind may be missing without a warning.
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """Options of all list-watches of a process."""

    clock: Callable[[], float] = time.monotonic
    #: Randomizes pauses and durations, so that clients do not send requests at the same time.
    rng: random.Random = field(default_factory=random.Random)
    page_size: int = PAGE_SIZE


WATCH_DEFAULTS = WatchOptions()


@dataclass(slots=True)
class Listing(Generic[T]):
    """The part of a list that has been read so far."""

    started: float
    records: dict[Key, T] = field(default_factory=dict)
    uids: dict[Key, str] = field(default_factory=dict)
    #: Keys of all objects in the pages that were read, including unwanted and unreadable objects.
    seen: set[Key] = field(default_factory=set)
    kept: Kept[T] | None = None


class Reflector(Generic[T]):
    """Records of the objects of one collection, updated by lists and watches. The objects' JSON is not kept.

    `parse` returns the record of an object, None if it is unwanted. If `parse` raises, the object keeps its last
    record. `on_change` must not block; it is called after a change, unless `quiet(before, after)` returns True. One
    thread, the feeder, calls `begin`, sends the request, and reports the pages, lines, end or error of the response.
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
        #: UID of each record's object. A late DELETED event for an older object of the same name has another UID.
        self._uids: dict[Key, str] = {}
        self._malformed: dict[Key, str] = {}
        #: UIDs of objects that were deleted or became unwanted, oldest first. A dict, because a set has no order.
        self._seen_deleted: dict[str, None] = {}
        self._snapshot: Mapping[Key, T] | None = None

        #: Whether a complete list was read, and neither `invalidate` nor a response 403 or 404 came since its start.
        self.synced = False
        #: Time of the last event, bookmark, start of a complete list, or end of a watch of full length. None at first.
        self.last_contact_monotonic: float | None = None
        self.problem: str | None = None
        #: Time since which each request failed with 404, because the kind is unknown. None if the last request did not.
        self._missing_since: float | None = None
        self._relist = False
        #: Whether `invalidate` was called after the last list began.
        self._invalid = False

        # The fields below are used only by the feeder.
        self._resource_version = ""
        self._failures = 0
        self._fruitless_watches = 0
        self._listing: Listing[T] | None = None
        self._watch_began, self._watch_seconds = 0.0, 0
        #: Whether the current watch has received an event.
        self._heard = False

    # --- methods for any thread

    def records(self) -> Mapping[Key, T]:
        """Return the records by (namespace, name) as an immutable snapshot: the same object until a record changes."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = MappingProxyType(dict(self._records))
            return self._snapshot

    def seen_deleted(self, uid: str) -> bool:
        """Whether an object was reported as deleted, or became unwanted. Absence from a list is not enough."""
        with self._lock:
            return uid in self._seen_deleted

    def fresh(self, *, max_silence_seconds: float) -> bool:
        """Whether the records are synced, and the last contact was at most `max_silence_seconds` ago."""
        with self._lock:
            contact = self.last_contact_monotonic
            return self.synced and contact is not None and self._clock() - contact <= max_silence_seconds

    @property
    def missing(self) -> bool:
        """Whether the last request failed with 404, because the API server does not know the kind."""
        return self._missing_since is not None

    def missing_seconds(self) -> float:
        """Return the seconds for which `missing` has been true; 0 if it is false."""
        since = self._missing_since
        return self._clock() - since if since is not None else 0.0

    def relist(self) -> None:
        """Request a list after the current request, because `parse` may have rejected objects that it now accepts."""
        self._relist = True

    def invalidate(self) -> None:
        """Request a new list, because `parse` has changed. Until the list is complete, `synced` is false."""
        with self._lock:
            self._invalid, self.synced = True, False

    # --- methods for the feeder

    def begin(self) -> Mapping[str, str] | None:
        """Begin the next request; return the query of a watch, or None if the first page of a list must be read."""
        if self._relist or self._invalid:
            self._relist, self._invalid, self._resource_version = False, False, ""
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
        """Process a page; return the token of the next page, empty after the last page."""
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
            # If `invalidate` was called during this list, the first pages may have been parsed before `parse` changed.
            self.synced = not self._invalid
            # The list shows the objects at the request of its first page, not at the arrival of its last page.
            self.last_contact_monotonic = listing.started
        self._listing = None
        self._resource_version = version
        self._fruitless_watches = 0
        self._missing_since = None
        self._set_problem(None)
        _log.debug("watch.listed", watch=self.name, records=len(listing.records), objects=len(listing.seen))
        if changed:
            self._notify()

    def watch_ended(self) -> float:
        """Record that the watch ended without an error; return the seconds to wait before the next request."""
        lasted = self._clock() - self._watch_began
        if not self._heard and lasted < SHORT_WATCH_SECONDS:
            return self._fruitless("the API server ends each watch at once")
        self._succeeded()
        # The end of a watch of full length is a contact, because a watch in a quiet cluster may receive no bookmark.
        if lasted >= self._watch_seconds - _EARLY_SECONDS:
            with self._lock:
                self.last_contact_monotonic = self._clock()
        # The pause prevents a busy loop if a server closes each watch after one event.
        return 0.0 if lasted >= SHORT_WATCH_SECONDS else self._jittered(_MIN_PAUSE_SECONDS)

    def take_line(self, line: bytes) -> None:
        """Apply one line of a watch."""
        self.take_event(decode_object(f"watch of {self.name}", line))

    def take_event(self, event: JsonObject) -> None:
        """Apply one event of a watch. Raises Malformed, or the ClusterError that an ERROR event contains."""
        kind = event.get("type")
        raw = event.get("object")
        if not isinstance(raw, dict):
            raise errors.Malformed(f"watch of {self.name}: a {kind} event without an object")
        if kind == "ERROR":
            raise error_of_status(raw)
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            _log.warning("watch.event_ignored", watch=self.name, type=str(kind)[:40])
            return
        changed = False
        if kind == "DELETED":
            changed = self._remove(raw)
        elif kind != "BOOKMARK":
            changed = self._apply(raw)
        if version := fields.text(fields.at(raw, "metadata").get("resourceVersion")):
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
        """Record an error of any type; return the seconds to wait before the next request."""
        verb = "watch" if self._resource_version else "list"
        self._listing = None
        if not isinstance(error, errors.NotFound):
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = self._clock()
        if not isinstance(error, errors.ClusterError):
            # After a bug or another unexpected error, list again, because the records may lack a change.
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
        """Record that the kind is missing or forbidden, so records may be outdated; return the seconds to wait."""
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
        """Count a failure; return a random wait in seconds. Each failure in a row doubles the maximum, up to 30 s."""
        # The exponent is bounded, because 2.0 ** 1024 would overflow after a long outage.
        step = min(_MAX_PAUSE_SECONDS, _MIN_PAUSE_SECONDS * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return self._jittered(step)

    def _jittered(self, seconds: float) -> float:
        return seconds * self._options.rng.uniform(0.5, 1.0)

    def _set_problem(self, problem: str | None) -> None:
        if problem == self.problem:
            return
        if problem is None:
            _log.info("watch.recovered", watch=self.name)
        elif self.missing and self._collection.optional:
            # This is no warning, because most clusters have only some of the optional kinds.
            _log.info("watch.not_installed", watch=self.name, problem=self._collection.install_hint or problem)
        else:
            _log.warning("watch.failed", watch=self.name, problem=problem)
        self.problem = problem

    def _notify(self) -> None:
        try:
            self._on_change()
        except Exception:  # noqa: BLE001 - a listener's error must not end the watch
            _log.exception("watch.listener_failed", watch=self.name)

    def _add(self, listing: Listing[T], raw: object) -> None:
        key, uid = _identity(raw)
        listing.seen.add(key)
        record = self._read(key, uid, raw)
        if record is not None:
            listing.records[key] = _same_or_new(self._records.get(key), record)
            listing.uids[key] = uid
            self._keep_bound(listing.kept, key, raw, listing.records, listing.uids)

    def _keep_bound(
        self, kept: Kept[T] | None, key: Key, raw: object, records: dict[Key, T], uids: dict[Key, str]
    ) -> set[Key]:
        """Count an object's record in `kept`. Reduce or remove the records beyond the bound, and return their keys."""
        if kept is None:
            return set()
        created_at = fields.created_at(raw) or fields.UNKNOWN_TIME
        exceeding = kept.add(key, records[key], created_at.timestamp())
        for exceeding_key, keep in exceeding.items():
            if keep:
                reduced = kept.bound.reduce(records[exceeding_key], kept.bound.problem)
                records[exceeding_key] = _same_or_new(self._records.get(exceeding_key), reduced)
            else:
                del records[exceeding_key]
                uids.pop(exceeding_key, None)
        return set(exceeding)

    def _replace(self, listing: Listing[T]) -> bool:
        """Replace all records by a complete list; return whether `on_change` must be called for the changes."""
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
        """Process an added or modified object; return whether `on_change` must be called."""
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
                changed = (
                    self._keep_bound(self._kept, key, raw, self._records, self._uids) if record is not before else set()
                )
                record = self._records.get(key)
                if before == record and changed <= {key}:
                    return False
                self._relist_if_room(key[0])
            self._snapshot = None
        return record is None or before is None or self._quiet is None or not self._quiet(before, record)

    def _remove(self, raw: JsonObject) -> bool:
        key, uid = _identity(raw)
        with self._lock:
            # With another UID, the record belongs to a newer object of the same name, which still exists.
            if uid and self._uids.get(key, uid) != uid:
                return False
            malformed = self._malformed.pop(key, None) is not None
            self._uids.pop(key, None)
            # UIDs of unwanted objects, which have no record, are not kept: they could displace all other UIDs.
            if malformed or key in self._records:
                self._record_end(uid)
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
        """Request a new list if a namespace has room for more full records. A watch does not send unchanged objects."""
        self._relist = self._relist or (self._kept is not None and self._kept.has_room(namespace))

    def _record_end(self, uid: str) -> None:
        self._seen_deleted[uid] = None
        if len(self._seen_deleted) > _DELETIONS_KEPT:
            del self._seen_deleted[next(iter(self._seen_deleted))]

    def _read(self, key: Key, uid: str, raw: Any) -> T | None:
        """Return an object's record. If the object cannot be read, log each new reason, and return its last record."""
        try:
            record = self._parse(raw)
        except MalformedObject as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - one object must not prevent the others from being read
            reason = f"{self.name} {'/'.join(key)}: {error!r}"
        else:
            self._malformed.pop(key, None)
            if record is None and self._uids.get(key) == uid:
                # The object became unwanted, so `seen_deleted` must return True for it.
                with self._lock:
                    self._record_end(uid)
            return record
        if self._malformed.get(key) != reason:
            self._malformed[key] = reason
            _log.warning("watch.object_skipped", watch=self.name, reason=reason)
        return self._records.get(key) if self._uids.get(key) == uid else None


def _same_or_new(before: T | None, record: T) -> T:
    """Return `before` if `record` is equal to it, so that a new list does not double the memory."""
    return before if before is not None and before == record else record


def _identity(raw: object) -> tuple[Key, str]:
    metadata = fields.at(raw, "metadata")
    namespace, name, uid = (fields.text(metadata.get(key)) for key in ("namespace", "name", "uid"))
    return (namespace, name), uid
