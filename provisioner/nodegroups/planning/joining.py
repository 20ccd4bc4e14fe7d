"""Makes machines join the cluster. With bootstrapKubernetes, machines without a node get tokens. Pure."""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime

from provisioner.model import waits
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.statuses import STARTING_OR_RUNNING
from provisioner.nodegroups.api.types import Kind, ManagedInstanceGroup, TpuNodeGroup
from provisioner.nodegroups.bootstrap import metadata, tokens
from provisioner.nodegroups.compute.records import ManagedInstance
from provisioner.nodegroups.planning import actions
from provisioner.nodegroups.planning.memory import LONG_AGO
from provisioner.nodegroups.planning.nodes import Fleet, Member, is_marked, labels_of
from provisioner.nodegroups.planning.round import (
    NOTHING,
    Round,
    Step,
    Wanted,
    grouped,
    merged,
    to_write,
    was_whole,
    zone_of,
)

#: Interval in seconds between reads of the metadata of a machine that has not joined: other clients may change it.
_CHECK_SECONDS = 300.0
#: Interval in seconds between reads of the metadata of a machine that did not exist at the last read.
_ABSENT_SECONDS = 30.0
#: Machines whose metadata must be read within this time in seconds are read together. The time is shorter than
#: _CHECK_SECONDS: metadata that was just set would otherwise be read before the change is visible.
_TOGETHER_SECONDS = 30.0
#: Write with the key of all writes of the device plugin, to find out whether the last write was rejected.
_PLUGIN = actions.ApplyDevicePlugin(version="")
_REQUESTS = uuid.UUID("0d0f3f2c-9d55-5a0b-8f0e-4d8f4f6f2c11")


def problem_of(group: TpuNodeGroup, ctx: Round) -> str:
    """Return which unknown data prevents machines from joining; empty if none, or without bootstrapKubernetes."""
    if group.spec.bootstrap_kubernetes is None:
        return ""
    join = _join(group, ctx)
    # Both addresses are needed: kubeadm reads cluster-info at the first, and kubelets use the server in cluster-info.
    address = join.api_server and ctx.snapshot.cluster.api_server
    missing = [
        words
        for words, known in (
            ("an IPv4 address or name of the API server (server in ConfigMap kube-public/cluster-info)", address),
            ("its certificate authority (ConfigMap kube-root-ca.crt in kube-system)", join.ca_hash),
            ("the version of Kubernetes (set bootstrapKubernetes.version)", join.kubernetes_version),
        )
        if not known
    ]
    return f"machines cannot join yet: {' and '.join(missing)} is not known" if missing else ""


def refused_join(group: TpuNodeGroup, fleet: Fleet | None, ctx: Round) -> str:
    """Return why Kubernetes rejected a write that machines need to become ready; empty if no write was rejected."""
    if why := ctx.refused(_PLUGIN):
        return f"the device plugin is not applied: {why}"
    for member in fleet.members if fleet is not None and group.spec.bootstrap_kubernetes is not None else ():
        why = _refused(group, member, ctx) if member.node is None else ""
        if why:
            return f"machines cannot join yet: {why}"
    return ""


def advice(group: TpuNodeGroup, fleet: Fleet | None, ctx: Round) -> str:
    """Return advice if a machine without a node joins by its image, or not at the server of spec or settings."""
    members = fleet.members if fleet is not None else ()
    if not any(member.machine.has_machine and member.node is None for member in members):
        return ""
    if group.spec.bootstrap_kubernetes is not None:
        given, used = _join(group, ctx).api_server, ctx.snapshot.cluster.api_server
        words = f"read the ConfigMap cluster-info in kube-public at {given}, and then join at its server {used}"
        return f"machines {words}: if they cannot reach it, correct the ConfigMap" if used and given != used else ""
    return (
        "without bootstrapKubernetes, the image has to join the cluster on its own; if it does not, correct the image, "
        "or create the group again with instanceConfig and bootstrapKubernetes"
    )


