"""Computes how long creates and deletes wait after failures. Pure.

If capacity is out of stock or a quota is exceeded, all creates of this capacity (`CapacityKey`) wait. After most other
failures, only the slice or its request waits. Each failure after a wait doubles the next wait up to a maximum, and a
success ends the wait. These waits are shortened by up to a fifth, so that they end at different times. Failed creates
are also counted by workload and namespace (`Tally`), so that a workload whose request changes after each failure waits.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.choices import CapacityKey
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.memory.state import Backoff, BackoffKey, Backoffs, Tallies, Tally

#: Failed creates of a workload, plus one per slice, that cause no wait; maximum wait in seconds before another create.
_WORKLOAD_FAILURES, _WORKLOAD_SECONDS = 8, 60.0
#: Failed creates of a namespace that cause no wait; maximum wait in seconds before another create.
_NAMESPACE_FAILURES, _NAMESPACE_SECONDS = 64, 10.0

#: Time for which refused slices wait after the back-off, while one of them is tried first.
OTHERS_WAIT = timedelta(days=1)
#: Seconds for which a lasting failure or an ended back-off, except of refused pods, is remembered.
_STALE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """First and maximum wait in seconds after a kind of failure."""

    first_seconds: float
    cap_seconds: float


#: Waits after failed creates and, for UNSCHEDULABLE, after refusals by the scheduler. INVALID has `REFUSAL_DELAY`.
DELAYS: Mapping[FailureKind, Delay] = {
    # A create without capacity occupies a GKE operation for up to 35 minutes, so it is retried rarely.
    FailureKind.STOCKOUT: Delay(first_seconds=30, cap_seconds=600),
    FailureKind.QUOTA: Delay(first_seconds=60, cap_seconds=1800),
    FailureKind.OPERATION_IN_THE_WAY: Delay(first_seconds=2, cap_seconds=30),
    FailureKind.UNAVAILABLE: Delay(first_seconds=1, cap_seconds=60),
    # No event reports that an administrator has granted the permission, so the next create waits at most 10 minutes.
    FailureKind.PERMISSION: Delay(first_seconds=60, cap_seconds=600),
    FailureKind.NOT_FOUND: Delay(first_seconds=60, cap_seconds=600),
    # A slice gets at most 6 pools on the first day: each costs money until the scheduler is known to refuse it.
    FailureKind.UNSCHEDULABLE: Delay(first_seconds=2400, cap_seconds=24 * 3600),
}
#: Wait after a pool failed, unless `pool_failed` uses another one.
FAILED_POOL_DELAY = Delay(first_seconds=30, cap_seconds=600)
#: Failures that delay all creates of the capacity, and not only those of one slice or request.
OF_CAPACITY = frozenset({FailureKind.STOCKOUT, FailureKind.QUOTA})
#: Number of times that the bound on concurrent creates after a stockout or quota failure doubles, before it is dropped.
_DOUBLINGS = 6
#: Wait before the retry of an invalid request: an administrator may correct the cause.
REFUSAL_DELAY = Delay(first_seconds=900, cap_seconds=4 * 3600)
#: Wait before the retry of a delete, except after the results NEEDED and SETTLING.
DELETE_DELAY = Delay(first_seconds=4, cap_seconds=60)


def longest_wait_seconds(failure: Failure) -> float:
    """Return the maximum wait in seconds after a failed create or the failure of a created pool."""
    delay = REFUSAL_DELAY if failure.kind is FailureKind.INVALID else DELAYS.get(failure.kind, FAILED_POOL_DELAY)
    return max(FAILED_POOL_DELAY.cap_seconds, delay.cap_seconds)


def wait_seconds(delay: Delay, failures: int, key: str) -> float:
    """Return the wait in seconds after a number of consecutive failures, shortened by up to 20 % depending on `key`."""
    return waits.doubled_seconds(delay.first_seconds, delay.cap_seconds, failures, key)


def create_failed(backoffs: Backoffs, failure: Failure, capacity: CapacityKey, now: datetime) -> Backoffs:
    """Return the back-offs after a create that failed because the capacity is out of stock or a quota is exceeded."""
    return _with_failure(backoffs, capacity, DELAYS[failure.kind], failure.for_all, now)


def slice_failed(
    backoffs: Backoffs, failure: Failure, slice_id: SliceId, now: datetime, *, reserved: CapacityKey | None = None
) -> Backoffs:
    """Return the back-offs with a wait of the slice after a failed create; unchanged if the failure causes no wait.

    `reserved` is the capacity of a create with a reservation, None for other creates. If a permission is missing for
    such a create, the wait blocks only reserved capacities, so that the next choice of the slice is tried.
    """
    delay, before = DELAYS.get(failure.kind), backoffs.get(slice_id)
    if delay is None:
        return backoffs
    refused: frozenset[CapacityKey] = frozenset()
    if failure.kind is FailureKind.PERMISSION and reserved is not None:
        refused = frozenset({reserved}) | (before.capacities if before is not None and before.until > now else refused)
    elif before is not None and before.capacities:
        # The earlier wait does not block all choices, so a wait that does begins now. Both waits grow together.
        before = replace(before, until=min(before.until, now))
    last = replace(_extended(before, str(slice_id), delay, failure, now), capacities=refused)
    return {**backoffs, slice_id: last}


def pool_failed(
    backoffs: Backoffs,
    failure: Failure,
    capacity: CapacityKey,
    digest: str,
    now: datetime,
    owner: SliceId | None = None,
) -> Backoffs:
    """Return the back-offs after a pool failed, or after the supplier rejected its request as invalid.

    If the capacity is not the reason, only requests with the same `digest` wait. Without a digest, which pools of the
    Go provisioner lack, usually all creates of the capacity wait. `owner` is the slice; None if it is unknown.
    """
    if failure.kind is FailureKind.INVALID and owner is not None:
        return _with_failure(backoffs, digest, REFUSAL_DELAY, failure, now, owner)
    if failure.kind in OF_CAPACITY:
        # Earlier failures of this request probably had this reason too, so their back-off is dropped.
        return create_failed(forget(backoffs, digest), failure, capacity, now)
    return _with_failure(backoffs, digest or capacity, FAILED_POOL_DELAY, failure, now)


def _with_failure(
    backoffs: Backoffs, key: BackoffKey, delay: Delay, failure: Failure, now: datetime, owner: SliceId | None = None
) -> Backoffs:
    before = backoffs.get(key)
    # INVALID failures of a request (back-off with owner) and its other failures (without owner) are counted separately.
    before = before if before is not None and (before.slice_id is None) is (owner is None) else None
    return {**backoffs, key: replace(_extended(before, str(key), delay, failure, now), slice_id=owner)}


def _extended(before: Backoff | None, key: str, delay: Delay, failure: Failure, now: datetime) -> Backoff:
    # A stockout or quota failure that replaces another kind of failure begins a new period, with its own `since`.
    lasts = before is not None and (before.failure.kind is failure.kind or failure.kind not in OF_CAPACITY)
    since = before.since if before is not None and lasts else now
    if before is not None and before.until > now:
        # A create that fails during a wait was usually sent before, so the wait is not doubled.
        if before.failure.kind is failure.kind:
            return replace(before, failure=failure)
        until = now + timedelta(seconds=wait_seconds(delay, before.failures, key))
        explained = before.failure.kind is not FailureKind.UNAVAILABLE
        if failure.kind is FailureKind.UNAVAILABLE or (explained and until <= before.until):
            return before
        return replace(before, failure=failure, since=since, until=max(before.until, until))
    failures = before.failures + 1 if before is not None else 1
    until = now + timedelta(seconds=wait_seconds(delay, failures, key))
    return Backoff(failure=failure, failures=failures, since=since, until=until)


def refused(before: Backoff | None, key: str, message: str, now: datetime) -> Backoff:
    """Return the back-off of pods after the scheduler bound none of them to a ready pool; `message` is the reason.

    Waits with an equal `key` and equally many failures have the same length.
    """
    failure = Failure(kind=FailureKind.UNSCHEDULABLE, message=message)
    return _extended(before, key, DELAYS[FailureKind.UNSCHEDULABLE], failure, now)


def blocking(backoffs: Backoffs, capacity: CapacityKey, of_slice: Backoff | None, now: datetime) -> Backoff | None:
    """Return the back-off of the capacity or the slice (`of_slice`) that blocks creates longest; None if none does."""
    if of_slice is not None and of_slice.capacities and capacity not in of_slice.capacities:
        of_slice = None
    active = [backoff for backoff in (backoffs.get(capacity), of_slice) if backoff is not None and backoff.until > now]
    return max(active, key=lambda backoff: backoff.until, default=None)


def probing(backoffs: Backoffs, capacity: BackoffKey) -> Backoff | None:
    """Return the back-off of a stockout or quota failure that limits the creates of a capacity; None without any.

    Even after its end, the back-off limits creates until enough pools have come up (`came_up`), or for an hour.
    """
    last = backoffs.get(capacity)
    return last if last is not None and last.failure.kind in OF_CAPACITY else None


def max_in_flight(last: Backoff) -> int:
    """Return the maximum number of concurrent creates in capacity that failed: 1, doubled by each pool that came up."""
    return int(2**last.came_up)


def came_up(backoffs: Backoffs, capacity: CapacityKey, now: datetime) -> Backoffs:
    """Return the back-offs after a pool came up: the bound on creates of its capacity doubles, and finally ends."""
    last = probing(backoffs, capacity)
    if last is None or last.came_up >= _DOUBLINGS:
        return forget(backoffs, capacity)
    return {**backoffs, capacity: replace(last, came_up=last.came_up + 1, until=min(last.until, now))}


def freed(backoffs: Backoffs, places: Collection[tuple[str, str]], now: datetime) -> Backoffs:
    """Return the back-offs after pools vanished: stockout and quota back-offs for `places` (zone, machine type) end."""
    due: dict[BackoffKey, Backoff] = {
        key: replace(last, until=now)
        for key, last in backoffs.items()
        if last.until > now and last.failure.kind in OF_CAPACITY and isinstance(key, CapacityKey) and key[:2] in places
    }
    return {**backoffs, **due} if due else backoffs


def forget(backoffs: Backoffs, key: BackoffKey) -> Backoffs:
    """Return the back-offs without the back-off of `key`."""
    return {kept: last for kept, last in backoffs.items() if kept != key} if key in backoffs else backoffs


def is_fresh(last: Backoff, now: datetime) -> bool:
    """Whether a back-off has to be remembered: it has not ended, or ended less than `_STALE_SECONDS` ago.

    A back-off of refused pods is remembered for `OTHERS_WAIT` after its end. False if a back-off ends later than the
    maximum wait allows: then a clock that was ahead has set the end.
    """
    latest = now + timedelta(seconds=longest_wait_seconds(last.failure))
    is_refusal = last.failure.kind is FailureKind.UNSCHEDULABLE
    return now - (OTHERS_WAIT if is_refusal else timedelta(seconds=_STALE_SECONDS)) < last.until <= latest


def still_lasting(failures: Mapping[str, datetime], now: datetime) -> dict[str, datetime]:
    """Return the lasting failures, by namespace, that are not older than `_STALE_SECONDS`."""
    return {namespace: at for namespace, at in failures.items() if (now - at).total_seconds() < _STALE_SECONDS}


def create_counted(tallies: Tallies, slice_id: SliceId, namespace: str, now: datetime, failure: Failure) -> Tallies:
    """Return the counts with one more failed create of a slice's workload and of its namespace."""
    counted = dict(tallies)
    for key, _, seconds in _tallied(slice_id, namespace):
        counted[key] = Tally(count=_count(tallies.get(key), seconds, now) + 1, at=now, failure=failure)
    return counted


