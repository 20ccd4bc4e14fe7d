"""Writes Kubernetes Events from a bounded table, in a thread that alternates between namespaces."""

import contextlib
import hashlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from provisioner import constants
from provisioner.kube import errors
from provisioner.kube.fields import format_time
from provisioner.kube.protocol import Api, JsonObject, Timeouts, collection_path, object_path
from provisioner.model import bounds
from provisioner.model.waits import TokenBucket
from provisioner.model.workloads import ObjectRef

_log = structlog.get_logger(__name__)

_MESSAGE_LIMIT, _NAME_LIMIT = 1024, 253
#: Time-outs of a write. They are short, because a write that hangs delays all other Events.
_TIMEOUTS = Timeouts(connect_seconds=3.0, read_seconds=5.0)
#: Seconds without a repetition after which a new Event is created, and minimum seconds between updates of an Event.
_WINDOW_SECONDS, _REPEAT_SECONDS = 600.0, 300.0
#: Maximum number of different Events of one object: in a burst, and per second after the burst. Values of client-go.
_BURST, _REFILL_PER_SECOND = 25.0, 1 / 300
WRITE_BURST, WRITES_PER_SECOND = 100.0, 20.0
#: Maximum number of different Events in the table. An Event takes about 400 bytes, or 9,000 with the longest texts.
CAPACITY = 32768
#: Pause in seconds of writes in a namespace after a temporary failure, and interval in seconds of checks for its end.
_PAUSE_SECONDS, _LOOK_SECONDS = 5.0, 1.0
#: Interval in seconds between clean-ups, which log dropped Events, and maximum namespaces in the log line.
_TIDY_SECONDS, _NAMED_NAMESPACES = 60.0, 5


@dataclass(slots=True, eq=False)
class _Series:
    """One Event with its repetitions: message and time of the last occurrence, and number of occurrences."""

    ref: ObjectRef
    kind: str
    reason: str
    digest: bytes
    message: str = ""
    moment: datetime = datetime.min.replace(tzinfo=UTC)
    count: int = 0
    seen_at: float = 0.0
    #: Time at which a write of the Event was last requested.
    due_at: float = float("-inf")
    #: Name of the Event in the cluster; empty before the first attempt to write it.
    name: str = ""


@dataclass(slots=True)
class _Namespace:
    """Events of one namespace by digest: `known` has all, most recent last; `waiting` has Events to write."""

    known: OrderedDict[bytes, _Series] = field(default_factory=OrderedDict)
    waiting: dict[bytes, _Series] = field(default_factory=dict)
    paused_until: float = float("-inf")


