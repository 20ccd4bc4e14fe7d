"""Keep a copy of one kind of objects: list it in pages, then watch it, for as long as the process lives.

Each object is parsed into a narrow record at once and the raw JSON is dropped. The stream's order is the only order
that is used: resource versions are handed back to the server, never compared.

What is promised: a hung connection is noticed and continued from the last resource version. Watches are short, the
read time-out is longer than a watch, and a watch that the server ends at the agreed time counts as contact, because
bookmarks alone do not tell: on a quiet cluster, two minutes were seen between them. `synced` and `fresh` tell the
truth about what `records` is worth; whatever the server sends, the thread lives on.
What is not: that records are current. Whoever deletes something reads it live first.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import structlog

from provisioner.cluster import errors
from provisioner.cluster.backoff import Backoff
from provisioner.cluster.parse import MalformedObject
from provisioner.cluster.protocol import PAGE_SIZE, Api, JsonObject, Stream, Timeouts
from provisioner.cluster.wire import decode_object, error_of_status

_log = structlog.get_logger(__name__)

T = TypeVar("T")
Key = tuple[str, str]

#: A watch that ends sooner, with nothing said, counts as a failure: else a server could make us spin.
SHORT_WATCH_SECONDS = 1.0
#: A watch may end so much before the agreed time and still be one that the server ended itself.
_EARLY_SECONDS = 5.0
#: After so many fruitless watches in a row the list is taken anew. A server whose database was restored from a backup
#: refuses our resource version for ever, and not with 410.
WATCHES_BEFORE_RELIST = 3
#: How often to look for a kind that is not installed, or not permitted (yet).
ABSENT_RETRY_SECONDS = 10.0


#: So many DELETED events are remembered: more than any round could have missed.
_DELETIONS_KEPT = 10_000


class ListWatch(Generic[T]):
    """The records of one collection, kept current by a thread of its own.

    `parse` returns None for objects that are not wanted, and raises MalformedObject for those that can't be read:
    these are logged once and keep the last record that could be read. `on_change` is called from the thread, after
    every change of the records or of `synced`; it must not block.
    """

    def __init__(
        self,
        api: Api,
        *,
        name: str,
        path: str,
        query: Mapping[str, str],
        parse: Callable[[JsonObject], T | None],
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        wait: Callable[[float], object] | None = None,
        page_size: int = PAGE_SIZE,
        watch_seconds: tuple[int, int] = (45, 60),
        connect_timeout_seconds: float = 5.0,
        list_timeout_seconds: float = 30.0,
        read_timeout_seconds: float = 90.0,
        install_hint: str = "",
    ) -> None:
        self.name = name
        if max(watch_seconds) >= read_timeout_seconds:
            raise ValueError(
                f"watch {name}: the read time-out ({read_timeout_seconds} s) must be longer than a watch "
                f"({max(watch_seconds)} s), or healthy watches of quiet objects count as hung"
            )
        self._api = api
        self._path = path
        self._query = dict(query)
        self._parse = parse
        self._on_change = on_change
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads reconnects, guards nothing
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._page_size = page_size
        self._watch_seconds = watch_seconds
        self._list_timeouts = Timeouts(connect_seconds=connect_timeout_seconds, read_seconds=list_timeout_seconds)
        self._watch_timeouts = Timeouts(connect_seconds=connect_timeout_seconds, read_seconds=read_timeout_seconds)
        self._install_hint = install_hint
        self._backoff = Backoff(first_seconds=0.2, cap_seconds=30.0, rng=self._rng)
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)

        self._lock = threading.Lock()
        self._records: dict[Key, T] = {}
        #: The uid of every record, for late DELETED events of a namesake.
        self._uids: dict[Key, str] = {}
        self._malformed: dict[Key, str] = {}
        #: The uids of DELETED events, oldest first; a dict for its order and its look-up.
        self._seen_deleted: dict[str, None] = {}
        self._snapshot: Mapping[Key, T] | None = None
        self._synced = False
        self._last_contact: float | None = None
        self._problem: str | None = None
        self._stream: Stream | None = None

        # Only the thread uses these.
        self._resource_version = ""
        self._fruitless_watches = 0

    # --- for everyone

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; one that hangs in a connect is left to its time-out (it is a daemon)."""
        self._stopping.set()
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def records(self) -> Mapping[Key, T]:
        """Return (namespace, name) -> record; a snapshot that never changes, and the same one while nothing does."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = MappingProxyType(dict(self._records))
            return self._snapshot

    def seen_deleted(self, uid: str) -> bool:
        """Whether a DELETED event told of this object's end; one that is merely missing from a list was not seen."""
        with self._lock:
            return uid in self._seen_deleted

    @property
    def synced(self) -> bool:
        """Whether a full list was read, and the kind exists and may be read as far as the server last said."""
        return self._synced

    @property
    def last_contact_monotonic(self) -> float | None:
        """Return when the server last confirmed the records.

        By a list (its start counts), an event, a bookmark, or a watch that ran its agreed time.
        """
        return self._last_contact

    def fresh(self, *, max_silence_seconds: float) -> bool:
        """Whether it is synced and was confirmed lately; a healthy watch is silent for up to a minute."""
        with self._lock:
            contact = self._last_contact
            return self._synced and contact is not None and self._clock() - contact <= max_silence_seconds

    @property
    def problem(self) -> str | None:
        """Return what is wrong, in words, or None."""
        return self._problem

    # --- the thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            delay_seconds = self.step()
            if delay_seconds > 0 and not self._stopping.is_set():
                self._wait(delay_seconds)

    def step(self) -> float:
        """List or watch once, whichever is due; return the seconds to wait before the next step."""
        listing = not self._resource_version
        try:
            if listing:
                self._list()
                return 0.0
            return self._watch()
        except errors.ClusterError as error:
            return self._failed(error, verb="list" if listing else "watch")
        except Exception as error:  # noqa: BLE001 - a dead watch is a controller that sees nothing
            if self._stopping.is_set():
                return 0.0
            _log.exception("watch.step_failed", watch=self.name)
            self._resource_version = ""
            self._set_problem(f"the {self.name} watch failed: {error!r}; listing anew")
            return self._backoff.next_seconds()

    def _list(self) -> None:
        started = self._clock()
        records: dict[Key, T] = {}
        uids: dict[Key, str] = {}
        seen: set[Key] = set()
        token = ""
        while not self._stopping.is_set():
            page = self._api.list_page(
                self._path,
                self._query,
                limit=self._page_size,
                continue_token=token,
                timeouts=self._list_timeouts,
            )
            for raw in page.items:
                key, uid = _identity(raw)
                seen.add(key)
                record = self._read(key, uid, raw)
                if record is not None:
                    # An equal record that is there already is kept: a relist must not double the memory.
                    before = self._records.get(key)
                    records[key] = before if before == record and before is not None else record
                    uids[key] = uid
            if not page.continue_token:
                break
            if page.continue_token == token:
                raise errors.Malformed(f"list of {self.name}: the server gives the same page again and again")
            token = page.continue_token
        else:
            return
        with self._lock:
            changed = records != self._records or not self._synced
            if changed:
                self._records = records
                self._snapshot = None
            self._uids = uids
            self._malformed = {key: text for key, text in self._malformed.items() if key in seen}
            self._synced = True
            # What the first page shows was current when it was asked for, not when the last page arrived.
            self._last_contact = started
        self._resource_version = page.resource_version
        self._fruitless_watches = 0
        self._set_problem(None)
        _log.debug("watch.listed", watch=self.name, records=len(records), objects=len(seen))
        if changed:
            self._notify()

    def _watch(self) -> float:
        started = self._clock()
        seconds = self._rng.randint(*self._watch_seconds)
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._resource_version,
            "timeoutSeconds": str(seconds),
        }
        heard = False
        with self._api.stream(self._path, query, timeouts=self._watch_timeouts) as stream:
            with self._lock:
                self._stream = stream
            try:
                # stop() may have looked for a stream to close just before there was one.
                for line in () if self._stopping.is_set() else stream:
                    if self._stopping.is_set():
                        break
                    heard = self._event(line) or heard
                    if heard:
                        self._succeeded()
            finally:
                with self._lock:
                    self._stream = None
        if self._stopping.is_set():
            return 0.0
        if not heard and self._clock() - started < SHORT_WATCH_SECONDS:
            return self._fruitless("the API server ends each watch at once")
        self._succeeded()
        if self._clock() - started >= seconds - _EARLY_SECONDS:
            with self._lock:
                self._last_contact = self._clock()
        # A server that says one thing and hangs up, again and again, must not make us spin either.
        return 0.0 if self._clock() - started >= SHORT_WATCH_SECONDS else self._backoff.first_delay_seconds()

    def _event(self, line: bytes) -> bool:
        """Apply one line; whether it proves that the watch works."""
        event = decode_object(f"watch of {self.name}", line)
        kind = event.get("type")
        raw = event.get("object")
        if not isinstance(raw, dict):
            raise errors.Malformed(f"watch of {self.name}: a {kind} event without an object")
        if kind == "ERROR":
            raise error_of_status(raw)
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            _log.warning("watch.event_ignored", watch=self.name, type=str(kind)[:40])
            return False
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
            self._last_contact = self._clock()
        if changed:
            self._notify()
        return True

    def _apply(self, raw: JsonObject) -> bool:
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
        return True

    def _remove(self, raw: JsonObject) -> bool:
        key, uid = _identity(raw)
        with self._lock:
            # A namesake that was made since has another uid, and lives.
            if uid and self._uids.get(key, uid) != uid:
                return False
            self._malformed.pop(key, None)
            self._uids.pop(key, None)
            self._seen_deleted[uid] = None
            if len(self._seen_deleted) > _DELETIONS_KEPT:
                del self._seen_deleted[next(iter(self._seen_deleted))]
            if self._records.pop(key, None) is None:
                return False
            self._snapshot = None
        return True

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
            return record
        if self._malformed.get(key) != reason:
            self._malformed[key] = reason
            _log.warning("watch.object_skipped", watch=self.name, reason=reason)
        return self._records.get(key) if self._uids.get(key) == uid else None

    def _succeeded(self) -> None:
        self._backoff.reset()
        self._fruitless_watches = 0
        self._set_problem(None)

    def _failed(self, error: errors.ClusterError, *, verb: str) -> float:
        if self._stopping.is_set():
            return 0.0
        if isinstance(error, errors.Gone):
            _log.info("watch.expired", watch=self.name, error=str(error))
            self._resource_version = ""
            return self._backoff.next_seconds()
        if isinstance(error, errors.NotFound):
            hint = f"; {self._install_hint}" if self._install_hint else ""
            return self._absent(f"there are no {self.name} (404 on {self._path}){hint}, retrying")
        if isinstance(error, errors.Forbidden):
            resource = self._path.rsplit("/", 1)[-1]
            return self._absent(
                f"RBAC does not allow to {verb} {resource}: grant get, list and watch on {resource} ({error.message}), "
                "retrying"
            )
        problem = f"{verb} of {self.name} failed: {error}"
        if verb == "watch":
            delay = self._fruitless(problem)
        else:
            self._set_problem(problem)
            delay = self._backoff.next_seconds()
        if isinstance(error, errors.TooManyRequests):
            delay = max(delay, min(error.retry_after_seconds, 60.0))
        return delay

    def _absent(self, problem: str) -> float:
        """Note that the kind can't be read at all: what we hold may be untrue from now on."""
        self._resource_version = ""
        self._set_problem(problem)
        with self._lock:
            was_synced, self._synced = self._synced, False
        if was_synced:
            self._notify()
        return min(self._backoff.next_seconds(), ABSENT_RETRY_SECONDS)

    def _fruitless(self, problem: str) -> float:
        self._fruitless_watches += 1
        if self._fruitless_watches >= WATCHES_BEFORE_RELIST:
            self._resource_version = ""
        self._set_problem(problem)
        return self._backoff.next_seconds()

    def _set_problem(self, problem: str | None) -> None:
        if problem == self._problem:
            return
        if problem is None:
            _log.info("watch.recovered", watch=self.name)
        else:
            _log.warning("watch.failed", watch=self.name, problem=problem)
        self._problem = problem

    def _notify(self) -> None:
        try:
            self._on_change()
        except Exception:  # noqa: BLE001 - the listener's bug is not the watch's
            _log.exception("watch.listener_failed", watch=self.name)


def _identity(raw: object) -> tuple[Key, str]:
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    if not isinstance(metadata, dict):
        return ("", ""), ""
    namespace, name, uid = (
        value if isinstance(value, str) else ""
        for value in (metadata.get("namespace"), metadata.get("name"), metadata.get("uid"))
    )
    return (namespace, name), uid