def _refused(group: TpuNodeGroup, member: Member, ctx: Round) -> str:
    approvals_ = map(_approval, ctx.requests.get(member.machine.name, ()))
    writes: list[actions.Write] = [_token_for(group, _key(member), ctx), *approvals_]
    return next(filter(None, map(ctx.refused, writes)), "")


def may_join(group: TpuNodeGroup, member: Member, ctx: Round) -> bool:
    """Return whether a machine can become ready: it has its token, if needed, and no call or write was rejected."""
    if ctx.refused(_PLUGIN):
        return False
    if member.node is not None or group.spec.bootstrap_kubernetes is None:
        return member.refusal is None
    known = ctx.memory.machines.get(member.machine.provider_id)
    items = known.items if known is not None and known.id == member.machine.id else None
    return items is not None and metadata.TOKEN in items and not _refused(group, member, ctx)


def join_machines(
    group: TpuNodeGroup, manager: ManagedInstanceGroup, shape: GroupShape, fleet: Fleet, ctx: Round, *, ends: bool
) -> Step:
    """Return a step that gives machines their join data and deletes old tokens. `ends`: the slice is recreated soon."""
    bootstrapped = group.spec.bootstrap_kubernetes is not None
    can_join = not problem_of(group, ctx)
    target, labels = actions.target_of(manager), labels_of(group, shape)
    busy = {
        machine.provider_id
        for call in ctx.calls.get(target.uid, ())
        if isinstance(call, actions.ReadMachines | actions.SetMetadata)
        for machine in call.machines
    }
    free = {_key(member): member for member in fleet.members if member.machine.id and member.node is None}
    of_group = ctx.tokens.get((group.meta.namespace, group.meta.name), ())
    existing = grouped(of_group, lambda token: (token.machine, token.machine_id))
    plan = tokens.plan_tokens(of_group, free if bootstrapped else (), ctx.now)
    steps, unread = [], []
    for key in plan.create:
        # The node of an earlier machine of this name must be deleted before the machine gets a token.
        is_free = ctx.nodes.get(f"{zone_of(group)}/{key[0]}") is None
        starts = free[key].machine.status in STARTING_OR_RUNNING
        if is_free and starts and can_join:
            own = ",".join(token.name for token in existing.get(key, ()))
            steps.append(to_write(_token_for(group, key, ctx), own))
    for token in plan.delete:
        # The Secret shows which group a node without labels belongs to, so it is kept until the node has the labels.
        node = ctx.nodes.get(f"{zone_of(group)}/{token.machine}")
        if node is None or (is_marked(group, node) and names.MACHINE_ID in node.labels):
            steps.append(to_write(actions.DeleteToken(name=token.name, uid=token.uid), token.uid))
    for member in free.values():
        machine, current = member.machine, plan.current.get(member.machine.name)
        if machine.status not in STARTING_OR_RUNNING or machine.provider_id in busy:
            continue
        if bootstrapped and current is None:
            continue
        # A machine whose node was deleted needs a new token to join again. If the slice is recreated soon, the machine
        # gets none: it may have joined with the last token, and then its pods could read a new token.
        over = ends and was_whole(group) and may_join(group, member, ctx)
        join = _join(group, ctx, current.value) if current is not None and can_join and not over else None
        equipped = _equip(target, labels, machine, join, ctx)
        if isinstance(equipped, Step):
            steps.append(equipped)
        else:
            unread.append((equipped, machine))
    return merged((*steps, _read(target, unread, ctx)))


def approvals(ctx: Round) -> Step:
    """Return a step that approves, for a machine without a node, one certificate request sent with its token."""
    by_name = {token.name: token for token in ctx.snapshot.tokens}
    groups = {(group.meta.namespace, group.meta.name): group for group in ctx.groups.values()}
    chosen: dict[str, tokens.Request] = {}
    for request in sorted(ctx.snapshot.requests, key=lambda request: request.name):
        token = by_name.get(request.token)
        group = groups.get((token.group_namespace, token.group_name)) if token is not None else None
        if token is None or group is None or group.meta.deleting or not tokens.is_own(request, token, ctx.now):
            continue
        # The machine must have a name of the group's managed instance group. Otherwise a user who may create machines
        # could name a machine like any node, and get the certificate of that node.
        named = names.manager_of(token.machine) == names.child_name(group.meta, Kind.MANAGED_INSTANCE_GROUP)
        if named and ctx.nodes.get(f"{zone_of(group)}/{token.machine}") is None:
            chosen.setdefault(token.machine, request)
    return merged(to_write(_approval(approved), approved.resource_version) for approved in chosen.values())


