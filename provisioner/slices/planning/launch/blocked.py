"""What is in the way of a pool for one slice: back-off of its capacity, a rejected request, others whose turn it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from provisioner.slices.planning.plan import Blocked
from provisioner.slices.planning.round import Round
from provisioner.slices.supplier import UnmeetableError

#: Nobody but GKE and the way to it is at fault: an Event only when it lasts, and not as a warning.
_QUIET = frozenset({FailureKind.OPERATION_IN_THE_WAY, FailureKind.TOO_MANY_OPERATIONS, FailureKind.UNAVAILABLE})
_QUIET_SECONDS = 60.0
#: Of several choices each has room for so many of GKE's words in one Event.
_WORDS_OF_EACH = 200


class InTheWay(NamedTuple):
    """What is in the way of one choice of capacity."""

    choice: CapacityChoice
    last: Backoff
    #: Others try first: its place in the queue, and how long that is.
    place: tuple[int, int] | None = None

    @property
    def until(self) -> datetime | None:
        """When it is over; None where others try first."""
        return self.last.until if self.place is None else None

    @property
    def rejected(self) -> bool:
        """Whether GKE calls the request invalid."""
        return self.last.slice_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospects:
    """The pools that a slice could have now, as far as it alone is concerned."""

    choices: Choices
    #: Best first; the last is of capacity that nobody waits for, or all are of capacity that was out of stock.
    offers: tuple[tuple[CapacityChoice, Specification], ...]
    in_the_way: tuple[InTheWay, ...]
    #: Why there will be none until the workload or the settings change, empty where there may be one.
    hopeless: str


def prospects_of(round_: Round, slice_: Slice, zone: Zone | None) -> Prospects:
    """Specify the pools of a slice's choices; raise UnmeetableError where none can be specified."""
    memory, now, candidates = round_.memory, round_.now, round_.candidates
    choices, own = candidates.choices(slice_, zone), memory.slice_backoffs.get(slice_.id)
    offers: list[tuple[CapacityChoice, Specification]] = []
    in_the_way: list[InTheWay] = []
    problems: dict[str, None] = {}
    hopeless = True
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
            hopeless = False
        found = backoff.blocking(memory.backoffs, capacity, own, now) or request
        if found is not None:
            in_the_way.append(InTheWay(choice, found))
            continue
        offers.append((choice, offer))
        if backoff.probing(memory.backoffs, capacity) is None:
            break
    if not (offers or in_the_way):
        raise UnmeetableError("; ".join(problems))
    return Prospects(
        choices=choices,
        offers=tuple(offers),
        in_the_way=tuple(in_the_way),
        hopeless="; ".join(problems) if hopeless else "",
    )


def problem_of(round_: Round, slice_: Slice, zones: Mapping[WorkloadUid, Zone]) -> str:
    """Say why no pool can be had for a slice, empty where one can; `zones` are those that workloads keep to."""
    try:
        return prospects_of(round_, slice_, zones.get(slice_.workload.uid)).hopeless
    except UnmeetableError as error:
        return str(error)


def problem_of_all(round_: Round, slices: Sequence[Slice]) -> str:
    """Say why slices that start together can never be had all at once, empty where they can."""
    for each in slices:
        problem = problem_of(round_, each, {})
        if problem:
            return f"slice {each.group_name}: {problem}"
    return limits.problem_of(slices, round_.settings)


def combined(name: PoolName, found: Sequence[InTheWay], now: datetime, supplier_name: str) -> Blocked:
    """Say what is in the way of all choices of a slice."""
    distinct = list({(each.last.failure, each.until, each.place): each for each in found}.values())
    brief = ""
    if len(distinct) == 1:
        message = _one(name, distinct[0], now, supplier_name)
    else:
        message = _several(name, distinct, now)
        kinds = " and ".join(dict.fromkeys(each.last.failure.kind.value.replace("_", " ") for each in distinct))
        brief = f"None of {len(found)} choices of capacity is available: {kinds}."
    until = min((each.until for each in found if each.until is not None), default=None)
    passing = [each.last for each in distinct if not each.rejected]
    if not passing:
        return Blocked(message=message, brief=brief, until=until, reason=constants.CREATION_FAILED, failed=True)
    quiet = all(each.failure.kind in _QUIET for each in passing)
    lasts = now - min(each.since for each in passing) >= timedelta(seconds=_QUIET_SECONDS)
    key = " ".join(sorted({each.last.failure.kind.value for each in distinct}))
    # What waits for the try of another, perhaps of the same request, may be had soon.
    failed = not any(each.failure.kind in _QUIET for each in passing) and all(each.place is None for each in distinct)
    silent = quiet and not lasts
    return Blocked(message=message, brief=brief, until=until, key=key, warning=not quiet, silent=silent, failed=failed)


def _one(name: PoolName, each: InTheWay, now: datetime, supplier_name: str) -> str:
    if each.rejected:
        return (
            f"{supplier_name} rejects node pool {name}: {each.last.failure.message} Next try "
            f"{clock(each.last.until, now)}, or when the workload or the provisioner's settings change."
        )
    return f"Node pool {name} waits ({_when(each, now)}): {each.last.failure.message}"


def _several(name: PoolName, found: Iterable[InTheWay], now: datetime) -> str:
    words = "; ".join(
        f"{each.choice} ({_when(each, now)}): {each.last.failure.message[:_WORDS_OF_EACH].rstrip(' .')}"
        for each in found
    )
    return f"No choice of capacity is available for node pool {name} yet. {words}."


def _when(each: InTheWay, now: datetime) -> str:
    if each.rejected:
        return f"rejected, next try {clock(each.last.until, now)}"
    words = f"{each.last.failure.kind.value.replace('_', ' ')} since {clock(each.last.since, now)}"
    if each.place is not None:
        place, of = each.place
        return f"{words}, another node pool tries first, number {place} of {of} in the queue"
    return f"{words}, next try {clock(each.last.until, now)}"
