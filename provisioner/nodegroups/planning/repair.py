"""When a slice is recreated: one of its machines has been lost for too long, and the others can do no work without it.

The managed instance group is deleted and created again under its name. The status has the reason Recreating before
anything is deleted, and another one before anything is created: with that reason the group is always the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from provisioner.kube.fields import format_time, parse_timestamp
from provisioner.model import bounds, waits
from provisioner.model.wording import first_of
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.statuses import ConditionType, Reason, condition_of
from provisioner.nodegroups.api.types import TpuNodeGroup
from provisioner.nodegroups.compute.records import NO_ACTION, Manager
from provisioner.nodegroups.planning import joining, nodes
from provisioner.nodegroups.planning.memory import Lost
from provisioner.nodegroups.planning.nodes import Fleet, Member, provider_id
from provisioner.nodegroups.planning.round import Node, Round, was_whole, zone_of

#: What the limit on slices that are recreated counts.
DAY_SECONDS = 86_400.0
_WORK_GOES_ON = ". The slice is recreated when the pods with chips on it have ended"
_DOUBTFUL_ZONE = (
    ". The slice is not recreated while most nodes of all groups of its zone are not ready: check the network between "
    "the machines and the API server, and the network plugin"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Machines that are lost."""

    #: In words, each with its name; never empty.
    words: tuple[str, ...]
    machines: int
    #: As it is to be remembered (`Memory.lost`).
    lost: Mapping[str, Lost]
    #: When the slice is recreated; None: never by us.
    due_at: datetime | None = None
    #: What else there is to say.
    note: str = ""

    @property
    def message(self) -> str:
        """The whole of it."""
        return f"{first_of(self.words, '; ')}{self.note}"


def find_loss(
    group: TpuNodeGroup, shape: GroupShape, fleet: Fleet, manager: Manager | None, round_: Round
) -> Loss | None:
    """Say which machines a group has lost; None for none. `manager` is as last read."""
    told = ((member, _why_lost(group, member, round_)) for member in fleet.members)
    lost = [(member, words) for member, words in told if words]
    words = tuple(text for _, text in lost)
    missing = 0
    if manager is not None and manager.is_stable and not (manager.bulk is not None and manager.bulk.in_progress):
        # Compute Engine makes no more of them.
        missing = max(0, shape.node_count - len(fleet.members))
    if missing:
        words = (*words, f"{missing} of {shape.node_count} machines are gone")
    if not words:
        return None
    running = nodes.running(fleet, names.group_labels(group.meta), nodes.place_of(group), round_)
    # Those that report lack chips alone, or a place on the list.
    reports = {member.machine.name: member.reports for member, _ in lost}
    if missing:
        listed = {member.machine.provider_id for member in fleet.members}
        unlisted = {node.name: node.ready for node in nodes.labelled(group, round_) if node.provider_id not in listed}
        reports |= {"": sum(unlisted.values()) >= missing, **unlisted}
    loss = Loss(words=words, machines=len(lost) + missing, lost=_remembered(group, reports, round_))
    if not (shape.one_slice or shape.node_count == 1):
        return loss
    doubt = nodes.silent_node(nodes.labelled(group, round_))
    doubt = f". The slice is not recreated: {doubt}" if doubt else ""
    if zone_of(provider_id(group, "")) in round_.doubtful_zones:
        doubt = _DOUBTFUL_ZONE
    if doubt and not missing and all(member.doubtful for member, _ in lost):
        # Pods may run on the machines all the same. Once the others report, it has its whole time to do so, too.
        seen_now = {name: Lost(since=round_.now, stopped_since=round_.now) for name in loss.lost}
        return replace(loss, lost=seen_now, note=doubt)
    works = _works(running, round_)
    since = [each.stopped_since if works else each.since for each in loss.lost.values()]
    first = min((moment for moment in since if moment is not None), default=None)
    return replace(loss, note=_WORK_GOES_ON) if first is None else _with_limit(group, loss, first, round_)


def lost_for_good(loss: Loss | None, round_: Round) -> frozenset[str]:
    """Name the machines, and the nodes of such as are not listed, that have not come back within their time."""
    long_ago, lost = _long_ago(round_), loss.lost if loss is not None else {}
    return frozenset(name for name, each in lost.items() if each.stopped_since and each.stopped_since <= long_ago)


def is_due_soon(loss: Loss | None, round_: Round) -> bool:
    """Whether the slice is recreated within the time that a loss is given; not one that has been too often."""
    soon = waits.after(round_.now, round_.settings.repair_after_seconds)
    return loss is not None and loss.due_at is not None and loss.due_at <= soon


def _long_ago(round_: Round) -> datetime:
    return round_.now - timedelta(seconds=round_.settings.repair_after_seconds)


