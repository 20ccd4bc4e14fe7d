"""What stands in the way of a create for now, and how its owner is told: back-off, a probe, a refusal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model.capacity import Failure, FailureKind, PoolName, Zone
from provisioner.model.choices import CapacityChoice
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import Slice
from provisioner.slices.planning.launch import limits
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import Backoff, Memory
from provisioner.slices.planning.moments import clock
from provisioner.slices.planning.notices import notice
from provisioner.slices.planning.plan import Notice
from provisioner.slices.planning.round import Round
from provisioner.slices.supplier import UnmeetableError

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
    if blocked is None:
        return None
    return InTheWay(choice=choice, failure=blocked.failure, since=blocked.since, until=blocked.until)


def of_turn(choice: CapacityChoice, last: Backoff, place: tuple[int, int]) -> InTheWay:
    """Return that others try capacity first that was out of stock."""
    return InTheWay(choice=choice, failure=last.failure, since=last.since, place=place)


def of_request(choice: CapacityChoice, digest: str, memory: Memory, now: datetime) -> InTheWay | None:
    """Return why an equal request, known by its digest, is invalid, or why its pool failed; None for neither."""
    last = memory.backoffs.get(digest)
    if last is None or last.until <= now:
        return None
    since = last.since if last.slice_id is None else None
    return InTheWay(choice=choice, failure=last.failure, since=since, until=last.until)


def problem_of(round_: Round, slice_: Slice, zones: Mapping[WorkloadUid, Zone]) -> str:
    """Say why no pool can be had for a slice, empty where one can; `zones` are those that workloads keep to."""
    problems: dict[str, None] = {}
    try:
        choices = round_.candidates.choices(slice_, zones.get(slice_.workload.uid))
    except UnmeetableError as error:
        return str(error)
    for choice in choices.open:
        try:
            digest = round_.candidates.specification(slice_, choice).digest
        except UnmeetableError as error:
            problems.setdefault(str(error))
            continue
        refused = of_request(choice, digest, round_.memory, round_.now)
        if refused is None or refused.since is not None:
            return ""
        problems.setdefault(f"{round_.rules.supplier_name} rejects {choice}: {refused.failure.message}")
    return "; ".join(problems)


def problem_of_all(round_: Round, slices: Iterable[Slice]) -> str:
    """Say why slices that start together can never be had all at once, empty where they can."""
    slices = tuple(slices)
    for each in slices:
        problem = problem_of(round_, each, {})
        if problem:
            return f"slice {each.group_name}: {problem}"
    return limits.problem_of(slices, round_.settings)


def combined(slice_: Slice, name: PoolName, found: Sequence[InTheWay], now: datetime, supplier_name: str) -> Blocker:
    """Tell the owner of a slice what is in the way of all its choices."""
    distinct = list({(each.failure, each.until, each.place): each for each in found}.values())
    message = _one(name, distinct[0], now, supplier_name) if len(distinct) == 1 else _several(name, distinct, now)
    until = min((each.until for each in found if each.until is not None), default=None)
    return Blocker(note=message, notice=_notice(slice_, name, distinct, message, now), until=until)


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
