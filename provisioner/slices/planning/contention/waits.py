"""Records why a slice waits, for its Event, status, page and explain, with the text of each cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from provisioner import constants
from provisioner.model.capacity import FailureKind, PoolName
from provisioner.model.choices import CapacityChoice, CapacityKey
from provisioner.model.wording import clock
from provisioner.model.workloads import WorkloadName
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.contention.usage import CREATES_PER_HOUR, LimitScope
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import Backoff, Hold

#: Maximum number of units ahead, and of workloads that use a limit, that a record names.
_MAX_NAMED = 3
#: Cause for which creates and deletes wait while the supplier takes no more operations.
OTHER_OPERATIONS = "other node pool operations of this cluster to end"
#: Failures of the supplier or the way to it: an Event follows only if they last, and it is no warning.
_QUIET = frozenset({FailureKind.OPERATION_IN_THE_WAY, FailureKind.TOO_MANY_OPERATIONS, FailureKind.UNAVAILABLE})
_QUIET_SECONDS = 60.0
#: Maximum number of characters of each failure in an Event that names several choices.
_MAX_FAILURE_CHARACTERS = 200


class WaitKind(StrEnum):
    """Cause for which no pool is created for a slice; the first that applies, in this order."""

    #: The request cannot be served unless it is changed.
    REQUEST = "request"
    #: The administrator has paused the creation of pools.
    PAUSE = "pause"
    #: Creates of the slice, its workload or its namespace failed.
    FAILURE = "failure"
    #: The slices of the workload start together, and not all of them are available now.
    TOGETHER = "together"
    #: A limit of the settings.
    LIMIT = "limit"
    #: The capacity was out of stock, or its quota was exhausted.
    STOCK = "stock"
    #: The supplier takes no more operations now.
    OPERATIONS = "operations"


#: Cause in a few words, by kind; those of limits and failures are more exact.
_CAUSES: Mapping[WaitKind, str] = {
    WaitKind.REQUEST: "the request",
    WaitKind.PAUSE: "pause of creation",
    WaitKind.FAILURE: "failed creates",
    WaitKind.TOGETHER: "slices that start together",
    WaitKind.LIMIT: "a limit",
    WaitKind.STOCK: "stockout",
    WaitKind.OPERATIONS: "other operations",
}
_MORE_CHOICES = "To wait less, allow more capacity types or zones."
#: What to do apart from waiting, by the failure of a capacity. The messages of other failures contain it.
_NEXT_STEPS: Mapping[FailureKind, str] = {
    FailureKind.STOCKOUT: _MORE_CHOICES,
    FailureKind.QUOTA: "Request more quota from Google, or allow other capacity types or zones.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsFor:
    """Why no pool is created for a slice now: the one record for its Event, status, page and explain."""

    kind: WaitKind
    #: Scope of the limit that refuses the slice; None if it waits for no limit.
    scope: LimitScope | None = None
    #: Setting that refuses the slice, or kinds of the failures of its choices of capacity; empty for other causes.
    causes: tuple[str, ...] = ()
    message: str
    #: Sentence with what to do apart from waiting; empty if waiting is all, or if the message contains it.
    next_step: str = ""
    #: The message without places and amounts that other workloads change, for statuses; empty if it is the message.
    lasting: str = ""
    #: Shorter form for the read model, which shows details next to it; empty if the message is used.
    brief: str = ""
    #: Reason of the Event.
    reason: str = constants.CREATION_WAITING
    #: Part of the message that stays the same while numbers and times change; empty if it is `causes` or the message.
    key: str = ""
    #: Place in the line of the units that wait for the same, beginning with 1, and the length of that line; 0 if the
    #: slice waits in no line.
    position: int = 0
    of: int = 0
    #: First units that are ahead in the line.
    ahead: tuple[SliceId, ...] = ()
    #: Workloads that use most of a limit, with their chips or pools, and the number of further workloads.
    users: tuple[tuple[str, int], ...] = ()
    other_users: int = 0
    #: Time at which the wait may end although nothing changes; None if no time is set.
    until: datetime | None = None
    warning: bool = True
    #: Whether the wait usually ends soon, so that there is no Event yet.
    silent: bool = False
    #: Whether every possible choice has failed: a ProvisioningRequest ends with it.
    failed: bool = False
    #: Whether waiting does not help: the request has to be changed.
    final: bool = False

    def in_line(self, position: int, line: Sequence[SliceId], users: Sequence[tuple[str, int]]) -> WaitsFor:
        """Return the record with its place in the line, which the message of a limit contains."""
        place = f"{self.message.rstrip('.')}; place {position} of {len(line)}."
        return replace(
            self,
            message=place if self.kind is WaitKind.LIMIT else self.message,
            position=position,
            of=len(line),
            ahead=tuple(line[: min(position - 1, _MAX_NAMED)]),
            users=tuple(users[:_MAX_NAMED]),
            other_users=max(0, len(users) - _MAX_NAMED),
        )

    def after(self, beginning: str) -> WaitsFor:
        """Return the record with a text before its message."""
        lasting = f"{beginning}{self.lasting}" if self.lasting else ""
        return replace(self, message=f"{beginning}{self.message}", lasting=lasting)

    @property
    def cause(self) -> str:
        """Cause in a few words, such as "stockout", under which slices are counted."""
        if self.scope is not None:
            return f"limit of {self.scope.counted}"
        return " and ".join(self.causes).replace("_", " ") or _CAUSES[self.kind]

    @property
    def event_message(self) -> str:
        """The message with the next step."""
        return f"{self.message.rstrip('.')}. {self.next_step}" if self.next_step else self.message


class ChoiceBlocker(NamedTuple):
    """Cause that blocks one choice of capacity."""

    choice: CapacityChoice
    last: Backoff
    #: Capacity that other slices try first; None if the choice waits for a time.
    probed: CapacityKey | None = None
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


class Limit(NamedTuple):
    """One limit, and the amount that some slices ask for within it."""

    setting: str
    scope: LimitScope
    most: int
    #: Chips, pools or creates that one slice asks for.
    asked: int


def of_catalogue(name: PoolName, problem: str) -> WaitsFor:
    """Return that the machine types of the cluster are unknown, and that the pods may select one of them."""
    why = "the provisioner cannot list the MachineConfigs of the cluster, which may have it"
    return WaitsFor(kind=WaitKind.REQUEST, message=f"Node pool {name} waits: {problem}; {why}.")


def of_volumes(name: PoolName, problem: str) -> WaitsFor:
    """Return that a volume of the pods cannot be attached now."""
    return WaitsFor(kind=WaitKind.REQUEST, message=f"Node pool {name} waits: {problem}.", key=problem)


def of_choices(name: PoolName, found: Sequence[ChoiceBlocker], now: datetime, supplier_name: str) -> WaitsFor:
    """Return the wait of a slice for all its choices of capacity."""
    distinct = list({(each.last.failure, each.until, each.probed): each for each in found}.values())
    message = _text(name, distinct, now, supplier_name)
    lasting = _text(name, [each._replace(position=0) for each in distinct], now, supplier_name)
    kinds = " and ".join(dict.fromkeys(_words(each) for each in distinct))
    steps = dict.fromkeys(_NEXT_STEPS.get(each.last.failure.kind, "") for each in distinct if not each.rejected)
    brief = f"None of {len(found)} choices of capacity is available: {kinds}." if len(distinct) > 1 else ""
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
        causes=tuple(sorted({each.last.failure.kind.value for each in distinct})),
        position=line.position if line is not None else 0,
        of=line.of if line is not None else 0,
        message=message,
        next_step=" ".join(filter(None, steps)),
        lasting=lasting,
        brief=brief,
        until=until,
        warning=not quiet,
        silent=quiet and not lasts,
        # While another slice tries the capacity, this one may have it soon.
        failed=line is None and not any(each.last.failure.kind in _QUIET for each in passing),
    )


def _text(name: PoolName, distinct: Sequence[ChoiceBlocker], now: datetime, supplier_name: str) -> str:
    if len(distinct) > 1:
        words = "; ".join(
            f"{each.choice} ({_when(each, now)}): {each.last.failure.message[:_MAX_FAILURE_CHARACTERS].rstrip(' .')}"
            for each in distinct
        )
        return f"No choice of capacity is available for node pool {name} yet. {words}."
    (each,) = distinct
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
        place = f", place {each.position} of {each.of} in the line" if each.position else ""
        return f"{words}, other node pools try first{place}"
    return f"{words}, next try {clock(each.last.until, now)}"


def _words(each: ChoiceBlocker) -> str:
    return each.last.failure.kind.value.replace("_", " ")


def of_limit(limit: Limit, *, slices: int, used: int, going: int, kept: int) -> WaitsFor:
    """Return the refusal of some slices by a limit; `going` is the part of `used` that is about to become free."""
    scope, most, never = limit.scope, limit.most, limit.asked > limit.most
    title, unit, needs = f"Limit of {scope.counted}", "chips", f"this slice needs {limit.asked}"
    needs = needs if slices == 1 else f"these slices need {limit.asked}"
    if scope == CREATES_PER_HOUR:
        unit, words = "node pools", f"{used} of {most} were created"
    elif isinstance(scope.name, WorkloadName):
        unit, words = "node pools", f"{scope.name.name} uses {used - going} of {most}"
    else:
        words = f"at most {most} chips" if never else f"{used - going} of {most} chips in use"
    words += f", {going} more in node pools that failed or are being deleted" if going and not never else ""
    words += f", {kept} kept for pods of higher priority" if kept else ""
    words += f"; {needs}" if unit == "chips" else ""
    raises = f"raise {limit.setting}"
    return WaitsFor(
        kind=WaitKind.LIMIT,
        scope=scope,
        causes=(limit.setting,),
        reason=constants.LIMIT_REACHED,
        message=f"{title}: {words}{', so waiting will not help' if never else ''}.",
        next_step=f"Request fewer chips, or ask the administrator to {raises}."
        if never
        else f"The administrator can {raises}; pods with a higher PriorityClass come first.",
        lasting="" if never else f"{title}: at most {most} {unit} ({limit.setting}).",
        final=never,
    )


def of_pause(since: datetime | None) -> WaitsFor:
    """Return the refusal while creation is paused, by the ConfigMap since a time, or by the setting."""
    cause, end = "PAUSE_CREATION is set", "unsets it"
    if since is not None:
        cause = f"Creation is paused since {since:%Y-%m-%d %H:%M} UTC, by ConfigMap {constants.PAUSE_CONFIGMAP_NAME}"
        end = "deletes it"
    message = f"{cause}: no node pools are created until the administrator {end}."
    return WaitsFor(kind=WaitKind.PAUSE, reason=constants.LIMIT_REACHED, causes=("PAUSE_CREATION",), message=message)


def of_hold(accelerator: str, hold: Hold | None, line: Sequence[SliceId], position: int, now: datetime) -> WaitsFor:
    """Return why a workload that starts together waits for an accelerator; without `hold`, others are first in line."""
    if hold is None:
        cause = f"an earlier workload in the line waits for several accelerators, {accelerator} among them"
    elif hold.released:
        end = clock(hold.until, now) if hold.until is not None else "after the pools have been deleted"
        cause = f"slices of {accelerator} were released because not all of them were available; next try {end}"
    else:
        cause = f"another workload that starts together holds slices of {accelerator}"
    return WaitsFor(
        kind=WaitKind.TOGETHER,
        message=cause,
        next_step=_MORE_CHOICES,
        key="queue",
        position=position,
        of=len(line),
        ahead=tuple(line[: position - 1][:3]),
        until=hold.until if hold is not None else None,
    )


def of_gang(message: str) -> WaitsFor:
    """Return why a workload that starts together creates no pool for some of its slices."""
    return WaitsFor(kind=WaitKind.TOGETHER, key="together", message=message, next_step=_MORE_CHOICES)


def of_failures(name: PoolName, own: Backoff | None, until: datetime, now: datetime) -> WaitsFor:
    """Return the wait after too many failed creates of a workload or namespace; `own` is the slice's own back-off."""
    message = (
        f"Node pool {name} waits: too many creates of this workload or of its namespace have failed; next try "
        f"{clock(until, now)}"
    )
    message += f"; the last attempt failed: {own.failure.message}" if own is not None else ""
    return WaitsFor(kind=WaitKind.FAILURE, message=message, key="failures", until=until, failed=True)


