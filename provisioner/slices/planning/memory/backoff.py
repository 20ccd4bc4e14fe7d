"""Computes how long creates and deletes wait after failures. Pure.

A failure delays only the thing that it concerns: the capacity that was out of stock (zone, machine type, shape,
capacity type, and choices of the pods), or the slice whose create failed. Each failure doubles the wait, up to a cap;
the key shortens it by up to a fifth, which spreads waits without randomness. A success ends it. Failed creates are also
counted by workload and by namespace (`Tally`), so that a request that changes all the time has to wait as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.choices import CapacityKey
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.memory.state import Backoff, BackoffKey, Backoffs, Tallies, Tally

#: Numbers of failed creates that a workload (and one more for each of its slices) and a namespace may have without a
#: wait. Above its number, each may send one create, for any request, in `_WORKLOAD_SECONDS` or `_NAMESPACE_SECONDS`.
_WORKLOAD_FAILURES, _WORKLOAD_SECONDS = 8, 60.0
_NAMESPACE_FAILURES, _NAMESPACE_SECONDS = 64, 10.0

#: Seconds for which an ended back-off is remembered.
_STALE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """First and maximum wait after a kind of failure."""

    first_seconds: float
    cap_seconds: float


#: Waits after a failed create. Other kinds of failures cause no wait: the create is looked up, adopted or rejected.
DELAYS: Mapping[FailureKind, Delay] = {
    # A create without capacity occupies a GKE operation for up to 35 minutes, so it is retried rarely.
    FailureKind.STOCKOUT: Delay(first_seconds=30, cap_seconds=600),
    FailureKind.QUOTA: Delay(first_seconds=60, cap_seconds=1800),
    FailureKind.OPERATION_IN_THE_WAY: Delay(first_seconds=2, cap_seconds=30),
    FailureKind.UNAVAILABLE: Delay(first_seconds=1, cap_seconds=60),
    # An administrator may grant the permission at any time, and no event reports it.
    FailureKind.PERMISSION: Delay(first_seconds=60, cap_seconds=600),
    FailureKind.NOT_FOUND: Delay(first_seconds=60, cap_seconds=600),
    # At most 6 pools within the first day, because each is paid for until the scheduler has refused it.
    FailureKind.UNSCHEDULABLE: Delay(first_seconds=2400, cap_seconds=24 * 3600),
}
#: Wait of a request whose pool ended in ERROR for a reason that `DELAYS` does not assign to its capacity.
FAILED_POOL_DELAY = Delay(first_seconds=30, cap_seconds=600)
#: Failures after which the requested capacity waits; after other failures, the slice or its request waits.
_OF_CAPACITY = frozenset({FailureKind.STOCKOUT, FailureKind.QUOTA})
#: Number of pools in a row that have to come up before a stockout is forgotten; then 64 creates may run at a time.
_DOUBLINGS = 6
#: Wait of a request that GKE rejects as invalid. It is retried, because the cause may be a permission, a quota, a
#: service account or a policy, which may have been corrected since.
REFUSAL_DELAY = Delay(first_seconds=900, cap_seconds=4 * 3600)
#: Wait after a failed or stopped delete.
DELETE_DELAY = Delay(first_seconds=4, cap_seconds=60)


def longest_wait_seconds(failure: Failure) -> float:
    """Return the maximum wait in seconds after a failure."""
    delay = REFUSAL_DELAY if failure.kind is FailureKind.INVALID else DELAYS.get(failure.kind, FAILED_POOL_DELAY)
    return max(FAILED_POOL_DELAY.cap_seconds, delay.cap_seconds)


def wait_seconds(delay: Delay, failures: int, key: str) -> float:
    """Return the wait after the given number of consecutive failures."""
    return waits.doubled_seconds(delay.first_seconds, delay.cap_seconds, failures, key)


def concerns_capacity(failure: Failure) -> bool:
    """Whether a failed create shows something about the capacity, and not about the slice."""
    return failure.kind in _OF_CAPACITY


def create_failed(backoffs: Backoffs, failure: Failure, capacity: CapacityKey, now: datetime) -> Backoffs:
    """Return the back-offs of capacities after a create that GKE rejected for lack of capacity."""
    return _with(backoffs, capacity, DELAYS[failure.kind], failure.for_all, now)


def slice_failed(
    before: Backoff | None, failure: Failure, slice_id: SliceId, now: datetime, *, reserved: CapacityKey | None = None
) -> Backoff | None:
    """Return the back-off of a slice after a create that failed; unchanged if this kind causes no wait.

    `reserved` is the capacity of a create with a reservation, which its project may not share. After a missing
    permission only that capacity is blocked, and the slice's next choice is tried.
    """
    delay = DELAYS.get(failure.kind)
    if delay is None:
        return before
    refused: frozenset[CapacityKey] = frozenset()
    if failure.kind is FailureKind.PERMISSION and reserved is not None:
        refused = frozenset({reserved}) | (before.capacities if before is not None and before.until > now else refused)
    return replace(_longer(before, str(slice_id), delay, failure, now), capacities=refused)


def pool_failed(
    backoffs: Backoffs,
    failure: Failure,
    capacity: CapacityKey,
    digest: str,
    now: datetime,
    owner: SliceId | None = None,
) -> Backoffs:
    """Return the back-offs after a pool that GKE created for a slice ended in ERROR, for any reason.

    A failure that shows nothing about the capacity may concern only this request, which its digest identifies. Pools of
    the Go provisioner have no digest; the capacity is the key instead.
    """
    if failure.kind is FailureKind.INVALID and owner is not None:
        return _with(backoffs, digest, REFUSAL_DELAY, failure, now, owner)
    if concerns_capacity(failure):
        # The reason now known also explains earlier failures of the request without a reason.
        return create_failed(forget(backoffs, digest), failure, capacity, now)
    return _with(backoffs, digest or capacity, FAILED_POOL_DELAY, failure, now)


def _with(
    backoffs: Backoffs,
    key: BackoffKey,
    delay: Delay,
    failure: Failure,
    now: datetime,
    owner: SliceId | None = None,
) -> Backoffs:
    before = backoffs.get(key)
    # Failures of a rejected request are counted separately from failures of its pool.
    before = before if before is not None and (before.slice_id is None) is (owner is None) else None
    return {**backoffs, key: replace(_longer(before, str(key), delay, failure, now), slice_id=owner)}


def _longer(before: Backoff | None, key: str, delay: Delay, failure: Failure, now: datetime) -> Backoff:
    if before is not None and before.until > now:
        # Failures of calls and pools in progress at the same time count once if their kind is the same or unknown.
        if before.failure.kind is failure.kind:
            return replace(before, failure=failure)
        if failure.kind is FailureKind.UNAVAILABLE:
            return before
        if before.failure.kind is FailureKind.UNAVAILABLE:
            until = now + timedelta(seconds=wait_seconds(delay, before.failures, key))
            return replace(before, failure=failure, until=max(before.until, until))
    failures = before.failures + 1 if before is not None else 1
    # A stockout or quota failure after a failure of another kind restarts `since`.
    lasts = before is not None and (before.failure.kind is failure.kind or failure.kind not in _OF_CAPACITY)
    since = before.since if before is not None and lasts else now
    until = now + timedelta(seconds=wait_seconds(delay, failures, key))
    return Backoff(failure=failure, failures=failures, since=since, until=until)


def refused(
    known: Mapping[SliceId, Backoff],
    refusals: Mapping[SliceId, str],
    now: datetime,
    *,
    present: Collection[SliceId],
    together: bool,
) -> dict[SliceId, Backoff]:
    """Return the back-offs of a workload's slices after the scheduler refused ready pools of some of them.

    `known` has the slices that were refused before, and `refusals` the messages of the scheduler. The pods are usually
    alike, so only the first `present` slice is retried first; the others wait until it succeeds, or for a day, unless
    they start `together`.
    """
    new = [each for each in refusals if each not in known or known[each].until <= now]
    if not new:
        return dict(known)
    one = min(new)
    failure, delay = Failure(kind=FailureKind.UNSCHEDULABLE, message=refusals[one]), DELAYS[FailureKind.UNSCHEDULABLE]
    first = min((*new, *(each for each in known if each in present)))
    # Slices that are refused at about the same time count as one failure.
    before = known.get(one) or (known[min(known)] if known else None)
    soon = _longer(before, str(one), delay, failure, now)
    later = soon if together else replace(soon, until=now + timedelta(seconds=delay.cap_seconds))
    return {each: soon if each == first else later for each in (*known, *new)}


def blocking(backoffs: Backoffs, capacity: CapacityKey, own: Backoff | None, now: datetime) -> Backoff | None:
    """Return the longer back-off, of the capacity or of the slice, that forbids a create now; None if neither does."""
    if own is not None and own.capacities and capacity not in own.capacities:
        own = None
    active = [each for each in (backoffs.get(capacity), own) if each is not None and each.until > now]
    return max(active, key=lambda each: each.until, default=None)


def probing(backoffs: Backoffs, capacity: BackoffKey) -> Backoff | None:
    """Return the stockout or quota failure that still limits the creates of a capacity, None if no failure does."""
    last = backoffs.get(capacity)
    return last if last is not None and last.failure.kind in _OF_CAPACITY else None


def max_in_flight(last: Backoff) -> int:
    """Return the maximum number of pools being created with a capacity that was out of stock.

    A create that finds no capacity occupies a GKE operation for up to 35 minutes. A pool that came up proves stock for
    one pool, so the number doubles with each, instead of opening the capacity to all slices that wait.
    """
    return int(2**last.came_up)


def came_up(backoffs: Backoffs, capacity: CapacityKey, now: datetime) -> Backoffs:
    """Return the back-offs after a pool of a capacity came up: twice as many creates may run, in the end any number."""
    last = probing(backoffs, capacity)
    if last is None or last.came_up >= _DOUBLINGS:
        return forget(backoffs, capacity)
    return {**backoffs, capacity: replace(last, came_up=last.came_up + 1, until=min(last.until, now))}


def freed(backoffs: Backoffs, places: Collection[tuple[str, str]], now: datetime) -> Backoffs:
    """Return the back-offs after pools vanished: capacity of the same zone and machine type may be tried now."""
    due: dict[BackoffKey, Backoff] = {
        key: replace(last, until=now)
        for key, last in backoffs.items()
        if last.until > now and last.failure.kind in _OF_CAPACITY and isinstance(key, CapacityKey) and key[:2] in places
    }
    return {**backoffs, **due} if due else backoffs


def forget(backoffs: Backoffs, key: BackoffKey) -> Backoffs:
    """Return the back-offs without the one of a key, after a success."""
    return {other: last for other, last in backoffs.items() if other != key} if key in backoffs else backoffs


def is_fresh(last: Backoff, now: datetime) -> bool:
    """Whether a back-off runs or ended less than `_STALE_SECONDS` ago.

    A back-off that ends later than the maximum wait for its failure is stale: a clock that was ahead set its end.
    """
    latest = now + timedelta(seconds=longest_wait_seconds(last.failure))
    return now - timedelta(seconds=_STALE_SECONDS) < last.until <= latest


def create_counted(tallies: Tallies, slice_id: SliceId, namespace: str, now: datetime) -> Tallies:
    """Return the counts with one more failed create of a slice's workload and of its namespace."""
    counted = dict(tallies)
    for key, _, seconds in _tallied(slice_id, namespace):
        counted[key] = Tally(count=_count(tallies.get(key), seconds, now) + 1, at=now)
    return counted