def create_taken(tallies: Tallies, slice_id: SliceId, namespace: str) -> Tallies:
    """Return the counts after the supplier accepted a create: workload and namespace may send another one immediately.

    A higher count is reduced to `_WORKLOAD_FAILURES` or `_NAMESPACE_FAILURES`, not to 0: the next wait begins sooner.
    """
    counted = dict(tallies)
    for key, limit, _ in _tallied(slice_id, namespace):
        if key in tallies:
            counted[key] = replace(tallies[key], count=min(tallies[key].count, limit))
    return counted


def create_sent(tallies: Tallies, slice_id: SliceId, namespace: str, now: datetime) -> Tallies:
    """Return the counts after a create was sent: the waits of counts above their limits begin again."""
    over = {
        key: replace(tallies[key], at=now)
        for key, limit, _ in _tallied(slice_id, namespace)
        if key in tallies and tallies[key].count > limit
    }
    return {**tallies, **over} if over else tallies


def counted_until(
    tallies: Tallies, slice_id: SliceId, namespace: str, slices_of_workload: int
) -> tuple[datetime, Failure] | None:
    """Return the end, past or future, of a wait and the last failure; None if no count is above its limit."""
    if not tallies:
        return None
    over = (
        (tally.at + timedelta(seconds=min(1.0, tally.count - limit) * seconds), tally.failure)
        for key, limit, seconds in _tallied(slice_id, namespace, slices_of_workload)
        if (tally := tallies.get(key)) is not None and tally.count > limit
    )
    return max(over, key=lambda end: end[0], default=None)


def still_counted(tallies: Tallies, now: datetime) -> Tallies:
    """Return the counts that a decrease of 1 per `_WORKLOAD_SECONDS` has not reduced to zero."""
    return {key: tally for key, tally in tallies.items() if _count(tally, _WORKLOAD_SECONDS, now) > 0}


def _tallied(slice_id: SliceId, namespace: str, slices: int = 0) -> Iterator[tuple[tuple[str, str], int, float]]:
    yield (namespace, slice_id.workload_uid), _WORKLOAD_FAILURES + slices, _WORKLOAD_SECONDS
    yield (namespace, ""), _NAMESPACE_FAILURES, _NAMESPACE_SECONDS


def _count(tally: Tally | None, seconds: float, now: datetime) -> float:
    return 0.0 if tally is None else max(0.0, tally.count - max(0.0, (now - tally.at).total_seconds()) / seconds)
