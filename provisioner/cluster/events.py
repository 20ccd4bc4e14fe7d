"""Tell users what happens, as Events on their objects; never in the way of the controller.

`emit` only puts into a bounded queue; a thread writes. Repeats are counted into one Event and written at most every
five minutes. What is not promised: that an Event arrives. When the API server is away, the queue is full or one
object gets too many, Events are dropped and counted; the log has said the same.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import structlog

from provisioner import constants
from provisioner.cluster import errors
from provisioner.cluster.protocol import Api, JsonObject, collection_path, object_path
from provisioner.cluster.quantities import format_time
from provisioner.model.workloads import ObjectRef

_log = structlog.get_logger(__name__)

EventKind = Literal["Normal", "Warning"]

#: The API's limit; it counts bytes.
MESSAGE_LIMIT_BYTES = 1024
#: Repeats within it belong to the same Event.
WINDOW_SECONDS = 600.0
#: A repeat is written at most this often: users asked for the scheduler's own measure.
REPEAT_WRITE_SECONDS = 300.0
#: Per object: so many different Events at once, then one every five minutes (the measure of client-go).
BURST = 25.0
REFILL_PER_SECOND = 1 / 300
#: Objects and Events that are remembered; the oldest are forgotten first.
_MEMORY = 4096
_NAME_LIMIT = 253
_ELLIPSIS = "…"

_Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class _Item:
    ref: ObjectRef
    kind: EventKind
    reason: str
    message: str
    key: str
    moment: datetime
    seen_at: float


@dataclass(slots=True)
class _Written:
    """An Event in the cluster, and what is not yet written of its repeats."""

    name: str
    count: int
    seen_at: float
    written_at: float


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


def _utc_now() -> datetime:
    return datetime.now(UTC)


class EventRecorder:
    """Writes core/v1 Events from a thread of its own. `instance` is this process, for reportingInstance."""

    def __init__(
        self,
        api: Api,
        *,
        instance: str,
        capacity: int = 1000,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._api = api
        self._instance = instance
        self._capacity = capacity
        self._clock = clock
        self._now = now
        self._queue: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._writing = False
        self._stopping = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        # Only the thread uses these.
        self._written: OrderedDict[_Key, _Written] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    # --- for everyone

    def start(self) -> None:
        """Start to write."""
        self._thread.start()

    def emit(self, ref: ObjectRef, *, kind: EventKind, reason: str, message: str, key: str = "") -> None:
        """Record an Event; returns at once.

        Events of one object, reason and message count as repeats; with a `key`, the message may differ.
        """
        item = _Item(
            ref=ref,
            kind=kind,
            reason=reason,
            message=message,
            key=key,
            moment=self._now(),
            seen_at=self._clock(),
        )
        overflown = None
        with self._changed:
            if self._stopping:
                return
            if len(self._queue) >= self._capacity:
                overflown = self._queue.popleft()
                self._dropped += 1
            self._queue.append(item)
            self._changed.notify_all()
        if overflown is not None:
            self._log_drop(overflown, "the queue is full")

    @property
    def dropped_total(self) -> int:
        """Return how many Events were dropped since the start."""
        with self._changed:
            return self._dropped

    def flush(self, *, timeout_seconds: float) -> bool:
        """Wait until everything recorded so far is written or dropped; False when the time is up."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._writing, timeout=timeout_seconds)

    def stop(self) -> None:
        """Take no more Events and end the thread; what is still queued is dropped (see flush)."""
        with self._changed:
            self._stopping = True
            self._dropped += len(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    # --- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if self._stopping:
                    return
                item = self._queue.popleft()
                self._writing = True
            try:
                self._process(item)
            except Exception:  # noqa: BLE001 - one Event must not end all others
                _log.exception("event.write_failed", reason=item.reason)
            finally:
                with self._changed:
                    self._writing = False
                    self._changed.notify_all()

    def _process(self, item: _Item) -> None:
        key = _aggregation_key(item)
        known = self._written.get(key)
        if known is not None and item.seen_at - known.seen_at <= WINDOW_SECONDS:
            known.count += 1
            known.seen_at = item.seen_at
            self._written.move_to_end(key)
            if item.seen_at - known.written_at >= REPEAT_WRITE_SECONDS:
                self._write(item, key, known)
            return
        if not self._take_token(item):
            with self._changed:
                self._dropped += 1
            self._log_drop(item, "too many for this object")
            return
        self._write(item, key, None)

    def _write(self, item: _Item, key: _Key, known: _Written | None) -> None:
        try:
            if known is not None:
                try:
                    self._repeat(item, known)
                except errors.NotFound:
                    self._create(item, key)  # it has expired: the API server keeps Events for an hour
            else:
                self._create(item, key)
        except errors.ClusterError as error:
            # Forgotten, so that the next repeat is written at once.
            self._written.pop(key, None)
            if _namespace_ends(error):
                return
            with self._changed:
                self._dropped += 1
            self._log_drop(item, str(error))

    def _create(self, item: _Item, key: _Key) -> None:
        name = _event_name(item, key)
        namespace = item.ref.namespace or "default"
        moment = format_time(item.moment)
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": item.ref.api_version,
                "kind": item.ref.kind,
                "name": item.ref.name,
                "uid": item.ref.uid,
                **({"namespace": item.ref.namespace} if item.ref.namespace else {}),
            },
            "type": item.kind,
            "reason": item.reason,
            "message": cut_message(item.message),
            "count": 1,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "source": {"component": constants.MANAGER},
            "reportingComponent": constants.MANAGER,
            "reportingInstance": self._instance,
        }
        self._api.post(collection_path("events", namespace=namespace), body)
        self._written[key] = _Written(name=name, count=1, seen_at=item.seen_at, written_at=item.seen_at)
        self._written.move_to_end(key)
        if len(self._written) > _MEMORY:
            self._written.popitem(last=False)

    def _repeat(self, item: _Item, known: _Written) -> None:
        self._api.patch(
            object_path("events", known.name, namespace=item.ref.namespace or "default"),
            {
                "count": known.count,
                "lastTimestamp": format_time(item.moment),
                "message": cut_message(item.message),
            },
        )
        known.written_at = item.seen_at

    def _take_token(self, item: _Item) -> bool:
        owner = item.ref.uid or f"{item.ref.kind}/{item.ref.namespace}/{item.ref.name}"
        bucket = self._buckets.get(owner)
        if bucket is None:
            bucket = self._buckets[owner] = _Bucket(BURST, item.seen_at)
            if len(self._buckets) > _MEMORY:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(owner)
        gained = max(item.seen_at - bucket.filled_at, 0.0) * REFILL_PER_SECOND
        bucket.tokens = min(BURST, bucket.tokens + gained)
        bucket.filled_at = item.seen_at
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def _log_drop(self, item: _Item, why: str) -> None:
        _log.warning(
            "event.dropped",
            kind=item.ref.kind,
            namespace=item.ref.namespace,
            name=item.ref.name,
            reason=item.reason,
            why=why,
        )


