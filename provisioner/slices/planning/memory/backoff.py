"""How long to wait after which failure, and how many operations GKE takes at once.

A failure delays what it names and no more: the capacity that was out of stock (zone, machine type, shape, capacity
type), or the one slice whose create failed. No failure delays the cluster as a whole: what other slices may ask for is
found out by asking, and creates that are tried again are paced instead (see `paced_until`). A wait is doubled by each
failure up to a cap, spread by up to a fifth (from the key, so that nothing here is random), and forgotten on success.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.memory.state import Backoff, OperationLimit, Pace, Refusal

#: Slices whose creates failed try again so far apart, all together, at first and after some in vain: an outage under a
#: thousand slices must not become a thousand calls a minute.
_FIRST_PACE_SECONDS = 1.0
_LAST_PACE_SECONDS = 10.0
#: Each create that GKE takes lets so many more of them try at once: an outage is over for twice as many each time, and
#: one honest slice does not send all that are refused for a reason of their own.
_FREED_BY_ONE = 2
#: Rejections go on for this long before a known limit is believed to have fallen.
_REJECTION_PATIENCE_SECONDS = 15.0
_RETRY_SECONDS = 1.0
_FIRST_PROBE_SECONDS = 5.0
_LAST_PROBE_SECONDS = 60.0

_K = TypeVar("_K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """First and longest wait."""

    first_seconds: float
    cap_seconds: float
    #: Concerns the capacity that was asked for; else the slice that asked.
    per_capacity: bool = False


#: What a failed create delays. Kinds that are not here delay nothing: they are looked up, adopted or refused.
DELAYS: Mapping[FailureKind, Delay] = {
    # A create that runs into a stockout occupies the cluster for up to 35 minutes, so it is not tried lightly.
    FailureKind.STOCKOUT: Delay(first_seconds=30, cap_seconds=600, per_capacity=True),
    FailureKind.QUOTA: Delay(first_seconds=60, cap_seconds=1800, per_capacity=True),
    FailureKind.OPERATION_IN_THE_WAY: Delay(first_seconds=2, cap_seconds=30),
    # The operations themselves are limited by what GKE takes; this keeps one slice from being rejected in a loop.
    FailureKind.TOO_MANY_OPERATIONS: Delay(first_seconds=1, cap_seconds=10),
    FailureKind.UNAVAILABLE: Delay(first_seconds=1, cap_seconds=60),
    # Somebody may grant the permission at any time, and nothing tells us.
    FailureKind.PERMISSION: Delay(first_seconds=60, cap_seconds=600),
    FailureKind.NOT_FOUND: Delay(first_seconds=60, cap_seconds=600),
}
#: What a pool that ended in ERROR for a reason that the table above does not tie to its capacity delays: that request.
FAILED_POOL_DELAY = Delay(first_seconds=30, cap_seconds=600)
_PROBED = frozenset({FailureKind.STOCKOUT, FailureKind.QUOTA})
#: A request that GKE calls invalid. It is tried again all the same: many such answers tell of a permission, a quota, a
#: service account or a policy, which somebody may have mended since.
REFUSAL_DELAY = Delay(first_seconds=900, cap_seconds=4 * 3600)
#: What a failed or stopped delete is delayed by.
DELETE_DELAY = Delay(first_seconds=1, cap_seconds=60)


def longest_wait_seconds(failure: Failure) -> float:
    """Return the longest wait that a failure, but no refusal, leads to."""
    return max(FAILED_POOL_DELAY.cap_seconds, DELAYS.get(failure.kind, FAILED_POOL_DELAY).cap_seconds)


def wait_seconds(delay: Delay, failures: int, key: str) -> float:
    """Return the wait after the given number of failures in a row."""
    return waits.doubled_seconds(delay.first_seconds, delay.cap_seconds, failures, key)


def concerns_capacity(failure: Failure) -> bool:
    """Whether a create that failed so says something of the capacity, and not of the slice that asked."""
    delay = DELAYS.get(failure.kind)
    return delay is not None and delay.per_capacity


def create_failed(
    backoffs: Mapping[str, Backoff], failure: Failure, capacity: str, now: datetime
) -> Mapping[str, Backoff]:
    """Return the back-offs of capacities after a create that GKE refused for want of it."""
    return {**backoffs, capacity: _longer(backoffs.get(capacity), capacity, DELAYS[failure.kind], failure, now)}


def slice_failed(
    backoffs: Mapping[SliceId, Backoff], failure: Failure, slice_id: SliceId, now: datetime, *, reserved: str = ""
) -> Mapping[SliceId, Backoff]:
    """Return the back-offs of slices after a create that failed; unchanged where this kind delays nothing.

    `reserved` is the capacity that was asked for where that is a reservation: it may be another project's, which grants
    nothing. Then the slice's next choice is tried.
    """
    delay = DELAYS.get(failure.kind)
    if delay is None:
        return backoffs
    before = backoffs.get(slice_id)
    refused: frozenset[str] = frozenset()
    if failure.kind is FailureKind.PERMISSION and reserved:
        refused = frozenset({reserved}) | (before.capacities if before is not None and before.until > now else refused)
    longer = _longer(before, str(slice_id), delay, failure, now)
    return {**backoffs, slice_id: replace(longer, capacities=refused)}


def pool_failed(
    backoffs: Mapping[str, Backoff], failure: Failure, capacity: str, digest: str, now: datetime
) -> Mapping[str, Backoff]:
    """Return the back-offs after a pool that GKE made and that ended in ERROR, whatever the reason.

    What says nothing of the capacity may be wrong with this request alone, which is known by its digest. The Go
    provisioner's pools have none; then the capacity stands for it.
    """
    if concerns_capacity(failure):
        # It explains what had no reason before.
        return create_failed(forget(backoffs, digest), failure, capacity, now)
    key = digest or capacity
    return {**backoffs, key: _longer(backoffs.get(key), key, FAILED_POOL_DELAY, failure, now)}


def refused(before: Refusal | None, slice_id: SliceId, digest: str, failure: Failure, now: datetime) -> Refusal:
    """Return what is remembered of a request, known by its digest, that GKE has called invalid (again)."""
    wait = _longer(before.wait if before is not None else None, digest, REFUSAL_DELAY, failure, now)
    return Refusal(slice_id=slice_id, wait=wait)


def _longer(before: Backoff | None, key: str, delay: Delay, failure: Failure, now: datetime) -> Backoff:
    if before is not None and before.until > now:
        # Calls and pools that were under way together are one failure, not many; a reason is worth more than none.
        if before.failure.kind is failure.kind:
            return replace(before, failure=failure)
        if failure.kind is FailureKind.UNAVAILABLE:
            return before
        if before.failure.kind is FailureKind.UNAVAILABLE:
            until = now + timedelta(seconds=wait_seconds(delay, before.failures, key))
            return replace(before, failure=failure, until=max(before.until, until))
    failures = before.failures + 1 if before is not None else 1
    since = before.since if before is not None else now
    until = now + timedelta(seconds=wait_seconds(delay, failures, key))
    return Backoff(failure=failure, failures=failures, since=since, until=until)


def blocking(backoffs: Mapping[str, Backoff], capacity: str, own: Backoff | None, now: datetime) -> Backoff | None:
    """Return what forbids a create for now: a wait of the capacity or of the slice itself, whichever is longer."""
    if own is not None and own.capacities and capacity not in own.capacities:
        own = None
    active = [each for each in (backoffs.get(capacity), own) if each is not None and each.until > now]
    return max(active, key=lambda each: each.until, default=None)


def probing(backoffs: Mapping[str, Backoff], capacity: str) -> Backoff | None:
    """Return the failure after which only one pool of this capacity may be in the making, until one comes up.

    A create that runs into a stockout takes one of the cluster's few operations for half an hour.
    """
    last = backoffs.get(capacity)
    return last if last is not None and last.failure.kind in _PROBED else None


def paced_until(pace: Pace, own: Backoff | None, failed_at: datetime | None) -> datetime | None:
    """Return before when a slice must not try again, for the sake of GKE; None where it is not among those paced.

    `own` is the slice's own back-off. Who was rejected for the quota of operations is held to that quota already.
    """
    if own is None or failed_at is None or own.failure.kind is FailureKind.TOO_MANY_OPERATIONS:
        return None
    if pace.freed > 0 or pace.retried_at is None:
        return failed_at
    seconds = min(_LAST_PACE_SECONDS, _FIRST_PACE_SECONDS * 2.0 ** min(max(0, pace.retries - 1), 30))
    return pace.retried_at + timedelta(seconds=seconds)


def retried(pace: Pace, now: datetime) -> Pace:
    """Take note of a create that is tried again."""
    if pace.freed > 0:
        return replace(pace, freed=pace.freed - 1)
    return replace(pace, retried_at=now, retries=pace.retries + 1)


def taken(pace: Pace) -> Pace:
    """Return the pace after a create that GKE took."""
    return replace(pace, freed=pace.freed + _FREED_BY_ONE, retries=0)


def failed_again(pace: Pace) -> Pace:
    """Return the pace after a create that failed: what went well before counts for half as much."""
    return replace(pace, freed=pace.freed // 2)


def forget(backoffs: Mapping[_K, Backoff], key: _K) -> Mapping[_K, Backoff]:
    """Return the back-offs without one that a success has ended."""
    return {other: each for other, each in backoffs.items() if other != key} if key in backoffs else backoffs


def learn(operations: OperationLimit, under_way: int, now: datetime) -> OperationLimit:
    """Digest GKE's answers since the last decision; `under_way` operations are known to run now.

    To be called when no create is unanswered: only then do the operations under way tell what GKE takes.
    """
    rejections, acceptances = operations.rejections, operations.acceptances
    learnt = replace(operations, rejections=frozenset(), acceptances=0)
    if rejections:
        alone = len(rejections) == 1 and rejections == learnt.last_rejected
        if alone and learnt.limit is not None:
            # Whatever is wrong with this one, the others' operations may well be taken.
            return learnt
        return _rejected(replace(learnt, last_rejected=rejections), under_way, now)
    if acceptances and learnt.limit is not None:
        if under_way <= learnt.limit:
            return replace(learnt, rejected_since=None)
        probe_at = now + timedelta(seconds=_FIRST_PROBE_SECONDS)
        return OperationLimit(
            limit=under_way,
            probe_at=probe_at,
            probe_seconds=_FIRST_PROBE_SECONDS,
            last_rejected=learnt.last_rejected,
        )
    return learnt


def _rejected(operations: OperationLimit, under_way: int, now: datetime) -> OperationLimit:
    if operations.limit is None:
        probe_at = now + timedelta(seconds=operations.probe_seconds)
        return replace(operations, limit=max(1, under_way), probe_at=probe_at)
    if under_way >= operations.limit:
        seconds = min(_LAST_PROBE_SECONDS, operations.probe_seconds * 2)
        probe_at = now + timedelta(seconds=seconds)
        return replace(operations, probe_at=probe_at, probe_seconds=seconds, rejected_since=None)
    since = operations.rejected_since or now
    if (now - since).total_seconds() >= _REJECTION_PATIENCE_SECONDS:
        # A slot may be free a little later than the list of pools says. Not this much later: others use the quota.
        return replace(operations, limit=max(1, under_way), rejected_since=None)
    return replace(operations, rejected_since=since, retry_at=now + timedelta(seconds=_RETRY_SECONDS))


def free_slots(operations: OperationLimit, under_way: int, now: datetime) -> int | None:
    """Return how many operations may be started now; None: as many as there are."""
    if operations.rejections:
        # Rejected, and not digested yet because other calls are unanswered.
        return 0
    if operations.limit is None:
        return None
    if operations.retry_at is not None and operations.retry_at > now:
        return 0
    below = operations.limit - under_way
    if below == 0 and (operations.probe_at is None or operations.probe_at <= now):
        return 1
    return max(0, below)
