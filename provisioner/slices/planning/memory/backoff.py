"""How long to wait after which failure.

A failure delays what it names and no more: the capacity that was out of stock (zone, machine type, shape, capacity
type, and what the pods chose themselves), or the one slice whose create failed. A wait is doubled by each failure up to
a cap, spread by up to a fifth (from the key, so that nothing here is random), and forgotten on success. Failed creates
are counted by workload and by namespace as well (`Tally`), so that a request which changes all the time is no way
around.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.memory.state import Backoff, Tally

#: A workload, and a namespace, may have so many failed creates at once, a workload one more for each of its slices;
#: then one in so many seconds, whatever is asked for.
_WORKLOAD_FAILURES, _WORKLOAD_SECONDS = 8, 60.0
_NAMESPACE_FAILURES, _NAMESPACE_SECONDS = 64, 10.0

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
    FailureKind.UNAVAILABLE: Delay(first_seconds=1, cap_seconds=60),
    # Somebody may grant the permission at any time, and nothing tells us.
    FailureKind.PERMISSION: Delay(first_seconds=60, cap_seconds=600),
    FailureKind.NOT_FOUND: Delay(first_seconds=60, cap_seconds=600),
}
#: What a pool that ended in ERROR for a reason that the table above does not tie to its capacity delays: that request.
FAILED_POOL_DELAY = Delay(first_seconds=30, cap_seconds=600)
_PROBED = frozenset({FailureKind.STOCKOUT, FailureKind.QUOTA})
#: After so many pools in a row that came up, 64 creates at the same time, a stockout is forgotten.
_DOUBLINGS = 6
#: A request that GKE calls invalid. It is tried again all the same: many such answers tell of a permission, a quota, a
#: service account or a policy, which somebody may have mended since.
REFUSAL_DELAY = Delay(first_seconds=900, cap_seconds=4 * 3600)
#: What a failed or stopped delete is delayed by.
DELETE_DELAY = Delay(first_seconds=4, cap_seconds=60)


def longest_wait_seconds(failure: Failure) -> float:
    """Return the longest wait that a failure leads to."""
    delay = REFUSAL_DELAY if failure.kind is FailureKind.INVALID else DELAYS.get(failure.kind, FAILED_POOL_DELAY)
    return max(FAILED_POOL_DELAY.cap_seconds, delay.cap_seconds)


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
    return _with(backoffs, capacity, DELAYS[failure.kind], failure.for_all, now)


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
    backoffs: Mapping[str, Backoff],
    failure: Failure,
    capacity: str,
    digest: str,
    now: datetime,
    owner: SliceId | None = None,
) -> Mapping[str, Backoff]:
    """Return the back-offs after a pool that GKE made for a slice and that ended in ERROR, whatever the reason.

    What says nothing of the capacity may be wrong with this request alone, which is known by its digest. The Go
    provisioner's pools have none; then the capacity stands for it.
    """
    if failure.kind is FailureKind.INVALID and owner is not None:
        return _with(backoffs, digest, REFUSAL_DELAY, failure, now, owner)
    if concerns_capacity(failure):
        # It explains what had no reason before.
        return create_failed(forget(backoffs, digest), failure, capacity, now)
    return _with(backoffs, digest or capacity, FAILED_POOL_DELAY, failure, now)


def _with(
    backoffs: Mapping[str, Backoff],
    key: str,
    delay: Delay,
    failure: Failure,
    now: datetime,
    owner: SliceId | None = None,
) -> Mapping[str, Backoff]:
    before = backoffs.get(key)
    # Failures of a request that is refused are not those of its pool.
    before = before if before is not None and (before.slice_id is None) is (owner is None) else None
    return {**backoffs, key: replace(_longer(before, key, delay, failure, now), slice_id=owner)}


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
    """Return the stockout or quota failure of a capacity that still limits its creates, None if there is none."""
    last = backoffs.get(capacity)
    return last if last is not None and last.failure.kind in _PROBED else None


def max_in_flight(last: Backoff) -> int:
    """Return the maximum number of pools in the making of a capacity that was out of stock.

    A create that finds no capacity occupies a GKE operation for up to 35 minutes. One pool that came up says that there
    was stock for one, so the number doubles with each, instead of opening the capacity to all slices that wait.
    """
    return int(2**last.came_up)


def came_up(backoffs: Mapping[str, Backoff], capacity: str, now: datetime) -> Mapping[str, Backoff]:
    """Return the back-offs after a pool of a capacity came up: due now, doubled, and forgotten after the last step."""
    last = probing(backoffs, capacity)
    if last is None or last.came_up >= _DOUBLINGS:
        return forget(backoffs, capacity)
    return {**backoffs, capacity: replace(last, came_up=last.came_up + 1, until=min(last.until, now))}


def freed(backoffs: Mapping[str, Backoff], places: Collection[tuple[str, str]], now: datetime) -> Mapping[str, Backoff]:
    """Return the back-offs after pools vanished: capacity of the same zone and machine type may be tried now."""
    due = {
        key: replace(last, until=now)
        for key, last in backoffs.items()
        if last.until > now and last.failure.kind in _PROBED and tuple(key.split("/", 2)[:2]) in places
    }
    return {**backoffs, **due} if due else backoffs


def forget(backoffs: Mapping[_K, Backoff], key: _K) -> Mapping[_K, Backoff]:
    """Return the back-offs without one that a success has ended."""
    return {other: each for other, each in backoffs.items() if other != key} if key in backoffs else backoffs


def create_counted(tallies: Mapping[str, Tally], slice_id: SliceId, namespace: str, now: datetime) -> dict[str, Tally]:
    """Count one more failed create of a slice's workload and of its namespace."""
    counted = dict(tallies)
    for key, _, seconds in _tallied(slice_id, namespace):
        counted[key] = Tally(count=_count(tallies.get(key), seconds, now) + 1, at=now)
    return counted


