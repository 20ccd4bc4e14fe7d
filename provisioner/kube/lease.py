"""Elects one leader, which holds this controller's Lease and, for node pools, the Go provisioner's Lease if it exists.

Leadership ends at most 20 s after the last successful renewal was sent, by this process's monotonic clock. Another
holder's Lease counts as expired if this process saw no change for leaseDurationSeconds; its renewTime is ignored.
The Go provisioner's Lease is acquired after this controller's Lease, so that two candidates cannot wait for each
other. Not handled: a suspended process detects the loss late, so callers check `remaining_seconds` before a write.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from provisioner import constants
from provisioner.kube import errors, fields
from provisioner.kube.protocol import LEASES_ROOT, Api, JsonObject, Timeouts, collection_path, object_path

_log = structlog.get_logger(__name__)

#: Seconds without a renewal after which another candidate may acquire the lease.
_DURATION_SECONDS = 30
#: Time-outs of a call. They are short, so that a renewal that hangs can be repeated before the deadline.
_TIMEOUTS = Timeouts(connect_seconds=5.0, read_seconds=5.0)
#: Maximum duration in seconds of another holder's Lease. A longer duration is probably a mistake, and counts as 30 s.
_MAX_DURATION_SECONDS = 3600.0
#: Maximum characters of the name of a holder. A longer name, which a client with write access can set, is cut.
_MAX_HOLDER = 253
#: Seconds without a renewal after which this process stops leading. Another process can lead after _DURATION_SECONDS.
_RENEW_DEADLINE_SECONDS = 20.0
_RETRY_SECONDS = 5.0
#: Maximum seconds that `release` waits for the end of a renewal.
_RENEWAL_SECONDS = 10.0
_MIN_PAUSE_SECONDS = 0.05
_MAX_LOOK_SECONDS = 1.0


def pod_of(holder: str) -> str:
    """Return the part of `holder` before the first "_", usually the name of a pod."""
    return holder.partition("_")[0]


def holder_of(api: Api, name: str, *, namespace: str) -> tuple[str, datetime | None]:
    """Return holder (empty if none) and last renewal time (None if unknown) of a Lease. Raises ClusterError."""
    try:
        lease = api.get(object_path("leases", name, namespace=namespace, root=LEASES_ROOT))
    except errors.NotFound:
        return "", None
    spec = fields.mapping(lease.get("spec"))
    return fields.text(spec.get("holderIdentity"))[:_MAX_HOLDER], fields.parse_timestamp(spec.get("renewTime"))


class LeaseElector:
    """Acquires and renews leadership in a thread. A second thread detects a loss even while a renewal hangs.

    The first name in `leases` is this controller's Lease. Further Leases are acquired if they exist, but not created.
    The two threads call `on_started` and `on_lost`, which must not block. `release` does not call `on_lost`.
    """

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        identity: str,
        on_started: Callable[[], None],
        on_lost: Callable[[], None],
        leases: Sequence[str] = (constants.LEASE_NAME, constants.ORIGINAL_LEASE_NAME),
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        rng: random.Random | None = None,
    ) -> None:
        self._rng = rng or random.SystemRandom()
        self.identity = f"{identity}_{self._rng.getrandbits(32):08x}"
        self._on_started = on_started
        self._on_lost = on_lost
        self._clock = clock
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._leading = False
        #: Reason why the last attempt to acquire or renew the lease failed; None at first and after a success.
        self.problem: str | None = None

        self._leases = tuple(
            _Claim(
                api=api,
                name=name,
                namespace=namespace,
                identity=self.identity,
                optional=number > 0,
                clock=clock,
                now=now,
            )
            for number, name in enumerate(leases)
        )
        self._own = self._leases[0]
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._guard = threading.Thread(target=self._watch_for_loss, name="lease-guard", daemon=True)

    def start(self) -> None:
        """Start both threads."""
        self._thread.start()
        self._guard.start()

    def remaining_seconds(self) -> float:
        """Return the seconds for which no other process can lead; 0 if this process does not lead."""
        with self._lock:
            seconds = self._seconds_to_deadline() if self._leading else 0.0
        return seconds + _DURATION_SECONDS - _RENEW_DEADLINE_SECONDS if seconds > 0 else 0.0

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now."""
        return self.remaining_seconds() > 0

    @property
    def leader(self) -> str:
        """Pod of the leader, or of the Go provisioner while it prevents this process from leading; empty if unknown."""
        for lease in self._leases:
            if lease.holder not in ("", self.identity):
                return pod_of(lease.holder)
        return pod_of(self._own.holder)

    def stop(self, *, timeout_seconds: float = 1.0) -> None:
        """End the threads, but do not release the lease, because a write of this process may be in progress."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=timeout_seconds)

    def release(self) -> None:
        """End the threads and release the lease. Must not be called while a write is in progress. Never raises."""
        self.stop(timeout_seconds=_RENEWAL_SECONDS)
        with self._lock:
            self._leading = False
        if self._thread.is_alive():
            # The renewal that is still in progress could overwrite the release, so let the lease expire instead.
            _log.warning("lease.release_skipped", identity=self.identity)
        else:
            for lease in reversed(self._leases):
                lease.release()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.step()
            self._stopping.wait(self.pause_seconds())

    def _watch_for_loss(self) -> None:
        while not self._stopping.is_set():
            self._notice_loss()
            with self._lock:
                seconds = self._seconds_to_deadline() if self._leading else _MAX_LOOK_SECONDS
            self._stopping.wait(min(max(seconds, _MIN_PAUSE_SECONDS), _MAX_LOOK_SECONDS))

    def pause_seconds(self) -> float:
        """Return the seconds until the next step: a random pause, but at most until leadership would end."""
        pause = _RETRY_SECONDS * self._rng.uniform(0.8, 1.2)
        with self._lock:
            if self._leading:
                pause = min(pause, max(self._seconds_to_deadline(), 0.0))
        # The minimum prevents a busy loop if the deadline has just passed.
        return max(pause, _MIN_PAUSE_SECONDS)

    def step(self) -> None:
        """Try once to acquire or renew the lease, and start or stop leading accordingly."""
        self._notice_loss()
        try:
            problem = self._attempt()
        except errors.ClusterError as error:
            problem = _problem_of(error, self._own.namespace)
        except Exception as error:  # noqa: BLE001 - any bug here must end in losing the lease, not in keeping it
            _log.exception("lease.step_failed", identity=self.identity)
            problem = f"the lease could not be renewed: {error!r}"
        if problem != self.problem:
            self.problem = problem
            if problem:
                _log.warning("lease.problem_found", identity=self.identity, problem=problem)
        self._notice_loss()
        if self._stopping.is_set():
            return
        with self._lock:
            begins = not self._leading and problem is None and self._seconds_to_deadline() > 0
            if begins:
                self._leading = True
        if begins:
            _log.info("lease.acquired", identity=self.identity)
            self._call(self._on_started)

    def _attempt(self) -> str | None:
        for lease in self._leases:
            deadline = self._deadline()
            problem = lease.attempt()
            if problem:
                return problem
            # If the deadline passed during the request, this process must stop leading although the renewal succeeded.
            self._notice_loss(deadline)
        return None

    def _notice_loss(self, deadline: float = float("inf")) -> None:
        """Stop leading if the current deadline or `deadline`, the deadline before a renewal, has passed."""
        with self._lock:
            lost = self._leading and min(deadline, self._deadline()) <= self._clock()
            if lost:
                self._leading = False
        if lost:
            # The callback comes first, because the log line may block if the output is not read.
            self._call(self._on_lost)
            _log.warning("lease.lost", identity=self.identity, problem=self.problem)

    def _deadline(self) -> float:
        """Return the time at which leadership ends without a renewal; -inf if a Lease has no `confirmed_at`."""
        confirmed = [lease.confirmed_at for lease in self._leases]
        moments = [moment for moment in confirmed if moment is not None]
        return min(moments) + _RENEW_DEADLINE_SECONDS if len(moments) == len(confirmed) else float("-inf")

    def _seconds_to_deadline(self) -> float:
        return self._deadline() - self._clock()

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # noqa: BLE001 - a listener's bug must not stop the renewals
            _log.exception("lease.listener_failed", identity=self.identity)


def _problem_of(error: errors.ClusterError, namespace: str) -> str:
    if isinstance(error, errors.Forbidden):
        return (
            f"RBAC does not allow the lease: grant get, create and update on leases (coordination.k8s.io) in namespace "
            f"{namespace} ({error.message})"
        )
    if isinstance(error, errors.NotFound):
        return f"the lease can't be created: does namespace {namespace} exist? ({error.message})"
    return f"the lease could not be read or renewed: {error}"


@dataclass(slots=True, kw_only=True)
class _Claim:
    """Claim of this process to one Lease. Used by one thread at a time; others read `holder` and `confirmed_at`."""

    api: Api
    name: str
    namespace: str
    identity: str
    #: Whether the leader needs the Lease only if it exists. True for the Lease of the Go provisioner.
    optional: bool
    clock: Callable[[], float]
    now: Callable[[], datetime]
    #: Start of the last request that confirmed this process as holder, or showed that an optional Lease is missing.
    #: None before the first such request, after `release`, and usually after a request that showed another holder.
    confirmed_at: float | None = None
    #: Holder in the Lease at the last read or write; empty if unset or unknown.
    holder: str = ""
    #: Lease in the response to this process's last write; None if the Lease must be read before the next write.
    _held: JsonObject | None = None
    #: Spec of the Lease at the last read that showed another holder, and time of the first read of this spec.
    _observed: object = None
    _observed_at: float = 0.0

    @property
    def _path(self) -> str:
        return object_path("leases", self.name, namespace=self.namespace, root=LEASES_ROOT)

    def attempt(self) -> str | None:
        """Acquire or renew the Lease; return the reason if that fails, None on success. Raises ClusterError."""
        if self._held is not None:
            try:
                self._write(self._held, taking=False)
            except (errors.Conflict, errors.NotFound):
                self._held = None
            else:
                return None
        sent = self.clock()
        current: JsonObject | None = None
        with contextlib.suppress(errors.NotFound):
            current = self.api.get(self._path, timeouts=_TIMEOUTS)
        spec = fields.mapping((current or {}).get("spec"))
        holder = spec.get("holderIdentity") or ""
        self.holder = str(holder)[:_MAX_HOLDER]
        if current is None and self.optional:
            self.confirmed_at = sent
            return None
        if holder not in ("", self.identity) and self._seconds_to_wait(spec) > 0:
            self.confirmed_at = None
            owner = "the Go provisioner" if self.optional else "another instance"
            return (
                f"lease {self.namespace}/{self.name} is held by {owner}, {str(holder)[:100]}: waiting until it ends or "
                "stops renewing the lease"
            )
        try:
            self._write(current, taking=holder != self.identity)
        except (errors.Conflict, errors.NotFound) as error:
            if current is None and isinstance(error, errors.NotFound):
                # Only a missing namespace causes NotFound on a create.
                raise
            if holder != self.identity:
                self.confirmed_at = None
            did = "wrote" if current is not None else "created"
            return f"lease {self.namespace}/{self.name}: another process {did} it at the same time; retrying"
        return None

    def release(self) -> None:
        """Remove this process as the holder of the Lease, if it is the holder. Never raises ClusterError."""
        held, self._held, self.confirmed_at = self._held, None, None
        if held is None:
            return
        self.holder = ""
        moment = fields.format_micro_time(self.now())
        ended = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": moment, "acquireTime": moment}
        try:
            self.api.put(self._path, {**held, "spec": fields.mapping(held.get("spec")) | ended}, timeouts=_TIMEOUTS)
        except errors.ClusterError as error:
            _log.warning("lease.release_failed", lease=self.name, error=str(error))
        else:
            _log.info("lease.released", lease=self.name, identity=self.identity)

    def _write(self, current: JsonObject | None, *, taking: bool) -> None:
        """Make this process the holder: update the Lease `current`, or create the Lease if `current` is not given."""
        spec = fields.mapping((current or {}).get("spec"))
        if current is not None and not fields.mapping(current.get("metadata")).get("resourceVersion"):
            # Without a resourceVersion, this write could overwrite another client's write.
            raise errors.Malformed(f"lease {self.namespace}/{self.name} has no resourceVersion")
        moment = fields.format_micro_time(self.now())
        new_spec = {"holderIdentity": self.identity, "leaseDurationSeconds": _DURATION_SECONDS, "renewTime": moment}
        if taking:
            before = spec.get("leaseTransitions")
            count = (before if isinstance(before, int) else 0) + (current is not None)
            new_spec |= {"acquireTime": moment, "leaseTransitions": count}
        sent = self.clock()
        if current is not None:
            self._held = self.api.put(self._path, {**current, "spec": spec | new_spec}, timeouts=_TIMEOUTS)
        else:
            path = collection_path("leases", namespace=self.namespace, root=LEASES_ROOT)
            metadata = {"name": self.name, "namespace": self.namespace}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": new_spec}
            self._held = self.api.post(path, body, timeouts=_TIMEOUTS)
        self.holder, self.confirmed_at = self.identity, sent

    def _seconds_to_wait(self, spec: dict[str, Any]) -> float:
        """Return the seconds, by this process's clock, until the Lease counts as expired if `spec` does not change."""
        if spec != self._observed:
            self._observed = spec
            self._observed_at = self.clock()
        duration = spec.get("leaseDurationSeconds")
        if not isinstance(duration, int) or not 0 < duration <= _MAX_DURATION_SECONDS:
            duration = _DURATION_SECONDS
        return self._observed_at + duration - self.clock()
