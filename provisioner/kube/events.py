"""Tell users what happens, as Events on their objects; never in the way of the controller.

`emit` only puts into a bounded queue; a thread writes. Repeats are counted into one Event and written at most every
five minutes. `event_queue` says which is next: an Event of a namespace in which none waits is written after at most
one of each other namespace. What is not promised: that an Event arrives. What is dropped is counted, and told by one
log line a minute; the log has said the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import structlog

from provisioner import constants
from provisioner.kube import errors
from provisioner.kube.event_queue import CAPACITY, Event, EventKind, EventQueue, Write
from provisioner.kube.protocol import Api, JsonObject, Timeouts, collection_path, object_path
from provisioner.kube.quantities import format_time
from provisioner.model.workloads import ObjectRef

_log = structlog.get_logger(__name__)

#: The API's limit; it counts bytes.
MESSAGE_LIMIT_BYTES = 1024
_NAME_LIMIT = 253
_ELLIPSIS = "…"
#: All Events wait for one that hangs.
_TIMEOUTS = Timeouts(connect_seconds=3.0, read_seconds=5.0)
#: So often what was dropped is told, and what is over is forgotten.
_TIDY_SECONDS = 60.0
#: Namespaces that the line about drops names.
_NAMED_NAMESPACES = 5


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Recorder(Protocol):
    """Where Events go."""

    def emit(self, ref: ObjectRef, *, kind: EventKind, reason: str, message: str, key: str = "") -> None:
        """Record one Event; returns at once."""

    @property
    def dropped_total(self) -> int:
        """How many were not written since the start."""


class EventRecorder:
    """Writes core/v1 Events from a thread of its own. `instance` is this process, for reportingInstance."""

    def __init__(
        self,
        api: Api,
        *,
        instance: str,
        capacity: int = CAPACITY,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._api = api
        self._instance = instance
        self._clock = clock
        self._now = now
        #: Guards all below it; never held during a call.
        self._changed = threading.Condition()
        self._queue = EventQueue(capacity=capacity)
        self._writing = False
        self._stopping = False
        #: Of the last Event that could not be written; for the log.
        self._last_error = ""
        self._tidied_at = clock()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Start to write."""
        self._thread.start()

    def emit(self, ref: ObjectRef, *, kind: EventKind, reason: str, message: str, key: str = "") -> None:
        """Record an Event; returns at once.

        Events of one object, reason and message count as repeats; with a `key`, the message may differ.
        """
        event = Event(
            ref=ref,
            kind=kind,
            reason=reason,
            message=cut_message(message),
            key=key,
            moment=self._now(),
            seen_at=self._clock(),
        )
        with self._changed:
            if self._stopping:
                return
            self._queue.offer(event)
            self._changed.notify_all()

    @property
    def dropped_total(self) -> int:
        """Return how many Events were dropped since the start."""
        with self._changed:
            return self._queue.dropped_total

    def flush(self, *, timeout_seconds: float) -> bool:
        """Wait until everything recorded so far is written or dropped; False when the time is up."""
        with self._changed:
            return self._changed.wait_for(lambda: self._queue.empty and not self._writing, timeout=timeout_seconds)

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
            write = None if self._stopping else self._queue.take(self._clock())
            if write is None:
                return False
            self._writing = True
        outcome: Exception | str = ""
        try:
            outcome = self._write(write)
        except Exception as error:  # noqa: BLE001 - one Event must not end all others
            outcome = error
        finally:
            with self._changed:
                self._account(write, outcome)
                self._writing = False
                self._changed.notify_all()
        return True

    def tidy(self) -> None:
        """Tell what was dropped in the last minute and forget what is over, for the thread; once a minute."""
        with self._changed:
            now = self._clock()
            if now - self._tidied_at < _TIDY_SECONDS:
                return
            self._tidied_at = now
            self._queue.tidy(now)
            drops = self._queue.take_drops()
            last_error, self._last_error = self._last_error, ""
        if drops:
            namespaces: Counter[str] = Counter()
            why: Counter[str] = Counter()
            for (namespace, reason), count in drops.items():
                namespaces[namespace] += count
                why[reason] += count
            _log.warning(
                "event.dropped",
                count=drops.total(),
                why=dict(why),
                namespaces=dict(namespaces.most_common(_NAMED_NAMESPACES)),
                **({"last_error": last_error} if last_error else {}),
            )

    def _run(self) -> None:
        while True:
            self.tidy()
            if self.write_next():
                continue
            with self._changed:
                if self._stopping:
                    return
                pause = self._queue.seconds_to_next(self._clock())
                if pause is None or pause > 0:
                    self._changed.wait(min(_TIDY_SECONDS, _TIDY_SECONDS if pause is None else pause))

    def _account(self, write: Write, outcome: Exception | str) -> None:
        if isinstance(outcome, str):
            self._queue.written(write, outcome)
            return
        if isinstance(outcome, (errors.Unavailable, errors.TooManyRequests)):
            if self._queue.failed_for_now(write, self._clock()):
                return
        else:
            # So that the next one like it is written at once.
            self._queue.forget(write)
        if isinstance(outcome, errors.ClusterError) and _namespace_ends(outcome):
            return
        self._queue.drop(write.series.namespace, type(outcome).__name__)
        self._last_error = str(outcome) if isinstance(outcome, errors.ClusterError) else repr(outcome)

    def _write(self, write: Write) -> str:
        """Write one Event, or one more repeat of it; return its name."""
        name = write.series.name
        if name:
            try:
                self._repeat(write, name)
            except errors.NotFound:
                pass  # it has expired: the API server keeps Events for an hour
            else:
                return name
        return self._create(write.event, write.count)

    def _create(self, event: Event, count: int) -> str:
        name = _event_name(event)
        namespace = event.ref.namespace or "default"
        moment = format_time(event.moment)
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": event.ref.api_version,
                "kind": event.ref.kind,
                "name": event.ref.name,
                "uid": event.ref.uid,
                **({"namespace": event.ref.namespace} if event.ref.namespace else {}),
            },
            "type": event.kind,
            "reason": event.reason,
            "message": event.message,
            "count": count,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "source": {"component": constants.MANAGER},
            "reportingComponent": constants.MANAGER,
            "reportingInstance": self._instance,
        }
        # A conflict: an earlier try had its effect. The name says object, words and moment.
        with contextlib.suppress(errors.Conflict):
            self._api.post(collection_path("events", namespace=namespace), body, timeouts=_TIMEOUTS)
        return name

    def _repeat(self, write: Write, name: str) -> None:
        event = write.event
        self._api.patch(
            object_path("events", name, namespace=event.ref.namespace or "default"),
            {"count": write.count, "lastTimestamp": format_time(event.moment), "message": event.message},
            timeouts=_TIMEOUTS,
        )


def cut_message(message: str) -> str:
    """Cut a message to the API's limit, at a character boundary, with an ellipsis."""
    data = message.encode("utf-8", "replace")
    if len(data) <= MESSAGE_LIMIT_BYTES:
        return data.decode()
    room = MESSAGE_LIMIT_BYTES - len(_ELLIPSIS.encode())
    return data[:room].decode("utf-8", "ignore") + _ELLIPSIS


def _event_name(event: Event) -> str:
    """Name an Event after its object, as kubectl's users expect; unique by what it says and when."""
    digest = hashlib.sha256(event.digest() + event.moment.isoformat().encode()).hexdigest()
    suffix = f".{digest[:16]}"
    return event.ref.name[: _NAME_LIMIT - len(suffix)].rstrip("-.") + suffix


def _namespace_ends(error: errors.ClusterError) -> bool:
    """Whether the object's namespace is gone or going: nobody is left to read the Event."""
    if isinstance(error, errors.NotFound):
        return True
    return isinstance(error, errors.Forbidden) and "being terminated" in error.message
