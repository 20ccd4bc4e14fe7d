"""ReplicaSets, Deployments and StatefulSets, and their controllers.

A ReplicaSet replaces a pod that is still terminating, knows a deletion cost only 2 s after the write, and breaks ties
at random. The pods have no WorkloadRun.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from provisioner import constants
from provisioner.kube.protocol import JsonObject, object_path
from tests.simulation.objects import PodRun, Shape

if TYPE_CHECKING:
    from tests.simulation.workloads import Cluster

#: Minimum and maximum seconds after which a controller acts on a change.
_SYNC_SECONDS = (0.02, 1.5)
#: Seconds after which a ReplicaSet's cache shows a deletion cost.
COST_KNOWN_SECONDS = 2.0
#: Seconds after which a controller recreates a pod that the API server has rejected.
_REJECTED_AGAIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Pod template of a controller."""

    shape: Shape
    #: Whether the pods have the annotation that requests pools, for SERVE_PODS=annotated.
    annotated: bool = False
    #: Resource requests in addition to chips.
    requests: Mapping[str, str] = field(default_factory=dict)
    bindable: bool = True
    tolerates_all: bool = False
    #: Deletion cost that the user sets; empty if none.
    own_cost: str = ""

    def annotations(self) -> dict[str, str]:
        annotations = {constants.SERVE: "true"} if self.annotated else {}
        return annotations | ({constants.POD_DELETION_COST: self.own_cost} if self.own_cost else {})


@dataclass(eq=False, slots=True, kw_only=True)
class Controller:
    """A ReplicaSet, or another controller that keeps a number of alike pods."""

    cluster: Cluster
    rng: random.Random
    name: str
    namespace: str
    uid: str
    template: Template
    replicas: int
    kind: str = "ReplicaSet"
    deployment: Deployment | None = None
    pods: dict[PodRun, None] = field(default_factory=dict)
    #: Maximum number of active pods that existed at the same time.
    max_pods: int = 0
    sync_due: bool = False

    @property
    def active(self) -> list[PodRun]:
        return [pod for pod in self.pods if not pod.gone and pod.deadline is None and not pod.finished]

    @property
    def ready(self) -> list[PodRun]:
        return [pod for pod in self.active if pod.node]

    def kick(self) -> None:
        """Let the controller act soon; if a Deployment owns it, let the Deployment act instead."""
        if self.deployment is not None:
            self.deployment.kick()
        elif not self.sync_due:
            self.sync_due = True
            self.cluster.stage.agenda.after(self.rng.uniform(*_SYNC_SECONDS), self._sync_alone)

    def _sync_alone(self) -> None:
        self.sync_due = False
        self.sync()

    def sync(self) -> None:
        active = self.active
        for _ in range(self.replicas - len(active)):
            self.create(self.cluster.new_name(self.name))
        if len(active) > self.replicas:
            ranks = {pod: self.rank(pod) for pod in active}
            for pod in sorted(active, key=lambda candidate: ranks[candidate])[: len(active) - self.replicas]:
                self.cluster.terminate(pod)

    def rank(self, pod: PodRun) -> tuple[bool, int, float]:
        """Return the sort key for deletes, lowest first: pods without a node, low deletion cost, at random."""
        known = self.cluster.stage.agenda.now - pod.cost_at >= COST_KNOWN_SECONDS
        cost = self.template.own_cost or (pod.cost if known else "")
        return bool(pod.node), int(cost or 0), self.rng.random()

    def create(self, name: str, *, index: int | None = None) -> None:
        reference = {"apiVersion": "apps/v1", "kind": self.kind, "name": self.name, "uid": self.uid, "controller": True}
        metadata: JsonObject = {"ownerReferences": [reference]}
        if index is not None:
            metadata["labels"] = {"apps.kubernetes.io/pod-index": str(index)}
        pod = new_pod(self.cluster, self.template, name, self.namespace, metadata, owner=self)
        pod.index = index or 0
        if self.cluster.add_plain(pod):
            self.pods[pod] = None
            self.max_pods = max(self.max_pods, len(self.active))
        else:
            self.cluster.stage.agenda.after(_REJECTED_AGAIN_SECONDS, self.kick)

    def changed(self, pod: PodRun) -> None:
        if pod.gone:
            self.pods.pop(pod, None)
        self.kick()


