"""Small world for decisions about pods that share node pools, such as the pods of ReplicaSets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from provisioner.model.placement import MARKS, SHARED, labels_of
from provisioner.model.workloads import Pod
from provisioner.slices.demand.owners import with_owners
from provisioner.slices.planning.round import Snapshot
from provisioner.workloads.parse_pod import parse_pod
from tests.support.objects import raw_plain_pod, reference
from tests.support.world import World


def pod_of(name: str, owner: str = "web", *, kind: str = "ReplicaSet", **parts: Any) -> Pod:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    pod = parse_pod(raw_plain_pod(name, reference(kind, owner, version), **parts), jobs=False)
    assert pod is not None
    return pod


class Cluster(World):
    """A world with pods of ReplicaSets."""

    def scale(self, number: int, owner: str = "web", *, marked: bool = False, **parts: Any) -> None:
        """Add pods until a ReplicaSet has a number of them; `marked` pods have the selectors that admission adds."""
        for index in range(sum(pod.workload_name.partition(".")[2] == owner for pod in self.pods.values()), number):
            pod = pod_of(f"{owner}-{index}", owner, **parts)
            if marked:
                selector = {**pod.requirements.node_selector, **labels_of(SHARED, pod.namespace)}
                pod = replace(pod, requirements=replace(pod.requirements, node_selector=selector))
            self.put(replace(pod, created_at=self.now, unschedulable_since=self.now))

    def snapshot(self, **changes: Any) -> Snapshot:
        workloads, pods = with_owners(self.workloads, self.pods.values())
        return super().snapshot(**{"workloads": workloads, "pods": pods, **changes})

    def bind(self) -> None:
        """Bind waiting pods in order of UID, each to the first free, uncordoned node by name with the pod's marks."""
        busy = {pod.node_name for pod in self.pods.values()}
        free = {name: node for name, node in sorted(self.nodes.items()) if name not in busy and not node.cordoned}
        for uid, pod in sorted(self.pods.items()):
            marks = {key: value for key, value in pod.requirements.node_selector.items() if key in MARKS}
            name = next((name for name, node in free.items() if marks.items() <= node.labels.items()), "")
            if not pod.node_name and name:
                del free[name]
                self.pods[uid] = replace(pod, node_name=name, phase="Running", unschedulable_since=None)

    def settle(self, rounds: int = 8, *, seconds: float = 1.0) -> None:
        """Do rounds; after each, complete creates and deletes, and bind pods."""
        for _ in range(rounds):
            self.step(seconds=seconds)
            self.finish_creates()
            self.finish_deletes()
            self.bind()

    @property
    def sizes(self) -> list[int]:
        return sorted((pool.hosts for pool in self.pools.values()), reverse=True)
