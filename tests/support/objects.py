"""Raw JSON of workloads, pods and nodes as the API server sends it, or as users create it.

In most builders, `metadata` adds or replaces fields of the metadata, and `spec` of the spec, except for pods and nodes,
and other keyword arguments replace a whole part of the object. An empty `namespace`, or an empty `uid` of a workload,
is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from provisioner import constants
from provisioner.model.workloads import Pod, WorkloadKind, group_key
from provisioner.workloads import LEADER_WORKER_SET
from provisioner.workloads.parse_pod import parse_pod

Json = dict[str, Any]

CREATED = "2026-01-01T00:00:00Z"
UNSCHEDULABLE_SINCE = "2026-01-01T00:00:05Z"


def _object(
    api_version: str, kind: str, name: str, namespace: str, uid: str, metadata: Mapping[str, Any] | None
) -> Json:
    identity = {"name": name} | ({"namespace": namespace} if namespace else {}) | ({"uid": uid} if uid else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": {**identity, **(metadata or {})}}


# --- Pods ---


def toleration() -> Json:
    """Return the toleration that GKE adds to pods with chips."""
    return {"key": constants.TPU_RESOURCE, "operator": "Exists"}


def taint() -> Json:
    """Return the taint that keeps pods without chips away from nodes with chips."""
    return {"key": constants.TPU_RESOURCE, "value": "present", "effect": "NoSchedule"}


def pod_spec(*, accelerator: str = "tpu-v4-podslice", topology: str = "2x2x2", chips: int = 4, **fields: Any) -> Json:
    amount = {constants.TPU_RESOURCE: str(chips)} if chips else {}
    return {
        "nodeSelector": {constants.TPU_ACCELERATOR: accelerator, constants.TPU_TOPOLOGY: topology},
        "containers": [{"name": "main", "image": "none", "resources": {"requests": amount, "limits": amount}}],
        **fields,
    }


def required_affinity(*terms: Any) -> Json:
    """Return an affinity to nodes that match one of the terms."""
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def job_reference(group_name: str, **changes: Any) -> Json:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": group_name, "uid": f"uid-of-{group_name}"}
    return {**reference, "controller": True, **changes}


def unschedulable(message: str = "0/3 nodes are available") -> Json:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": UNSCHEDULABLE_SINCE,
    }
    return {"phase": "Pending", "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}, condition]}


def raw_pod(
    name: str = "train-slice-0-0-abcde",
    *,
    namespace: str = "default",
    uid: str = "",
    metadata: Mapping[str, Any] | None = None,
    **parts: Any,
) -> Json:
    """Return a pod, by default the unschedulable leader of the first slice of a JobSet `train`."""
    marks = child_marks("train", "train-slice-0", namespace="default", uid="jobset-uid-1")
    # Deliberately wrong: the pod's group follows from its owner Job, so this label must have no effect.
    marks["labels"][constants.JOB_KEY] = "a" * 40
    shown = {"resourceVersion": "7", "creationTimestamp": CREATED, **marks, **(metadata or {})}
    raw = _object("v1", "Pod", name, namespace, uid or f"uid-of-{name}", shown)
    return {**raw, "spec": pod_spec(), "status": unschedulable(), **parts}


def parsed_pod(raw: object) -> Pod:
    """Return the record of a pod, which must be one that caches keep."""
    pod = parse_pod(raw)
    assert pod is not None
    return pod


def child_marks(jobset: str, group_name: str, *, namespace: str, uid: str) -> Json:
    return {
        "labels": {
            constants.JOBSET_NAME: jobset,
            constants.JOBSET_UID: uid,
            constants.JOB_KEY: group_key(namespace, group_name),
            constants.COMPLETION_INDEX: "0",
        },
        "ownerReferences": [job_reference(group_name)],
    }


def raw_leader(
    jobset: str = "train",
    *,
    namespace: str = "default",
    uid: str = "",
    job: str = "slice",
    number: int = 0,
    node: str = "",
    **parts: Any,
) -> Json:
    """Return the leader pod of a child Job of a JobSet: running if `node` is set, otherwise unschedulable."""
    uid = uid or f"uid-of-{jobset}"
    group_name = f"{jobset}-{job}-{number}"
    marks = child_marks(jobset, group_name, namespace=namespace, uid=uid)
    metadata = {**marks, **parts.pop("metadata", {})}
    spec = {**parts.pop("spec", pod_spec(tolerations=[toleration()])), **({"nodeName": node} if node else {})}
    status = {"phase": "Running"} if node else unschedulable()
    pod_uid = f"pod-{number}-of-{uid}"
    return raw_pod(
        f"{group_name}-0", namespace=namespace, uid=pod_uid, metadata=metadata, spec=spec, status=status, **parts
    )


def reference(kind: str, name: str, version: str = "apps/v1") -> Json:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-of-{name}", "controller": True}


def raw_plain_pod(
    name: str,
    owner: Json | None = None,
    *,
    topology: str = "2x2x1",
    chips: int = 4,
    metadata: Mapping[str, Any] | None = None,
    **parts: Any,
) -> Json:
    """Return an unschedulable pod without a JobSet or similar workload; `owner` is its controller, if any."""
    shown = {"labels": {}, "ownerReferences": [owner] if owner is not None else [], **(metadata or {})}
    spec = pod_spec(topology=topology, chips=chips, tolerations=[toleration()])
    return raw_pod(name, metadata=shown, **{"spec": spec, **parts})


def raw_foreign_pod(
    name: str,
    node: str,
    *,
    requests: Mapping[str, str] | None = None,
    phase: str = "Running",
    metadata: Mapping[str, Any] | None = None,
    **spec_fields: Any,
) -> Json:
    """Return a pod that is bound to a node and belongs to no workload; it has chips by default."""
    resources = {"requests": {constants.TPU_RESOURCE: "4"} if requests is None else dict(requests)}
    spec = {"nodeName": node, "containers": [{"name": "main", "resources": resources}], **spec_fields}
    shown = {"labels": {}, "ownerReferences": [], **(metadata or {})}
    return raw_pod(name, namespace="other", metadata=shown, spec=spec, status={"phase": phase})


# --- Workloads ---


def raw_jobset(
    name: str = "train",
    *,
    namespace: str = "default",
    uid: str | None = None,
    job: str = "slice",
    replicas: int = 1,
    parallelism: int = 2,
    pod: Mapping[str, Any] | None = None,
    pod_metadata: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    **parts: Any,
) -> Json:
    """Return a JobSet of one replicated job with exclusive placement; `pod` is the spec of its pods."""
    child = _job_spec(parallelism, pod, pod_metadata)
    annotations = (metadata or {}).get("annotations", {})
    if isinstance(annotations, dict):
        placed = {constants.EXCLUSIVE_TOPOLOGY: constants.NODE_POOL, **annotations}
        metadata = {**(metadata or {}), "annotations": placed}
    jobs = [{"name": job, "replicas": replicas, "template": {"spec": child}}]
    raw = _object("jobset.x-k8s.io/v1alpha2", "JobSet", name, namespace, _uid(uid, name), metadata)
    return {**raw, "spec": {"replicatedJobs": jobs, **(spec or {})}, **parts}


def raw_job(
    name: str = "sweep",
    *,
    namespace: str = "default",
    uid: str | None = None,
    parallelism: int = 2,
    pod: Mapping[str, Any] | None = None,
    pod_metadata: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    **parts: Any,
) -> Json:
    """Return an indexed Job with the annotation that makes the provisioner serve it."""
    raw = _object(
        "batch/v1",
        "Job",
        name,
        namespace,
        _uid(uid, name),
        {"annotations": {constants.SERVE: "true"}, **(metadata or {})},
    )
    job = {"completionMode": "Indexed", **_job_spec(parallelism, pod, pod_metadata), **(spec or {})}
    return {**raw, "spec": job, **parts}


def raw_lws(
    name: str = "serve",
    *,
    namespace: str = "default",
    uid: str | None = None,
    replicas: int = 2,
    size: int = 2,
    pod: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Json:
    """Return a LeaderWorkerSet with exclusive placement of each group on a node pool."""
    exclusive = {"annotations": {constants.LWS_EXCLUSIVE_TOPOLOGY: constants.NODE_POOL}}
    api_version = LEADER_WORKER_SET.root.removeprefix("/apis/")
    raw = _object(api_version, "LeaderWorkerSet", name, namespace, _uid(uid, name), {**exclusive, **(metadata or {})})
    template = {"spec": dict(pod or pod_spec())}
    return {**raw, "spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": size, "workerTemplate": template}}}


def raw_stateful_set(replicas: int = 2, pod: Json | None = None, service: str = "serve", **metadata: Any) -> Json:
    named = {"serviceName": service} if service else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "serve", **metadata},
        "spec": {"replicas": replicas, **named, "template": {"spec": pod or pod_spec()}},
    }


def raw_raycluster(name: str = "ray", *, replicas: int = 1, hosts: int = 2, **group: Any) -> Json:
    workers = {"groupName": "tpus", "replicas": replicas, "numOfHosts": hosts, "template": {"spec": pod_spec()}}
    raw = _object("ray.io/v1", "RayCluster", name, "default", _uid(None, name), {})
    return {**raw, "spec": {"headGroupSpec": {}, "workerGroupSpecs": [{**workers, **group}]}}


def raw_request(name: str = "req", *counts: int) -> Json:
    """Return a ProvisioningRequest with a pod set of PodTemplate "template" for each count."""
    sets = [{"podTemplateRef": {"name": "template"}, "count": count} for count in counts or (4,)]
    raw = _object("autoscaling.x-k8s.io/v1", "ProvisioningRequest", name, "default", _uid(None, name), {})
    return {**raw, "spec": {"provisioningClassName": constants.PROVISIONING_CLASS, "podSets": sets}}


def raw_buffer(name: str = "warm", **spec: Any) -> Json:
    """Return a CapacityBuffer of PodTemplate "template", or of the object that `spec` names."""
    spec = spec if "scalableRef" in spec else {"podTemplateRef": {"name": "template"}, **spec}
    raw = _object("autoscaling.x-k8s.io/v1beta1", "CapacityBuffer", name, "default", _uid(None, name), {})
    return {**raw, "spec": {"provisioningStrategy": constants.BUFFER_STRATEGY, **spec}}


def _uid(uid: str | None, name: str) -> str:
    return f"uid-of-{name}" if uid is None else uid


def _job_spec(parallelism: int, pod: Mapping[str, Any] | None, pod_metadata: Mapping[str, Any] | None) -> Json:
    template = {"metadata": dict(pod_metadata or {}), "spec": {"restartPolicy": "Never", **(pod or pod_spec())}}
    return {"parallelism": parallelism, "completions": parallelism, "backoffLimit": 0, "template": template}


# --- Nodes ---


def raw_node(
    name: str = "gke-c-p-1",
    *,
    pool: str = "train-pool",
    labels: Mapping[str, str] | None = None,
    taints: Iterable[Mapping[str, Any]] = (),
    metadata: Mapping[str, Any] | None = None,
    **parts: Any,
) -> Json:
    marks = {constants.NODE_POOL: pool, constants.NODEPOOL_MANAGER: constants.MANAGER, **(labels or {})}
    shown = {"creationTimestamp": CREATED, "labels": marks, **(metadata or {})}
    spec = {"providerID": f"gce://project/zone/{name}"} | ({"taints": list(taints)} if taints else {})
    amounts = {constants.TPU_RESOURCE: "4", "cpu": "239830m", "memory": "405Gi"}
    status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return {**_object("v1", "Node", name, "", f"uid-of-{name}", shown), "spec": spec, "status": status, **parts}


#: Function that returns an object that is served, by kind.
RAW_OF_KIND: Mapping[WorkloadKind, Callable[[], Json]] = {
    WorkloadKind.JOBSET: raw_jobset,
    WorkloadKind.LEADER_WORKER_SET: raw_lws,
    WorkloadKind.RAY_CLUSTER: raw_raycluster,
    WorkloadKind.JOB: raw_job,
    WorkloadKind.PROVISIONING_REQUEST: lambda: raw_request("req", 4, 2),
    WorkloadKind.CAPACITY_BUFFER: lambda: raw_buffer(replicas=1, percentage=10, limits={constants.TPU_RESOURCE: "8"}),
}
