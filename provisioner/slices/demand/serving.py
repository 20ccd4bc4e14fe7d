"""Which pods the provisioner buys for.

A pod that is not served is simply not ours: no Event, no log line, no pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provisioner import constants
from provisioner.model.workloads import Requirements, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPolicy:
    """Whose pods are served."""

    #: Empty: all.
    namespaces: frozenset[str] = frozenset()
    #: Key and value that the pod or its namespace must carry; None: no such condition.
    opt_in_label: tuple[str, str] | None = None
    #: Labels of namespaces, known only where the opt-in label is set.
    namespace_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def serves(self, workload: Workload, requirements: Requirements) -> bool:
        """Whether a pod with these requirements may buy a pool."""
        return not self.why_not(workload, requirements)

    def why_not(self, workload: Workload, requirements: Requirements) -> str:
        """Say why a pod with these requirements may not buy a pool; empty where it may."""
        if asks_for_slices(workload):
            return f"{constants.SLICE_AUTOPROVISIONING} requests Slice resources"
        return self._not_for_us(workload, requirements)

    def leaves_to_slices(self, workload: Workload) -> bool:
        """Whether a workload would be served, if it did not ask for Slice resources."""
        return asks_for_slices(workload) and any(
            job.template.chips and not self._not_for_us(workload, job.template, dynamic=True) for job in workload.groups
        )

    def _not_for_us(self, workload: Workload, requirements: Requirements, *, dynamic: bool = False) -> str:
        # Pods for dynamic slicing have their topology in an annotation.
        if not dynamic and constants.TPU_TOPOLOGY not in requirements.node_selector:
            return f"its pods have no nodeSelector {constants.TPU_TOPOLOGY}"
        if not dynamic and constants.SLICE_TOPOLOGY in requirements.annotations:
            return f"its pods have the annotation {constants.SLICE_TOPOLOGY}"
        for marks in (requirements.labels, requirements.annotations, workload.labels, workload.annotations):
            if marks and marks.get(constants.DISABLE) == "true":
                return f"{constants.DISABLE} is set"
        if self.namespaces and workload.namespace not in self.namespaces:
            return f"namespace {workload.namespace} is not among SERVED_NAMESPACES"
        if self.opt_in_label is None:
            return ""
        key, value = self.opt_in_label
        namespace_labels = self.namespace_labels.get(workload.namespace, {})
        if requirements.labels.get(key) == value or namespace_labels.get(key) == value:
            return ""
        return f"neither its pods nor its namespace have the label {key}={value}"


def asks_for_slices(workload: Workload) -> bool:
    """Whether a JobSet asks for Slice resources in place of node pools."""
    return (
        workload.labels.get(constants.SLICE_AUTOPROVISIONING) in ("sync", "async")
        or workload.annotations.get(constants.SLICE_AUTOPROVISIONING) == "true"
    )
