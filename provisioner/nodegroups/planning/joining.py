"""Machines that are to join the cluster: each gets a token of its own in its metadata, until its node is there.

Only machines that exist are called, only while they have not joined, and only for what is not written yet. Those of a
group are read together, in one call; each is changed by a call of its own, before it joins and, when nothing more
urgent is to be called, once after that. The Secret
of a token is deleted after the token has left the metadata and the node has got its labels: so it stands for a machine
that still has to be cleaned, and for a node that could not be found by its labels, over any restart. Where it expired
while no controller ran, and is gone, each process reads the machines once.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from provisioner.model import waits
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.types import Kind, ManagedInstanceGroup, TpuNodeGroup
from provisioner.nodegroups.bootstrap import approval, metadata, tokens
from provisioner.nodegroups.bootstrap.tokens import Token
from provisioner.nodegroups.compute.records import STARTING_OR_RUNNING, Instance, ManagedInstance
from provisioner.nodegroups.planning.actions import (
    ApproveRequest,
    CreateToken,
    DeleteToken,
    ReadMachines,
    SetMetadata,
    Target,
    target_of,
)
from provisioner.nodegroups.planning.memory import LONG_AGO, MachineMemory
from provisioner.nodegroups.planning.nodes import Fleet, Member, is_marked, labels_of, provider_id
from provisioner.nodegroups.planning.round import NOTHING, Round, Step, Wanted, merged, to_write

#: A machine that has got its metadata and has not joined is looked at again after this: somebody may have changed it.
_CHECK_SECONDS = 300.0
#: What was read is the base of a change for so long; whether somebody else has changed it, its fingerprint tells.
_FRESH_SECONDS = 300.0
#: A change of metadata takes effect within this time.
_TAKES_EFFECT_SECONDS = 30.0
#: Machines that have joined are read together, at most this often.
_TOGETHER_SECONDS = 30.0
#: A machine that was not there when it was read.
_ABSENT_SECONDS = 30.0
_REQUESTS = uuid.UUID("0d0f3f2c-9d55-5a0b-8f0e-4d8f4f6f2c11")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joining:
    """One group whose machines join."""

    target: Target
    labels: Mapping[str, str]
    #: None: they do by themselves.
    join: metadata.Join | None
    round: Round


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What is to be done about the metadata of one machine."""

    member: Member
    step: Step = NOTHING
    #: It has to be read then, together with the others of its group; None: it need not be.
    read_at: datetime | None = None
    #: Nobody waits for it.
    patient: bool = False


def problem_of(group: TpuNodeGroup, round_: Round) -> str:
    """Say what is not known of the cluster that machines need to join; empty where nothing is missing."""
    if group.spec.bootstrap_kubernetes is None:
        return ""
    join = _join(group, round_)
    missing = [
        words
        for words, known in (
            ("the address of the API server (set bootstrapKubernetes.controlPlaneIP)", join.api_server),
            ("its certificate authority (ConfigMap kube-root-ca.crt in kube-system)", join.ca_hash),
            ("the version of Kubernetes (set bootstrapKubernetes.version)", join.kubernetes_version),
            ("the startup script", round_.settings.startup_script),
        )
        if not known
    ]
    return f"machines cannot join yet: {' and '.join(missing)} is not known" if missing else ""


def refused_token(group: TpuNodeGroup, fleet: Fleet | None, round_: Round) -> str:
    """Say why a machine gets no token; empty where none is refused."""
    for member in fleet.members if fleet is not None and group.spec.bootstrap_kubernetes is not None else ():
        why = round_.refused(_token_for(group, _key(member), round_)) if member.node is None else ""
        if why:
            return f"machines cannot join yet: {why}"
    return ""


def join_machines(
    group: TpuNodeGroup, manager: ManagedInstanceGroup, shape: GroupShape, fleet: Fleet, round_: Round
) -> Step:
    """Bring each machine of a group what it needs to join, and take back what it has joined with."""
    bootstrapped = group.spec.bootstrap_kubernetes is not None
    joining = _Joining(
        target=target_of(manager),
        labels=labels_of(group, shape),
        join=_join(group, round_) if bootstrapped else None,
        round=round_,
    )
    members = [member for member in fleet.members if member.machine.has_machine and member.machine.id]
    found = round_.tokens.get((group.meta.namespace, group.meta.name), ())
    free = [_key(member) for member in members if member.node is None]
    plan = tokens.plan_tokens(found, free if bootstrapped else (), round_.now)
    by_name = {member.machine.name: member for member in members}
    step, needs = NOTHING, []
    for machine in plan.create:
        # The node of an earlier machine of that name goes first.
        is_free = round_.nodes.get(provider_id(group, machine[0])) is None
        starts = by_name[machine[0]].machine.status in STARTING_OR_RUNNING
        if is_free and starts and not problem_of(group, round_):
            step += _create_token(group, machine, found, round_)
    for token in plan.delete:
        need = _clean_of(joining, by_name.get(token.machine), token)
        node = round_.nodes.get(provider_id(group, token.machine))
        if need is None and (node is None or is_marked(group, node)):
            step += to_write(DeleteToken(name=token.name, uid=token.uid), token.uid)
        elif need is not None:
            needs.append(need)
    remembered = {(token.machine, token.machine_id) for token in found}
    for member in members if bootstrapped else ():
        if member.node is not None and _key(member) not in remembered:
            need = _clean_unremembered(joining, member)
            needs += (need,) if need is not None else ()
    for member in members:
        if member.node is None and member.machine.status in STARTING_OR_RUNNING:
            current = plan.current.get(member.machine.name)
            if current is not None or not bootstrapped:
                needs.append(_equip(joining, member, current))
    return step + merged(need.step for need in needs) + _read(joining, members, needs)