def _remembered(group: TpuNodeGroup, reports: Mapping[str, bool], round_: Round) -> Mapping[str, Lost]:
    """Return since when each machine is lost: what comes back in time is no loss, whatever others are lost."""
    before = round_.memory.lost.get(group.meta.uid, {})
    # The process that saw it first may be another one. A slice that would be recreated by now was held back, as by a
    # zone in doubt, which may just have ended, or nobody was there to give its machines their tokens.
    long_ago = _long_ago(round_)
    told = {
        machine.name: machine.since
        for machine in group.status.machines
        if not machine.ready and machine.since is not None and machine.since > long_ago
    }
    lost = {}
    for name, runs in reports.items():
        known = before.get(name)
        since = known.since if known is not None else min(told.get(name, round_.now), round_.now)
        # No status says since when: an earlier process may have seen chips alone be gone.
        stopped = (known.stopped_since if known is not None else None) or round_.now
        lost[name] = Lost(since=since, stopped_since=None if runs else stopped)
    return lost


def _with_limit(group: TpuNodeGroup, loss: Loss, since: datetime, round_: Round) -> Loss:
    """Say when a slice is recreated."""
    settings, counted = round_.settings, recreations(group, round_.now)
    if settings.repairs_per_day <= 0:
        return loss
    due_at = waits.after(since, settings.repair_after_seconds)
    if len(counted) < settings.repairs_per_day:
        return replace(loss, due_at=due_at)
    free_at = waits.after(counted[-settings.repairs_per_day], DAY_SECONDS)
    times = f"{len(counted)} times within a day"
    note = f". The slice was recreated {times}, and will not be again before {format_time(free_at)}"
    return replace(loss, due_at=max(due_at, free_at), note=note)


def recreations(group: TpuNodeGroup, now: datetime) -> tuple[datetime, ...]:
    """Return when the slice was recreated, as far as it counts against the limit."""
    reset = parse_timestamp(group.meta.annotations.get(names.RECREATIONS_RESET))
    return tuple(moment for moment in of_last_day(group, now) if reset is None or moment > reset)


def of_last_day(group: TpuNodeGroup, now: datetime) -> tuple[datetime, ...]:
    """Return when the slice was recreated within a day, earliest first."""
    moments = sorted(group.status.recreated_at)
    return tuple(moment for moment in moments if (now - moment).total_seconds() < DAY_SECONDS)


def recorded(group: TpuNodeGroup, now: datetime) -> tuple[datetime, ...]:
    """Return what the status says when the slice is recreated now."""
    at = now.astimezone(UTC).replace(microsecond=0)
    return (*of_last_day(group, now), at)[-bounds.RECREATIONS :]


def recreating(group: TpuNodeGroup) -> bool:
    """Whether the status says that the slice is being recreated."""
    ready = condition_of(group.status.conditions, ConditionType.READY)
    return ready is not None and ready.reason == Reason.RECREATING


def joins_until(group: TpuNodeGroup, member: Member, round_: Round) -> datetime | None:
    """Return until when a machine that runs is waited for, to become a node that is ready; None: not known yet."""
    for machine in group.status.machines if member.machine.has_machine else ():
        # The time of an earlier state does not count: it may have waited for capacity for days.
        same = (machine.name, machine.state) == (member.machine.name, member.machine.status)
        if same and machine.since is not None and not machine.ready:
            return waits.after(machine.since, round_.settings.join_seconds)
    return None


def _why_lost(group: TpuNodeGroup, member: Member, round_: Round) -> str:
    """Say why a machine counts as lost; empty where it does not.

    Without all nodes having been ready, one that is not is on its way, for a long while.
    """
    name = member.machine.name
    if member.stopped:
        return f"machine {name} is {member.machine.status}"
    if not (member.machine.has_machine or member.reports):
        # One that is waited for has an action, or is PENDING.
        return f"machine {name} is gone" if member.machine.action == NO_ACTION and not member.machine.status else ""
    if member.ready:
        return ""
    if not was_whole(group):
        if not joining.may_join(group, member, round_):
            # Another machine in its place could not either.
            return ""
        until = joins_until(group, member, round_)
        if until is None or until > round_.now:
            return ""
    if member.node is not None:
        return member.lacks
    node = next((machine.node for machine in group.status.machines if machine.name == name), "")
    return f"node {node} of machine {name} is gone" if node else f"machine {name} has not joined"


def _works(running: Iterable[Node], round_: Round) -> bool:
    """Whether pods with chips run on the machines: they may go on with the chips that they have."""
    return any(pod.keeps_machine(round_.now) for node in running for pod in round_.pods.get(node.name, ()))
