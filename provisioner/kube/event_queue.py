"""Which Event is written next. Repeats become one series; no namespace and no object keeps another one waiting.

No threads and no I/O: `events` has both, and a lock around this. Every step costs the same however much waits.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from provisioner.model.workloads import ObjectRef

EventKind = Literal["Normal", "Warning"]

#: Repeats within it belong to the same series.
WINDOW_SECONDS = 600.0
#: A repeat is written at most this often: users asked for the scheduler's own measure.
REPEAT_WRITE_SECONDS = 300.0
#: Per object: so many different Events at once, then one every five minutes (the measure of client-go).
BURST = 25.0
REFILL_PER_SECOND = 1 / 300
#: All writes together: so many at once, then so many a second, whoever floods.
WRITE_BURST = 100.0
WRITES_PER_SECOND = 20.0
#: Series that are known at once; some 400 bytes each.
CAPACITY = 32768
#: A namespace whose Events cannot be written for now is left alone for 1, 2, 4, ... seconds, and no longer than this.
LONGEST_PAUSE_SECONDS = 30.0
#: So often an Event is tried: for eight minutes while the API server is away.
_TRIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to an object."""

    ref: ObjectRef
    kind: EventKind
    reason: str
    message: str
    #: What stays the same when only the message changes; empty: the message.
    key: str
    moment: datetime
    #: The same moment on a clock that nobody sets.
    seen_at: float

    @property
    def owner(self) -> str:
        """The object, by what tells it from its namesakes."""
        return self.ref.uid or f"{self.ref.kind}/{self.ref.namespace}/{self.ref.name}"

    def digest(self) -> bytes:
        """Return what its repeats have in common, in 16 bytes."""
        parts = (self.owner, self.kind, self.reason, self.key or self.message)
        return hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=16).digest()


@dataclass(slots=True, eq=False)
class Series:
    """One Event and its repeats."""

    digest: bytes
    owner: str
    namespace: str
    #: How often it was seen.
    count: int
    seen_at: float
    #: When it last had a reason to be written.
    due_at: float
    #: Of the Event in the cluster; empty where none was written.
    name: str = ""
    #: The newest of what waits to be written; None: nothing waits.
    waiting: Event | None = None
    tries: int = 0
    forgotten: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """One Event to write, and how often it was seen by now."""

    series: Series
    event: Event
    count: int


@dataclass(slots=True)
class _Object:
    tokens: float
    filled_at: float
    series: int = 0

    def refill(self, now: float) -> None:
        self.tokens = min(BURST, self.tokens + max(now - self.filled_at, 0.0) * REFILL_PER_SECOND)
        self.filled_at = now


@dataclass(slots=True)
class _Namespace:
    #: Longest not seen first.
    series: OrderedDict[bytes, Series] = field(default_factory=OrderedDict)
    objects: dict[str, _Object] = field(default_factory=dict)
    #: What waits to be written, by object; whose turn it is first.
    waiting: OrderedDict[str, deque[Series]] = field(default_factory=OrderedDict)
    pause_seconds: float = 0.0
    paused_until: float = float("-inf")


