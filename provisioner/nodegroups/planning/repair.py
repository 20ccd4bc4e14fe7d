"""Decides when a slice, which needs all its machines, is recreated because of lost machines. Pure.

The managed instance group is deleted and created again under its name. The status has the reason Recreating from
before the delete until before the create. A managed instance group that exists during this time is the old one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from provisioner.kube.fields import format_time, parse_timestamp
from provisioner.model import bounds, waits
from provisioner.model.wording import first_of
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.statuses import ConditionType, Machine, Reason, condition_of
from provisioner.nodegroups.api.types import TpuNodeGroup
from provisioner.nodegroups.compute.records import NO_ACTION, Manager
from provisioner.nodegroups.planning import joining, nodes
from provisioner.nodegroups.planning.memory import Lost
from provisioner.nodegroups.planning.nodes import Fleet, Member
from provisioner.nodegroups.planning.round import Node, Round, was_whole, zone_of

#: Period in seconds of the limit on recreations (`repairs_per_day`).
DAY_SECONDS = 86_400.0
#: Maximum time by which the annotation `recreations-reset` may be in the future: the user's clock may be ahead.
_CLOCKS_APART = timedelta(seconds=60)
_WORK_GOES_ON = ". The slice is recreated when the pods with chips on it have ended"
_DOUBTFUL_ZONE = (
    ". The slice is not recreated while most nodes of most namespaces in its zone are not ready: check the network "
    "between the machines and the API server, and the network plugin"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Lost machines of a group."""

    #: One text for each lost machine, and one if machines are missing; never empty.
    words: tuple[str, ...]
    machines: int
    #: New value of the group's entry in `Memory.lost`.
    lost: Mapping[str, Lost]
    #: Time at which the slice is recreated. None if unknown, or if this controller does not recreate the slice.
    due_at: datetime | None = None
    note: str = ""

    @property
    def message(self) -> str:
        """Text for the condition: the first machines and the note."""
        return f"{first_of(self.words, '; ')}{self.note}"


def find_loss(group: TpuNodeGroup, shape: GroupShape, fleet: Fleet, manager: Manager | None, ctx: Round) -> Loss | None:
    """Return the lost machines of a group, None if no machine is lost. `manager` is the resource as last read."""
    machines = {machine.name: machine for machine in group.status.machines}
    reasons = ((member, _why_lost(group, member, machines.get(member.machine.name), ctx)) for member in fleet.members)
    lost = [(member, words) for member, words in reasons if words]
    words = tuple(text for _, text in lost)
    missing = 0
    if manager is not None and manager.is_stable and not (manager.bulk is not None and manager.bulk.in_progress):
        # Compute Engine creates no more machines, so machines that it does not list are missing.
        missing = max(0, shape.node_count - len(fleet.members))
    if missing:
        words = (*words, f"{missing} of {shape.node_count} machines are gone")
    if not words:
        return None
    running = nodes.running(fleet, group, ctx)
    # For each lost machine, whether its node is ready. If so, the machine only lacks chips, or is not listed.
    reports = {member.machine.name: member.reports for member, _ in lost}
    if missing:
        listed = {member.machine.provider_id for member in fleet.members}
        unlisted = {node.name: node.ready for node in ctx.labelled_of(group) if node.provider_id not in listed}
        reports |= {"": sum(unlisted.values()) >= missing, **unlisted}
    loss = Loss(words=words, machines=len(lost) + missing, lost=_remembered(group, reports, ctx))
    doubt = nodes.silent_node(ctx.labelled_of(group), ctx.oldest_ready)
    doubt = f". Nothing is deleted: {doubt}" if doubt else ""
    if not (shape.one_slice or shape.node_count == 1):
        return replace(loss, note=doubt)
    if zone_of(group) in ctx.doubtful_zones:
        doubt = _DOUBTFUL_ZONE
    if doubt and not missing and all(member.doubtful for member, _ in lost):
        # Pods may still run on the machines, so their time to recover starts again in each round.
        seen_now = {name: Lost(since=ctx.now, stopped_since=ctx.now) for name in loss.lost}
        return replace(loss, lost=seen_now, note=doubt)
    works = _works(running, ctx)
    since = [entry.stopped_since if works else entry.since for entry in loss.lost.values()]
    first = min((moment for moment in since if moment is not None), default=None)
    return replace(loss, note=_WORK_GOES_ON) if first is None else _with_limit(group, shape, loss, first, ctx)


def lost_for_good(loss: Loss | None, ctx: Round) -> frozenset[str]:
    """Return the names of lost machines (of nodes if not listed) that have had no ready node for REPAIR_AFTER."""
    long_ago, lost = _long_ago(ctx), loss.lost if loss is not None else {}
    return frozenset(name for name, entry in lost.items() if entry.stopped_since and entry.stopped_since <= long_ago)


def is_due_soon(loss: Loss | None, ctx: Round) -> bool:
    """Return whether the slice is recreated within REPAIR_AFTER."""
    soon = waits.after(ctx.now, ctx.settings.repair_after_seconds)
    return loss is not None and loss.due_at is not None and loss.due_at <= soon


def _long_ago(ctx: Round) -> datetime:
    return ctx.now - timedelta(seconds=ctx.settings.repair_after_seconds)


