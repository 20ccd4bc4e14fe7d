"""Decides by the scheduler's rules whether a pod can run on a node. Pure. `fits.py` decides this for many nodes.

Inter-pod affinity is not evaluated. A new node may have labels of Google or Kubernetes that are not predicted.
Selectors of these labels count as satisfied, because users usually copy them from existing nodes.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor

from provisioner import constants
from provisioner.model.capacity import Node, Taint
from provisioner.model.workloads import Expression, Requirements, Toleration

#: Operators of node affinity that a node without the label cannot satisfy.
NEED_A_LABEL = frozenset({"In", "Exists", "Gt", "Lt"})

#: Labels for which a selector matches a new node only if the prediction of the node contains the label.
_KNOWN = frozenset(
    (
        *(constants.NODE_POOL, constants.TPU_ACCELERATOR, constants.TPU_TOPOLOGY, constants.ACCELERATOR_COUNT),
        *(constants.SPOT, constants.PREEMPTIBLE, constants.FLEX_START, constants.QUEUED, constants.MAX_RUN_SECONDS),
        *(constants.RESERVATION_AFFINITY, constants.RESERVATION_PROJECT, constants.RESERVATION_NAME),
        *(constants.RESERVATION_BLOCK, constants.RESERVATION_SUB_BLOCK),
        *(constants.GPU_ACCELERATOR, constants.PLACEMENT_POLICY),
        # Labels that new nodes have only if the create request of the pool contains them.
        *(constants.ICI_RESILIENCY, constants.LOCATION_HINT, constants.AUTO_RESTART, constants.COLLECTION),
        *(constants.WORKLOAD_TYPE, constants.TPU_DRA_DRIVER, constants.COMPUTE_CLASS),
        # Labels that follow from other fields of the create request. No setting requests local SSDs.
        *(constants.SANDBOX_RUNTIME, constants.PRIVATE_NODE, constants.LOCAL_SSD, constants.LOCAL_NVME_SSD),
        constants.NAMESPACED_JOB,
        # Name of the node, which is unknown before the node exists.
        constants.HOSTNAME,
    )
)
#: Next step about a selector that no new node matches, by key of the selector.
_ADVICE = {
    constants.NODE_POOL: "new node pools get names of their own, so remove the selector",
    constants.COMPUTE_CLASS: "GKE creates the nodes of a ComputeClass, unless GCP_NODE_LABELS has the label",
}
#: Matches integers in the form of Go's strconv.ParseInt. At most 300 digits: int() rejects thousands of digits.
_INTEGER = re.compile(r"[+-]?[0-9]{1,300}")
_SYSTEM = tuple(f".{domain}" for domain in constants.SYSTEM_LABEL_DOMAINS)
_OWN_PREFIXES = ("google.com/tpu-provisioner-", "tpu-provisioner.cloud.google.com/", constants.NODEPOOL_MANAGER)


def is_system(key: str) -> bool:
    """Whether a label belongs to Google or Kubernetes."""
    prefix, separator, _ = key.rpartition("/")
    return separator != "" and f".{prefix}".endswith(_SYSTEM)


def may_be_there(key: str) -> bool:
    """Whether a new node may have a label of this key although its prediction lacks the label."""
    return key not in _KNOWN and is_system(key) and not key.startswith(_OWN_PREFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """Properties of an existing or predicted node that the scheduler compares with pods."""

    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    chips: int
    cpu_millicores: int
    memory_bytes: int
    #: Bytes of ephemeral storage and of huge pages by resource. A missing resource is unknown and counts as enough.
    other_bytes: Mapping[str, int] = field(default_factory=dict)
    name: str = ""
    predicted: bool = False

    def may_carry(self, key: str) -> bool:
        """Whether a predicted node may have a label of this key that `labels` lacks; False for existing nodes."""
        return self.predicted and key not in self.labels and may_be_there(key)


def view_of_node(node: Node) -> NodeView:
    """Return the properties of an existing node. Chips, CPU and memory are 0 until the kubelet reports them."""
    return NodeView(
        labels=node.labels,
        taints=node.taints,
        chips=node.allocatable_chips,
        cpu_millicores=node.allocatable_cpu_millicores,
        memory_bytes=node.allocatable_memory_bytes,
        other_bytes=dict(node.allocatable_other_bytes),
        name=node.name,
    )


def demand_key(requirements: Requirements) -> Hashable:
    """Return the fields that `misfit` reads: requirements with equal fields fit the same nodes."""
    return (
        requirements.chips,
        requirements.cpu_millicores,
        requirements.memory_bytes,
        requirements.other_bytes,
        requirements.volumes,
        frozenset(requirements.node_selector.items()),
        requirements.affinity_terms,
        requirements.tolerations,
    )


def misfit(requirements: Requirements, view: NodeView) -> tuple[str, ...]:
    """Return the first reason why a pod cannot run on a node, and the next step if known; empty if the pod can."""
    reason = volume_misfit(requirements, view) or label_misfit(requirements, view)
    if reason:
        return reason
    for taint in view.taints:
        if taint.effect != "PreferNoSchedule" and not tolerated(taint, requirements.tolerations):
            return (f"the pod does not tolerate the taint {taint}",)
    return room_misfit(requirements, view)


def volume_misfit(requirements: Requirements, view: NodeView) -> tuple[str, ...]:
    """Return why a pod's volumes cannot be attached to a node; empty if they can, or if that is unknown."""
    volumes, zone = requirements.volumes, view.labels.get(constants.ZONE)
    if volumes is None or volumes.problem:
        return (volumes.problem,) if volumes is not None else ()
    if volumes.zones is None or zone is None or zone in volumes.zones:
        return ()
    where = f"are in zone {' or '.join(volumes.zones)}" if volumes.zones else "have no zone in common"
    return (f"the pod's volumes {where}, the node is in {zone}",)