def cut_message(message: str) -> str:
    """Cut a message to the API's limit, at a character boundary, with an ellipsis."""
    data = message.encode("utf-8", "replace")
    if len(data) <= MESSAGE_LIMIT_BYTES:
        return data.decode()
    room = MESSAGE_LIMIT_BYTES - len(_ELLIPSIS.encode())
    return data[:room].decode("utf-8", "ignore") + _ELLIPSIS


def _aggregation_key(item: _Item) -> _Key:
    owner = item.ref.uid or f"{item.ref.kind}/{item.ref.namespace}/{item.ref.name}"
    return (owner, item.kind, item.reason, item.key or item.message)


def _event_name(item: _Item, key: _Key) -> str:
    """Name an Event after its object, as kubectl's users expect; unique by what it says and when."""
    digest = hashlib.sha256("\0".join((*key, item.moment.isoformat())).encode("utf-8", "replace")).hexdigest()
    suffix = f".{digest[:16]}"
    return item.ref.name[: _NAME_LIMIT - len(suffix)].rstrip("-.") + suffix


def _namespace_ends(error: errors.ClusterError) -> bool:
    """Whether the object's namespace is gone or going: nobody is left to read the Event."""
    if isinstance(error, errors.NotFound):
        return True
    return isinstance(error, errors.Forbidden) and "being terminated" in error.message