def create_taken(tallies: Mapping[str, Tally], slice_id: SliceId, namespace: str) -> dict[str, Tally]:
    """Let a workload and its namespace try again at once, after a create that GKE took.

    The counts stay at their bounds: a pool that is taken and fails each time is no way around them.
    """
    counted = dict(tallies)
    for key, most, _ in _tallied(slice_id, namespace):
        if key in tallies:
            counted[key] = replace(tallies[key], count=min(tallies[key].count, most))
    return counted


def create_sent(tallies: Mapping[str, Tally], slice_id: SliceId, namespace: str, now: datetime) -> Mapping[str, Tally]:
    """Take note of a create: where too many have failed, the next waits as long again."""
    over = {
        key: replace(tallies[key], at=now)
        for key, most, _ in _tallied(slice_id, namespace)
        if key in tallies and tallies[key].count > most
    }
    return {**tallies, **over} if over else tallies


def counted_until(
    tallies: Mapping[str, Tally], slice_id: SliceId, namespace: str, slices_of_workload: int
) -> datetime | None:
    """Return before when a workload sends no create, because so many have failed; None for no such moment."""
    until = None
    for key, most, seconds in _tallied(slice_id, namespace, slices_of_workload):
        tally = tallies.get(key)
        if tally is not None and tally.count > most:
            over = tally.at + timedelta(seconds=min(1.0, tally.count - most) * seconds)
            until = over if until is None else max(until, over)
    return until


def still_counted(tallies: Mapping[str, Tally], now: datetime) -> Mapping[str, Tally]:
    """Drop counts that have fallen to nothing."""
    return {key: each for key, each in tallies.items() if _count(each, _WORKLOAD_SECONDS, now) > 0}


def _tallied(slice_id: SliceId, namespace: str, slices_of_workload: int = 0) -> tuple[tuple[str, int, float], ...]:
    return (
        (slice_id.workload_uid, _WORKLOAD_FAILURES + slices_of_workload, _WORKLOAD_SECONDS),
        (f"namespace {namespace}", _NAMESPACE_FAILURES, _NAMESPACE_SECONDS),
    )


def _count(tally: Tally | None, seconds: float, now: datetime) -> float:
    return 0.0 if tally is None else max(0.0, tally.count - max(0.0, (now - tally.at).total_seconds()) / seconds)
