"""Machines that are to join the cluster: each gets a token of its own in its metadata, until its node is there.

Only machines that exist are called, only while they have not joined, and only for what is not written yet. The Secret
of a token is deleted after the token has left the metadata and the node has got its labels: so it stands for a machine
that still has to be cleaned, and for a node that could not be found by its labels, over any restart.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from provisioner.model import waits
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.types import Kind, ManagedInstanceGroup, TpuNodeGroup
from provisioner.nodegroups.bootstrap import cluster, metadata, tokens
from provisioner.nodegroups.bootstrap.tokens import JoiningMachine, Token
from provisioner.nodegroups.compute.records import STARTING_OR_RUNNING, Instance, ManagedInstance, Scope
from provisioner.nodegroups.planning.calls import ReadMachine, SetMetadata, Target
from provisioner.nodegroups.planning.fleet import Fleet, Member
from provisioner.nodegroups.planning.memory import LONG_AGO, MachineMemory
from provisioner.nodegroups.planning.nodes import is_marked, labels_of, provider_id
from provisioner.nodegroups.planning.round import NOTHING, Proposed, Round, Step, Wanted
from provisioner.nodegroups.planning.writes import CreateToken, DeleteToken

#: A machine that has got its metadata and has not joined is looked at again after this: somebody may have changed it.
_CHECK_SECONDS = 300.0
#: What was read can be changed for so long; after that others may have.
_FRESH_SECONDS = 30.0
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


def join_machines(
    group: TpuNodeGroup, manager: ManagedInstanceGroup, shape: GroupShape, fleet: Fleet, round_: Round
) -> Step:
    """Bring each machine of a group what it needs to join, and take back what it has joined with."""
    bootstrapped = group.spec.bootstrap_kubernetes is not None
    joining = _Joining(
        target=Target(
            uid=manager.meta.uid,
            kind=Kind.MANAGED_INSTANCE_GROUP,
            scope=Scope(project=manager.spec.project, zone=manager.spec.location),
            name=manager.meta.name,
        ),
        labels=labels_of(group, shape),
        join=_join(group, round_) if bootstrapped else None,
        round=round_,
    )
    members = [member for member in fleet.members if member.machine.has_machine and member.machine.id]
    found = round_.tokens.get((group.meta.namespace, group.meta.name), ())
    plan = tokens.plan_tokens(found, [_machine(member) for member in members] if bootstrapped else (), round_.now)
    by_name = {member.machine.name: member for member in members}
    step = NOTHING
    for machine in plan.create:
        if by_name[machine.name].machine.status in STARTING_OR_RUNNING and not problem_of(group, round_):
            step += _create_token(group, machine, found, round_)
    for token in plan.delete:
        cleaning, clean = _clean_of(joining, by_name.get(token.machine), token)
        step += cleaning
        node = round_.nodes.get(provider_id(group, token.machine))
        if clean and (node is None or is_marked(group, node)):
            step += Step(writes=(Proposed(write=DeleteToken(name=token.name, uid=token.uid), seen=token.uid),))
    for member in members:
        if member.node is None and member.machine.status in STARTING_OR_RUNNING:
            current = plan.current.get(member.machine.name)
            if current is not None or not bootstrapped:
                step += _equip(joining, member, current)
    return step


def _machine(member: Member) -> JoiningMachine:
    return JoiningMachine(name=member.machine.name, id=member.machine.id, joined=member.node is not None)


def _join(group: TpuNodeGroup, round_: Round, token: str = "") -> metadata.Join:
    """Return what machines need; what the user gives goes before what the cluster says of itself."""
    given, known = group.spec.bootstrap_kubernetes, round_.snapshot.cluster
    address = known.api_server
    if given is not None and given.control_plane_ip:
        address = cluster.api_server(given.control_plane_ip, given.control_plane_port)
    return metadata.Join(
        token=token,
        api_server=address,
        ca_hash=known.ca_hash,
        kubernetes_version=(given.version if given is not None else "") or known.kubernetes_version,
    )


def _create_token(group: TpuNodeGroup, machine: JoiningMachine, found: Sequence[Token], round_: Round) -> Step:
    write = CreateToken(
        namespace=group.meta.namespace,
        name=group.meta.name,
        machine=machine.name,
        machine_id=machine.id,
        expires_at=waits.after(round_.now, tokens.LIFE.total_seconds()),
    )
    # A new one shows by its name.
    own = ",".join(token.name for token in found if (token.machine, token.machine_id) == (machine.name, machine.id))
    return Step(writes=(Proposed(write=write, seen=own),))


def _equip(joining: _Joining, member: Member, token: Token | None) -> Step:
    """Bring a machine what it needs to join."""
    join = replace(joining.join, token=token.value) if joining.join is not None and token is not None else None
    known = _known(member, joining.round)
    if known is not None and known.sent is not None and known.sent_at is not None:
        due_at = waits.after(known.sent_at, _CHECK_SECONDS)
        enough = metadata.changed_items(known.sent, labels=joining.labels, join=join, joined=False) is None
        if enough and due_at > joining.round.now:
            return Step(moments=(due_at,))
    instance = _read_lately(known, joining.round.now)
    if instance is None:
        return _read(joining, member, known)
    items = metadata.changed_items(instance.metadata.items, labels=joining.labels, join=join, joined=False)
    if items is None:
        # Whoever wrote it: it is read again after a while.
        return _read(joining, member, known)
    return _set(joining, member, known, instance, items)


def _clean_of(joining: _Joining, member: Member | None, token: Token) -> tuple[Step, bool]:
    """Take a token back that is over; return whether no machine has it in its metadata any more."""
    if member is None or member.machine.id != token.machine_id or member.node is None:
        # The machine is gone, or gets another token in place of this one.
        return NOTHING, True
    return _clean(joining, member)


def _clean(joining: _Joining, member: Member) -> tuple[Step, bool]:
    """Take the token back from a machine that has joined; return whether it is gone."""
    known = _known(member, joining.round)
    if _calling(joining, member.machine):
        # It may be about to write what was decided before the machine joined.
        return NOTHING, False
    if known is not None and known.sent is not None and metadata.TOKEN not in known.sent:
        return NOTHING, True
    instance = _read_lately(known, joining.round.now)
    if instance is None:
        gone = known is not None and known.asked_at is not None and known.instance is None
        call = ReadMachine(target=joining.target, machine=member.machine)
        return (NOTHING, True) if gone else (_want(joining, call, known, LONG_AGO), False)
    if metadata.TOKEN not in instance.metadata.items:
        return NOTHING, True
    items = metadata.changed_items(instance.metadata.items, labels=joining.labels, join=None, joined=True)
    return (_set(joining, member, known, instance, items), False) if items is not None else (NOTHING, True)


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


def _read(joining: _Joining, member: Member, known: MachineMemory | None) -> Step:
    due_at = LONG_AGO
    if known is not None and known.asked_at is not None:
        due_at = waits.after(known.asked_at, _CHECK_SECONDS if known.instance is not None else _ABSENT_SECONDS)
    return _want(joining, ReadMachine(target=joining.target, machine=member.machine), known, due_at)


def _set(
    joining: _Joining, member: Member, known: MachineMemory | None, instance: Instance, items: Mapping[str, str]
) -> Step:
    machine, fingerprint = member.machine, instance.metadata.fingerprint
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
    return _want(joining, call, known, LONG_AGO)


def _want(joining: _Joining, call: ReadMachine | SetMetadata, known: MachineMemory | None, due_at: datetime) -> Step:
    round_ = joining.round
    if _calling(joining, call.machine):
        return NOTHING
    if known is not None and known.backoff is not None:
        due_at = max(due_at, known.backoff.until)
    if due_at > round_.now:
        return Step(moments=(due_at,))
    return Step(calls=(Wanted(call=call, due_at=due_at),))


def _calling(joining: _Joining, machine: ManagedInstance) -> bool:
    return any(
        isinstance(each, ReadMachine | SetMetadata) and each.machine.provider_id == machine.provider_id
        for each in joining.round.calls.get(joining.target.uid, ())
    )
