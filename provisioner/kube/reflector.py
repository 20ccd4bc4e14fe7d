"""What a list-watch knows and what it asks for next: pages, lines and failures go in, requests and records come out.

Whoever exchanges with a server feeds it: watches.py from a thread, the simulation on virtual time. Any thread may
read. Resource versions are handed back to the server, never compared.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from provisioner.kube import errors
from provisioner.kube.protocol import PAGE_SIZE, JsonObject, Page, collection_path
from provisioner.kube.store import Listing, Store
from provisioner.kube.wire import decode_object, error_of_status

_log = structlog.get_logger(__name__)

T = TypeVar("T")

#: A watch that ends sooner, with nothing said, counts as a failure: else a server could make us spin.
SHORT_WATCH_SECONDS = 1.0
#: A watch may end so much before the agreed time and still be one that the server ended itself.
_EARLY_SECONDS = 5.0
#: After so many fruitless watches in a row the list is taken anew. A server whose database was restored from a backup
#: refuses our resource version for ever, and not with 410.
WATCHES_BEFORE_RELIST = 3
#: After failures.
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 30.0
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

    @property
    def full_name(self) -> str:
        """Its name with its namespace."""
        return f"{self.name} in {self.namespace}" if self.namespace else self.name

    @property
    def path(self) -> str:
        """Its address."""
        return collection_path(self.resource, namespace=self.namespace, root=self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How every list-watch goes about it."""

    #: Seconds from whenever.
    clock: Callable[[], float] = time.monotonic
    #: Spreads what many would do at the same moment.
    rng: random.Random = field(default_factory=random.Random)
    page_size: int = PAGE_SIZE
    #: The shortest and the longest watch.
    watch_seconds: tuple[int, int] = (45, 60)
    #: A stream that says nothing for so long counts as hung: longer than a watch, which may be quiet to its end.
    read_timeout_seconds: float = 90.0


WATCH_DEFAULTS = WatchOptions()


class Reflector(Store[T]):
    """The records of one collection, kept current by what it is fed.

    For `parse` and `quiet` see `Store`, which it extends. `on_change` is called by whoever feeds it, after every change
    of the records that is told, and of `synced`; it must not block.

    The one that feeds it lists or watches, as `begin` says, and hands over what comes of it: each page to `take_page`,
    each line to `take_line`, the clean end of a watch to `watch_ended`, and whatever failed, these methods included, to
    `failed`. The last two return how many seconds to wait before the next request.
    """

    def __init__(
        self,
        collection: Collection,
        *,
        parse: Callable[[JsonObject], T | None],
        on_change: Callable[[], None],
        quiet: Callable[[T, T], bool] | None = None,
        options: WatchOptions = WATCH_DEFAULTS,
    ) -> None:
        super().__init__(collection.full_name, parse, quiet=quiet)
        self.path = collection.path
        self.query, self.page_size = collection.query, options.page_size
        self._collection = collection
        self._on_change = on_change
        self._options = options
        self._clock = options.clock

        #: Whether a full list was read, and the kind exists and may be read as far as the server last said.
        self.synced = False
        #: When a list (its start), an event, a bookmark or a watch of full length last confirmed the records.
        self.last_contact_monotonic: float | None = None
        #: What is wrong, in words, or None.
        self.problem: str | None = None
        #: Whether the API server said last that it does not know the kind.
        self.missing = False
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

    def fresh(self, *, max_silence_seconds: float) -> bool:
        """Whether it is synced and was confirmed lately; a healthy watch is silent for up to a minute."""
        with self._lock:
            contact = self.last_contact_monotonic
            return self.synced and contact is not None and self._clock() - contact <= max_silence_seconds

    def relist(self) -> None:
        """Have the list taken anew when the watch that runs ends, because `parse` would say otherwise by now."""
        self._relist = True

    # --- for the one that feeds it

    def begin(self) -> Mapping[str, str] | None:
        """Begin to list or to watch, whichever is due; return the query of the watch, None for the first page."""
        if self._relist:
            self._relist, self._resource_version = False, ""
        if not self._resource_version:
            self._listing = Listing(self._clock())
            return None
        self._listing = None
        seconds = self._options.rng.randint(*self._options.watch_seconds)
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
            self.take(listing, raw)
        if not page.continue_token:
            self._listed(listing, page.resource_version)
            return ""
        if page.continue_token == listing.continue_token:
            raise errors.Malformed(f"list of {self.name}: the server returns the same page repeatedly")
        listing.continue_token = page.continue_token
        return page.continue_token

    def _listed(self, listing: Listing[T], version: str) -> None:
        changed = self.replace(listing) or not self.synced
        with self._lock:
            self.synced = True
            # What the first page shows was current when it was asked for, not when the last page arrived.
            self.last_contact_monotonic = listing.started
        self._listing = None
        self._resource_version = version
        self._fruitless_watches = 0
        self.missing = False
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
            changed = self.remove(raw)
        elif kind != "BOOKMARK":
            changed = self.apply(raw)
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
