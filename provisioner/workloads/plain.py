"""Derives workloads of kind POD from pods: the controller of pods or, for a pod without a controller, the pod. Pure.

Controllers are not read, so a workload ends when it has no unfinished pods. On single hosts, each pod is a slice. On
several hosts, all pods of a controller are one slice, and need an index, as in an Indexed Job or a StatefulSet.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from provisioner import constants, tpu
from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.model.workloads import (
    ObjectRef,
    Pod,
    PodGroup,
    Requirements,
    Workload,
    WorkloadKind,
    WorkloadUid,
    group_key,
    uid_in,
)
from provisioner.workloads.job import JOB
from provisioner.workloads.kind import STATEFUL_SET_TYPE, controller_of, marked, too_much

#: Kinds of controllers that create pods only for existing nodes; no pools are created for these pods.
_FOR_NODES = frozenset({"DaemonSet", "Node"})


def owner_of(metadata: Mapping[str, Any]) -> ObjectRef | None:
    """Return the controller of a pod; None without a controller, or if kind, name or UID is missing."""
    owner = controller_of(metadata)
    return owner if owner is not None and owner.kind and owner.name and owner.uid else None


def is_for_nodes(owner: ObjectRef | None) -> bool:
    """Whether a controller creates pods only for existing nodes."""
    return owner is not None and owner.kind in _FOR_NODES


def is_asked_for(metadata: Mapping[str, Any], owner: ObjectRef | None, serve_pods: str) -> bool:
    """Whether the value of SERVE_PODS selects a pod of kind POD. Pods of DaemonSets and static pods are left out."""
    annotated = fields.mapping(metadata.get("annotations")).get(constants.SERVE) == "true"
    wanted = serve_pods == "all" or (serve_pods == "annotated" and annotated)
    return wanted and not is_for_nodes(owner)


def index_of(metadata: Mapping[str, Any], owner: ObjectRef | None) -> int | None:
    """Return the index of a pod among the pods of its controller; None without an index."""
    for key in (constants.COMPLETION_INDEX, constants.POD_INDEX):
        if (index := fields.index(marked(metadata, key))) is not None:
            return index
    if owner is None or owner.type != STATEFUL_SET_TYPE:
        return None
    return fields.index(fields.name(metadata.get("name")).removeprefix(f"{owner.name}-"))


def as_plain(pod: Pod) -> Pod:
    """Return a pod with kind POD, and with the workload and group that follow from its controller, index and slice."""
    owner = pod.owner
    together = owner is not None and pod.completion_index is not None and hosts_of(pod.requirements) > 1
    group = owner.name if owner is not None and together else pod.name
    return replace(
        pod,
        kind=WorkloadKind.POD,
        workload_name=pod.name if owner is None else f"{owner.kind[:1].upper()}{owner.kind[1:]}.{owner.name}",
        workload_uid=_uid_of(pod, owner),
        group_name=group,
        group_key=group_key(pod.namespace, group),
        completion_index=pod.completion_index if together else constants.LEADER_INDEX,
        group_size=0,
    )


def _uid_of(pod: Pod, owner: ObjectRef | None) -> str:
    """Return the UID of a pod's workload. Owner UIDs, except of Jobs, are hashed, because users can write any owner."""
    if owner is None:
        return pod.uid
    # A Job keeps its own UID, because the Job may be served as a workload later; `apart` checks the namespace.
    return owner.uid if _is_job(owner) else uid_in(pod.namespace, owner.uid)


def _is_job(owner: ObjectRef | None) -> bool:
    return owner is not None and owner.type == JOB


def apart(pods: Iterable[Pod], namespaces: Mapping[str, str]) -> Iterator[Pod]:
    """Yield all pods. Replace `workload_uid` of pods of kind POD if this UID belongs to another namespace.

    `namespaces` has the namespaces of existing workloads by UID. Any other UID belongs to the namespace of the oldest
    unfinished pod with this UID; pods without a Job take precedence, because users can choose only UIDs of Jobs.
    """
    pods = tuple(pods)
    first: dict[str, Pod] = {}
    for pod in pods:
        if pod.kind is WorkloadKind.POD and pod.group_key and not pod.finished:
            first[pod.workload_uid] = min(first.get(pod.workload_uid, pod), pod, key=_claim)
    owners = {**{uid: pod.namespace for uid, pod in first.items()}, **namespaces}
    for pod in pods:
        foreign = pod.kind is WorkloadKind.POD and owners.get(pod.workload_uid, pod.namespace) != pod.namespace
        yield replace(pod, workload_uid=uid_in(pod.namespace, pod.workload_uid)) if foreign else pod