def approvals(round_: Round) -> Step:
    """Approve what machines without a node ask for with their own tokens, one request of each at a time."""
    if not round_.snapshot.requests:
        return NOTHING
    found = {token.name: token for token in round_.snapshot.tokens}
    groups = {(group.meta.namespace, group.meta.name): group for group in round_.groups.values()}
    chosen: dict[str, approval.Request] = {}
    for request in sorted(round_.snapshot.requests, key=lambda each: each.name):
        token = found.get(request.token)
        group = groups.get((token.group_namespace, token.group_name)) if token is not None else None
        if token is None or group is None or group.meta.deleting or not approval.is_own(request, token, round_.now):
            continue
        # Whoever may make machines in the project could give one the name of any node.
        named = names.manager_of(token.machine) == names.child_name(group.meta, Kind.MANAGED_INSTANCE_GROUP)
        if named and round_.nodes.get(provider_id(group, token.machine)) is None:
            chosen.setdefault(token.machine, request)
    return merged(
        to_write(
            ApproveRequest(name=each.name, uid=each.uid, resource_version=each.resource_version), each.resource_version
        )
        for each in chosen.values()
    )


def _key(member: Member) -> tuple[str, str]:
    """Name and number: another machine under the same name has a token of its own."""
    return (member.machine.name, member.machine.id)


def _join(group: TpuNodeGroup, round_: Round, token: str = "") -> metadata.Join:
    """Return what machines need; what the user gives goes before what the cluster says of itself."""
    given, known = group.spec.bootstrap_kubernetes, round_.snapshot.cluster
    address = known.api_server
    if given is not None and given.control_plane_ip:
        address = metadata.api_server(given.control_plane_ip, given.control_plane_port)
    return metadata.Join(
        token=token,
        api_server=address,
        ca_hash=known.ca_hash,
        kubernetes_version=(given.version if given is not None else "") or known.kubernetes_version,
    )


def _token_for(group: TpuNodeGroup, machine: tuple[str, str], round_: Round) -> CreateToken:
    return CreateToken(
        namespace=group.meta.namespace,
        name=group.meta.name,
        machine=machine[0],
        machine_id=machine[1],
        expires_at=waits.after(round_.now, tokens.LIFE.total_seconds()),
    )


def _create_token(group: TpuNodeGroup, machine: tuple[str, str], found: Sequence[Token], round_: Round) -> Step:
    write = _token_for(group, machine, round_)
    # A new one shows by its name.
    own = ",".join(token.name for token in found if (token.machine, token.machine_id) == machine)
    return to_write(write, own)


def _equip(joining: _Joining, member: Member, token: Token | None) -> _Need:
    """Say what a machine needs to get what it joins with."""
    join = replace(joining.join, token=token.value) if joining.join is not None and token is not None else None
    known = _known(member, joining.round)
    if known is not None and known.sent is not None and known.sent_at is not None:
        due_at = waits.after(known.sent_at, _CHECK_SECONDS)
        enough = metadata.changed_items(known.sent, labels=joining.labels, join=join, joined=False) is None
        if enough and due_at > joining.round.now:
            return _Need(member=member, step=Step(moments=(due_at,)))
    instance = _read_lately(known, joining.round.now)
    if instance is not None:
        items = metadata.changed_items(instance.items, labels=joining.labels, join=join, joined=False)
        if items is not None:
            return _Need(member=member, step=_set(joining, member, known, instance, items))
    due_at = LONG_AGO
    if known is not None and known.asked_at is not None:
        # Whoever wrote what it has: it is read again after a while.
        due_at = waits.after(known.asked_at, _CHECK_SECONDS if known.instance is not None else _ABSENT_SECONDS)
    return _Need(member=member, read_at=due_at)


def _clean_of(joining: _Joining, member: Member | None, token: Token) -> _Need | None:
    """Say what it needs to take a token back that is over; None: no machine has it in its metadata any more."""
    if member is None or member.machine.id != token.machine_id or member.node is None:
        # The machine is gone, or gets another token in place of this one.
        return None
    return _clean(joining, member)