class EventQueue:
    """Takes Events, and hands out what to write: by namespace in turn, within each by object in turn."""

    def __init__(self, *, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._namespaces: dict[str, _Namespace] = {}
        #: Namespaces in which something waits, whose turn it is first.
        self._turns: OrderedDict[str, None] = OrderedDict()
        self._known = 0
        self._tokens = WRITE_BURST
        self._filled_at: float | None = None
        #: What was dropped since it was last asked for, by namespace and why.
        self._drops: Counter[tuple[str, str]] = Counter()
        #: Since the start.
        self.dropped_total = 0

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._turns

    def offer(self, event: Event) -> None:
        """Take an Event, count it as a repeat, or drop it."""
        space = self._namespaces.setdefault(event.ref.namespace, _Namespace())
        digest = event.digest()
        series = space.series.get(digest)
        if series is not None and series.waiting is None and event.seen_at - series.seen_at > WINDOW_SECONDS:
            self._forget(space, series)
            series = None
        if series is None:
            self._begin(space, event, digest)
            return
        series.count += 1
        series.seen_at = event.seen_at
        space.series.move_to_end(digest)
        if series.waiting is not None:
            series.waiting = event
        elif event.seen_at - series.due_at >= REPEAT_WRITE_SECONDS:
            self._enqueue(space, series, event)

    def take(self, now: float) -> Write | None:
        """Return what to write next; None where nothing may be written yet."""
        self._refill(now)
        if self._tokens < 1:
            return None
        for _ in range(len(self._turns)):
            name, _none = self._turns.popitem(last=False)
            space = self._namespaces[name]
            write = None if space.paused_until > now else _next_of(space)
            if space.waiting:
                self._turns[name] = None
            if write is not None:
                self._tokens -= 1
                return write
        return None

    def seconds_to_next(self, now: float) -> float | None:
        """Return when `take` will have something; None where nothing waits."""
        if not self._turns:
            return None
        pauses = min(self._namespaces[name].paused_until for name in self._turns) - now
        return max(pauses, (1 - self._tokens) / WRITES_PER_SECOND, 0.0)

    def written(self, write: Write, name: str) -> None:
        """Take note that it is in the cluster, under this name."""
        write.series.name = name
        write.series.tries = 0
        space = self._namespaces.get(write.series.namespace)
        if space is not None:
            space.pause_seconds = 0.0

    def failed_for_now(self, write: Write, now: float) -> bool:
        """Put it back, and leave its namespace alone for a while; return False where it was tried often enough."""
        series = write.series
        space = self._namespaces.get(series.namespace)
        series.tries += 1
        if space is None or series.forgotten:
            return False
        space.pause_seconds = min(max(1.0, 2 * space.pause_seconds), LONGEST_PAUSE_SECONDS)
        space.paused_until = now + space.pause_seconds
        if series.tries >= _TRIES:
            self.forget(write)
            return False
        if series.waiting is None:
            self._enqueue(space, series, write.event)
        return True

    def forget(self, write: Write) -> None:
        """Forget a series, so that the next one like it is written at once."""
        space = self._namespaces.get(write.series.namespace)
        if space is not None:
            self._forget(space, write.series)

    def drop(self, namespace: str, why: str) -> None:
        """Count an Event that will not be written."""
        self._drops[namespace, why] += 1
        self.dropped_total += 1

    def take_drops(self) -> Counter[tuple[str, str]]:
        """Return what was dropped since the last call, by namespace and why."""
        drops, self._drops = self._drops, Counter()
        return drops

    def tidy(self, now: float) -> None:
        """Forget series that have ended, and objects that nothing was said of for long."""
        for name, space in list(self._namespaces.items()):
            ended = [
                series
                for series in space.series.values()
                if series.waiting is None and now - series.seen_at > WINDOW_SECONDS
            ]
            for series in ended:
                self._forget(space, series)
            for owner, thing in list(space.objects.items()):
                thing.refill(now)
                if not thing.series and thing.tokens >= BURST:
                    del space.objects[owner]
            if not space.series and not space.objects and space.paused_until <= now:
                self._turns.pop(name, None)
                del self._namespaces[name]

    def _begin(self, space: _Namespace, event: Event, digest: bytes) -> None:
        thing = space.objects.setdefault(event.owner, _Object(BURST, event.seen_at))
        thing.refill(event.seen_at)
        if thing.tokens < 1:
            self.drop(event.ref.namespace, "too many for one object")
            return
        if self._known >= self._capacity and not self._make_room(space):
            self.drop(event.ref.namespace, "too many for one namespace")
            return
        thing.tokens -= 1
        thing.series += 1
        self._known += 1
        series = Series(digest, event.owner, event.ref.namespace, 1, event.seen_at, event.seen_at)
        space.series[digest] = series
        self._enqueue(space, series, event)

    def _enqueue(self, space: _Namespace, series: Series, event: Event) -> None:
        series.waiting = event
        series.due_at = event.seen_at
        space.waiting.setdefault(series.owner, deque()).append(series)
        self._turns.setdefault(series.namespace)

    def _make_room(self, space: _Namespace) -> bool:
        """Forget a series of the namespace that has the most, unless it is this one."""
        largest = max(self._namespaces.values(), key=lambda each: len(each.series))
        if len(largest.series) <= len(space.series) + 1:
            return False
        series = next(iter(largest.series.values()))
        if series.waiting is not None:
            self.drop(series.namespace, "too many for one namespace")
        self._forget(largest, series)
        return True

    def _forget(self, space: _Namespace, series: Series) -> None:
        if series.forgotten:
            return
        series.forgotten = True
        series.waiting = None
        del space.series[series.digest]
        space.objects[series.owner].series -= 1
        self._known -= 1

    def _refill(self, now: float) -> None:
        passed = now - self._filled_at if self._filled_at is not None else 0.0
        self._tokens = min(WRITE_BURST, self._tokens + max(passed, 0.0) * WRITES_PER_SECOND)
        self._filled_at = now


def _next_of(space: _Namespace) -> Write | None:
    while space.waiting:
        owner, queue = space.waiting.popitem(last=False)
        while queue:
            series = queue.popleft()
            event = series.waiting
            # What was forgotten meanwhile waits for nothing.
            if event is not None:
                series.waiting = None
                if queue:
                    space.waiting[owner] = queue
                return Write(series, event, series.count)
    return None
