"""Builders of the model's types. The default is a v4 slice of two hosts; keyword arguments replace fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from provisioner import constants, tpu
from provisioner.model.capacity import (
    CapacityKind,
    Node,
    NodePool,
    NodePoolRequest,
    PoolName,
    PoolStatus,
    Taint,
    expected_pool,
)
from provisioner.model.choices import CapacityChoice
from provisioner.model.workloads import (
    Pod,
    PodGroup,
    Requirements,
    Toleration,
    Workload,
    WorkloadKind,
    Workloads,
    WorkloadUid,
)
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId, group_key
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.slices.demand.slices import all_slices, find_by_workload
from provisioner.slices.planning.spec.capacity import choices_of
from provisioner.slices.planning.spec.specification import Candidates, pool_name
from provisioner.slices.suppliers.gke.rules import GKE_RULES, slice_topology
from tests.support.clock import NOW
from tests.support.settings import settings

CHIP_TOLERATION = Toleration(key=constants.TPU_RESOURCE, operator="Exists")
SPOT_TOLERATION = Toleration(key=constants.SPOT, operator="Equal", value="true", effect="NoSchedule")
UNSCHEDULABLE = "0/9 nodes are available: 9 Insufficient google.com/tpu."


def make_requirements(
    *,
    accelerator: str = "tpu-v4-podslice",
    topology: str = "2x2x2",
    selector: Mapping[str, str] | None = None,
    **changes: Any,
) -> Requirements:
    fields: dict[str, Any] = {
        "chips": 4,
        "cpu_millicores": 1000,
        "memory_bytes": 2**30,
        "node_selector": {
            constants.TPU_ACCELERATOR: accelerator,
            constants.TPU_TOPOLOGY: topology,
            **(selector or {}),
        },
        "tolerations": (CHIP_TOLERATION,),
    }
    return Requirements(**fields | changes)


def make_jobset(
    name: str = "train",
    *,
    namespace: str = "default",
    uid: str = "",
    replicas: int = 1,
    parallelism: int = 2,
    template: Requirements | None = None,
    **changes: Any,
) -> Workload:
    job = PodGroup(
        name="slice",
        replicas=replicas,
        parallelism=parallelism,
        # Templates do not have the toleration for chips, which GKE adds to pods.
        template=template or make_requirements(tolerations=()),
    )
    return _workload(job, WorkloadKind.JOBSET, namespace, name, uid or f"uid-of-{namespace}-{name}", changes)


def make_lws(
    name: str = "serve",
    *,
    namespace: str = "default",
    uid: str = "",
    replicas: int = 1,
    size: int = 2,
    template: Requirements | None = None,
    **changes: Any,
) -> Workload:
    group = PodGroup(
        name="", replicas=replicas, parallelism=size, template=template or make_requirements(tolerations=())
    )
    kind = WorkloadKind.LEADER_WORKER_SET
    return _workload(group, kind, namespace, name, uid or f"uid-of-lws-{namespace}-{name}", changes)


def make_job(
    name: str = "sweep",
    *,
    namespace: str = "default",
    uid: str = "",
    parallelism: int = 2,
    template: Requirements | None = None,
    **changes: Any,
) -> Workload:
    group = PodGroup(
        name="",
        replicas=1,
        numbered=False,
        lowest_leads=True,
        parallelism=parallelism,
        template=template or make_requirements(tolerations=()),
    )
    return _workload(group, WorkloadKind.JOB, namespace, name, uid or f"uid-of-job-{namespace}-{name}", changes)


def _workload(
    group: PodGroup, kind: WorkloadKind, namespace: str, name: str, uid: str, changes: Mapping[str, Any]
) -> Workload:
    fields = {"kind": kind, "groups": (group,), **changes}
    return Workload(namespace=namespace, name=name, uid=WorkloadUid(uid), **fields)


def make_pod(
    workload: Workload,
    *,
    job: int = 0,
    index: int = 0,
    node: str = "",
    unschedulable: bool | None = None,
    requirements: Requirements | None = None,
    marked: bool = False,
    **changes: Any,
) -> Pod:
    """Return a pod, by default unschedulable if `node` is empty; a `marked` pod has the selectors of admission."""
    is_lws = workload.kind is WorkloadKind.LEADER_WORKER_SET
    group_name = _group_name(workload, job)
    if requirements is None:
        requirements = workload.groups[0].template
        requirements = replace(requirements, tolerations=(*requirements.tolerations, CHIP_TOLERATION))
    if marked:
        selector = {**requirements.node_selector, **make_marks(workload, job=job)}
        requirements = replace(requirements, node_selector=selector)
    waits = unschedulable if unschedulable is not None else not node
    fields: dict[str, Any] = {
        "kind": workload.kind,
        "name": f"{group_name}-{index}-abcde" if not is_lws else f"{group_name}-{index}" if index else group_name,
        "uid": f"uid-of-{workload.uid}-{group_name}-{index}",
        "workload_name": workload.name,
        # A pod of a LeaderWorkerSet does not contain the UID of the LeaderWorkerSet.
        "workload_uid": "" if is_lws else workload.uid,
        "group_name": group_name,
        "group_key": group_key(workload.namespace, group_name),
        "completion_index": index,
        "phase": "Running" if node else "Pending",
        "node_name": node,
        "unschedulable_since": NOW if waits else None,
        "unschedulable_message": UNSCHEDULABLE if waits else "",
    }
    return Pod(namespace=workload.namespace, requirements=requirements, **fields | changes)


def make_marks(workload: Workload, *, job: int = 0) -> dict[str, str]:
    """Return the selectors that admission adds to pods of a child Job or group, which equal the labels of its nodes."""
    letter = {WorkloadKind.JOBSET: "j", WorkloadKind.LEADER_WORKER_SET: "l", WorkloadKind.RAY_CLUSTER: "r"}
    key = f"{letter.get(workload.kind, 'b')}-{group_key(workload.namespace, _group_name(workload, job))}"
    return {constants.SLICE: key, constants.SLICE_NAMESPACE: workload.namespace}


def _group_name(workload: Workload, number: int) -> str:
    names = {
        WorkloadKind.JOBSET: f"{workload.name}-slice-{number}",
        WorkloadKind.LEADER_WORKER_SET: f"{workload.name}-{number}",
        WorkloadKind.RAY_CLUSTER: f"{workload.name}-tpus-{number}",
        WorkloadKind.JOB: workload.name,
    }
    return names[workload.kind]


def make_pool(
    workload: Workload, *, job: int = 0, attempt: int = 0, status: PoolStatus = PoolStatus.RUNNING, **changes: Any
) -> NodePool:
    request = make_request(workload, job=job, attempt=attempt)
    return replace(expected_pool(request), status=status, **changes)


def make_request(workload: Workload, *, job: int = 0, attempt: int = 0, **setting_changes: Any) -> NodePoolRequest:
    return pool_request(make_slice(workload, job=job), settings(**setting_changes), attempt)


def pool_request(
    slice_: Slice, settings_: Settings, attempt: int, choice: CapacityChoice | None = None
) -> NodePoolRequest:
    """Return the request of an attempt, by default for the best choice. Raises UnmeetableError if none is possible."""
    candidates = Candidates(settings_, GKE_RULES)
    chosen = choice or choices_of(slice_, settings_).open[0]
    name = pool_name(slice_.workload.name, slice_.id, attempt)
    return candidates.specification(slice_, chosen).stamped(name, attempt)


def make_slice(workload: Workload, *, job: int = 0, **pod_changes: Any) -> Slice:
    pod = make_pod(workload, job=job, **pod_changes)
    slices = find_slices(Workloads.of({workload.uid: workload}), [pod], ServingPolicy())
    return next(slice_ for slice_ in slices.values() if slice_.id.group_key == pod.group_key)


def slice_of(name: str = "train", *, parallelism: int = 2, **requirements: Any) -> Slice:
    asked = make_requirements(**requirements)
    return make_slice(make_jobset(name, parallelism=parallelism, template=asked), requirements=asked)


def make_node(pool: NodePool, index: int = 0, **changes: Any) -> Node:
    view = GKE_RULES.expected_node(pool)
    fields: dict[str, Any] = {
        "name": f"gke-{pool.name}-{index}",
        "uid": f"uid-of-{pool.name}-{index}",
        "pool_name": pool.name,
        "labels": view.labels,
        "taints": tuple(dict.fromkeys((*view.taints, *pool.taints))),
        "ready": True,
        "allocatable_chips": view.chips,
        "allocatable_cpu_millicores": view.cpu_millicores,
        "allocatable_memory_bytes": view.memory_bytes,
        "allocatable_other_bytes": tuple(view.other_bytes.items()),
        "created_at": NOW - timedelta(hours=1),
    }
    return Node(**fields | changes)


def make_nodes(pool: NodePool, **changes: Any) -> tuple[Node, ...]:
    """Return all nodes of a new pool; none for flex-start, because such pools are created without nodes."""
    return tuple(
        make_node(pool, index, **changes)
        for index in range(0 if pool.capacity is CapacityKind.FLEX_START else pool.hosts)
    )


def foreign_pool(name: str = "default-pool", **changes: Any) -> NodePool:
    fields: dict[str, Any] = {
        "status": PoolStatus.RUNNING,
        "machine_type": "ct4p-hightpu-4t",
        "hosts": 2,
        "topology": "2x2x2",
    }
    return NodePool(name=PoolName(name), **fields | changes)


def go_pool(workload: Workload, *, job: int = 0, status: PoolStatus = PoolStatus.RUNNING, **changes: Any) -> NodePool:
    """Return a pool of the Go provisioner, which has no labels for UID, job key and attempt.

    The placement is compact, except for one host of v6e, machines with one chip, and tpu7x (with a workload policy).
    """
    selector = workload.groups[0].template.node_selector
    accelerator, topology = selector[constants.TPU_ACCELERATOR], selector[constants.TPU_TOPOLOGY]
    chips = workload.groups[0].template.chips
    shape = tpu.resolve(accelerator, topology, chips)
    group_name = f"{workload.name}-slice-{job}"
    by_policy = accelerator == "tpu7x"
    machine = shape.machine_type
    compact = not by_policy and machine.chips > 1 and (shape.multi_host or not machine.name.startswith("ct6e"))
    policy_name = f"tpu-provisioner-{topology}" if by_policy else ""
    fields: dict[str, Any] = {
        "machine_type": machine.name,
        # The Go provisioner counts four chips per host for every machine type.
        "hosts": math.ceil(shape.topology.chips / 4),
        "topology": slice_topology(
            placement_topology=topology if compact else "",
            labels={},
            policy_name=policy_name,
            machine_type=machine.name,
        ),
        "policy_name": policy_name,
        "zones": ("us-central2-b",),
        "labels": {
            constants.NODEPOOL_MANAGER: constants.MANAGER,
            constants.PARENT_KIND: "job",
            constants.PARENT_NAME: group_name,
            constants.PARENT_NAMESPACE: workload.namespace,
            constants.POOL_JOBSET_NAME: workload.name,
            constants.POOL_JOBSET_NAMESPACE: workload.namespace,
            constants.NODEPOOL_HASH: "6dbd5c8f9b",
            **{key: value for key, value in selector.items() if not key.startswith("cloud.google.com/")},
        },
    }
    name = PoolName(f"{workload.name[:34]}-{group_key(workload.namespace, group_name)[:5]}")
    return NodePool(name=name, status=status, **fields | changes)


def strange_taint(effect: str = "NoExecute") -> Taint:
    return Taint(key="example.com/strange", value="yes", effect=effect)


def find_slices(*found_by: Any, keep_suspended: bool = False) -> dict[SliceId, Slice]:
    return all_slices(find_by_workload(*found_by, keep_suspended=keep_suspended))