def _claim(pod: Pod) -> tuple[bool, datetime, str, str]:
    return _is_job(pod.owner), pod.created_at, pod.namespace, pod.name


def workloads_of(pods: Iterable[Pod]) -> Iterator[Workload]:
    """Yield the workloads of kind POD, derived from their unfinished pods."""
    by_uid: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in pods:
        if pod.kind is WorkloadKind.POD and pod.group_key and not pod.finished:
            by_uid[pod.namespace, pod.workload_uid].append(pod)
    for (_, uid), own in by_uid.items():
        first = min(own, key=lambda pod: (pod.created_at, pod.name))
        groups = tuple(_groups_of(own))
        yield Workload(
            kind=WorkloadKind.POD,
            namespace=first.namespace,
            name=first.workload_name,
            uid=WorkloadUid(uid),
            groups=groups,
            problem=too_much(WorkloadKind.POD, groups),
            created_at=first.created_at,
            controller=first.owner,
        )


def _groups_of(pods: list[Pod]) -> Iterator[PodGroup]:
    """Yield one unnamed group for all slices of one pod each, and a named group for each slice of several pods."""
    alone = [pod for pod in pods if pod.group_name == pod.name]
    together: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        if pod.group_name != pod.name:
            together[pod.group_name].append(pod)
    for name, members in (*((("", alone),) if alone else ()), *together.items()):
        template = min(members, key=lambda pod: (pod.created_at, pod.name)).requirements
        hosts = hosts_of(template) if name else 1
        yield PodGroup(
            name=name,
            replicas=1 if name else len(members),
            numbered=False,
            lowest_leads=True,
            parallelism=hosts,
            template=template,
        )


def misfit_of(pods: Iterable[Pod], owner: ObjectRef | None, shape: tpu.Shape) -> tuple[str, ...]:
    """Return why pods of kind POD do not fill one slice; empty if they do, on single hosts, or if a pod has a node."""
    pods = tuple(pods)
    hosts = shape.nodes(1)
    if not shape.multi_host or any(pod.node_name for pod in pods):
        return ()
    fact = f"a slice of topology {shape.topology} has {hosts} hosts"
    advice = "use a JobSet or a LeaderWorkerSet"
    if owner is None or all(pod.group_name == pod.name for pod in pods):
        subject = f"pods of a {bounds.cut(owner.kind)}" if owner is not None else "pods without a controller"
        if owner is not None and owner.kind in ("Job", "CronJob"):
            advice = f"set completionMode to Indexed, or {advice}"
        return f"{fact}, and {subject} have no index, so nothing shows which host of a slice a pod is", advice
    count = len({pod.completion_index for pod in pods if pod.deletion_deadline is None})
    of_set = owner.type == STATEFUL_SET_TYPE
    field = "replicas" if of_set else "completions and parallelism"
    if count > hosts:
        return (f"set {field} to {hosts}, or {advice} for several slices: {fact}, and the {owner.kind} has more pods",)
    parallel = ", and podManagementPolicy to Parallel" if of_set else ""
    wanted = f"set {field} to {hosts}{parallel}"
    return (f"{wanted}: {fact}, and the {owner.kind} has pods for {count}",) if count < hosts else ()


def hosts_of(requirements: Requirements) -> int:
    """Return the number of hosts of the slice that a pod selects; 1 if the slice is invalid."""
    find = requirements.node_selector.get
    selected = (find(constants.TPU_ACCELERATOR, ""), find(constants.TPU_TOPOLOGY, ""))
    try:
        shape = tpu.resolve(*selected, requirements.chips, find(constants.INSTANCE_TYPE, ""))
    except tpu.ShapeError:
        return 1
    return shape.nodes(1)
