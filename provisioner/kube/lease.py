"""Be the one leader: hold a Lease, and the Go original's where it exists.

Leadership is a number of seconds, counted on a monotonic clock from BEFORE the last successful renewal was sent; it
runs out by itself, whatever the network, the API server or this thread does. Another holder's Lease counts as expired
when its record was seen unchanged for its duration by our clock; its own clock is never trusted.

Order of the two leases: ours first, the original's only while ours is held; so two candidates can't wait for each
other. The loss is noticed by a second thread, so that a renewal which hangs cannot hide it. What is not promised: that
a process which was stopped as a whole has noticed by then; callers start a mutating call only with more seconds left
than its own time-out.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

import structlog

from provisioner import constants
from provisioner.kube import errors
from provisioner.kube.lease_claim import DURATION_SECONDS, LeaseClaim, LeaseClocks
from provisioner.kube.protocol import Api

_log = structlog.get_logger(__name__)

#: Without a renewal for so long we do not lead any more. It lies before the end of the lease by more than a request
#: takes, and leaves time for several tries.
_RENEW_DEADLINE_SECONDS = 20.0
_RETRY_SECONDS = 5.0
_SHORTEST_PAUSE_SECONDS = 0.05
#: The clock of the lease goes on while the machine sleeps, the one that threads wait by does not.
_LONGEST_LOOK_SECONDS = 1.0
_CLOCKS = LeaseClocks()


def pod_of(holder: str) -> str:
    """Return the pod of a lease's holder.

    Behind a letter that names of pods do not have is what tells this process from an earlier one of that pod.
    """
    return holder.partition("_")[0]


class LeaseElector:
    """Contends for leadership in a thread of its own, and watches in another that it has not lost it.

    `identity` is made unique by a random suffix: two processes of one name must not take each other for themselves. The
    first of `leases` is ours; another counts where it exists.
    `on_started` and `on_lost` are called from these threads and must not block. What is released is not lost.
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
        clocks: LeaseClocks = _CLOCKS,
        rng: random.Random | None = None,
    ) -> None:
        self._rng = rng or random.SystemRandom()
        self.identity = f"{identity}_{self._rng.getrandbits(32):08x}"
        self._on_started = on_started
        self._on_lost = on_lost
        self._clock = clocks.boot
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._leading = False
        self._problem: str | None = None

        def claim(name: str, *, must_exist: bool) -> LeaseClaim:
            return LeaseClaim(
                api, name=name, namespace=namespace, identity=self.identity, must_exist=must_exist, clocks=clocks
            )

        own, *others = leases
        self._own = claim(own, must_exist=False)
        self._leases = (self._own, *(claim(other, must_exist=True) for other in others))
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._guard = threading.Thread(target=self._watch_for_loss, name="lease-guard", daemon=True)

    # --- for everyone

    def start(self) -> None:
        """Start to contend."""
        self._thread.start()
        self._guard.start()

    def remaining_seconds(self) -> float:
        """Return how long the lease surely lasts; 0 when not leader."""
        with self._lock:
            return self._remaining_seconds() if self._leading else 0.0

    @property
    def is_leader(self) -> bool:
        """Whether there is lease time left."""
        return self.remaining_seconds() > 0

    @property
    def leader(self) -> str:
        """Return the pod that leads, as the leases were last read; empty where none holds them.

        Where we hold ours and wait for the Go original, it is that one's.
        """
        for lease in self._leases:
            if lease.holder not in ("", self.identity):
                return pod_of(lease.holder)
        return pod_of(self._own.holder)

    @property
    def problem(self) -> str | None:
        """Return why we are not leader, or may soon not be, in words; None when all is well."""
        return self._problem

    def stop(self, *, timeout_seconds: float = 1.0) -> None:
        """End the thread and keep the lease until it expires: for a process that may have calls under way."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=timeout_seconds)

    def release(self, *, timeout_seconds: float = 10.0) -> None:
        """End the thread and hand the lease back, so that a successor need not wait; never raises.

        Only for a process that has no mutating call under way any more. The time-out is for a renewal under way.
        """
        self.stop(timeout_seconds=timeout_seconds)
        with self._lock:
            self._leading = False
        if self._thread.is_alive():
            # A renewal is still under way and would be written over what we write; expiry does the rest.
            _log.warning("lease.release_skipped", identity=self.identity)
        else:
            for lease in reversed(self._leases):
                lease.release()

    # --- the threads

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.step()
            self._stopping.wait(self.pause_seconds())

    def _watch_for_loss(self) -> None:
        while not self._stopping.is_set():
            self._notice_loss()
            with self._lock:
                left = self._seconds_to_deadline() if self._leading else _LONGEST_LOOK_SECONDS
            self._stopping.wait(min(max(left, _SHORTEST_PAUSE_SECONDS), _LONGEST_LOOK_SECONDS))

    def pause_seconds(self) -> float:
        """Return how long to wait before the next step: jittered, and never past the moment of losing."""
        pause = _RETRY_SECONDS * self._rng.uniform(0.8, 1.2)
        with self._lock:
            if self._leading:
                pause = min(pause, max(self._seconds_to_deadline(), 0.0))
        # A deadline that is just reached must not turn into a busy loop.
        return max(pause, _SHORTEST_PAUSE_SECONDS)

    def step(self) -> None:
        """Acquire or renew once, and notice what that means."""
        self._notice_loss()
        try:
            problem = self._attempt()
        except errors.ClusterError as error:
            problem = _in_words(error, self._own.namespace)
        except Exception as error:  # noqa: BLE001 - any bug here must end in losing the lease, not in keeping it
            _log.exception("lease.step_failed", identity=self.identity)
            problem = f"the lease could not be renewed: {error!r}"
        if problem != self._problem:
            self._problem = problem
            if problem:
                _log.warning("lease.problem_found", identity=self.identity, problem=problem)
        # The requests took their time: a late success does not make an unbroken leadership.
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
            problem = lease.attempt(before_success=self._notice_loss)
            if problem:
                return problem
        return None

    def _notice_loss(self) -> None:
        with self._lock:
            lost = self._leading and self._seconds_to_deadline() <= 0
            if lost:
                self._leading = False
        if lost:
            # Before the log line, which may hang where nobody takes our output any more.
            self._call(self._on_lost)
            _log.warning("lease.lost", identity=self.identity, problem=self._problem)

    def _seconds_to_deadline(self) -> float:
        """Return how long we may lead without another success; both leases count."""
        confirmed = [lease.confirmed_at for lease in self._leases]
        known = [moment for moment in confirmed if moment is not None]
        if len(known) < len(confirmed):
            return 0.0
        return min(known) + _RENEW_DEADLINE_SECONDS - self._clock()

    def _remaining_seconds(self) -> float:
        to_deadline = self._seconds_to_deadline()
        if to_deadline <= 0:
            return 0.0
        return to_deadline + DURATION_SECONDS - _RENEW_DEADLINE_SECONDS

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # noqa: BLE001 - a listener's bug must not stop the renewals
            _log.exception("lease.listener_failed", identity=self.identity)


def _in_words(error: errors.ClusterError, namespace: str) -> str:
    if isinstance(error, errors.Forbidden):
        return (
            f"RBAC does not allow the lease: grant get, create and update on leases (coordination.k8s.io) in namespace "
            f"{namespace} ({error.message})"
        )
    if isinstance(error, errors.NotFound):
        return f"the lease can't be created: does namespace {namespace} exist? ({error.message})"
    return f"the lease could not be read or renewed: {error}"
