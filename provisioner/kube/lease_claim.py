"""The claim of this process to one Lease object: acquire, renew, judge another holder, release.

Not safe to share between threads; the elector's thread owns it. Only `confirmed_at` and `holder` may be read from
elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from provisioner.kube import errors
from provisioner.kube.protocol import LEASES_ROOT, Api, JsonObject, Timeouts, collection_path, object_path
from provisioner.kube.quantities import format_micro_time

_log = structlog.get_logger(__name__)

#: Another candidate may take the lease when it was not renewed for so long.
DURATION_SECONDS = 30
#: A renewal that hangs must leave time for another before the deadline.
_TIMEOUTS = Timeouts(connect_seconds=5.0, read_seconds=5.0)
#: A record may ask for any duration; beyond this it is a mistake that would keep everybody waiting.
_LONGEST_DURATION_SECONDS = 3600.0
#: Anybody who may write the Lease names its holder; names are shorter.
_LONGEST_HOLDER = 253


def boot_clock() -> float:
    """Return seconds that also pass while the machine sleeps, where the system has such a clock.

    A suspended laptop would otherwise wake up still believing in a lease that ended hours ago.
    """
    clock_id = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock_id is None else time.clock_gettime(clock_id)


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClocks:
    """The clocks that a lease goes by."""

    #: Seconds from whenever, by which a claim is judged.
    boot: Callable[[], float] = boot_clock
    #: The time of day, which is written into the Lease for people.
    now: Callable[[], datetime] = _utc_now


class LeaseClaim:
    """One Lease object.

    `confirmed_at` is when the request was sent that last proved our claim, None without a claim: that we hold it, or,
    for a lease that only counts where it exists (`must_exist`), that there is none.
    """

    def __init__(
        self,
        api: Api,
        *,
        name: str,
        namespace: str,
        identity: str,
        must_exist: bool,
        clocks: LeaseClocks,
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.confirmed_at: float | None = None
        #: Who holds it, as it was last read or written; empty: nobody, or not known yet.
        self.holder = ""
        self._api = api
        self._identity = identity
        self._must_exist = must_exist
        self._clock = clocks.boot
        self._now = clocks.now
        self._path = object_path("leases", name, namespace=namespace, root=LEASES_ROOT)
        #: The object as we last wrote it, while we hold it.
        self._held: JsonObject | None = None
        #: Another's record, and when we first saw it like that.
        self._observed: object = None
        self._observed_at = 0.0

    def attempt(self, *, before_success: Callable[[], None]) -> str | None:
        """Acquire or renew; return None, or why not, in words. Raises ClusterError."""
        if self._held is not None:
            try:
                self._write(self._held, taking=False, before_success=before_success)
            except (errors.Conflict, errors.NotFound):
                # Somebody wrote it, or deleted it: look again.
                self._held = None
            else:
                return None
        sent = self._clock()
        try:
            current = self._api.get(self._path, timeouts=_TIMEOUTS)
        except errors.NotFound:
            self.holder = ""
            if self._must_exist:
                self._confirm(sent, before_success)
                return None
            return self._create(before_success)
        spec = _spec(current)
        holder = spec.get("holderIdentity") or ""
        self.holder = str(holder)[:_LONGEST_HOLDER]
        if holder != self._identity:
            waiting = self._seconds_to_wait(spec) if holder else 0.0
            if waiting > 0:
                self.confirmed_at = None
                who = "the Go provisioner" if self._must_exist else "another instance"
                return (
                    f"lease {self.namespace}/{self.name} is held by {who}, {str(holder)[:100]}: waiting until it ends "
                    "or stops renewing the lease"
                )
        try:
            self._write(current, taking=holder != self._identity, before_success=before_success)
        except (errors.Conflict, errors.NotFound):
            if holder != self._identity:
                self.confirmed_at = None
            return f"lease {self.namespace}/{self.name}: another process wrote it at the same time; retrying"
        return None

    def release(self) -> None:
        """Empty the holder, if we hold it; never raises."""
        held, self._held, self.confirmed_at = self._held, None, None
        if held is None:
            return
        self.holder = ""
        moment = format_micro_time(self._now())
        spec = {
            **_spec(held),
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "renewTime": moment,
            "acquireTime": moment,
        }
        try:
            self._api.put(self._path, {**held, "spec": spec}, timeouts=_TIMEOUTS)
        except errors.ClusterError as error:
            _log.warning("lease.release_failed", lease=self.name, error=str(error))
        else:
            _log.info("lease.released", lease=self.name, identity=self._identity)

    def _create(self, before_success: Callable[[], None]) -> str | None:
        moment = format_micro_time(self._now())
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": DURATION_SECONDS,
                "acquireTime": moment,
                "renewTime": moment,
                "leaseTransitions": 0,
            },
        }
        sent = self._clock()
        try:
            self._held = self._api.post(
                collection_path("leases", namespace=self.namespace, root=LEASES_ROOT),
                body,
                timeouts=_TIMEOUTS,
            )
        except errors.Conflict:
            self.confirmed_at = None
            return f"lease {self.namespace}/{self.name}: another process created it at the same time; retrying"
        self.holder = self._identity
        self._confirm(sent, before_success)
        return None

    def _write(self, current: JsonObject, *, taking: bool, before_success: Callable[[], None]) -> None:
        spec = _spec(current)
        metadata = current.get("metadata")
        if not isinstance(metadata, dict) or not metadata.get("resourceVersion"):
            # Without it, the write could go over somebody else's.
            raise errors.Malformed(f"lease {self.namespace}/{self.name} has no resourceVersion")
        moment = format_micro_time(self._now())
        changed = {
            **spec,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": moment,
        }
        if taking:
            transitions = spec.get("leaseTransitions")
            changed["acquireTime"] = moment
            changed["leaseTransitions"] = (transitions if isinstance(transitions, int) else 0) + 1
        sent = self._clock()
        # The body carries the resourceVersion that was read: the write fails where anybody wrote in between.
        self._held = self._api.put(self._path, {**current, "spec": changed}, timeouts=_TIMEOUTS)
        self.holder = self._identity
        self._confirm(sent, before_success)

    def _confirm(self, sent: float, before_success: Callable[[], None]) -> None:
        before_success()
        self.confirmed_at = sent

    def _seconds_to_wait(self, spec: dict[str, Any]) -> float:
        """Return how long another holder's record must still stay unchanged, by our clock, to count as expired."""
        record = tuple(
            repr(spec.get(key))
            for key in (
                "holderIdentity",
                "renewTime",
                "acquireTime",
                "leaseTransitions",
                "leaseDurationSeconds",
            )
        )
        if record != self._observed:
            self._observed = record
            self._observed_at = self._clock()
        duration = spec.get("leaseDurationSeconds")
        if not isinstance(duration, int) or not 0 < duration <= _LONGEST_DURATION_SECONDS:
            duration = DURATION_SECONDS
        return self._observed_at + duration - self._clock()


def _spec(lease: JsonObject) -> dict[str, Any]:
    spec = lease.get("spec")
    return spec if isinstance(spec, dict) else {}
