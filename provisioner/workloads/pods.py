"""Pods of workloads, of whichever kind, read whatever JSON comes in; and live reads for the moment before a delete.

What cannot be read live raises MalformedObject.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from provisioner.kube import fields, podspec
from provisioner.kube.errors import NotFound
from provisioner.kube.fields import MalformedObject
from provisioner.kube.kept import NamespaceBound
from provisioner.kube.live import list_all, read_one
from provisioner.kube.protocol import Api, collection_path, object_path
from provisioner.kube.watches import UNFINISHED
from provisioner.model import bounds
from provisioner.model.workloads import GroupKey, Pod, Workload, WorkloadKind, WorkloadUid, group_key
from provisioner.workloads import KINDS, LEADER_WORKER_SET
from provisioner.workloads.kind import Claim, controller_of

#: API version and kind, as in owner references.
_DAEMON_SET = ("apps/v1", "DaemonSet")
#: A pod is of the first kind that it may be of. Pods of LeaderWorkerSets are told by what controls them, whatever else
#: their labels say.
_CLAIMS = tuple(dict.fromkeys((LEADER_WORKER_SET, *KINDS.values())))


def parse_pod(raw: object) -> Pod | None:
    """Read a pod; None unless it belongs to a workload and asks for chips."""
    metadata = fields.mapping(fields.mapping(raw).get("metadata"))
    claim = claim_of(metadata)
    if claim is None:
        return None
    spec = fields.mapping(fields.mapping(raw).get("spec"))
    namespace, name, uid = fields.identity("pod", metadata)
    what = f"pod {namespace}/{name}"
    # First, because most pods of a cluster ask for none.
    if podspec.requested_chips(what, spec) == 0:
        return None
    requirements = podspec.requirements(what, spec, metadata)
    status = fields.mapping(fields.mapping(raw).get("status"))
    created_at = fields.parse_timestamp(metadata.get("creationTimestamp"))
    phase = fields.name(status.get("phase")) or "Pending"
    since, words, gated = None, "", False
    if phase == "Pending":
        for condition in fields.mappings(status.get("conditions")):
            if (condition.get("type"), condition.get("status")) != ("PodScheduled", "False"):
                continue
            if condition.get("reason") == "Unschedulable":
                since = fields.parse_timestamp(condition.get("lastTransitionTime")) or created_at
                words = bounds.cut(fields.text(condition.get("message")), bounds.SCHEDULER_MESSAGE)
        gang = fields.name(fields.mapping(spec.get("schedulingGroup")).get("podGroupName"))
        # The scheduler does not look at a gang before enough of its pods are there, and writes no condition.
        if gated := bool(gang) and not _is_scheduled(status):
            since, words = created_at, f"the scheduler waits for the other pods of PodGroup {gang}"
    return Pod(
        kind=claim.kind,
        namespace=namespace,
        name=name,
        uid=uid,
        workload_name=claim.name,
        workload_uid=WorkloadUid(claim.uid),
        group_name=claim.group_name,
        group_key=key_of(namespace, claim),
        completion_index=claim.index,
        group_size=claim.group_size,
        phase=phase,
        node_name=fields.name(spec.get("nodeName")),
        requirements=requirements,
        priority=fields.priority(spec),
        created_at=created_at or fields.UNKNOWN_TIME,
        unschedulable_since=since,
        unschedulable_message=words,
        gated=gated,
        deletion_deadline=fields.deletion_deadline(what, metadata),
    )


def bound_of_pods(labels: Collection[str]) -> NamespaceBound[Pod]:
    """Return the bound on the pods of one namespace; `labels` are also kept of pods beyond the bound."""
    return NamespaceBound(
        plural="pods",
        max_bytes=bounds.NAMESPACE_PODS,
        reduce=lambda pod, problem: replace(
            pod, requirements=podspec.reduced(pod.requirements, problem, labels), unschedulable_message=""
        ),
        rank=lambda pod: pod.created_at.timestamp(),
    )


def _is_scheduled(status: dict[str, Any]) -> bool:
    return any(each.get("type") == "PodScheduled" for each in fields.mappings(status.get("conditions")))


def claim_of(metadata: dict[str, Any]) -> Claim | None:
    """Return what a pod says of its workload, of the first kind that it is of; None where it is of none."""
    return next(filter(None, (kind.claim_of(metadata) for kind in _CLAIMS)), None)


def key_of(namespace: str, claim: Claim) -> GroupKey:
    """Return the key of the group that a pod is one of; empty where it is of none."""
    return group_key(namespace, claim.group_name) if claim.group_name else GroupKey("")


# --- live ---


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPod:
    """Any pod on a node, whoever made it."""

    namespace: str
    name: str
    uid: str
    #: What it says of its workload; None where it is of none.
    kind: WorkloadKind | None
    workload_name: str
    workload_uid: str
    #: Of the group that controls it; empty where none does.
    group_key: GroupKey
    #: Whether it has chips or ResourceClaims, whose devices are not read. Claims of DaemonSets, as for monitoring, are
    #: no work.
    has_devices: bool
    finished: bool
    #: deletionTimestamp: the moment at which the grace ends; None while nobody deletes it.
    deletion_deadline: datetime | None

    def keeps_node(self, now: datetime) -> bool:
        """Whether it uses chips of its node: past its grace it only exists because the node does not answer."""
        ended = self.deletion_deadline is not None and self.deletion_deadline <= now
        return self.has_devices and not self.finished and not ended


def get_workload(api: Api, kind: WorkloadKind, namespace: str, name: str, uid: str = "") -> Workload | None:
    """Read a workload, without its templates; None where it does not exist.

    Its name may be cut to what a label holds, which those of objects without pods exceed: these are found by their UID.

    Templates that cannot be read are no reason to keep a pool for ever. A cluster without the kind answers 404 too, but
    without a Status object that says NotFound: that is raised, because it says nothing about this workload.
    """
    described = KINDS[kind]
    if uid and not kind.has_pods:
        path = collection_path(described.resource, namespace=namespace, root=described.root)
        found = list_all(api, path, {}, described.parse)
        return next((each for each in found if each is not None and each.uid == uid), None)
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


def list_pods_of_workload(api: Api, kind: WorkloadKind, namespace: str, name: str) -> list[Pod]:
    """List the pods that ask for chips and whose labels name a workload, finished ones too."""
    if not kind.has_pods:
        return []
    query = {"labelSelector": f"{KINDS[kind].pod_label}={name}"}
    pods = list_all(api, collection_path("pods", namespace=namespace), query, parse_pod)
    return [pod for pod in pods if pod is not None]


def _bound_pod(raw: Any) -> BoundPod:
    try:
        metadata = raw["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        spec = raw["spec"]
        status = raw.get("status", {})
        phase = status.get("phase")
    except (KeyError, TypeError, AttributeError) as error:
        raise MalformedObject(f"a pod of the list on a node lacks metadata or spec: {error!r}") from error
    what = f"pod {namespace}/{name}"
    claim = claim_of(metadata)
    return BoundPod(
        namespace=namespace,
        name=name,
        uid=uid,
        kind=claim.kind if claim is not None else None,
        workload_name=claim.name if claim is not None else "",
        workload_uid=claim.uid if claim is not None else "",
        group_key=key_of(namespace, claim) if claim is not None else GroupKey(""),
        has_devices=podspec.requested_chips(what, spec) > 0
        or (podspec.uses_claims(spec, status) and controller_of(metadata, _DAEMON_SET) is None),
        finished=phase in ("Succeeded", "Failed"),
        deletion_deadline=fields.deletion_deadline(what, metadata),
    )
