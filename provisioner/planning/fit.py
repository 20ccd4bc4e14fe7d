"""Whether a pod can run on a node, as the scheduler sees it.

Selectors, required node affinity, taints and the requests that matter here (chips, CPU, memory). Inter-pod affinity is
not evaluated: of the exclusive placement of JobSets, the matching sees the part that counts, other slices' pods.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from provisioner.model.capacity import Node, Taint
from provisioner.model.workloads import Expression, Requirements, Toleration


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """What the scheduler would see of a node, existing or expected."""

    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    chips: int
    cpu_millicores: int
    memory_bytes: int
    name: str = ""


def view_of_node(node: Node) -> NodeView:
    """View a registered node; one that has not reported yet offers nothing."""
    return NodeView(
        labels=node.labels,
        taints=node.taints,
        chips=node.allocatable_chips,
        cpu_millicores=node.allocatable_cpu_millicores,
        memory_bytes=node.allocatable_memory_bytes,
        name=node.name,
    )


def demand_key(requirements: Requirements) -> Hashable:
    """Return what `misfit` looks at: equal keys, equal answers."""
    return (
        requirements.chips,
        requirements.cpu_millicores,
        requirements.memory_bytes,
        frozenset(requirements.node_selector.items()),
        requirements.affinity_terms,
        requirements.tolerations,
    )


def misfit(requirements: Requirements, view: NodeView) -> str:
    """Return the first reason why the pod cannot run there, empty where it can."""
    for key, value in requirements.node_selector.items():
        if view.labels.get(key) != value:
            found = f"{key}={view.labels[key]}" if key in view.labels else f"no label {key}"
            return f"the pod selects {key}={value}, the node has {found}"
    if requirements.affinity_terms and not any(
        all(_holds(expression, view) for expression in term) for term in requirements.affinity_terms
    ):
        return "no term of the pod's required node affinity holds on the node"
    for taint in view.taints:
        if taint.effect != "PreferNoSchedule" and not _tolerated(taint, requirements.tolerations):
            return f"the pod does not tolerate the taint {taint.key}={taint.value}:{taint.effect}"
    for resource, asked, there in (
        ("chips", requirements.chips, view.chips),
        ("millicores of CPU", requirements.cpu_millicores, view.cpu_millicores),
        ("bytes of memory", requirements.memory_bytes, view.memory_bytes),
    ):
        if asked > there:
            return f"the pod asks for {asked} {resource}, the node has {there}"
    return ""


def _holds(expression: Expression, view: NodeView) -> bool:
    value = view.name if expression.on_field else view.labels.get(expression.key)
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":
            return value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(expression, value)
        case _:
            return False


def _compares(expression: Expression, value: str | None) -> bool:
    try:
        node, pod = int(value or ""), int("".join(expression.values[:1]))
    except ValueError:
        return False
    return node > pod if expression.operator == "Gt" else node < pod


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(
        (not toleration.effect or toleration.effect == taint.effect)
        and (
            (not toleration.key and toleration.operator == "Exists")
            or (toleration.key == taint.key and (toleration.operator == "Exists" or toleration.value == taint.value))
        )
        for toleration in tolerations
    )
