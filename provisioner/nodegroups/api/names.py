"""Every name that is given or read; those of children and finalizers are gke-labs/tpu-operator's."""

from __future__ import annotations

import functools
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

# --- children ---
_SUFFIXES = {Kind.WORKLOAD_POLICY: "policy", Kind.INSTANCE_TEMPLATE: "template", Kind.MANAGED_INSTANCE_GROUP: "mig"}
_HASH_DIGITS = 8
#: Longest name of a resource in Compute Engine.
RESOURCE_NAME = 63
#: Longest name of a group: what the longest name of a child, `<group>-template-<8 digits>`, leaves of it.
NAME_BUDGET = RESOURCE_NAME - max(len(f"-{suffix}-") for suffix in _SUFFIXES.values()) - _HASH_DIGITS
_RESOURCE_FORM = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")

# --- finalizers ---
#: Of a group, in the order in which they are removed.
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

# --- labels of nodes; the first two also of children and of Secrets with tokens ---
GROUP_NAMESPACE = "cloud.google.com/tpu-node-group-namespace"
GROUP_NAME = constants.NODE_GROUP_NAME
#: Of nodes alone, as gke-labs/tpu-operator's README has pods select them: NAMESPACE-NAME.
GROUP = "cloud.google.com/tpu-node-group"
#: Of nodes alone: the group's namespace, by a label that no kubelet may set (admission plugin NodeRestriction).
TRUSTED_NAMESPACE = constants.TRUSTED_GROUP_NAMESPACE
ACCELERATOR = constants.TPU_ACCELERATOR
CHIP_COUNT = constants.ACCELERATOR_COUNT
TOPOLOGY = constants.TPU_TOPOLOGY
#: The machine's number in its slice, from 0.
WORKER_INDEX = "tpu-provisioner.cloud.google.com/worker-index"
#: Google's number of the machine (`ManagedInstance.id`); also on Secrets with tokens.
MACHINE_ID = "tpu-provisioner.cloud.google.com/machine-id"

# --- annotations, "true" but for the last ---
#: On any of the kinds, while it is deleted and the calls are refused or not allowed: let it go without its resource.
ABANDON = "tpu-provisioner.cloud.google.com/abandon"
#: On any of the kinds: take a resource of this name that carries no mark for one's own, as gke-labs/tpu-operator's.
ADOPT = "tpu-provisioner.cloud.google.com/adopt"
#: On a group that is being deleted: wait neither for pods to leave nor for nodes to be free.
FORCE = "tpu-provisioner.cloud.google.com/force"
#: On a group, an RFC 3339 time: slices recreated before it do not count against the limit.
RECREATIONS_RESET = "tpu-provisioner.cloud.google.com/recreations-reset"
READ_ANNOTATIONS = (ABANDON, ADOPT, FORCE, RECREATIONS_RESET)

# --- ownership marks ---
#: What the API server takes for the name of a namespace or an object, and the UIDs that it gives.
_NAMESPACE = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAME = r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?"
_UID = r"[A-Za-z0-9](?:[-A-Za-z0-9]{0,62}[A-Za-z0-9])?"
_IDENTITY = re.compile(rf"{_NAMESPACE} {_NAME} {_UID}")
_MARK = re.compile(
    rf"tpu-provisioner: (?P<kind>{'|'.join(Kind)}) (?P<namespace>{_NAMESPACE})/(?P<name>{_NAME})"
    rf" uid (?P<uid>{_UID}) cluster (?P<cluster_uid>{_UID})"
)
#: Namespace of request ids: any constant will do, as long as it stays the same.
_REQUESTS = uuid.UUID("5f0d7d6e-3b0c-5d0e-9f2a-6c1b8e4a7d21")


def child_name(group: ObjectMeta | Mark, kind: Kind) -> str:
    """Return the name of a group's child, and of its resource: equal for equal groups, and of no other group."""
    return f"{group.name}-{_SUFFIXES[kind]}-{_digest(group.uid)}"


def manager_of(machine: str) -> str:
    """Return the managed instance group of a machine, by name or provider id: what is before the last hyphen."""
    return machine.rpartition("-")[0]


@functools.lru_cache(maxsize=4096)
def _digest(uid: str) -> str:
    return hashlib.sha256(uid.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]


def group_name_problem(name: str) -> str:
    """Say why a group cannot have this name; empty where it can."""
    if len(name) > NAME_BUDGET:
        return (
            f"name {bounds.quoted(name)} has {len(name)} characters, and names of its resources in Compute Engine "
            f"leave {NAME_BUDGET}; create the group with a shorter name"
        )
    return resource_name_problem(name)


def resource_name_problem(name: str) -> str:
    """Say why a resource of Compute Engine, and so a child, cannot have this name; empty where it can."""
    if len(name) <= RESOURCE_NAME and _RESOURCE_FORM.fullmatch(name):
        return ""
    return (
        f"name {bounds.quoted(name)} is invalid for Compute Engine, which accepts at most {RESOURCE_NAME} lower-case "
        f"letters, digits and hyphens, a letter first and no hyphen last; create the object with another name"
    )


def is_identity(namespace: str, name: str, uid: str) -> bool:
    """Whether the API server can have given an object this namespace, name and UID."""
    return _IDENTITY.fullmatch(f"{namespace} {name} {uid}") is not None


def group_labels(group: ObjectMeta) -> dict[str, str]:
    """Return the two labels that say which group something belongs to; the name must be within its budget."""
    return {GROUP_NAMESPACE: group.namespace, GROUP_NAME: group.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Whose a resource of Compute Engine is: the object that it was made for, and the cluster of that object."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    cluster_uid: str

    def __str__(self) -> str:
        return f"tpu-provisioner: {self.kind} {self.namespace}/{self.name} uid {self.uid} cluster {self.cluster_uid}"


def mark_of(meta: ObjectMeta, kind: Kind, cluster_uid: str) -> Mark:
    """Return the mark of resources that are made for an object."""
    return Mark(kind=kind, namespace=meta.namespace, name=meta.name, uid=meta.uid, cluster_uid=cluster_uid)


@functools.lru_cache(maxsize=4096)
def parse_mark(description: str) -> Mark | None:
    """Read the mark that a resource's description is; None for any other text, also for one that has more in it."""
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
    """Return the id of a request for an object's resource: the same for the same attempt, so that it counts once."""
    return str(uuid.uuid5(_REQUESTS, f"{uid}/{operation}/{attempt}"))


# --- what kubelets register their nodes with: a node has it before any pod is bound to it ---
#: KEY=VALUE, separated by commas. GKE's and gke-labs/tpu-operator's key.
KUBE_LABELS = "kube-labels"
KUBE_TAINTS = "kube-taints"


def labels_text(labels: Mapping[str, str]) -> str:
    """Write labels, sorted by their keys."""
    return ",".join(f"{key}={labels[key]}" for key in sorted(labels))


def parse_labels(text: str) -> dict[str, str]:
    """Read labels; what is none is left out."""
    found = {}
    for part in text.split(","):
        key, separator, value = part.strip().partition("=")
        if separator and key:
            found[key] = value
    return found


def taints_text(taints: Iterable[Taint]) -> str:
    """Write taints."""
    return ",".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in taints)


def parse_taints(text: str) -> tuple[Taint, ...]:
    """Read taints; what is none is left out."""
    found = []
    for part in text.split(","):
        name, separator, effect = part.strip().rpartition(":")
        key, _, value = name.partition("=")
        if separator and key and effect:
            found.append(Taint(key=key, value=value, effect=effect))
    return tuple(found)
