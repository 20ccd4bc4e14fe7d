"""Reads nodes, pods and the DaemonSet of the device plugin. Invalid fields count as absent or raise MalformedObject."""

from datetime import timedelta
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.nodegroups import device_plugin
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import API_VERSION
from provisioner.nodegroups.planning.round import DevicePlugin, Node, Pod

API_ROOT = f"/apis/{API_VERSION}"
APPS_ROOT = "/apis/apps/v1"
#: Labels of nodes that are read. Nodes have about 20 other labels.
_READ_LABELS = frozenset(
    {
        names.GROUP_NAMESPACE,
        names.GROUP_NAME,
        names.GROUP,
        names.TRUSTED_NAMESPACE,
        names.ACCELERATOR,
        names.CHIP_COUNT,
        names.TOPOLOGY,
        names.WORKER_INDEX,
        names.MACHINE_ID,
        names.CONTROL_PLANE,
    }
)
#: Taint that keeps pods without chips off the nodes. TPU nodes of GKE have the same taint.
TPU_TAINT = {"key": constants.TPU_RESOURCE, "value": "present", "effect": "NoSchedule"}
_TAINT = (TPU_TAINT["key"], TPU_TAINT["effect"])
_MACHINE = "gce://"
#: A node is silent if its kubelet's last report was older than this when Kubernetes set Ready to Unknown. The report
#: is usually younger: kubelets report at least every 7.5 minutes, and Ready is Unknown a minute after a kubelet stops.
_SILENCE = timedelta(minutes=10)
_OF_NODE = frozenset({"DaemonSet", "Node"})
_MIRROR = "kubernetes.io/config.mirror"


def parse_node(raw: object) -> Node:
    """Read a node. Raises MalformedObject if its name or UID is missing, or its number of chips is invalid."""
    metadata, spec, status = (fields.at(raw, part) for part in ("metadata", "spec", "status"))
    name, uid = fields.name(metadata.get("name")), fields.name(metadata.get("uid"))
    if not (name and uid):
        raise fields.MalformedObject(f"node {name or '?'} with uid {uid or '?'}: name or uid is missing")
    title = f"node {name}"
    capacity, allocatable = (
        int(podspec.quantity_of(title, role, constants.TPU_RESOURCE, fields.mapping(status.get(role))))
        for role in ("capacity", "allocatable")
    )
    labels = fields.mapping(metadata.get("labels"))
    ready = fields.conditions(status).get("Ready", {})
    reported, changed = (fields.parse_timestamp(ready.get(f"last{event}Time")) for event in ("Heartbeat", "Transition"))
    was_silent = reported is not None and changed is not None and changed - reported > _SILENCE
    return Node(
        name=name,
        uid=uid,
        resource_version=fields.name(metadata.get("resourceVersion")),
        provider_id=fields.name(spec.get("providerID")),
        labels={key: fields.name(labels[key]) for key in sorted(_READ_LABELS & labels.keys())},
        tainted=any((taint.get("key"), taint.get("effect")) == _TAINT for taint in fields.mappings(spec.get("taints"))),
        unschedulable=spec.get("unschedulable") is True,
        ready=ready.get("status") == "True",
        silent_since=reported if ready.get("status") == "Unknown" and was_silent else None,
        created_at=fields.parse_timestamp(metadata.get("creationTimestamp")),
        capacity_chips=capacity,
        allocatable_chips=allocatable,
    )


def may_be_of_a_group(node: Node) -> bool:
    """Return whether a node may belong to a group: a machine of Compute Engine, or a node with the label of a group."""
    return node.provider_id.startswith(_MACHINE) or names.GROUP_NAME in node.labels


def parse_pod(raw: object) -> Pod:
    """Read a pod."""
    metadata, spec, status = (fields.at(raw, part) for part in ("metadata", "spec", "status"))
    namespace, name, uid = fields.identity("pod", metadata)
    title = f"pod {namespace}/{name}"
    return Pod(
        namespace=namespace,
        name=name,
        uid=uid,
        node=fields.name(spec.get("nodeName")),
        # Chips of ResourceClaims count as one if their number is unknown, as without an accelerator selector.
        chips=podspec.requested_chips(title, spec) or int(podspec.uses_claims(spec, status)),
        finished=status.get("phase") in ("Succeeded", "Failed"),
        created_at=fields.parse_timestamp(metadata.get("creationTimestamp")),
        started=fields.parse_timestamp(status.get("startTime")) is not None,
        deletion_deadline=fields.deletion_deadline(title, metadata),
        bound_to_node=_is_bound_to_node(metadata),
    )


def tolerates_tpu_nodes(raw: object) -> bool:
    """Return whether a pod tolerates the taint of TPU nodes. The value of a toleration is ignored."""
    spec = fields.at(raw, "spec")
    return any(
        toleration.get("key") in (None, "", constants.TPU_RESOURCE)
        and toleration.get("effect") in (None, "", "NoSchedule")
        for toleration in fields.mappings(spec.get("tolerations"))
    )


def parse_device_plugin(raw: object) -> DevicePlugin:
    """Read the DaemonSet of the device plugin."""
    metadata = fields.at(raw, "metadata")
    _, _, uid = fields.identity("DaemonSet", metadata)
    annotations = fields.mapping(metadata.get("annotations"))
    return DevicePlugin(uid=uid, version=fields.name(annotations.get(device_plugin.VERSION)))


def _is_bound_to_node(metadata: dict[str, Any]) -> bool:
    if _MIRROR in fields.mapping(metadata.get("annotations")):
        return True
    owners = fields.mappings(metadata.get("ownerReferences"))
    return any(owner.get("controller") is True and owner.get("kind") in _OF_NODE for owner in owners)