def _approval(request: tokens.Request) -> actions.ApproveRequest:
    return actions.ApproveRequest(name=request.name, uid=request.uid, resource_version=request.resource_version)


def _key(member: Member) -> tuple[str, str]:
    return (member.machine.name, member.machine.id)


def _join(group: TpuNodeGroup, ctx: Round, token: str = "") -> metadata.Join:
    """Return the data that a machine needs to join. The spec overrides the settings and the cluster's values."""
    given, known = group.spec.bootstrap_kubernetes, ctx.snapshot.cluster
    address = ctx.settings.api_server or known.api_server
    if given is not None and given.control_plane_ip:
        address = metadata.api_server(given.control_plane_ip, given.control_plane_port)
    return metadata.Join(
        token=token,
        api_server=address,
        ca_hash=known.ca_hash,
        kubernetes_version=(given.version if given is not None else "") or known.kubernetes_version,
    )


def _token_for(group: TpuNodeGroup, machine: tuple[str, str], ctx: Round) -> actions.CreateToken:
    return actions.CreateToken(
        namespace=group.meta.namespace,
        name=group.meta.name,
        machine=machine[0],
        machine_id=machine[1],
        expires_at=waits.after(ctx.now, tokens.LIFE.total_seconds()),
    )


def _equip(
    target: actions.Target,
    labels: Mapping[str, str],
    machine: ManagedInstance,
    join: metadata.Join | None,
    ctx: Round,
) -> Step | datetime:
    """Return the step that sets a machine's metadata, or the time at which the metadata must be read."""
    known = ctx.memory.machines.get(machine.provider_id)
    if known is None or known.id != machine.id:
        return LONG_AGO
    tried_again_at = known.backoff.until if known.backoff is not None else LONG_AGO
    if known.read_at is None:
        return tried_again_at
    due_at = waits.after(known.read_at, _CHECK_SECONDS if known.items is not None else _ABSENT_SECONDS)
    if known.items is not None and due_at > ctx.now:
        items = metadata.changed_items(known.items, labels=labels, join=join)
        if items is not None and known.fingerprint is not None:
            return _set(target, machine, known.fingerprint, items, tried_again_at, ctx.now)
        if items is not None:
            return tried_again_at
    return max(due_at, tried_again_at)


def _read(target: actions.Target, unread: Sequence[tuple[datetime, ManagedInstance]], ctx: Round) -> Step:
    if not unread or ctx.calling(target.uid, actions.ReadMachines):
        return NOTHING
    now, first = ctx.now, min(at for at, _ in unread)
    if first > now:
        return Step(moments=(first,))
    soon = waits.after(now, _TOGETHER_SECONDS)
    call = actions.ReadMachines(target=target, machines=tuple(machine for at, machine in unread if at <= soon))
    return Step(calls=(Wanted(call=call, due_at=first),))


def _set(
    target: actions.Target,
    machine: ManagedInstance,
    fingerprint: str,
    items: Mapping[str, str],
    due_at: datetime,
    now: datetime,
) -> Step:
    if due_at > now:
        return Step(moments=(due_at,))
    text = "\n".join(f"{key}={value}" for key, value in sorted(items.items()))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    call = actions.SetMetadata(
        target=target,
        machine=machine,
        items=items,
        fingerprint=fingerprint,
        # The id is the same for the same change of the same metadata, so that repeated requests take effect once.
        request_id=str(uuid.uuid5(_REQUESTS, f"{machine.provider_id}/{machine.id}/{fingerprint}/{digest}")),
    )
    return Step(calls=(Wanted(call=call, due_at=due_at),))
