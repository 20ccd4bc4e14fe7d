"""Decides which calls and writes to make, from a snapshot of the cluster and the state of Compute Engine. Pure.

A group is decided on together with its children. An exception in one group does not affect other groups.

Compute Engine limits the calls of a project by kind, region and minute, so a round may send only some due calls. A
party is all calls of one kind for one namespace, or all changes of one group's machines. Parties with the fewest calls
in flight come first, then parties whose last call is oldest. Polls, reads and lists count as a minute newer than
changes. Between equal parties, the order is: changes of resources, changes of machines, polls, reads, lists; then the
call that has been due for longest.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from provisioner.model.turns import in_turns, with_turns
from provisioner.model.workloads import ObjectRef
from provisioner.model.writes import Proposed, choose_writes, with_open, without_lost
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.statuses import Reason, not_ready
from provisioner.nodegroups.api.types import Child, Record, TpuNodeGroup
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.compute.records import Manager, region_of
from provisioner.nodegroups.planning import actions, events, group, joining, repair, strays
from provisioner.nodegroups.planning.child import step_of as child_step
from provisioner.nodegroups.planning.manager import machines_before
from provisioner.nodegroups.planning.memory import (
    LONG_AGO,
    Lost,
    MachineMemory,
    Memory,
    Pace,
    ResourceMemory,
    fold,
)
from provisioner.nodegroups.planning.nodes import is_of_earlier
from provisioner.nodegroups.planning.round import (
    NOTHING,
    PlanningSettings,
    Round,
    Snapshot,
    Step,
    Wanted,
    begin_round,
    merged,
    to_write,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """Exception in the decision about a group with its children, or about a child without a group."""

    object: ObjectRef
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Result of a decision. `memory` already contains the calls and writes of the plan as open."""

    memory: Memory
    calls: tuple[actions.Call, ...] = ()
    writes: tuple[actions.Write, ...] = ()
    crashed: tuple[Crashed, ...] = ()
    #: Managed instance groups that this cluster created and that have no object, by project that was listed recently.
    strays: Mapping[str, tuple[Manager, ...]] = field(default_factory=dict)
    #: Latest time of the next decision. None if only a changed object or a result requires a decision.
    wake_at: datetime | None = None


