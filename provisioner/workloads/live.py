"""Live reads of workloads and their pods, for the moment before a delete; what cannot be read raises Malformed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from provisioner.kube import fields, podspec
from provisioner.kube.errors import NotFound
from provisioner.kube.fields import MalformedObject
from provisioner.kube.live import list_all, read_one
from provisioner.kube.protocol import Api, collection_path, object_path
from provisioner.kube.watches import UNFINISHED
from provisioner.model.workloads import GroupKey, Pod, Workload, WorkloadKind
from provisioner.workloads import KINDS
from provisioner.workloads.kind import controller_of
from provisioner.workloads.pods import claim_of, key_of, parse_pod

#: API version and kind, as in owner references.
_DAEMON_SET = ("apps/v1", "DaemonSet")


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
    #: It has chips, or claims: of what is not read. Those of DaemonSets, as for monitoring, are no work.
    has_devices: bool
    finished: bool
    #: deletionTimestamp: the moment at which the grace ends; None while nobody deletes it.
    deletion_deadline: datetime | None


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
        phase = raw["status"].get("phase") if "status" in raw else None
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
        or (podspec.has_claims(spec) and controller_of(metadata, _DAEMON_SET) is None),
        finished=phase in ("Succeeded", "Failed"),
        deletion_deadline=fields.deletion_deadline(what, metadata),
    )
