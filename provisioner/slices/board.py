"""What is served to people: the latest view, timeline and activity as JSON, and what changed between two of them.

The loop publishes each round, which costs next to nothing. A view is built when somebody asks, at most twice a second.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from provisioner.model.snapshot import Snapshot
from provisioner.runtime.clock import wall_clock
from provisioner.settings import Settings, given
from provisioner.slices.journal import Journal
from provisioner.slices.planning.plan import Plan
from provisioner.slices.view import (
    AlertView,
    CapacityView,
    PoolView,
    SliceView,
    View,
    WorkloadView,
    build_view,
)
from provisioner.slices.view.timeline import Timeline, Track
from provisioner.slices.view.types import Entry

#: Views are built so far apart.
_GAP_SECONDS = 0.5
#: So many changes, and so many bytes of them, are kept for clients that are behind; who is further behind gets
#: everything again.
_MOST_CHANGES = 20
_MOST_CHANGE_BYTES = 4 * 2**20
#: A round is made every 15 s at least: without a decision for so long, something is wrong.
_STALLED_SECONDS = 60.0
_LISTS = ("workloads", "slices", "pools", "tracks")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the provisioner is, for the head of the page."""

    release: str
    project: str
    location: str
    cluster: str
    #: This process, as the Lease names it.
    identity: str
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One round."""

    snapshot: Snapshot
    plan: Plan
    settings: Settings
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Everything that is served; `version` counts its changes since the process started."""

    version: int
    #: The time of day at the process when it put this together: what durations are counted up to.
    served_at: datetime
    about: About
    #: This process decides; else another one does, or none.
    leading: bool
    #: The pod that leads, as this process last read the Lease; empty where none is known to.
    leader: str
    #: Why nothing is decided at the moment; empty: it is.
    problems: tuple[str, ...]
    #: It leads, and has decided nothing for a minute: what it shows is from the moment of the view.
    stalled: bool
    #: None before the first decision.
    view: View | None
    tracks: tuple[Track, ...]
    activity: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A view without its lists."""

    at: datetime
    alerts: tuple[AlertView, ...]
    capacity: CapacityView


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Items that are new or different, by their ids."""

    workloads: Mapping[str, WorkloadView]
    slices: Mapping[str, SliceView]
    pools: Mapping[str, PoolView]
    tracks: Mapping[str, Track]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """The ids of items that are there no more."""

    workloads: tuple[str, ...]
    slices: tuple[str, ...]
    pools: tuple[str, ...]
    tracks: tuple[str, ...]
    #: The numbers of entries.
    activity: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What changed from one version to the next."""

    version: int
    served_at: datetime
    leading: bool
    leader: str
    problems: tuple[str, ...]
    stalled: bool
    #: None before the first decision.
    summary: Summary | None
    changed: Changed
    gone: Gone
    #: The new entries.
    activity: tuple[Entry, ...]


@dataclass(slots=True, kw_only=True)
class Board:
    """The loop's thread publishes; any thread may ask."""

    about: About
    #: The variables of the settings that are set, as text.
    environment: Mapping[str, str] = field(default_factory=dict)
    problems: Callable[[], tuple[str, ...]] = tuple
    leader: Callable[[], str] = str
    clock: Callable[[], datetime] = wall_clock
    monotonic: Callable[[], float] = time.monotonic
    journal: Journal = field(default_factory=Journal)
    timeline: Timeline = field(default_factory=Timeline)
    _published: Published | None = None
    _published_monotonic: float = 0.0
    _rounds: int = 0
    _leading: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _built_at: float = float("-inf")
    _built_mark: tuple[int, int] = (-1, -1)
    _document: Document | None = None
    #: The round whose view was built last.
    _viewed: tuple[Published, View] | None = None
    #: The last document that was asked for as JSON.
    _json: tuple[Document, bytes] | None = None
    #: Of each list the items by id.
    _items: dict[str, dict[str, Any]] = field(default_factory=lambda: {name: {} for name in _LISTS})
    _rest: tuple[object, ...] = ()
    _changes: deque[tuple[int, bytes]] = field(default_factory=deque)
    _change_bytes: int = 0

    def publish(self, snapshot: Snapshot, plan: Plan, settings: Settings, now: datetime) -> None:
        """Take over what a round saw and decided."""
        self._leading = True
        self._rounds += 1
        if snapshot.not_synced:
            # What was decided last is shown, and the problems beside it.
            return
        self.timeline.follow(plan.pools, now)
        self._published = Published(snapshot=snapshot, plan=plan, settings=settings, at=now)
        self._published_monotonic = self.monotonic()

    def lead(self) -> None:
        """Take note that this process leads, and cannot decide anything yet."""
        self._leading = True
        self._rounds += 1

    def stand_by(self) -> None:
        """Take note that another process decides."""
        self._leading = False
        self._rounds += 1

    def shift(self, by: timedelta) -> None:
        """Take note that the clock was set."""
        self.timeline.shift(by)

    @property
    def mark(self) -> tuple[int, int]:
        """What differs whenever there may be something new."""
        return self._rounds, self.journal.last

    @property
    def built_mark(self) -> tuple[int, int]:
        """The mark of what was built last."""
        return self._built_mark

    def settings(self) -> dict[str, str]:
        """Return the settings in effect, by variable; empty before the first decision."""
        published = self._published
        return given(self.environment, published.settings) if published is not None else {}

    def document(self) -> Document:
        """Return everything, at most half a second old."""
        with self._lock:
            return self._refreshed()

    def json(self) -> bytes:
        """Return everything as JSON."""
        return self.everything()[1]

    def everything(self) -> tuple[int, bytes]:
        """Return everything as JSON, and its version. It is put together as seldom as a view, however many ask."""
        with self._lock:
            document = self._refreshed()
            if self._json is None or self._json[0] is not document:
                self._json = (document, _ENCODER.encode(document))
            return document.version, self._json[1]

    def changes_since(self, version: int) -> list[tuple[int, bytes]] | None:
        """Return the changes after a version, each with the version that it leads to, as JSON.

        None where they are no longer known: the client has to begin with everything.
        """
        with self._lock:
            now = self._refreshed().version
            known = [change for change in self._changes if change[0] > version]
        return known if len(known) == now - version else None

    def _refreshed(self) -> Document:
        last = self._document
        if last is not None and self.monotonic() - self._built_at < _GAP_SECONDS:
            return last
        self._built_at, self._built_mark = self.monotonic(), self.mark
        document = self._build(last.version if last is not None else 0)
        change = self._compare(document, last)
        if change is not None:
            document = replace(document, version=document.version + 1)
            self._keep(document.version, _ENCODER.encode(replace(change, version=document.version)))
        # Where nothing changed it still tells the moment of the last round, and its own.
        self._document = document
        return document

    def _keep(self, version: int, change: bytes) -> None:
        """Keep a change for the clients that lack it, and no more of the older ones than there is room for."""
        self._changes.append((version, change))
        self._change_bytes += len(change)
        while len(self._changes) > _MOST_CHANGES or self._change_bytes > _MOST_CHANGE_BYTES:
            self._change_bytes -= len(self._changes.popleft()[1])

    def _build(self, version: int) -> Document:
        leading = self._leading
        view = self._view() if leading else None
        return Document(
            version=version,
            served_at=self.clock(),
            about=self.about,
            leading=leading,
            leader=self.leader(),
            problems=self.problems(),
            stalled=view is not None and self.monotonic() - self._published_monotonic >= _STALLED_SECONDS,
            view=view,
            tracks=tuple(sorted(self.timeline.tracks(), key=lambda each: each.segments[0].since)),
            activity=tuple(self.journal.since()),
        )

    def _view(self) -> View | None:
        """Return the view of the last round; it is built once, however often somebody looks until the next."""
        published = self._published
        if published is None:
            return None
        if self._viewed is None or self._viewed[0] is not published:
            view = build_view(published.snapshot, published.plan, published.settings, published.at)
            self._viewed = (published, view)
        return self._viewed[1]

    def _compare(self, document: Document, last: Document | None) -> Change | None:
        """Return what changed since the last document; None where nothing did."""
        view = document.view
        lists: dict[str, dict[str, Any]] = {
            "workloads": {each.id: each for each in view.workloads} if view is not None else {},
            "slices": {each.id: each for each in view.slices} if view is not None else {},
            "pools": {each.name: each for each in view.pools} if view is not None else {},
            "tracks": {each.pool: each for each in document.tracks},
        }
        summary = Summary(at=view.at, alerts=view.alerts, capacity=view.capacity) if view is not None else None
        # The moments of a round and of serving it alone are no change.
        rest = (
            document.leading,
            document.leader,
            document.problems,
            document.stalled,
            (summary.alerts, summary.capacity) if summary is not None else None,
        )
        entries = {each.number for each in document.activity}
        known = {each.number for each in last.activity} if last is not None else set()
        activity = tuple(each for each in document.activity if each.number not in known)
        before, self._items = self._items, lists
        changed = {
            name: {key: item for key, item in items.items() if before[name].get(key) != item}
            for name, items in lists.items()
        }
        gone: dict[str, tuple[Any, ...]] = {
            name: tuple(before[name].keys() - items.keys()) for name, items in lists.items()
        }
        gone["activity"] = tuple(sorted(known - entries))
        same = rest == self._rest and not activity and not any(changed.values()) and not any(gone.values())
        self._rest = rest
        if same:
            return None
        return Change(
            version=0,
            served_at=document.served_at,
            leading=document.leading,
            leader=document.leader,
            problems=document.problems,
            stalled=document.stalled,
            summary=summary,
            changed=Changed(**changed),
            gone=Gone(**gone),
            activity=activity,
        )


_ENCODER = msgspec.json.Encoder()
