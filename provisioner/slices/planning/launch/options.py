"""Finds the pools that a slice could have now, and what blocks its other choices of capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from provisioner import constants
from provisioner.model.capacity import FailureKind, PoolName, Zone
from provisioner.model.choices import CapacityChoice
from provisioner.model.wording import clock
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import Slice
from provisioner.slices.planning.launch import limits
from provisioner.slices.planning.launch.capacity import Choices
from provisioner.slices.planning.launch.specification import Specification
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import Backoff
from provisioner.slices.planning.plan import WaitKind, WaitsFor
from provisioner.slices.planning.round import Round
from provisioner.slices.supplier import UnmeetableError

#: Failures of the supplier or the way to it: an Event follows only if they last, and it is no warning.
_QUIET = frozenset({FailureKind.OPERATION_IN_THE_WAY, FailureKind.TOO_MANY_OPERATIONS, FailureKind.UNAVAILABLE})
_QUIET_SECONDS = 60.0
#: Maximum number of characters of each failure in an Event that names several choices.
_MAX_FAILURE_CHARACTERS = 200


class ChoiceBlocker(NamedTuple):
    """What blocks one choice of capacity."""

    choice: CapacityChoice
    last: Backoff
    #: The capacity, if other slices try it first.
    probed: str = ""
    #: Place among the slices that wait for the capacity, and their number; 0 if the choice waits for a time.
    position: int = 0
    of: int = 0

    @property
    def until(self) -> datetime | None:
        """Time at which the choice is tried again; None if other slices try it first."""
        return None if self.probed else self.last.until

    @property
    def rejected(self) -> bool:
        """Whether the supplier calls the request invalid."""
        return self.last.slice_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """The pools that a slice could have now, apart from limits and other slices."""

    choices: Choices
    #: Best first. Only the last one may be of capacity that has not failed.
    offers: tuple[tuple[CapacityChoice, Specification], ...]
    blockers: tuple[ChoiceBlocker, ...]
    #: Why there will be no pool until the workload or the settings change, empty if there may be one.
    permanent_problem: str


def options_of(round_: Round, slice_: Slice, zone: Zone | None) -> LaunchOptions:
    """Specify the pools of the choices of a slice. Raises UnmeetableError if none can be specified."""
    memory, now, candidates = round_.memory, round_.now, round_.candidates
    choices, own = candidates.choices(slice_, zone), memory.slice_backoffs.get(slice_.id)
    offers: list[tuple[CapacityChoice, Specification]] = []
    blockers: list[ChoiceBlocker] = []
    problems: dict[str, None] = {}
    permanent = True
    for choice in choices.open:
        try:
            offer = candidates.specification(slice_, choice)
        except UnmeetableError as error:
            problems.setdefault(str(error))
            continue
        capacity, request = offer.blueprint.capacity, memory.backoffs.get(offer.digest)
        request = request if request is not None and request.until > now else None
        if request is not None and request.slice_id is not None:
            problems.setdefault(f"{round_.rules.supplier_name} rejects {choice}: {request.failure.message}")
        else:
            permanent = False
        found = backoff.blocking(memory.backoffs, capacity, own, now) or request
        if found is not None:
            blockers.append(ChoiceBlocker(choice, found))
            continue
        offers.append((choice, offer))
        if backoff.probing(memory.backoffs, capacity) is None:
            break
    if not (offers or blockers):
        raise UnmeetableError("; ".join(problems))
    return LaunchOptions(
        choices=choices,
        offers=tuple(offers),
        blockers=tuple(blockers),
        permanent_problem="; ".join(problems) if permanent else "",
    )


def has_fresh_offer(round_: Round, slice_: Slice, zone: Zone | None) -> bool:
    """Whether a slice could have a pool of a capacity that has not failed: pools are deleted for no other slice."""
    try:
        offers = options_of(round_, slice_, zone).offers
    except UnmeetableError:
        return False
    return any(backoff.probing(round_.memory.backoffs, offer.blueprint.capacity) is None for _, offer in offers)


def problem_of(round_: Round, slice_: Slice, zones: Mapping[WorkloadUid, Zone]) -> str:
    """Return why a slice can have no pool, empty if it can; `zones` are those that workloads keep to."""
    try:
        return options_of(round_, slice_, zones.get(slice_.workload.uid)).permanent_problem
    except UnmeetableError as error:
        return str(error)


def problem_of_all(round_: Round, slices: Sequence[Slice]) -> str:
    """Return why slices that start together can never all have pools at the same time, empty if they can."""
    for slice_ in slices:
        problem = problem_of(round_, slice_, {})
        if problem:
            return f"slice {slice_.group_name}: {problem}"
    return limits.problem_of(slices, round_.settings)


def wait_of(name: PoolName, found: Sequence[ChoiceBlocker], now: datetime, supplier_name: str) -> WaitsFor:
    """Return what all choices of a slice wait for."""
    distinct = list({(each.last.failure, each.until, each.probed): each for each in found}.values())
    brief = ""
    if len(distinct) == 1:
        message = _one(name, distinct[0], now, supplier_name)
    else:
        words = "; ".join(
            f"{each.choice} ({_when(each, now)}): {each.last.failure.message[:_MAX_FAILURE_CHARACTERS].rstrip(' .')}"
            for each in distinct
        )
        message = f"No choice of capacity is available for node pool {name} yet. {words}."
        kinds = " and ".join(dict.fromkeys(_words(each) for each in distinct))
        brief = f"None of {len(found)} choices of capacity is available: {kinds}."
    until = min((each.until for each in found if each.until is not None), default=None)
    passing = [each for each in distinct if not each.rejected]
    if not passing:
        return WaitsFor(
            kind=WaitKind.REQUEST,
            message=message,
            brief=brief,
            until=until,
            reason=constants.CREATION_FAILED,
            failed=True,
            final=True,
        )
    quiet = all(each.last.failure.kind in _QUIET for each in passing)
    lasts = now - min(each.last.since for each in passing) >= timedelta(seconds=_QUIET_SECONDS)
    line = next((each for each in found if each.probed), None)
    stock = line is not None or any(backoff.concerns_capacity(each.last.failure) for each in passing)
    return WaitsFor(
        kind=WaitKind.STOCK if stock else WaitKind.FAILURE,
        what=line.probed if line is not None else "",
        position=line.position if line is not None else 0,
        of=line.of if line is not None else 0,
        message=message,
        brief=brief,
        until=until,
        key=" ".join(sorted({each.last.failure.kind.value for each in distinct})),
        warning=not quiet,
        silent=quiet and not lasts,
        # While another slice tries the capacity, this one may have it soon.
        failed=line is None and not any(each.last.failure.kind in _QUIET for each in passing),
    )


def _one(name: PoolName, each: ChoiceBlocker, now: datetime, supplier_name: str) -> str:
    if each.rejected:
        return (
            f"{supplier_name} rejects node pool {name}: {each.last.failure.message} Next try "
            f"{clock(each.last.until, now)}, or when the workload or the provisioner's settings change."
        )
    return f"Node pool {name} waits ({_when(each, now)}): {each.last.failure.message}"


def _when(each: ChoiceBlocker, now: datetime) -> str:
    if each.rejected:
        return f"rejected, next try {clock(each.last.until, now)}"
    words = f"{_words(each)} since {clock(each.last.since, now)}"
    if each.probed:
        return f"{words}, other node pools try first, place {each.position} of {each.of} in the line"
    return f"{words}, next try {clock(each.last.until, now)}"


def _words(each: ChoiceBlocker) -> str:
    return each.last.failure.kind.value.replace("_", " ")
