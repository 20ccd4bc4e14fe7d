"""Names of children, finalizers, labels and annotations, ownership marks, request ids, and formats of metadata."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import Taint
from provisioner.nodegroups.api.statuses import OperationType
from provisioner.nodegroups.api.types import Kind, ObjectMeta

_SUFFIXES = {Kind.WORKLOAD_POLICY: "policy", Kind.INSTANCE_TEMPLATE: "template", Kind.MANAGED_INSTANCE_GROUP: "mig"}
_HASH_DIGITS = 8
#: Maximum length of a resource's name in Compute Engine.
RESOURCE_NAME = 63
#: Maximum length of a group's name, so that the longest name of a child, `<group>-template-<8 digits>`, is valid.
NAME_BUDGET = RESOURCE_NAME - max(len(f"-{suffix}-") for suffix in _SUFFIXES.values()) - _HASH_DIGITS
_RESOURCE_FORM = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")

#: Finalizers of a group, in the order in which they are removed.
CLEANUP_MIG = "tpu.google.com/cleanup-mig"
CLEANUP_TEMPLATE = "tpu.google.com/cleanup-template"
CLEANUP_POLICY = "tpu.google.com/cleanup-policy"
CLEANUP_NODES = "tpu.google.com/cleanup-nodes"
CLEANUP_DEVICE_PLUGIN = "tpu.google.com/cleanup-device-plugin"
GROUP_FINALIZERS = (CLEANUP_MIG, CLEANUP_TEMPLATE, CLEANUP_POLICY, CLEANUP_NODES, CLEANUP_DEVICE_PLUGIN)
CHILD_FINALIZERS = {
    Kind.WORKLOAD_POLICY: "tpu.google.com/workloadpolicy-cleanup",
    Kind.INSTANCE_TEMPLATE: "tpu.google.com/instancetemplate-cleanup",
    Kind.MANAGED_INSTANCE_GROUP: "tpu.google.com/managedinstancegroup-cleanup",
}

# --- labels of nodes; children and Secrets with tokens have the first two as well ---
GROUP_NAMESPACE = "cloud.google.com/tpu-node-group-namespace"
GROUP_NAME = constants.NODE_GROUP_NAME
#: Label only of nodes, for selectors of pods: NAMESPACE-NAME of the group. Not set if longer than 63 characters.
GROUP = "cloud.google.com/tpu-node-group"
#: Label only of nodes: namespace of the group. No kubelet may set this label (admission plugin NodeRestriction).
TRUSTED_NAMESPACE = constants.TRUSTED_GROUP_NAMESPACE
ACCELERATOR = constants.TPU_ACCELERATOR
CHIP_COUNT = constants.ACCELERATOR_COUNT
TOPOLOGY = constants.TPU_TOPOLOGY
#: Index of the machine in its slice, from 0.
WORKER_INDEX = "tpu-provisioner.cloud.google.com/worker-index"
#: Label of nodes and of Secrets with tokens: Compute Engine's number of the machine (`ManagedInstance.id`).
MACHINE_ID = "tpu-provisioner.cloud.google.com/machine-id"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"

ABANDON = "tpu-provisioner.cloud.google.com/abandon"
ADOPT = "tpu-provisioner.cloud.google.com/adopt"
FORCE = "tpu-provisioner.cloud.google.com/force"
RECREATIONS_RESET = "tpu-provisioner.cloud.google.com/recreations-reset"
#: Annotations of TPUNodeGroups and children that the controller reads, for docs/node-groups/fields.md.
READ_ANNOTATIONS = {
    ABANDON: '`"true"`, on any of the kinds that is being deleted: if Compute Engine rejects calls, or the settings do '
    "not allow the project any more, the object is deleted without its resource, whose machines continue to run",
    ADOPT: '`"true"`, on any of the kinds: take over resources with its names that have no ownership mark, such as '
    "those of tpu-operator",
    FORCE: '`"true"`, on a TPUNodeGroup that is being deleted: wait neither for pods nor for nodes',
    RECREATIONS_RESET: "a past time such as `2026-01-01T12:00:00Z`, on a TPUNodeGroup: slices recreated before do not "
    "count against the limit",
}

# --- ownership marks: descriptions of resources ---
_NAMESPACE = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAME = r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?"
_UID = r"[A-Za-z0-9](?:[-A-Za-z0-9]{0,62}[A-Za-z0-9])?"
_IDENTITY = re.compile(rf"{_NAMESPACE} {_NAME} {_UID}")
_MARK = re.compile(
    rf"tpu-provisioner: (?P<kind>{'|'.join(Kind)}) (?P<namespace>{_NAMESPACE})/(?P<name>{_NAME})"
    rf" uid (?P<uid>{_UID}) cluster (?P<cluster_uid>{_UID})"
)
#: Namespace of the UUIDs of `request_id`. It must never change: a repeated request with another id could act twice.
_REQUESTS = uuid.UUID("5f0d7d6e-3b0c-5d0e-9f2a-6c1b8e4a7d21")


def child_name(group: ObjectMeta | Mark, kind: Kind) -> str:
    """Return the name of a group's child and of its resource. A hash of the group's UID makes the name unique."""
    digest = hashlib.sha256(group.uid.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    return f"{group.name}-{_SUFFIXES[kind]}-{digest}"


def manager_of(machine: str) -> str:
    """Return the managed instance group of a machine: the machine's name or provider id without the random suffix."""
    return machine.rpartition("-")[0]


