"""What stands in the way of a create for now, and how its owner is told: back-off, a probe, a refusal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model.capacity import Failure, FailureKind, PoolName
from provisioner.model.choices import CapacityChoice
from provisioner.slices.demand import Slice
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import Backoff, Memory
from provisioner.slices.planning.moments import clock
from provisioner.slices.planning.notices import notice
from provisioner.slices.planning.plan import Notice

#: Nobody but GKE and the way to it is at fault: told only when it lasts, and not as a warning.
_QUIET = frozenset({FailureKind.OPERATION_IN_THE_WAY, FailureKind.TOO_MANY_OPERATIONS, FailureKind.UNAVAILABLE})
_QUIET_SECONDS = 60.0
#: Of several blockers each has room for so many of GKE's words in one Event.
_WORDS_OF_EACH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Why a create has to wait."""

    note: str
    notice: Notice | None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InTheWay:
    """What is in the way of one choice of capacity."""

    choice: CapacityChoice
    failure: Failure
    #: Since when it lasts; None for a request that GKE calls invalid.
    since: datetime | None = None
    until: datetime | None = None
    #: Others try first: its place in the queue, and how long that is.
    place: tuple[int, int] | None = None


def of_capacity(slice_: Slice, choice: CapacityChoice, key: str, memory: Memory, now: datetime) -> InTheWay | None:
    """Return what is known to be in the way of a capacity for a slice, None for nothing."""
    blocked = backoff.blocking(memory.backoffs, key, memory.slice_backoffs.get(slice_.id), now)
    return _waits(choice, blocked, until=blocked.until) if blocked is not None else None


def of_turn(choice: CapacityChoice, last: Backoff, place: tuple[int, int]) -> InTheWay:
    """Return that others try capacity first that was out of stock."""
    return InTheWay(choice=choice, failure=last.failure, since=last.since, place=place)


def of_request(choice: CapacityChoice, digest: str, memory: Memory, now: datetime) -> InTheWay | None:
    """Return the refusal of an equal request, known by its digest; None where GKE has refused none lately."""
    refusal = memory.refusals.get(digest)
    if refusal is None or refusal.wait.until <= now:
        return None
    return InTheWay(choice=choice, failure=refusal.wait.failure, until=refusal.wait.until)


def of_failed_pool(choice: CapacityChoice, digest: str, memory: Memory, now: datetime) -> InTheWay | None:
    """Return why a pool of an equal request failed lately, for a reason that says nothing of its capacity."""
    failed = memory.backoffs.get(digest)
    return _waits(choice, failed, until=failed.until) if failed is not None and failed.until > now else None


def combined(slice_: Slice, name: PoolName, found: Sequence[InTheWay], now: datetime, supplier_name: str) -> Blocker:
    """Tell the owner of a slice what is in the way of all its choices."""
    distinct = list({(each.failure, each.until, each.place): each for each in found}.values())
    message = _one(name, distinct[0], now, supplier_name) if len(distinct) == 1 else _several(name, distinct, now)
    until = min((each.until for each in found if each.until is not None), default=None)
    return Blocker(note=message, notice=_notice(slice_, name, distinct, message, now), until=until)


def _waits(choice: CapacityChoice, last: Backoff, *, until: datetime) -> InTheWay:
    return InTheWay(choice=choice, failure=last.failure, since=last.since, until=until)


def _notice(slice_: Slice, name: PoolName, found: Iterable[InTheWay], message: str, now: datetime) -> Notice | None:
    passing = [each for each in found if each.since is not None]
    if not passing:
        return notice(slice_, constants.CREATION_FAILED, message)
    quiet = all(each.failure.kind in _QUIET for each in passing)
    earliest = min(each.since for each in passing if each.since is not None)
    if quiet and now - earliest < timedelta(seconds=_QUIET_SECONDS):
        return None
    kinds = " ".join(sorted({each.failure.kind.value for each in found}))
    return notice(slice_, constants.CREATION_WAITING, message, key=f"{kinds} {name}", warning=not quiet)


def _one(name: PoolName, each: InTheWay, now: datetime, supplier_name: str) -> str:
    if each.since is None:
        return (
            f"{supplier_name} rejects node pool {name}: {each.failure.message} Next try {_next(each, now)}, or when "
            f"the workload or the provisioner's settings change."
        )
    return f"Node pool {name} waits ({_when(each, now)}): {each.failure.message}"


def _several(name: PoolName, found: Iterable[InTheWay], now: datetime) -> str:
    words = "; ".join(
        f"{each.choice} ({_when(each, now)}): {each.failure.message[:_WORDS_OF_EACH].rstrip(' .')}" for each in found
    )
    return f"No choice of capacity is available for node pool {name} yet. {words}."


def _when(each: InTheWay, now: datetime) -> str:
    if each.since is None:
        return f"rejected, next try {_next(each, now)}"
    words = f"{each.failure.kind.value.replace('_', ' ')} since {clock(each.since, now)}"
    if each.place is not None:
        place, of = each.place
        return f"{words}, another node pool tries first, number {place} of {of} in the queue"
    return f"{words}, next try {_next(each, now)}" if each.until is not None else words


def _next(each: InTheWay, now: datetime) -> str:
    return clock(each.until, now) if each.until is not None else "later"