def create_taken(tallies: Tallies, slice_id: SliceId, namespace: str) -> Tallies:
    """Return the counts after GKE accepted a create: the workload and its namespace may try again immediately.

    Counts are reduced only to their limits: pools that are accepted and fail each time do not avoid the wait.
    """
    counted = dict(tallies)
    for key, most, _ in _tallied(slice_id, namespace):
        if key in tallies:
            counted[key] = replace(tallies[key], count=min(tallies[key].count, most))
    return counted


def create_sent(tallies: Tallies, slice_id: SliceId, namespace: str, now: datetime) -> Tallies:
    """Return the counts after a create was sent: above the limit, the wait begins again."""
    over = {
        key: replace(tallies[key], at=now)
        for key, most, _ in _tallied(slice_id, namespace)
        if key in tallies and tallies[key].count > most
    }
    return {**tallies, **over} if over else tallies


def counted_until(tallies: Tallies, slice_id: SliceId, namespace: str, slices_of_workload: int) -> datetime | None:
    """Return the time, maybe past, before which a workload sends no create; None without too many failures."""
    until = None
    for key, most, seconds in _tallied(slice_id, namespace, slices_of_workload):
        tally = tallies.get(key)
        if tally is not None and tally.count > most:
            over = tally.at + timedelta(seconds=min(1.0, tally.count - most) * seconds)
            until = over if until is None else max(until, over)
    return until


def still_counted(tallies: Tallies, now: datetime) -> Tallies:
    """Drop counts that have decreased to zero."""
    return {key: each for key, each in tallies.items() if _count(each, _WORKLOAD_SECONDS, now) > 0}


def _tallied(slice_id: SliceId, namespace: str, slices: int = 0) -> Iterator[tuple[tuple[str, str], int, float]]:
    yield (namespace, slice_id.workload_uid), _WORKLOAD_FAILURES + slices, _WORKLOAD_SECONDS
    yield (namespace, ""), _NAMESPACE_FAILURES, _NAMESPACE_SECONDS


def _count(tally: Tally | None, seconds: float, now: datetime) -> float:
    return 0.0 if tally is None else max(0.0, tally.count - max(0.0, (now - tally.at).total_seconds()) / seconds)
