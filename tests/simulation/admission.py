"""Simulates the placement policy, which reviews new pods in most runs.

The policy reviews pods with chips, and pods of LeaderWorkerSets that select an accelerator. If the namespace has the
label `tpu-provisioner/placement: assign`, pods that select a topology get the node selectors of a slice ("marks"). In a
namespace without the label, a pod that selects a mark is rejected. All other reviewed pods are kept off marked nodes.
Some runs install the policy when pods already exist. The rules are not imported from the product, so that this module
does not repeat a mistake of the product.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping

from tests.simulation.objects import (
    HOSTILE_NAMESPACE,
    NAMESPACE,
    OTHER_NAMESPACE,
    POD_NAMESPACE,
    SECOND_NAMESPACE,
    SLICE,
    PodRun,
    Shape,
    WorkloadRun,
)
from tests.simulation.store import Stage

SLICE_NAMESPACE = "tpu-provisioner/slice-namespace"
MARKS = (SLICE, SLICE_NAMESPACE)
#: Value of both labels of `MARKS` while a pool is free.
FREE = "none"
#: Key in the marks of pods without a group, which share pools with other such pods of their namespace.
_SHARED = "pods"
_LWS_NAME = "leaderworkerset.sigs.k8s.io/name"

_CHANCE = 0.75
_LATE_CHANCE = 0.15
_LATE_SECONDS = (10.0, 90.0)
#: Probability of each namespace to have the label `tpu-provisioner/placement: assign`.
_ASSIGNS = {NAMESPACE: 0.8, SECOND_NAMESPACE: 0.5, HOSTILE_NAMESPACE: 0.6, OTHER_NAMESPACE: 0.3}
_ASSIGNS_PODS_CHANCE = 0.7
#: Probability that a workload requests exclusive placement although the policy marks its pods.
_EXCLUSIVE_CHANCE = 0.4
_EDITS_CHANCE = 0.3
_PRIORITIES_CHANCE = 0.4
_PRIORITIES = (0, 0, 100, -100)


class Admission:
    """Placement policy of one run."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.rng = rng = random.Random(f"admission {stage.seed}")
        present = rng.random() < _CHANCE
        late = rng.uniform(*_LATE_SECONDS) if rng.random() < _LATE_CHANCE else 0.0
        #: Time in seconds at which the policy is installed; infinite if it never is.
        self.since = late if present else math.inf
        self._assigns = frozenset(namespace for namespace, chance in _ASSIGNS.items() if rng.random() < chance)
        # A separate source, so that this draw does not change the other draws of a seed.
        if random.Random(f"admission of pods {stage.seed}").random() < _ASSIGNS_PODS_CHANCE:
            self._assigns |= {POD_NAMESPACE}
        self.edits_labels = present and rng.random() < _EDITS_CHANCE
        self._has_priorities = rng.random() < _PRIORITIES_CHANCE
        #: Workloads by the mark (key and namespace of a slice) in the selectors of their pods.
        self.granted: dict[tuple[str, str], dict[WorkloadRun, None]] = {}
        #: Shapes of the pods without a workload that have ever had a mark, by mark.
        self.granted_alone: defaultdict[tuple[str, str], set[Shape]] = defaultdict(set)

    @property
    def present(self) -> bool:
        return self.since < math.inf

    @property
    def installed(self) -> bool:
        return self.stage.agenda.now >= self.since

    def marks(self, namespace: str) -> bool:
        """Return whether new pods of groups in a namespace get the marks."""
        return self.installed and namespace in self._assigns

    def always_marks(self, namespace: str) -> bool:
        return self.since <= 0.0 and namespace in self._assigns

    def stays(self, namespace: str) -> bool:
        """Return whether `marks` returns the same value for a namespace until the end of the run."""
        return self.installed or not self.present or namespace not in self._assigns

    def namespace(self) -> str:
        return self.rng.choice((NAMESPACE, SECOND_NAMESPACE)) if self.present else NAMESPACE

    def exclusive(self, namespace: str) -> bool:
        """Return whether a new workload requests exclusive placement; True if the policy does not mark its pods."""
        return not self.marks(namespace) or self.rng.random() < _EXCLUSIVE_CHANCE

    def priority(self) -> int:
        return self.rng.choice(_PRIORITIES) if self._has_priorities else 0

    def review(self, pod: PodRun, labels: Mapping[str, str]) -> bool:
        """Apply the policy, if it is installed, to a new pod; return False if the policy rejects the pod."""
        if not self.installed:
            self._grant(pod)
            return True
        may_lead = _LWS_NAME in labels and "cloud.google.com/gke-tpu-accelerator" in pod.selector
        if not (pod.shape.chips or may_lead):
            return True
        pod.reviewed = True
        served = pod.namespace in self._assigns and "cloud.google.com/gke-tpu-topology" in pod.selector
        of_set = pod.owner is not None and pod.owner.kind == "StatefulSet" and pod.shape.hosts > 1
        alone = f"s-{pod.owner.uid}" if pod.owner is not None and of_set else _SHARED
        key = _key(labels, alone) if served else ""
        if key:
            pod.selector = {**pod.selector, SLICE: key, SLICE_NAMESPACE: pod.namespace}
            self._grant(pod)
            return True
        if pod.namespace not in self._assigns and any(mark in pod.selector for mark in MARKS):
            self.stage.fault("forged marks rejected", "%s/%s", pod.namespace, pod.name)
            return False
        pod.kept_off = True
        return True

    def _grant(self, pod: PodRun) -> None:
        mark = mark_of(pod.selector)
        if not is_assigned(mark) or mark[1] != pod.namespace:
            return
        if pod.workload is None:
            self.granted_alone[mark].add(pod.shape)
        else:
            self.granted.setdefault(mark, {})[pod.workload] = None


def _key(labels: Mapping[str, str], alone: str) -> str:
    """Return the key of the group that the labels of a pod identify, `alone` if they identify no group."""
    job_key = labels.get("jobset.sigs.k8s.io/job-key")
    if job_key:
        return f"j-{job_key}"
    group_key = labels.get("leaderworkerset.sigs.k8s.io/group-key")
    if group_key:
        return f"l-{group_key}"
    cluster, group = labels.get("ray.io/cluster"), labels.get("ray.io/group")
    if cluster and group:
        index = labels.get("ray.io/worker-group-replica-index")
        return f"r-{cluster}.{group}" + (f".{index}" if index else "")
    controller = labels.get("batch.kubernetes.io/controller-uid")
    return f"b-{controller}" if controller else alone


def mark_of(labels: Mapping[str, str]) -> tuple[str, str]:
    """Return key and namespace of the slice in labels of a node or in a pod's selector, both empty if none."""
    return labels.get(SLICE, ""), labels.get(SLICE_NAMESPACE, "")


def is_shared(mark: tuple[str, str]) -> bool:
    return mark[0] == _SHARED


def is_assigned(mark: tuple[str, str]) -> bool:
    return bool(mark[0]) and mark[0] != FREE