def of_buffer(name: PoolName) -> WaitsFor:
    """Return why a slice of a buffer gets no pool: the limit has refused slices of workloads."""
    message = f"Node pool {name} is not created: workloads wait for the same limit, and come first"
    return WaitsFor(kind=WaitKind.LIMIT, key="spare", message=message, warning=False)


def of_operations(name: PoolName, limit: int | None, supplier_name: str, *, silent: bool) -> WaitsFor:
    """Return the wait for the supplier's operations; `limit` is the number that it took, None if unknown."""
    lasting = f"Node pool {name} waits for {OTHER_OPERATIONS}"
    learned = f"; {supplier_name} rejected more than {limit} of them at once" if limit is not None else ""
    return WaitsFor(
        kind=WaitKind.OPERATIONS,
        message=f"{lasting}{learned}",
        lasting=lasting,
        key="operations",
        warning=False,
        silent=silent,
    )


def of_relabelling(name: PoolName, other: PoolName, until: datetime) -> WaitsFor:
    """Return the wait until the nodes of another pool no longer have the labels of the slice."""
    message = f"Node pool {name} waits some seconds until node pool {other} is no longer assigned to the slice"
    kind = WaitKind.OPERATIONS
    return WaitsFor(kind=kind, message=message, key="relabelling", until=until, warning=False, silent=True)


def of_burst(name: PoolName, until: datetime) -> WaitsFor:
    """Return the wait of a pod for further pods that appear at the same time and share its pool."""
    message = f"Node pool {name} waits some seconds for further pods that can share it"
    kind = WaitKind.OPERATIONS
    return WaitsFor(kind=kind, message=message, key="burst", until=until, warning=False, silent=True)
