"""Report what happens as Events on users' objects; never in the way of the controller.

A thread writes them from a bounded table: repeats as one Event, namespaces by turns. What is dropped is counted.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import structlog

from provisioner import constants
from provisioner.kube import errors
from provisioner.kube.fields import format_time
from provisioner.kube.protocol import Api, JsonObject, Timeouts, collection_path, object_path
from provisioner.model import bounds
from provisioner.model.waits import Budget
from provisioner.model.workloads import ObjectRef

_log = structlog.get_logger(__name__)

EventKind = Literal["Normal", "Warning"]
#: The API's limits.
_MESSAGE_LIMIT, _NAME_LIMIT = 1024, 253
#: All Events wait for one that hangs.
_TIMEOUTS = Timeouts(connect_seconds=3.0, read_seconds=5.0)
#: Repeats within the first belong to one Event, and are written so far apart (the measure of the scheduler).
_WINDOW_SECONDS, _REPEAT_SECONDS = 600.0, 300.0
#: Per object: so many different Events at once, then one every five minutes (the measure of client-go).
_BURST, _REFILL_PER_SECOND = 25.0, 1 / 300
#: All writes together: so many at once, then so many a second.
WRITE_BURST, WRITES_PER_SECOND = 100.0, 20.0
#: Different Events that are known at once; some 400 bytes each, or 9,000 where whoever fills the table writes them.
CAPACITY = 32768
#: A namespace that cannot be written to for now is left alone for so long; so often the thread looks whether that ends.
_PAUSE_SECONDS, _LOOK_SECONDS = 5.0, 1.0
#: So often what was dropped is reported, with so many namespaces, and what is over is forgotten.
_TIDY_SECONDS, _NAMED_NAMESPACES = 60.0, 5


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
    #: Of the Event in the cluster; empty where none was tried.
    name: str = ""


@dataclass(slots=True)
class _Namespace:
    """The Events of one namespace: those that are known, longest unseen first, and those to be written, in order."""

    known: OrderedDict[bytes, _Series] = field(default_factory=OrderedDict)
    waiting: dict[bytes, _Series] = field(default_factory=dict)
    #: It is left alone until then.
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
        #: The one that was written to last comes last.
        self._namespaces: OrderedDict[str, _Namespace] = OrderedDict()
        #: By object: how many more Events it may have.
        self._budgets: dict[str, Budget] = {}
        self._writes = Budget(WRITE_BURST, WRITES_PER_SECOND, clock())
        self._writing = self._stopping = False
        #: How many were not written since the start; by namespace since the last line about it; and why the last one.
        self.dropped_total, self._drops, self._last_why = 0, Counter[str](), ""
        self._tidied_at = clock()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Start to write."""
        self._thread.start()

    def emit(self, ref: ObjectRef, *, kind: EventKind, reason: str, message: str, key: str = "") -> None:
        """Record an Event; returns at once. Those of one object, reason and `key`, else message, are repeats."""
        message, now = bounds.cut(message, _MESSAGE_LIMIT), self._clock()
        owner = ref.uid or f"{ref.kind}/{ref.namespace}/{ref.name}"
        parts = "\0".join((owner, kind, reason, key or message)).encode("utf-8", "replace")
        digest = hashlib.blake2b(parts, digest_size=16).digest()
        with self._changed:
            # What is dropped leaves nothing behind.
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
        """Wait until everything recorded so far is written or dropped; False when the time is up."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._writing or any(each.waiting for each in self._namespaces.values())), timeout_seconds
            )

    def stop(self) -> None:
        """Take no more Events and end the thread; what still waits is not written (see flush)."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def write_next(self) -> bool:
        """Write one Event, for the thread; return False where none may be written yet."""
        with self._changed:
            name = None if self._stopping else self._turn()
            if name is None:
                return False
            self._namespaces.move_to_end(name)
            waiting = self._namespaces[name].waiting
            series = waiting.pop(next(iter(waiting)))
            self._writes.left -= 1
            self._writing = True
            body = {"count": series.count, "lastTimestamp": format_time(series.moment), "message": series.message}
        try:
            self._write(series, body)
        except Exception as error:  # noqa: BLE001 - one Event must not end all others
            with self._changed:
                self._failed(series, error)
        with self._changed:
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
                for series in [each for each in space.known.values() if now - each.seen_at > _WINDOW_SECONDS]:
                    if self._forget(series):
                        self._drop(name, "not written in ten minutes")
                if not space.known:
                    del self._namespaces[name]
            self._budgets = {owner: each for owner, each in self._budgets.items() if each.fill(now) < each.burst}
            drops, self._drops = self._drops, Counter()
        if drops:
            shown = dict(drops.most_common(_NAMED_NAMESPACES))
            _log.warning("event.dropped", count=drops.total(), namespaces=shown, last_why=self._last_why)

    def _run(self) -> None:
        while not self._stopping:
            self.tidy()
            if not self.write_next():
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping or self._turn() is not None, timeout=_LOOK_SECONDS)

    # --- the table; the caller holds the lock

    def _has_room(self, namespace: str, owner: str, now: float) -> bool:
        """Whether one more Event of an object is taken; then it counts for the object."""
        budget = self._budgets.get(owner) or Budget(_BURST, _REFILL_PER_SECOND, now)
        if budget.fill(now) < 1:
            return self._drop(namespace, "too many for one object")
        sizes = {name: len(each.known) for name, each in self._namespaces.items()}
        if sum(sizes.values()) >= self._capacity:
            # The namespace that has the most gives way.
            largest = max(sizes, key=sizes.__getitem__)
            if sizes[largest] <= sizes.get(namespace, 0) + 1:
                return self._drop(namespace, "too many for one namespace")
            if self._forget(next(iter(self._namespaces[largest].known.values()))):
                self._drop(largest, "too many for one namespace")
        budget.left -= 1
        self._budgets[owner] = budget
        return True

    def _turn(self) -> str | None:
        """Return the namespace whose turn it is; None where nothing may be written yet."""
        now = self._clock()
        if self._writes.fill(now) < 1:
            return None
        spaces = self._namespaces.items()
        return next((name for name, each in spaces if each.waiting and each.paused_until <= now), None)

    def _failed(self, series: _Series, error: Exception) -> None:
        namespace = series.ref.namespace
        space = self._namespaces.get(namespace) or _Namespace()
        known = space.known.get(series.digest) is series
        if isinstance(error, errors.Unavailable | errors.TooManyRequests):
            space.paused_until = self._clock() + _PAUSE_SECONDS
            if known:
                space.waiting[series.digest] = series
                return
        if known:
            # So that the next one like it is written at once.
            self._forget(series)
        ends = isinstance(error, errors.Forbidden) and "being terminated" in error.message
        if not (ends or isinstance(error, errors.NotFound)):
            self._drop(namespace, str(error) if isinstance(error, errors.ClusterError) else repr(error))

    def _drop(self, namespace: str, why: str) -> bool:
        self._drops[namespace] += 1
        self.dropped_total += 1
        self._last_why = why
        return False

    def _forget(self, series: _Series) -> bool:
        """Forget a series; return whether it was to be written."""
        space = self._namespaces[series.ref.namespace]
        del space.known[series.digest]
        return space.waiting.pop(series.digest, None) is not None

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
        # Before the answer, which may be lost: what is tried again is the same Event, whatever was repeated meanwhile.
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
        # A conflict: an earlier try had its effect.
        with contextlib.suppress(errors.Conflict):
            self._api.post(collection_path("events", namespace=namespace), body, timeouts=_TIMEOUTS)