def _remembered(group: TpuNodeGroup, reports: Mapping[str, bool], ctx: Round) -> Mapping[str, Lost]:
    """Return the group's entry for `Memory.lost`. `reports`: lost machines, and whether their nodes are ready."""
    before = ctx.memory.lost.get(group.meta.uid, {})
    # An earlier process may have seen the loss first, so the time in the status counts. Times longer ago than
    # REPAIR_AFTER do not count: something has prevented the recreation since, such as a doubtful zone.
    long_ago = _long_ago(ctx)
    reported = {
        machine.name: machine.since
        for machine in group.status.machines
        if not machine.ready and machine.since is not None and machine.since > long_ago
    }
    lost = {}
    for name, runs in reports.items():
        known = before.get(name)
        since = known.since if known is not None else min(reported.get(name, ctx.now), ctx.now)
        # `stopped_since` begins now, because an earlier process may only have seen missing chips.
        stopped = (known.stopped_since if known is not None else None) or ctx.now
        lost[name] = Lost(since=since, stopped_since=None if runs else stopped)
    return lost


def _with_limit(group: TpuNodeGroup, shape: GroupShape, loss: Loss, since: datetime, ctx: Round) -> Loss:
    """Return the loss with the time at which the slice is recreated, which limits may delay or prevent."""
    settings, counted = ctx.settings, recreations(group, ctx.now)
    if settings.repairs_per_day <= 0:
        return loss
    if 0 < settings.machines_per_namespace < shape.node_count:
        limit = f"MAX_MACHINES_PER_NAMESPACE ({settings.machines_per_namespace})"
        return replace(loss, note=f". The slice is not recreated: {shape.node_count} machines exceed {limit}")
    due_at = waits.after(since, settings.repair_after_seconds)
    if len(counted) < settings.repairs_per_day:
        return replace(loss, due_at=due_at)
    free_at = waits.after(counted[-settings.repairs_per_day], DAY_SECONDS)
    times = f"{len(counted)} times within a day"
    note = f". The slice was recreated {times}, and will not be again before {format_time(free_at)}"
    return replace(loss, due_at=max(due_at, free_at), note=note)


def recreations(group: TpuNodeGroup, now: datetime) -> tuple[datetime, ...]:
    """Return the times of the recreations of the last day that are later than the annotation `recreations-reset`."""
    reset = parse_timestamp(group.meta.annotations.get(names.RECREATIONS_RESET))
    if reset is not None and reset > now + _CLOCKS_APART:
        # A reset in the future would lift the limit until then.
        reset = None
    return tuple(moment for moment in of_last_day(group, now) if reset is None or moment > reset)


def of_last_day(group: TpuNodeGroup, now: datetime) -> tuple[datetime, ...]:
    """Return the times of the recreations within the last day, earliest first. Times after `now` are ignored."""
    moments = sorted(group.status.recreated_at)
    return tuple(moment for moment in moments if 0 <= (now - moment).total_seconds() < DAY_SECONDS)


def recorded(group: TpuNodeGroup, now: datetime) -> tuple[datetime, ...]:
    """Return the new value of `recreated_at` if the slice is recreated now."""
    at = now.astimezone(UTC).replace(microsecond=0)
    return (*of_last_day(group, now), at)[-bounds.RECREATIONS :]


def recreating(group: TpuNodeGroup) -> bool:
    """Return whether the slice is being recreated: its condition Ready has the reason Recreating."""
    ready = condition_of(group.status.conditions, ConditionType.READY)
    return ready is not None and ready.reason == Reason.RECREATING


def joins_until(entry: Machine | None, member: Member, ctx: Round) -> datetime | None:
    """Return the deadline for a machine to become a ready node; None if unknown, or if it is ready or not created."""
    if entry is None or entry.since is None or entry.ready or not member.machine.has_machine:
        return None
    # Times of earlier states do not count, because the machine may have waited for capacity for days.
    return waits.after(entry.since, ctx.settings.join_seconds) if entry.state == member.machine.status else None


def _why_lost(group: TpuNodeGroup, member: Member, entry: Machine | None, ctx: Round) -> str:
    name = member.machine.name
    if member.stopped:
        return f"machine {name} is {member.machine.status}"
    if not (member.machine.has_machine or member.reports):
        # A placeholder that waits for its machine has a current action or the status PENDING.
        return f"machine {name} is gone" if member.machine.action == NO_ACTION and not member.machine.status else ""
    if member.ready:
        return ""
    if not was_whole(group):
        if not joining.may_join(group, member, ctx):
            # A new machine in its place could not join either, so the machine does not count as lost.
            return ""
        until = joins_until(entry, member, ctx)
        if until is None or until > ctx.now:
            return ""
    if member.node is not None:
        return member.lacks
    known = entry is not None and entry.node
    return f"node {known} of machine {name} is gone" if known else f"machine {name} has not joined"


def _works(running: Iterable[Node], ctx: Round) -> bool:
    """Return whether pods with chips run on the machines. Such pods may continue with the chips that remain."""
    return any(pod.keeps_machine(ctx.now) for node in running for pod in ctx.pods.get(node.name, ()))
