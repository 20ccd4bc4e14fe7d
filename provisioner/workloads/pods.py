"""Bounds the memory of cached pods, and reads pods and workloads live, such as before a delete. Raises ClusterError."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from provisioner.kube import fields, podspec
from provisioner.kube.errors import NotFound
from provisioner.kube.kept import NamespaceBound
from provisioner.kube.live import Share, list_all, read_one, unshared
from provisioner.kube.protocol import Api, collection_path, object_path
from provisioner.kube.watches import UNFINISHED
from provisioner.model import bounds
from provisioner.model.workloads import GroupKey, Pod, Requirements, Workload, WorkloadKind, uid_in
from provisioner.workloads import KINDS
from provisioner.workloads.kind import Claim
from provisioner.workloads.parse_pod import claim_of, key_of, parse_pod
from provisioner.workloads.plain import is_for_nodes, owner_of, workloads_of


def bound_of_pods(labels: Collection[str]) -> NamespaceBound[Pod]:
    """Return the bound on pods of one namespace. Reduced pods keep few fields, and labels with a key in `labels`."""
    return NamespaceBound(
        plural="pods",
        max_bytes=bounds.NAMESPACE_PODS,
        reduce=lambda pod, problem: replace(
            pod, requirements=podspec.reduced(pod.requirements, problem, labels), unschedulable_message=""
        ),
    )


def _plain_claim(raw: Any) -> Claim | None:
    pod = parse_pod(raw)
    if pod is None or pod.kind is not WorkloadKind.POD:
        return None
    return Claim(
        kind=pod.kind,
        name=pod.workload_name,
        uid=pod.workload_uid,
        group_name=pod.group_name,
        index=pod.completion_index,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPod:
    """A pod on a node, with or without chips and workload."""

    namespace: str
    name: str
    uid: str
    #: None if no kind claims the pod. If the pod belongs to no workload, the next three fields are empty.
    kind: WorkloadKind | None
    workload_name: str
    workload_uid: str
    group_key: GroupKey
    #: Whether the pod requests chips or, unless a DaemonSet controls the pod, uses ResourceClaims of any device.
    has_devices: bool
    finished: bool
    deletion_deadline: datetime | None

    def keeps_node(self, now: datetime) -> bool:
        """Return whether the pod uses devices. A pod past its grace period does not: its node may be unreachable."""
        ended = self.deletion_deadline is not None and self.deletion_deadline <= now
        return self.has_devices and not self.finished and not ended


def get_workload(
    api: Api, kind: WorkloadKind, namespace: str, name: str, uid: str = "", *, share: Share = unshared
) -> Workload | None:
    """Read a workload, without its templates; None if it does not exist, or is not served as this kind.

    A workload of kind POD exists while it has unfinished pods. Workloads of kinds without pods are found by `uid` if it
    is given, because `name` may be cut. Templates are not read: an unreadable template must not keep a pool. Raises
    NotFound if the API server does not serve the kind, because the workload may exist.
    """
    if kind is WorkloadKind.POD:
        return next(workloads_of(list_pods_of_workload(api, kind, namespace, name, uid, share=share)), None)
    described = KINDS[kind]
    if uid and not kind.has_pods:
        path = collection_path(described.resource, namespace=namespace, root=described.root)
        listed: list[Workload | None] = share(path, lambda: list_all(api, path, {}, described.parse))
        return next((found for found in listed if found is not None and found.uid == uid), None)
    try:
        raw = api.get(object_path(described.resource, name, namespace=namespace, root=described.root))
    except NotFound as error:
        if error.reason == "NotFound":
            return None
        raise
    return read_one(raw, lambda found: described.parse(described.without_templates(found)))


def list_pods_on_node(api: Api, node_name: str) -> list[BoundPod]:
    """List the unfinished pods on a node, with or without chips."""
    query = {"fieldSelector": f"spec.nodeName={node_name},{UNFINISHED}"}
    return list_all(api, collection_path("pods"), query, _bound_pod)


def list_pods_of_workload(
    api: Api, kind: WorkloadKind, namespace: str, name: str, uid: str = "", *, share: Share = unshared
) -> list[Pod]:
    """Return the pods of a workload that `parse_pod` reads, without requirements; only unfinished pods for kind POD.

    Pods of kind POD are found by `uid` if it is given, because `name` may be cut; other pods have a label with `name`.
    """
    if kind is not WorkloadKind.POD:
        query = {"labelSelector": f"{KINDS[kind].pod_label}={name}"}
        return _list_pods(api, namespace, query, jobs=True) if kind.has_pods else []
    pods = share(collection_path("pods", namespace=namespace), lambda: _plain_pods(api, namespace))
    named = pods.get(("", uid) if uid else (name, ""), ())
    return [replace(pod, workload_uid=uid or pod.workload_uid) for pod in named]


def _plain_pods(api: Api, namespace: str) -> Mapping[tuple[str, str], list[Pod]]:
    """Return the unfinished pods of kind POD in a namespace that request chips, by name or UID of the workload."""
    by_workload: dict[tuple[str, str], list[Pod]] = {}
    for pod in _list_pods(api, namespace, {"fieldSelector": UNFINISHED}, jobs=False):
        if pod.kind is WorkloadKind.POD:
            # If a UID belongs to another namespace, the workload has a derived UID (`plain.apart`), so both are keys.
            for key in ((pod.workload_name, ""), ("", pod.workload_uid), ("", uid_in(namespace, pod.workload_uid))):
                by_workload.setdefault(key, []).append(pod)
    return by_workload


def _list_pods(api: Api, namespace: str, query: Mapping[str, str], *, jobs: bool) -> list[Pod]:
    """List the pods that `parse_pod` reads. Requirements are dropped early, because they may be large."""

    def parse(raw: Any) -> Pod | None:
        pod = parse_pod(raw, jobs=jobs)
        return replace(pod, requirements=Requirements(), unschedulable_message="") if pod is not None else None

    return [pod for pod in list_all(api, collection_path("pods", namespace=namespace), query, parse) if pod is not None]


def _bound_pod(raw: Any) -> BoundPod:
    metadata, spec, status = (fields.at(raw, part) for part in ("metadata", "spec", "status"))
    namespace, name, uid = fields.identity("pod", metadata)
    title = f"pod {namespace}/{name}"
    if not spec:
        raise fields.MalformedObject(f"{title} has no spec")
    claim = claim_of(metadata) or _plain_claim(raw)
    return BoundPod(
        namespace=namespace,
        name=name,
        uid=uid,
        kind=claim.kind if claim is not None else None,
        workload_name=claim.name if claim is not None else "",
        workload_uid=claim.uid if claim is not None else "",
        group_key=key_of(namespace, claim) if claim is not None else GroupKey(""),
        has_devices=podspec.counted_chips(title, spec) > 0
        or (podspec.uses_claims(spec, status) and not is_for_nodes(owner_of(metadata))),
        finished=status.get("phase") in ("Succeeded", "Failed"),
        deletion_deadline=fields.deletion_deadline(title, metadata),
    )