def _clean(joining: _Joining, member: Member) -> _Need | None:
    """Say what it needs to take the token back from a machine that has joined; None: it is gone."""
    known = _known(member, joining.round)
    if _calling(joining, member.machine):
        # It may be about to write what was decided before the machine joined.
        return _Need(member=member)
    if known is not None and known.sent is not None and metadata.TOKEN not in known.sent:
        return None
    instance = _read_lately(known, joining.round.now)
    if instance is None:
        gone = known is not None and known.asked_at is not None and known.instance is None
        return None if gone else _Need(member=member, read_at=LONG_AGO, patient=True)
    if metadata.TOKEN not in instance.items:
        # What it joined with may have taken effect after it was read.
        return None if _is_settled(known) else _Need(member=member, read_at=LONG_AGO, patient=True)
    items = metadata.changed_items(instance.items, labels=joining.labels, join=None, joined=True)
    if items is None:
        return None
    return _Need(member=member, step=_set(joining, member, known, instance, items, patient=True))


def _is_settled(known: MachineMemory | None) -> bool:
    """Whether no change of a machine that has joined was under way when it was read."""
    if known is None or known.asked_at is None or not known.read_joined:
        return False
    return known.sent_at is None or (known.asked_at - known.sent_at).total_seconds() >= _TAKES_EFFECT_SECONDS


def _clean_unremembered(joining: _Joining, member: Member) -> _Need | None:
    """Say what it needs to clean a machine that has joined, and of whose token there is no Secret; None: nothing.

    Kubernetes deletes the Secrets of tokens that have expired, also while no controller runs. Each process looks once.
    """
    known = _known(member, joining.round)
    if known is not None and known.asked_at is not None and known.sent is None and known.read_joined:
        has_token = known.instance is not None and metadata.TOKEN in known.instance.items
        if not has_token:
            return None
    return _clean(joining, member)


def _known(member: Member, round_: Round) -> MachineMemory | None:
    known = round_.memory.machines.get(member.machine.provider_id)
    return known if known is not None and known.id == member.machine.id else None


def _read_lately(known: MachineMemory | None, now: datetime) -> Instance | None:
    """Return the machine as it was read, where a change may still be based on that."""
    if known is None or known.instance is None or known.asked_at is None:
        return None
    if known.instance.id and known.instance.id != known.id:
        return None
    return known.instance if (now - known.asked_at).total_seconds() < _FRESH_SECONDS else None


def _read(joining: _Joining, members: Sequence[Member], needs: Sequence[_Need]) -> Step:
    """Read the machines of a group together, as soon as one has to be.

    While one is set, it is read after that. Those that have joined wait for the others: all are read in one call then.
    """
    if joining.round.calling(joining.target.uid, ReadMachines):
        return NOTHING
    now, due = joining.round.now, []
    free = [member for member in members if not _calling(joining, member.machine)]
    known = {member.machine.name: _known(member, joining.round) for member in free}
    read_at = max((each.asked_at for each in known.values() if each is not None and each.asked_at), default=LONG_AGO)
    for need in needs:
        name = need.member.machine.name
        if need.read_at is None or name not in known:
            continue
        at = max(need.read_at, waits.after(read_at, _TOGETHER_SECONDS)) if need.patient else need.read_at
        due.append((max(at, _tried_again_at(known[name])), need.patient))
    if not due:
        return NOTHING
    first = min(due)[0]
    if first > now:
        return Step(moments=(first,))
    read = [member for member in free if _tried_again_at(known[member.machine.name]) <= now]
    call = ReadMachines(
        target=joining.target,
        machines=tuple(member.machine for member in read),
        joined=frozenset(member.machine.provider_id for member in read if member.node is not None),
    )
    return Step(calls=(Wanted(call=call, due_at=first, patient=all(patient for at, patient in due if at <= now)),))


def _tried_again_at(known: MachineMemory | None) -> datetime:
    return known.backoff.until if known is not None and known.backoff is not None else LONG_AGO


def _set(
    joining: _Joining,
    member: Member,
    known: MachineMemory | None,
    instance: Instance,
    items: Mapping[str, str],
    *,
    patient: bool = False,
) -> Step:
    machine, fingerprint = member.machine, instance.fingerprint
    text = "\n".join(f"{key}={value}" for key, value in sorted(items.items()))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    call = SetMetadata(
        target=joining.target,
        machine=machine,
        items=items,
        fingerprint=fingerprint,
        # The same change of the same metadata counts once.
        request_id=str(uuid.uuid5(_REQUESTS, f"{machine.provider_id}/{machine.id}/{fingerprint}/{digest}")),
    )
    if _calling(joining, machine):
        return NOTHING
    due_at = _tried_again_at(known)
    if due_at > joining.round.now:
        return Step(moments=(due_at,))
    return Step(calls=(Wanted(call=call, due_at=due_at, patient=patient),))


def _calling(joining: _Joining, machine: ManagedInstance) -> bool:
    """Whether a call is under way that is about a machine's metadata."""
    place = machine.provider_id
    for each in joining.round.calls.get(joining.target.uid, ()):
        if isinstance(each, SetMetadata) and each.machine.provider_id == place:
            return True
        if isinstance(each, ReadMachines) and any(read.provider_id == place for read in each.machines):
            return True
    return False