def room_misfit(requirements: Requirements, view: NodeView) -> tuple[str, ...]:
    """Return the problem with the first resource of which an empty node has too little for a pod; empty if none."""
    offers = offered(view)
    for resource, amount in requested(requirements):
        if amount > offers.get(resource, amount):
            machine = view.labels.get(constants.INSTANCE_TYPE, "")
            node = f"a node of {machine}" if machine else "the node"
            want, have = quantity(resource, amount, ceil), quantity(resource, offers[resource], floor)
            return (f"the pod requests {want} {resource}, {node} offers {have} to pods",)
    return ()


def requested(requirements: Requirements) -> list[tuple[str, int]]:
    """Return the resources that a pod requests, with their amounts in chips, millicores or bytes."""
    return [
        ("chips", requirements.chips),
        ("cpu", requirements.cpu_millicores),
        ("memory", requirements.memory_bytes),
        *requirements.other_bytes,
    ]


def offered(view: NodeView) -> dict[str, int]:
    """Return the amounts that an empty node offers, by resource. A resource without an entry always suffices."""
    return {"chips": view.chips, "cpu": view.cpu_millicores, "memory": view.memory_bytes, **view.other_bytes}


def quantity(resource: str, amount: int, rounded: Callable[[float], int]) -> str:
    """Return an amount of chips, millicores or bytes as in manifests; `rounded` rounds bytes to tenths of Mi or Gi."""
    if resource == "chips":
        return str(amount)
    if resource == "cpu":
        return f"{amount / 1000:g}"
    size, unit = (2**30, "Gi") if amount >= 2**30 else (2**20, "Mi")
    return f"{rounded(amount / size * 10) / 10:.1f}".removesuffix(".0") + unit


def label_misfit(requirements: Requirements, view: NodeView) -> tuple[str, ...]:
    """Return why a node's labels do not match a pod's selectors, affinity or way to request chips; empty if they do."""
    driver = constants.TPU_DRA_DRIVER
    if view.labels.get(driver) == "true" and requirements.node_selector.get(driver) != "true":
        return (f"the node offers its chips to ResourceClaims alone, not as {constants.TPU_RESOURCE}",)
    for key, value in requirements.node_selector.items():
        if view.labels.get(key) != value and not view.may_carry(key):
            label = f"{key}={view.labels[key]}" if key in view.labels else f"no label {key}"
            advice = (_ADVICE[key],) if view.predicted and key in _ADVICE else ()
            return (f"the pod selects {key}={value}, the node has {label}", *advice)
    if requirements.affinity_terms and not any(
        all(_holds(expression, view) for expression in term) for term in requirements.affinity_terms
    ):
        return ("no term of the pod's required node affinity matches the node",)
    return ()


def trusted(requirements: Requirements, view: NodeView) -> tuple[str, ...]:
    """Return a pod's selectors and affinity keys that the predicted labels do not satisfy, but other labels may."""
    keys = [f"{key}={value}" for key, value in requirements.node_selector.items() if view.may_carry(key)]
    if not any(all(_holds(expression, view, sure=True) for expression in term) for term in requirements.affinity_terms):
        terms = (term for term in requirements.affinity_terms if all(_holds(expression, view) for expression in term))
        keys += [expression.key for expression in next(terms, ()) if not _holds(expression, view, sure=True)]
    return tuple(dict.fromkeys(keys))


def _holds(expression: Expression, view: NodeView, *, sure: bool = False) -> bool:
    value = view.name if expression.on_field else view.labels.get(expression.key)
    if not sure and expression.operator in NEED_A_LABEL and not expression.on_field and view.may_carry(expression.key):
        return True
    return holds(expression.operator, expression.values, value)


def holds(operator: str, values: Sequence[str], value: str | None) -> bool:
    """Whether an affinity operator holds for the value of a label; pass None for a node without the label."""
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            node, pod = number(value or ""), number("".join(values))
            return node is not None and pod is not None and (node > pod if operator == "Gt" else node < pod)
        case _:
            return False


def number(text: str) -> int | None:
    """Return the number in a text as the scheduler reads it for Gt and Lt; None if it is not a 64-bit integer."""
    value = int(text) if _INTEGER.fullmatch(text) else None
    return value if value is not None and -(2**63) <= value < 2**63 else None


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Whether one of the tolerations of a pod matches a taint."""
    return any(
        (not toleration.effect or toleration.effect == taint.effect)
        and (
            (not toleration.key and toleration.operator == "Exists")
            or (toleration.key == taint.key and (toleration.operator == "Exists" or toleration.value == taint.value))
        )
        for toleration in tolerations
    )