@dataclass(eq=False, slots=True, kw_only=True)
class StatefulSet(Controller):
    """A StatefulSet with podManagementPolicy OrderedReady."""

    #: UIDs of the pods of an earlier template.
    outdated: set[str] = field(default_factory=set)

    @property
    def settled(self) -> bool:
        """Whether exactly the requested replicas run, all of them from the current template."""
        return len(self.pods) == len(self.ready) == self.replicas and not self.outdated

    def update(self) -> None:
        """Change the template, so that each pod is replaced."""
        self.outdated = {pod.uid for pod in self.pods}
        self.kick()

    def sync(self) -> None:
        """Create or delete at most one pod; none while a pod terminates or a pod of lower index does not run."""
        by_index = {pod.index: pod for pod in self.pods if not pod.gone}
        self.outdated &= {pod.uid for pod in by_index.values()}
        if any(pod.deadline is not None for pod in by_index.values()):
            return
        for index in range(self.replicas):
            pod = by_index.get(index)
            if pod is None:
                name = f"{self.name}-{index}"
                if self.cluster.stage.store.find(object_path("pods", name, namespace=self.namespace)) is None:
                    self.create(name, index=index)
                return
            if not pod.node:
                return
        extra = [index for index in by_index if index >= self.replicas]
        old = extra or [index for index, pod in by_index.items() if pod.uid in self.outdated]
        if old:
            self.cluster.terminate(by_index[max(old)])


@dataclass(eq=False, slots=True, kw_only=True)
class WideSet(StatefulSet):
    """A StatefulSet with podManagementPolicy Parallel, whose pods are the hosts of one slice."""

    def sync(self) -> None:
        by_index = {pod.index: pod for pod in self.pods}
        self.outdated &= {pod.uid for pod in by_index.values()}
        for index in set(range(self.replicas)) - by_index.keys():
            self.create(f"{self.name}-{index}", index=index)
        for index, pod in by_index.items():
            if index >= self.replicas or pod.uid in self.outdated:
                self.cluster.terminate(pod)


@dataclass(eq=False, slots=True, kw_only=True)
class Deployment:
    """A Deployment; its ReplicaSets are in the order of their templates, the newest last."""

    cluster: Cluster
    rng: random.Random
    name: str
    namespace: str
    template: Template
    replicas: int
    #: Value of maxSurge, 0 or 1; maxUnavailable is 1 if `surge` is 0, and otherwise 0.
    surge: int
    sets: list[Controller] = field(default_factory=list)
    revision: int = 0
    sync_due: bool = False

    @property
    def pods(self) -> list[PodRun]:
        return [pod for controller in self.sets for pod in controller.pods]

    @property
    def settled(self) -> bool:
        """Whether exactly the requested replicas run, all of them from the newest template."""
        newest = self.sets[-1]
        return len(self.sets) == 1 and len(newest.pods) == len(newest.ready) == newest.replicas == self.replicas

    def update(self) -> None:
        self.revision += 1
        self.sets.append(
            Controller(
                cluster=self.cluster,
                rng=self.rng,
                name=f"{self.name}-{self.revision}",
                namespace=self.namespace,
                uid=self.cluster.stage.store.new_uid("replicaset"),
                template=self.template,
                replicas=0,
                deployment=self,
            )
        )
        self.kick()

    def kick(self) -> None:
        if not self.sync_due:
            self.sync_due = True
            self.cluster.stage.agenda.after(self.rng.uniform(*_SYNC_SECONDS), self._sync)

    def _sync(self) -> None:
        self.sync_due = False
        *old, new = self.sets
        before = [controller.replicas for controller in self.sets]
        if sum(controller.replicas for controller in old):
            self._roll(old, new)
        else:
            new.replicas = self.replicas
        for controller in self.sets:
            controller.sync()
        if before != [controller.replicas for controller in self.sets]:
            # The next step follows soon: terminating pods do not count, so the update need not wait for their end.
            self.kick()
        self.sets = [
            controller for controller in self.sets if controller is new or controller.replicas or controller.pods
        ]

    def _roll(self, old: list[Controller], new: Controller) -> None:
        """Scale the newest ReplicaSet up and older ReplicaSets down, within maxSurge and maxUnavailable."""
        total, least = sum(controller.replicas for controller in self.sets), max(0, self.replicas - (not self.surge))
        new.replicas = min(max(self.replicas + self.surge - total, 0) + new.replicas, self.replicas)
        total = sum(controller.replicas for controller in self.sets)
        excess = total - least - (new.replicas - len(new.ready))
        for controller in old:
            # Replicas that do not run are removed first.
            cut = max(0, min(excess, controller.replicas - len(controller.ready)))
            controller.replicas -= cut
            excess -= cut
        can = sum(min(len(controller.ready), controller.replicas) for controller in self.sets) - least
        for controller in old:
            cut = max(0, min(can, excess, controller.replicas))
            controller.replicas -= cut
            excess, can = excess - cut, can - cut


def new_pod(
    cluster: Cluster,
    template: Template,
    name: str,
    namespace: str,
    metadata: JsonObject,
    *,
    owner: Controller | None = None,
) -> PodRun:
    return PodRun(
        name=name,
        namespace=namespace,
        uid=cluster.stage.store.new_uid("pod"),
        workload=None,
        shape=template.shape,
        selector=template.shape.selector(),
        created=cluster.stage.agenda.now,
        tolerates_all=template.tolerates_all,
        owner=owner,
        metadata={**metadata, "annotations": template.annotations()},
        requests=dict(template.requests),
        bindable=template.bindable,
    )