class EventRecorder:
    """Writes Events of the API core/v1 in its own thread. `instance`, the name of this process, is in each Event."""

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
        #: Lock of the fields below. It is not held during a call to the API server.
        self._changed = threading.Condition()
        #: Namespaces in the order of their last write or first Event, latest last, so that their writes alternate.
        self._namespaces: OrderedDict[str, _Namespace] = OrderedDict()
        #: Budgets for new Events, by the object's namespace and UID; by namespace, kind and name if the UID is unknown.
        #: If the key were only the UID, users of other namespaces could use up the budget with ownerReferences.
        self._budgets: dict[str, TokenBucket] = {}
        self._writes = TokenBucket(WRITE_BURST, WRITES_PER_SECOND, clock())
        self._writing = self._stopping = False
        #: Dropped Events: total since the start, numbers by namespace since the last log line, and last reason.
        self.dropped_total, self._drops, self._last_reason = 0, Counter[str](), ""
        self._tidied_at = clock()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def emit(self, ref: ObjectRef, reason: str, message: str, *, warning: bool = False, key: str = "") -> None:
        """Record an Event without blocking. Equal object, type, reason and `key` (or message) mean a repetition."""
        message, now, kind = bounds.cut(message, _MESSAGE_LIMIT), self._clock(), "Warning" if warning else "Normal"
        owner = f"{ref.namespace}/{ref.uid or f'{ref.kind}/{ref.name}'}"
        parts = "\0".join((owner, kind, reason, key or message)).encode("utf-8", "replace")
        digest = hashlib.blake2b(parts, digest_size=16).digest()
        with self._changed:
            space = self._namespaces.get(ref.namespace) or _Namespace()
            if self._stopping or (digest not in space.known and not self._has_room(ref.namespace, owner, now)):
                return
            self._namespaces[ref.namespace] = space
            series = space.known.setdefault(digest, _Series(ref, kind, reason, digest))
            series.message, series.moment, series.seen_at = message, self._now(), now
            series.count += 1
            space.known.move_to_end(digest)
            if now - series.due_at >= _REPEAT_SECONDS:
                series.due_at = now
                space.waiting[digest] = series
                self._changed.notify_all()

    def flush(self, *, timeout_seconds: float) -> bool:
        """Wait until all recorded Events are written or dropped; return False after the time-out."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._writing or any(space.waiting for space in self._namespaces.values())),
                timeout_seconds,
            )

    def stop(self) -> None:
        """Reject further Events and end the thread. Events that are not written yet are lost; call `flush` before."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def write_next(self) -> bool:
        """Write the next Event; return False if none can be written now. Called by the thread."""
        with self._changed:
            name = None if self._stopping else self._next_namespace()
            if name is None:
                return False
            self._namespaces.move_to_end(name)
            waiting = self._namespaces[name].waiting
            series = waiting.pop(next(iter(waiting)))
            self._writes.available -= 1
            self._writing = True
            body = {"count": series.count, "lastTimestamp": format_time(series.moment), "message": series.message}
        try:
            self._write(series, body)
        except Exception as error:  # noqa: BLE001 - a failed Event must not stop the others
            with self._changed:
                self._failed(series, error)
        with self._changed:
            self._writing = False
            self._changed.notify_all()
        return True

    def tidy(self) -> None:
        """Log the number of dropped Events and forget old Events, at most once a minute. Called by the thread."""
        with self._changed:
            now = self._clock()
            if now - self._tidied_at < _TIDY_SECONDS:
                return
            self._tidied_at = now
            for name, space in list(self._namespaces.items()):
                for series in [entry for entry in space.known.values() if now - entry.seen_at > _WINDOW_SECONDS]:
                    if self._forget(series):
                        self._drop(name, "not written in ten minutes")
                if not space.known:
                    del self._namespaces[name]
            self._budgets = {
                owner: budget for owner, budget in self._budgets.items() if budget.fill(now) < budget.burst
            }
            drops, self._drops = self._drops, Counter()
        if drops:
            shown = dict(drops.most_common(_NAMED_NAMESPACES))
            _log.warning("event.dropped", count=drops.total(), namespaces=shown, last_why=self._last_reason)

    def _run(self) -> None:
        while not self._stopping:
            self.tidy()
            if not self.write_next():
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._stopping or self._next_namespace() is not None, timeout=_LOOK_SECONDS
                    )

    # --- the table; except for `_write`, the caller holds the lock

    def _has_room(self, namespace: str, owner: str, now: float) -> bool:
        """Return whether a new Event of the object `owner` is accepted; if so, use one unit of its budget."""
        budget = self._budgets.get(owner) or TokenBucket(_BURST, _REFILL_PER_SECOND, now)
        if budget.fill(now) < 1:
            return self._drop(namespace, "too many for one object")
        sizes = {name: len(space.known) for name, space in self._namespaces.items()}
        if sum(sizes.values()) >= self._capacity:
            # Drop the oldest Event of the largest namespace, or the new Event if its namespace would be as large.
            largest = max(sizes, key=sizes.__getitem__)
            if sizes[largest] <= sizes.get(namespace, 0) + 1:
                return self._drop(namespace, "too many for one namespace")
            if self._forget(next(iter(self._namespaces[largest].known.values()))):
                self._drop(largest, "too many for one namespace")
        budget.available -= 1
        self._budgets[owner] = budget
        return True

    def _next_namespace(self) -> str | None:
        now = self._clock()
        if self._writes.fill(now) < 1:
            return None
        spaces = self._namespaces.items()
        return next((name for name, space in spaces if space.waiting and space.paused_until <= now), None)

    def _failed(self, series: _Series, error: Exception) -> None:
        namespace = series.ref.namespace
        space = self._namespaces.get(namespace) or _Namespace()
        is_current = space.known.get(series.digest) is series
        if isinstance(error, errors.Unavailable | errors.TooManyRequests):
            space.paused_until = self._clock() + _PAUSE_SECONDS
            if is_current:
                space.waiting[series.digest] = series
                return
        if is_current:
            # The next repetition then counts as a new Event, so it is written immediately.
            self._forget(series)
        ends = isinstance(error, errors.Forbidden) and "being terminated" in error.message
        if not (ends or isinstance(error, errors.NotFound)):
            self._drop(namespace, str(error) if isinstance(error, errors.ClusterError) else repr(error))

    def _drop(self, namespace: str, reason: str) -> bool:
        self._drops[namespace] += 1
        self.dropped_total += 1
        self._last_reason = reason
        return False

    def _forget(self, series: _Series) -> bool:
        space = self._namespaces[series.ref.namespace]
        del space.known[series.digest]
        return space.waiting.pop(series.digest, None) is not None

    def _write(self, series: _Series, body: JsonObject) -> None:
        """Create an Event; if it exists, update count, time and message. After its expiry (1 h), create a new Event."""
        ref, namespace = series.ref, series.ref.namespace or "default"
        if series.name:
            with contextlib.suppress(errors.NotFound):
                self._api.patch(object_path("events", series.name, namespace=namespace), body, timeouts=_TIMEOUTS)
                return
        # As users of kubectl expect, the name begins with the object's name. The digest makes it unique.
        digest = hashlib.sha256(series.digest + series.moment.isoformat().encode()).hexdigest()[:16]
        # Set the name before the call: if the response is lost, a retry updates this Event.
        name = series.name = f"{ref.name[: _NAME_LIMIT - len(digest) - 1].rstrip('-.')}.{digest}"
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
        # A conflict means that an earlier attempt, whose response was lost, has created the Event.
        with contextlib.suppress(errors.Conflict):
            self._api.post(collection_path("events", namespace=namespace), body, timeouts=_TIMEOUTS)
