"""Keeps the latest decision, timeline and activity; builds the API's documents on request, at most twice per second."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from threading import Lock

import msgspec

from provisioner.runtime.clock import wall_clock
from provisioner.settings import Settings, given
from provisioner.slices.planning.plan import Plan
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.view.build import build_view
from provisioner.slices.view.timeline import Timeline, Track
from provisioner.slices.view.types import Entry, View

#: Minimum interval in seconds between two builds of a document.
_GAP_SECONDS = 0.5
#: Time in seconds since the last decision after which a document is stalled; rounds run at least every 15 s.
_STALLED_SECONDS = 60.0
MAX_JOURNAL_ENTRIES = 500


class Journal:
    """Last decisions and results. Thread-safe. If full, drops the oldest entry of the namespace with most entries."""

    def __init__(self, *, max_entries: int = MAX_JOURNAL_ENTRIES) -> None:
        self._max_entries = max_entries
        self._lock = Lock()
        self._entries: list[Entry] = []
        self._last_number = 0

    def write(
        self, at: datetime, kind: str, message: str, *, warning: bool = False, pool: str = "", workload: str = ""
    ) -> None:
        """Add one entry; `workload` is kind/namespace/name, empty if the entry is not about a workload."""
        with self._lock:
            number = self._last_number = self._last_number + 1
            self._entries.append(
                Entry(number=number, at=at, kind=kind, message=message, warning=warning, pool=pool, workload=workload)
            )
            if len(self._entries) > self._max_entries:
                # If several namespaces have the most entries, `most_common` returns the one with the oldest entry.
                ((largest, _),) = Counter(map(_namespace_of, self._entries)).most_common(1)
                self._entries.remove(next(entry for entry in self._entries if _namespace_of(entry) == largest))

    def entries(self) -> list[Entry]:
        """Return the entries, oldest first."""
        with self._lock:
            return list(self._entries)


def _namespace_of(entry: Entry) -> str:
    return entry.workload.split("/")[1] if entry.workload else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Release, cluster and process, for the head of the status page."""

    release: str
    project: str
    location: str
    cluster: str
    #: Name of the pod; if unknown, host name and process ID.
    identity: str
    started_at: datetime


# The dataclass has no slots, because `cached_property` stores the view in the instance.
@dataclass(frozen=True, kw_only=True)
class Published:
    """Last plan and last snapshot, from which the view is built."""

    snapshot: Snapshot
    plan: Plan
    settings: Settings
    at: datetime
    at_monotonic: float

    @cached_property
    def view(self) -> View:
        """View of the plan."""
        return build_view(self.snapshot, self.plan, self.settings, self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """State from which the API builds its responses."""

    #: Number of changed documents since the process started, ignoring `served_at` and `view.at`.
    version: int
    #: Time of building this document, at most 0.5 s ago.
    served_at: datetime
    about: About
    #: Whether this process makes the decisions; if not, another process does, or none.
    leading: bool
    #: Name of the leading pod according to the last read of the Lease; empty if unknown.
    leader: str
    #: Known reasons, apart from not leading, why no decisions are made at the moment.
    problems: tuple[str, ...]
    #: Whether this leader's last decision is more than a minute old.
    stalled: bool
    #: View of the last decision; None before the first decision, or if `leading` is false.
    view: View | None
    tracks: tuple[Track, ...]
    activity: tuple[Entry, ...]


@dataclass(slots=True, kw_only=True)
class Board:
    """Latest state for the API. Only the loop's thread calls `publish`; any thread may call the other methods."""

    about: About
    environment: Mapping[str, str] = field(default_factory=dict)
    problems: Callable[[], tuple[str, ...]] = tuple
    leader: Callable[[], str] = str
    clock: Callable[[], datetime] = wall_clock
    monotonic: Callable[[], float] = time.monotonic
    journal: Journal = field(default_factory=Journal)
    timeline: Timeline = field(default_factory=Timeline)
    leading: bool = False
    _published: Published | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _built_at: float = float("-inf")
    _document: Document | None = None
    _json: tuple[Document, bytes] | None = None

    def publish(self, snapshot: Snapshot, plan: Plan, settings: Settings, now: datetime) -> None:
        """Publish a round. If the round made no decision, the API shows the last decision and the current slices."""
        self.leading = True
        if snapshot.not_synced:
            if self._published is not None:
                self._published = replace(self._published, snapshot=snapshot)
            return
        self.timeline.follow(plan.pools, now)
        self._published = Published(
            snapshot=snapshot, plan=plan, settings=settings, at=now, at_monotonic=self.monotonic()
        )

    def settings(self) -> dict[str, str]:
        """Return the settings that are set or inferred, by variable; empty before the first decision."""
        published = self._published
        return given(self.environment, published.settings) if published is not None else {}

    def document(self) -> Document:
        """Return the document, at most half a second old."""
        with self._lock:
            return self._refreshed()

    def everything(self) -> tuple[Document, bytes]:
        """Return the document and its JSON, which is encoded once per document for any number of requests."""
        with self._lock:
            document = self._refreshed()
            if self._json is None or self._json[0] is not document:
                self._json = (document, _ENCODER.encode(document))
            return self._json

    def _refreshed(self) -> Document:
        last = self._document
        if last is not None and self.monotonic() - self._built_at < _GAP_SECONDS:
            return last
        self._built_at = self.monotonic()
        document = self._build(last.version if last is not None else 0)
        if last is None or _without_moments(document) != _without_moments(last):
            document = replace(document, version=document.version + 1)
        self._document = document
        return document

    def _build(self, version: int) -> Document:
        leading = self.leading
        published = self._published if leading else None
        return Document(
            version=version,
            served_at=self.clock(),
            about=self.about,
            leading=leading,
            leader=self.leader(),
            problems=self.problems(),
            stalled=published is not None and self.monotonic() - published.at_monotonic >= _STALLED_SECONDS,
            view=published.view if published is not None else None,
            tracks=tuple(sorted(self.timeline.tracks(), key=lambda track: track.segments[0].since)),
            activity=tuple(self.journal.entries()),
        )


def _without_moments(document: Document) -> Document:
    """Return a document with constant times, so that documents that differ only in these times are equal."""
    view = document.view
    constant = document.about.started_at
    return replace(document, served_at=constant, view=replace(view, at=constant) if view is not None else None)


_ENCODER = msgspec.json.Encoder()
