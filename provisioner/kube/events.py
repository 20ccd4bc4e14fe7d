"""Report what happens as Events on users' objects; never in the way of the controller.

`emit` only puts into a bounded table; a thread writes. Repeats are counted into one Event, which is written at most
every five minutes. Namespaces take turns, so that an Event of one in which none waits is written after at most one of
each other namespace. An Event may be lost: what is dropped is counted, and reported by one log line a minute.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Protocol

import structlog

from provisioner import constants
from provisioner.kube import errors
from provisioner.kube.protocol import Api, JsonObject, Timeouts, collection_path, object_path
from provisioner.kube.quantities import format_time
from provisioner.model.workloads import ObjectRef

_log = structlog.get_logger(__name__)

EventKind = Literal["Normal", "Warning"]
#: The API's limit; it counts bytes.
MESSAGE_LIMIT_BYTES = 1024
_NAME_LIMIT = 253
_ELLIPSIS = "…"
#: All Events wait for one that hangs.
_TIMEOUTS = Timeouts(connect_seconds=3.0, read_seconds=5.0)
#: Repeats within the first belong to one Event, and are written so far apart (the measure of the scheduler).
_WINDOW_SECONDS, _REPEAT_SECONDS = 600.0, 300.0
#: Per object: so many different Events at once, then one every five minutes (the measure of client-go).
_BURST, _REFILL_PER_SECOND = 25.0, 1 / 300
#: All writes together: so many at once, then so many a second.
WRITE_BURST, WRITES_PER_SECOND = 100.0, 20.0
#: Different Events that are known at once; some 400 bytes each.
CAPACITY = 32768
#: An Event is tried so often while its namespace cannot be written to, after pauses of 1, 2, 4 ... seconds and no more.
_TRIES, _LONGEST_PAUSE_SECONDS = 20, 30.0
#: So often what was dropped is reported, and what is over is forgotten.
_TIDY_SECONDS = 60.0
#: Namespaces that the line about drops names.
_NAMED_NAMESPACES = 5


class Recorder(Protocol):
    """Where Events go."""

    def emit(self, ref: ObjectRef, *, kind: EventKind, reason: str, message: str, key: str = "") -> None:
        """Record one Event; returns at once."""

    @property
    def dropped_total(self) -> int:
        """How many were not written since the start."""


@dataclass(slots=True, eq=False)
class _Series:
    """One Event and its repeats: the newest, how often it was seen, and when it was last due."""

    ref: ObjectRef
    kind: EventKind
    reason: str
    digest: bytes
    message: str = ""
    moment: datetime = datetime.min.replace(tzinfo=UTC)
    count: int = 0
    seen_at: float = 0.0
    due_at: float = float("-inf")
    #: Of the Event in the cluster; empty where none was written.
    name: str = ""
    waits: bool = False
    tries: int = 0


@dataclass(slots=True)
class _Namespace:
    #: Longest not seen first.
    series: OrderedDict[bytes, _Series] = field(default_factory=OrderedDict)
    waiting: deque[_Series] = field(default_factory=deque)
    #: By object: how many more Events it may have, and as of when.
    tokens: dict[str, tuple[float, float]] = field(default_factory=dict)
    pause_seconds: float = 0.0
    paused_until: float = float("-inf")


class EventRecorder:
    """Writes core/v1 Events from a thread of its own. `instance` is this process, for reportingInstance."""

    def __init__(
        self,
        api: Api,
        *,
        instance: str,
        capacity: int = CAPACITY,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._instance, self._capacity, self._clock, self._now = api, instance, capacity, clock, now
        #: Guards all below it; never held during a call.
        self._changed = threading.Condition()
        self._namespaces: dict[str, _Namespace] = {}
        #: Namespaces in which something waits, whose turn it is first.
        self._turns: OrderedDict[str, None] = OrderedDict()
        self._tokens, self._filled_at = WRITE_BURST, clock()
        self._known, self._writing, self._stopping, self.dropped_total = 0, False, False, 0
        #: What was dropped since the last line about it, by namespace and why, and the last error.
        self._drops: Counter[tuple[str, str]] = Counter()
        self._last_error, self._tidied_at = "", clock()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Start to write."""
        self._thread.start()

    def emit(self, ref: ObjectRef, *, kind: EventKind, reason: str, message: str, key: str = "") -> None:
        """Record an Event; returns at once.

        Events of one object, reason and message count as repeats; with a `key`, the message may differ.
        """
        message, now, owner = cut_message(message), self._clock(), ref.uid or f"{ref.kind}/{ref.namespace}/{ref.name}"
        parts = "\0".join((owner, kind, reason, key or message)).encode("utf-8", "replace")
        digest = hashlib.blake2b(parts, digest_size=16).digest()
        with self._changed:
            space = self._namespaces.setdefault(ref.namespace, _Namespace())
            series = space.series.get(digest)
            if series is not None and not series.waits and now - series.seen_at > _WINDOW_SECONDS:
                self._forget(space, series)
                series = None
            if self._stopping or (series is None and not self._has_room(ref.namespace, space, owner, now)):
                return
            if series is None:
                series = space.series[digest] = _Series(ref, kind, reason, digest)
                self._known += 1
            series.message, series.moment, series.seen_at = message, self._now(), now
            series.count += 1
            space.series.move_to_end(digest)
            if not series.waits and now - series.due_at >= _REPEAT_SECONDS:
                series.due_at = now
                self._enqueue(space, series)
                self._changed.notify_all()

    def flush(self, *, timeout_seconds: float) -> bool:
        """Wait until everything recorded so far is written or dropped; False when the time is up."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._turns and not self._writing, timeout=timeout_seconds)

    def stop(self) -> None:
        """Take no more Events and end the thread; what still waits is not written (see flush)."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def write_next(self) -> bool:
        """Write one Event, for the thread; return False where none may be written yet."""
        with self._changed:
            series = None if self._stopping else self._take(self._clock())
            if series is None:
                return False
            self._writing = True
            body = {"count": series.count, "lastTimestamp": format_time(series.moment), "message": series.message}
        error: Exception | None = None
        try:
            self._write(series, body)
        except Exception as caught:  # noqa: BLE001 - one Event must not end all others
            error = caught
        with self._changed:
            self._account(series, error)
            self._writing = False
            self._changed.notify_all()
        return True

    def tidy(self) -> None:
        """Report what was dropped in the last minute and forget what is over, for the thread; once a minute."""
        with self._changed:
            now = self._clock()
            if now - self._tidied_at < _TIDY_SECONDS:
                return
            self._tidied_at = now
            for name, space in list(self._namespaces.items()):
                ended = (each for each in space.series.values() if not each.waits)
                for series in [each for each in ended if now - each.seen_at > _WINDOW_SECONDS]:
                    self._forget(space, series)
                space.tokens = {owner: each for owner, each in space.tokens.items() if _filled(each, now) < _BURST}
                if not (space.series or space.tokens) and space.paused_until <= now:
                    self._turns.pop(name, None)
                    del self._namespaces[name]
            drops, self._drops = self._drops, Counter()
            last_error, self._last_error = self._last_error, ""
        if drops:
            namespaces, why = Counter[str](), Counter[str]()
            for (namespace, reason), count in drops.items():
                namespaces[namespace] += count
                why[reason] += count
            shown = dict(namespaces.most_common(_NAMED_NAMESPACES))
            told = {"last_error": last_error} if last_error else {}
            _log.warning("event.dropped", count=drops.total(), why=dict(why), namespaces=shown, **told)

    def _run(self) -> None:
        while True:
            self.tidy()
            if self.write_next():
                continue
            with self._changed:
                if self._stopping:
                    return
                pause = _TIDY_SECONDS
                if self._turns:
                    paused = min(self._namespaces[name].paused_until for name in self._turns) - self._clock()
                    pause = min(pause, max(paused, (1 - self._tokens) / WRITES_PER_SECOND, 0.0))
                if pause > 0:
                    self._changed.wait(pause)

    # --- the table; the caller holds the lock

    def _has_room(self, name: str, space: _Namespace, owner: str, now: float) -> bool:
        """Whether one more Event of an object is taken; then it counts for the object."""
        left = _filled(space.tokens.get(owner, (_BURST, now)), now)
        space.tokens[owner] = (left, now)
        if left < 1:
            return self._drop(name, "too many for one object")
        if self._known >= self._capacity:
            # The namespace that has the most gives way.
            largest = max(self._namespaces.values(), key=lambda each: len(each.series))
            if len(largest.series) <= len(space.series) + 1:
                return self._drop(name, "too many for one namespace")
            oldest = next(iter(largest.series.values()))
            if oldest.waits:
                self._drop(oldest.ref.namespace, "too many for one namespace")
            self._forget(largest, oldest)
        space.tokens[owner] = (left - 1, now)
        return True

    def _enqueue(self, space: _Namespace, series: _Series) -> None:
        series.waits = True
        space.waiting.append(series)
        self._turns.setdefault(series.ref.namespace)

    def _take(self, now: float) -> _Series | None:
        self._tokens = min(WRITE_BURST, self._tokens + max(now - self._filled_at, 0.0) * WRITES_PER_SECOND)
        self._filled_at = now
        for _ in range(len(self._turns) if self._tokens >= 1 else 0):
            name, _none = self._turns.popitem(last=False)
            space, found = self._namespaces[name], None
            while space.waiting and found is None and space.paused_until <= now:
                # What was forgotten meanwhile waits for nothing.
                found = series if (series := space.waiting.popleft()).waits else None
            if space.waiting:
                self._turns[name] = None
            if found is not None:
                found.waits = False
                self._tokens -= 1
                return found
        return None

    def _account(self, series: _Series, error: Exception | None) -> None:
        space = self._namespaces.get(series.ref.namespace)
        if space is None or error is None:
            series.tries = 0
            if space is not None:
                space.pause_seconds = 0.0
            return
        if isinstance(error, errors.Unavailable | errors.TooManyRequests):
            series.tries += 1
            space.pause_seconds = min(max(1.0, 2 * space.pause_seconds), _LONGEST_PAUSE_SECONDS)
            space.paused_until = self._clock() + space.pause_seconds
            if series.tries < _TRIES and space.series.get(series.digest) is series:
                if not series.waits:
                    self._enqueue(space, series)
                return
        # So that the next one like it is written at once.
        self._forget(space, series)
        ends = isinstance(error, errors.Forbidden) and "being terminated" in error.message
        if not (ends or isinstance(error, errors.NotFound)):
            self._drop(series.ref.namespace, type(error).__name__)
            self._last_error = str(error) if isinstance(error, errors.ClusterError) else repr(error)

    def _drop(self, namespace: str, why: str) -> bool:
        self._drops[namespace, why] += 1
        self.dropped_total += 1
        return False

    def _forget(self, space: _Namespace, series: _Series) -> None:
        series.waits = False
        if space.series.get(series.digest) is series:
            del space.series[series.digest]
            self._known -= 1

    # --- the calls

    def _write(self, series: _Series, body: JsonObject) -> None:
        """Write an Event, or one more repeat of it; what has expired, after an hour, is written anew."""
        ref, namespace = series.ref, series.ref.namespace or "default"
        if series.name:
            with contextlib.suppress(errors.NotFound):
                self._api.patch(object_path("events", series.name, namespace=namespace), body, timeouts=_TIMEOUTS)
                return
        # An Event is named after its object, as kubectl's users expect; the same words and moment have the same name.
        digest = hashlib.sha256(series.digest + series.moment.isoformat().encode()).hexdigest()[:16]
        name = f"{ref.name[: _NAME_LIMIT - len(digest) - 1].rstrip('-.')}.{digest}"
        involved = {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name, "uid": ref.uid}
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": involved | ({"namespace": ref.namespace} if ref.namespace else {}),
            "type": series.kind,
            "reason": series.reason,
            "firstTimestamp": body["lastTimestamp"],
            "source": {"component": constants.MANAGER},
            "reportingComponent": constants.MANAGER,
            "reportingInstance": self._instance,
            **body,
        }
        # A conflict: an earlier try had its effect.
        with contextlib.suppress(errors.Conflict):
            self._api.post(collection_path("events", namespace=namespace), body, timeouts=_TIMEOUTS)
        series.name = name


def cut_message(message: str) -> str:
    """Cut a message to the API's limit, at a character boundary, with an ellipsis."""
    data = message.encode("utf-8", "replace")
    if len(data) <= MESSAGE_LIMIT_BYTES:
        return data.decode()
    room = MESSAGE_LIMIT_BYTES - len(_ELLIPSIS.encode())
    return data[:room].decode("utf-8", "ignore") + _ELLIPSIS


def _filled(tokens: tuple[float, float], now: float) -> float:
    """Return how many more Events an object may have now."""
    return min(_BURST, tokens[0] + max(now - tokens[1], 0.0) * _REFILL_PER_SECOND)