def decide(snapshot: Snapshot, memory: Memory, settings: PlanningSettings, now: datetime) -> Plan:
    """Return a plan. It is empty if the snapshot is not synced, or the cluster's UID for ownership marks is unknown."""
    if snapshot.not_synced or not snapshot.cluster.uid:
        # Lost machines are forgotten, because they may have recovered by the next decision.
        return Plan(memory=replace(memory, lost={}))
    if memory.began_at == LONG_AGO:
        memory = replace(memory, began_at=now)
    memory = without_lost(memory, snapshot.live, now, fold)
    ctx = begin_round(snapshot, memory, settings, now)
    if settings.machines_per_namespace:
        ctx = replace(ctx, machines_before=machines_before(ctx))
    concluded = {unit[0].meta.uid: _attempt(unit, ctx) for unit in _units_of(ctx)}
    resources = {record.meta.uid: ctx.known(record) for record in (*snapshot.groups, *snapshot.children)}
    projects = strays.known(ctx)
    resources |= {target.uid: known for target, known in projects.items()}
    shared = (_apply_device_plugin(ctx), joining.approvals(ctx), strays.look(projects, ctx))
    step = merged((*shared, *(result.step for result in concluded.values())))
    chosen, later = choose_writes(step.writes, memory.writes, now)
    proposed = _with_few_tokens(chosen, snapshot, memory)
    memory = replace(
        with_open(memory, now, writes=proposed),
        resources=resources,
        machines=_machines_of(resources.values(), ctx),
        lost={key: result.lost for key, result in concluded.items() if result.lost},
    )
    paced = pace(step.calls, memory, settings, now)
    moments = (*step.moments, *later, *((paced.wake_at,) if paced.wake_at is not None else ()))
    return Plan(
        memory=paced.memory,
        calls=paced.calls,
        writes=tuple(proposal.write for proposal in proposed),
        crashed=tuple(result.crashed for result in concluded.values() if result.crashed is not None),
        strays=strays.find(projects, ctx),
        wake_at=min((moment for moment in moments if moment > now), default=None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Concluded:
    step: Step
    lost: Mapping[str, Lost]
    crashed: Crashed | None = None


def _units_of(ctx: Round) -> Iterator[tuple[Record, ...]]:
    owned: dict[str, list[Child]] = {}
    for child in ctx.snapshot.children:
        parent = ctx.parent_of(child)
        if parent is not None:
            owned.setdefault(parent.meta.uid, []).append(child)
        else:
            yield (child,)
    for uid, record in ctx.groups.items():
        yield (record, *owned.get(uid, ()))


def _attempt(unit: tuple[Record, ...], ctx: Round) -> _Concluded:
    try:
        return _conclude(unit, ctx)
    except Exception as error:  # noqa: BLE001 - other groups must not be affected
        return _Concluded(
            step=_tell(unit[0], error, ctx),
            lost=ctx.memory.lost.get(unit[0].meta.uid, {}),
            crashed=Crashed(object=events.reference(unit[0]), error=error),
        )


def _conclude(unit: tuple[Record, ...], ctx: Round) -> _Concluded:
    steps, loss = [], None
    for record in unit:
        if not isinstance(record, TpuNodeGroup):
            steps.append(child_step(record, ctx))
        elif record.meta.deleting:
            steps.append(group.tear_down(record, ctx))
        else:
            seen = group.step_of(record, ctx)
            loss = seen.loss
            steps.append(seen.step)
    return _Concluded(step=merged(steps), lost=loss.lost if loss is not None else {})


def _tell(record: Record, error: Exception, ctx: Round) -> Step:
    # The text of the error is left out: it may differ in each round, and each change would be written.
    message = (
        "a mistake in the provisioner keeps this object from being served, and it is tried again: "
        f"{type(error).__name__}, see the log of the controller"
    )
    try:
        # The reason Recreating is kept, because it shows the next round that the machines must be deleted.
        recreating = isinstance(record, TpuNodeGroup) and repair.recreating(record)
        condition = not_ready(Reason.RECREATING if recreating else Reason.RECONCILE_ERROR, message)
        return events.propose(record, record.status, (condition,), ctx.now)
    except Exception:  # noqa: BLE001 - other groups must not be affected
        return NOTHING


def _apply_device_plugin(ctx: Round) -> Step:
    version, plugin = ctx.settings.device_plugin_version, ctx.snapshot.device_plugin
    installed = plugin.version if plugin is not None else ""
    needed = any(
        names.CLEANUP_DEVICE_PLUGIN in group.meta.finalizers and not group.meta.deleting
        for group in ctx.groups.values()
    )
    if not version or not needed or installed == version:
        return NOTHING
    return to_write(actions.ApplyDevicePlugin(version=version), installed)


def _with_few_tokens(
    chosen: list[Proposed[actions.Write]], snapshot: Snapshot, memory: Memory
) -> list[Proposed[actions.Write]]:
    """Leave out creates of tokens beyond `tokens.MOST`. Namespaces alternate, and so do the groups of a namespace."""
    creating = sum(
        isinstance(sent.write, actions.CreateToken) and sent.answered_at is None for sent in memory.writes.values()
    )
    queue = [proposed.write for proposed in chosen if isinstance(proposed.write, actions.CreateToken)]
    queue = in_turns(queue, lambda write: (write.namespace, write.name))
    queue = in_turns(queue, lambda write: write.namespace)
    late = {write.key for write in queue[max(0, tokens.MOST - len(snapshot.tokens) - creating) :]}
    return [proposed for proposed in chosen if proposed.write.key not in late]


def _machines_of(resources: Iterable[ResourceMemory], ctx: Round) -> dict[str, MachineMemory]:
    """Return the memory of listed machines that have not joined. Other machines' metadata, often large, is dropped."""
    listed = {
        machine.provider_id
        for resource in resources
        if resource.listing is not None
        for machine in resource.listing.machines
        if (node := ctx.nodes.get(machine.provider_id)) is None or is_of_earlier(machine, node)
    }
    return {place: machine for place, machine in ctx.memory.machines.items() if place in listed}


_SORTS = tuple(actions.Sort)
#: Time by which a party's poll, read or list counts as newer than a change (see the module docstring).
_READS_WAIT = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """Calls that may be sent now, and the memory with these calls as open."""

    memory: Memory
    calls: tuple[actions.Call, ...]
    #: Time at which further calls may be sent. None if all due calls may be sent now.
    wake_at: datetime | None = None


def pace(wanted: Iterable[Wanted], memory: Memory, settings: PlanningSettings, now: datetime) -> Paced:
    """Return the calls that may be sent now, recorded as open."""
    free, ends = [], []
    for due in {due.call.key: due for due in wanted}.values():
        until = memory.paused.get(due.call.target.scope.project, now)
        if until <= now:
            free.append(due)
        else:
            ends.append(until)
    most = max(1.0, settings.calls_per_second * settings.burst_seconds)
    spare = {bucket: _spare(before, most, settings, now) for bucket, before in memory.pace.items()}
    room = settings.max_calls - len(memory.calls)
    chosen: list[actions.Call] = []
    waiting = False
    for due in _in_turn(free, memory):
        bucket = bucket_of(due.call)
        left = spare.get(bucket, most)
        if len(chosen) >= room or left < 1.0:
            waiting = True
            continue
        spare[bucket] = left - 1.0
        chosen.append(due.call)
    taken = {_party(call): now + _READS_WAIT * (call.sort is not actions.Sort.CHANGE) for call in chosen}
    return Paced(
        memory=replace(
            with_open(memory, now, calls=chosen),
            turns=with_turns(memory.turns, taken, now),
            pace={bucket: Pace(spare=left, at=now) for bucket, left in spare.items() if left < most},
        ),
        calls=tuple(chosen),
        wake_at=now + timedelta(seconds=1.0 / settings.calls_per_second) if waiting else min(ends, default=None),
    )


def _in_turn(wanted: Iterable[Wanted], memory: Memory) -> list[Wanted]:
    return in_turns(
        sorted(wanted, key=lambda due: (_urgency(due.call), due.due_at, due.call.key)),
        lambda due: _party(due.call),
        lambda party: memory.turns.get(party, LONG_AGO),
        (_party(sent.call) for sent in memory.calls.values()),
    )


def _urgency(call: actions.Call) -> tuple[int, bool]:
    return (_SORTS.index(call.sort), isinstance(call, actions.SetMetadata))


def _party(call: actions.Call) -> tuple[str, str]:
    if isinstance(call, actions.SetMetadata):
        return ("machines", call.target.uid)
    return (call.sort, call.target.namespace)


def bucket_of(call: actions.Call) -> str:
    """Return the limit that a call counts against: kind, project, and region or "global"."""
    scope = call.target.scope
    place = scope.region or region_of(scope.zone) or "global"
    return f"{call.sort} {scope.project} {place}"


def _spare(before: Pace, most: float, settings: PlanningSettings, now: datetime) -> float:
    passed = max(0.0, (now - before.at).total_seconds())
    return min(most, before.spare + passed * settings.calls_per_second)