def group_name_problem(name: str) -> str:
    """Return the reason why a group cannot have this name; empty if it can."""
    if len(name) > NAME_BUDGET:
        return (
            f"name {bounds.quoted(name)} has {len(name)} characters, and names of its resources in Compute Engine "
            f"leave {NAME_BUDGET}; create the group with a shorter name"
        )
    return resource_name_problem(name)


def resource_name_problem(name: str) -> str:
    """Return why a child and its resource in Compute Engine cannot have this name; empty if they can."""
    if len(name) <= RESOURCE_NAME and _RESOURCE_FORM.fullmatch(name):
        return ""
    return (
        f"name {bounds.quoted(name)} is invalid for Compute Engine, which accepts at most {RESOURCE_NAME} lower-case "
        f"letters, digits and hyphens, a letter first and no hyphen last; create the object with another name"
    )


def is_identity(namespace: str, name: str, uid: str) -> bool:
    """Return whether namespace, name and UID have forms that the API server accepts or generates."""
    return _IDENTITY.fullmatch(f"{namespace} {name} {uid}") is not None


def group_labels(group: ObjectMeta) -> dict[str, str]:
    """Return the two labels that identify a group."""
    return {GROUP_NAMESPACE: group.namespace, GROUP_NAME: group.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Ownership mark: a resource's description, which names the object and the cluster that it was created for."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    cluster_uid: str

    def __str__(self) -> str:
        return f"tpu-provisioner: {self.kind} {self.namespace}/{self.name} uid {self.uid} cluster {self.cluster_uid}"


def mark_of(meta: ObjectMeta, kind: Kind, cluster_uid: str) -> Mark:
    """Return the ownership mark of the resources that are created for an object."""
    return Mark(kind=kind, namespace=meta.namespace, name=meta.name, uid=meta.uid, cluster_uid=cluster_uid)


def parse_mark(description: str) -> Mark | None:
    """Return the ownership mark that is the whole description of a resource, None for any other text."""
    match = _MARK.fullmatch(description)
    if match is None:
        return None
    return Mark(
        kind=Kind(match["kind"]),
        namespace=match["namespace"],
        name=match["name"],
        uid=match["uid"],
        cluster_uid=match["cluster_uid"],
    )


def request_id(uid: str, operation: OperationType, attempt: int) -> str:
    """Return the id of all requests of one attempt, which have one effect (`ComputeClient`)."""
    return str(uuid.uuid5(_REQUESTS, f"{uid}/{operation}/{attempt}"))


# --- metadata with the labels and taints with which kubelets register their nodes ---
#: Metadata key of labels as KEY=VALUE, separated by commas. GKE and gke-labs/tpu-operator use the same key.
KUBE_LABELS = "kube-labels"
KUBE_TAINTS = "kube-taints"


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels in the format of kube-labels, sorted by key."""
    return ",".join(f"{key}={labels[key]}" for key in sorted(labels))


def parse_labels(text: str) -> dict[str, str]:
    """Return the labels of a kube-labels value. Malformed parts are left out."""
    labels = {}
    for part in text.split(","):
        key, separator, value = part.strip().partition("=")
        if separator and key:
            labels[key] = value
    return labels


def taints_text(taints: Iterable[Taint]) -> str:
    """Return taints in the format of kube-taints: KEY=VALUE:EFFECT, separated by commas."""
    return ",".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in taints)


def parse_taints(text: str) -> tuple[Taint, ...]:
    """Return the taints of a kube-taints value. Malformed parts are left out."""
    taints = []
    for part in text.split(","):
        name, separator, effect = part.strip().rpartition(":")
        key, _, value = name.partition("=")
        if separator and key and effect:
            taints.append(Taint(key=key, value=value, effect=effect))
    return tuple(taints)
