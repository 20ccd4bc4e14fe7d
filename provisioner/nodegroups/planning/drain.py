"""What happens before a managed instance group is deleted with its machines: no work is killed.

Its nodes are cordoned by spec.unschedulable, which unlike a bare taint stays, and the pods on them are asked to leave.
Those without chips keep the machines until a deadline. Those with chips always do, unless they have outlived their
grace: a disruption budget that protects them, or a user who wants the machines gone, decides. Right before the delete
all of it is read live (`calls.Proof`).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from provisioner.model import waits
from provisioner.model.wording import first_of
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.conditions import Reason
from provisioner.nodegroups.api.types import Kind, ManagedInstanceGroup
from provisioner.nodegroups.planning import answers
from provisioner.nodegroups.planning.calls import ListMachines, Proof, Target
from provisioner.nodegroups.planning.child import Hold, want
from provisioner.nodegroups.planning.fleet import Fleet, fleet_of
from provisioner.nodegroups.planning.memory import ResourceMemory
from provisioner.nodegroups.planning.round import NOTHING, Proposed, Round, Step
from provisioner.nodegroups.planning.snapshot import Node, Pod
from provisioner.nodegroups.planning.writes import EvictPod, PatchNode

#: Machines are listed again while pods leave.
_LIST_SECONDS = 30.0


def drain(manager: ManagedInstanceGroup, known: ResourceMemory, target: Target, round_: Round) -> Hold:
    """Say what the delete of a managed instance group waits for, and do what ends the wait."""
    if round_.is_set(names.FORCE, manager.meta, Kind.MANAGED_INSTANCE_GROUP):
        return Hold()
    fleet = fleet_of(manager, round_)
    listing = ListMachines(target=target)
    if fleet is None:
        step = want(known, answers.LIST, listing, known.changed_at, round_)
        return Hold(message="its machines are being listed", reason=Reason.DRAINING_NODES, step=step)
    running = frozenset(member.machine.provider_id for member in fleet.members if member.runs)
    labels = _labels(manager, round_)
    nodes = _nodes(manager, fleet, labels, round_)
    step = want(known, answers.LIST, listing, fleet.asked_at + timedelta(seconds=_LIST_SECONDS), round_)
    step += Step(writes=tuple(_cordon(node, labels) for node in nodes if not node.unschedulable))
    deadline = _deadline(manager, round_)
    waiting = []
    for node in nodes:
        for pod in round_.pods.get(node.name, ()):
            if pod.finished or pod.bound_to_node:
                continue
            if node.unschedulable and pod.deletion_deadline is None:
                step += Step(writes=(_evict(pod),))
            if keeps(pod, round_.now) and (pod.chips > 0 or round_.now < deadline):
                waiting.append(pod)
                until = pod.deletion_deadline if pod.chips else min(pod.deletion_deadline or deadline, deadline)
                step += Step(moments=(until,)) if until is not None else NOTHING
    if waiting:
        return Hold(message=_words(manager, waiting, round_), reason=Reason.DRAINING_NODES, step=step)
    if any(not node.unschedulable for node in nodes):
        return Hold(message="its nodes are being cordoned", reason=Reason.DRAINING_NODES, step=step)
    proof = Proof(
        namespace=manager.meta.namespace,
        name=manager.meta.name,
        uid=manager.meta.uid,
        group_labels=labels,
        provider_ids=running,
        place=_place(manager),
        deadline=deadline,
    )
    return Hold(step=step, proof=proof)


def keeps(pod: Pod, now: datetime) -> bool:
    """Whether a pod needs its machine: it has neither ended nor outlived its grace, and does not end with its node."""
    over = pod.deletion_deadline is not None and pod.deletion_deadline <= now
    return not pod.finished and not pod.bound_to_node and not over


def _cordon(node: Node, labels: dict[str, str]) -> Proposed:
    """Propose to cordon a node; it gets the labels by which it is known when its machine is gone."""
    missing = {key: value for key, value in labels.items() if node.labels.get(key) != value}
    write = PatchNode(name=node.name, uid=node.uid, resource_version=node.resource_version, labels=missing, cordon=True)
    return Proposed(write=write, seen=node.resource_version)


def _evict(pod: Pod) -> Proposed:
    # Evicted means that somebody deletes it, which shows.
    return Proposed(write=EvictPod(namespace=pod.namespace, name=pod.name, uid=pod.uid), seen="")


def _labels(manager: ManagedInstanceGroup, round_: Round) -> dict[str, str]:
    """Return the labels of its nodes; none for a managed instance group that is not a group's own."""
    group = round_.parent_of(manager.meta, Kind.MANAGED_INSTANCE_GROUP)
    return {} if group is None else names.group_labels(group.meta)


def _nodes(manager: ManagedInstanceGroup, fleet: Fleet, labels: dict[str, str], round_: Round) -> tuple[Node, ...]:
    """Return the nodes of all machines that may run: those of listed ones, and those that say so themselves.

    A labelled node whose machine is not listed may be one that joined since; not one of another name, whatever it says.
    """
    found = {node.name: node for node in fleet.nodes}
    key = (labels.get(names.GROUP_NAMESPACE, ""), labels.get(names.GROUP_NAME, ""))
    for node in round_.labelled.get(key, ()):
        here = names.manager_of(node.provider_id) == _place(manager)
        if here and node.ready:
            found.setdefault(node.name, node)
    return tuple(found[name] for name in sorted(found))


def _place(manager: ManagedInstanceGroup) -> str:
    """Return what the provider ids of all its machines have before their suffix."""
    return f"gce://{manager.spec.project}/{manager.spec.location}/{manager.meta.name}"


def _deadline(manager: ManagedInstanceGroup, round_: Round) -> datetime:
    deleted_at = manager.meta.deleted_at or round_.now
    return waits.after(deleted_at, round_.settings.drain_seconds)


def _words(manager: ManagedInstanceGroup, pods: list[Pod], round_: Round) -> str:
    listed = sorted(f"{pod.namespace}/{pod.name} on {pod.node}" for pod in pods)
    words = f"unfinished pods keep its machines: {first_of(listed)}"
    group = round_.parent_of(manager.meta, Kind.MANAGED_INSTANCE_GROUP)
    if group is not None and not group.meta.deleting:
        return words
    return f'{words}. The annotation {names.FORCE}: "true" deletes them all the same'
