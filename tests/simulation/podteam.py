"""A team of Deployments and StatefulSets whose pods are single hosts, in every third seed from 1,002 on.

During the storm the team scales and updates its workloads, and loses nodes. After the storm, the team takes steps such
as a burst, an update or the loss of a node, each when the last step has settled. These runs have no scarce capacity and
no hostile tenants with JobSets. Other seeds have no team, so that their recorded histories stay valid.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rehearsal.simulators.gke.records import PoolStatus
from tests.simulation.deployments import Controller, Deployment, StatefulSet, Template, WideSet
from tests.simulation.intruders import Intruders
from tests.simulation.objects import HOSTILE_NAMESPACE, NAMESPACE, POD_NAMESPACE, PodRun, Shape
from tests.simulation.pools import is_ours, namespace_of
from tests.simulation.shared import RUNS

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

#: First seed of a run with the team, and the distance to the next such seed.
FIRST_SEED, EVERY = 1002, 3
_SHAPES = (
    Shape(accelerator="tpu-v6e-slice", topology="2x2", hosts=1, chips=4, parallelism=1),
    Shape(accelerator="tpu-v5-lite-podslice", topology="2x4", hosts=1, chips=8, parallelism=1),
    Shape(accelerator="tpu-v6e-slice", topology="1x1", hosts=1, chips=1, parallelism=1),
)
#: Replicas to which a Deployment is scaled; in the step `burst`, more replicas than one pool has nodes.
_REPLICAS, _BURST = (0, 1, 2, 3, 5, 8), (17, 20, 24)
#: Maximum time in seconds until a step after the storm has settled, and pause in seconds before the next step.
_STEP_SECONDS, _PAUSE_SECONDS = 1800.0, (30.0, 260.0)
#: Minimum seconds from a step to the pause after it if the pods are not served.
_UNSERVED_SECONDS = 60.0
_STEPS = ("scale", "update", "scale in", "lose a node", "update", "burst", "scale in")


def has_pods(seed: int) -> bool:
    return seed >= FIRST_SEED and (seed - FIRST_SEED) % EVERY == 0


class PodTeam:
    """The team of one run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._stage = simulation, simulation.stage
        self.present = has_pods(simulation.stage.seed)
        self.rng = rng = random.Random(f"pods {simulation.stage.seed}")
        #: Value of SERVE_PODS; "none" in runs without the team.
        self.serve_pods = rng.choice(("all", "all", "all", "annotated", "none")) if self.present else "none"
        self.namespace = rng.choice((POD_NAMESPACE, POD_NAMESPACE, NAMESPACE))
        self._shape = rng.choice(_SHAPES)
        #: Limits on chips by namespace. The limit of the team suffices for all its replicas and for rolling updates.
        self._limits = {HOSTILE_NAMESPACE: 8 * self._shape.chips} if rng.random() < 0.6 else {}
        if self._limits and self.namespace == POD_NAMESPACE:
            self._limits[self.namespace] = 64 * self._shape.chips
        self.deployments: list[Deployment] = []
        self.sets: list[StatefulSet] = []
        self._surge = rng.choice((0, 1))
        self.intruders = Intruders(simulation, self)
        self._steps = [*rng.sample(_STEPS, k=4), rng.choice(("scale", "scale to 0"))]
        #: Time at which the present step began, and time at which the next step may begin.
        self._step_since, self._next_at = 0.0, 0.0
        self.done = not self.present

    def settings(self) -> dict[str, Any]:
        limits = {"max_chips_per_namespace": tuple(self._limits.items())} if self.present and self._limits else {}
        return {"serve_pods": self.serve_pods, **limits}

    def max_chips_of(self, namespace: str) -> int | None:
        return self._limits.get(namespace) if self.present else None

    @property
    def shape(self) -> Shape:
        """Shape of the pods of the team and of the intruders, with the tolerations of the run."""
        return replace(self._shape, tolerant=self._simulation.market.spot_listed)

    @property
    def serves(self) -> bool:
        return self.serve_pods != "none" and self._simulation.same_cluster

    @property
    def waits(self) -> bool:
        return any(pod.waiting_since is not None and not pod.node for pod in self._pods())

    def begin(self) -> None:
        if not self.present:
            return
        rng, agenda = self.rng, self._stage.agenda
        for number in range(rng.choice((1, 1, 2))):
            agenda.after(rng.uniform(0.5, 20.0), lambda number=number: self._deploy(number))
        if rng.random() < 0.5:
            agenda.after(rng.uniform(0.5, 20.0), self._come_ordered)
        agenda.after(rng.uniform(5.0, 20.0), self._act)
        self.intruders.begin()

    def _template(self) -> Template:
        cost = "7" if self.rng.random() < 0.15 else ""
        return Template(shape=self.shape, annotated=self.serve_pods == "annotated", own_cost=cost)

    def _deploy(self, number: int) -> None:
        deployment = Deployment(
            cluster=self._simulation.cluster,
            rng=self.rng,
            name=f"vllm-{number}",
            namespace=self.namespace,
            template=self._template(),
            replicas=self.rng.choice(_REPLICAS),
            surge=self._surge,
        )
        self.deployments.append(deployment)
        self._stage.note("user", "creates Deployment %s of %d", deployment.name, deployment.replicas)
        deployment.update()

    def _come_ordered(self) -> None:
        stateful = StatefulSet(
            cluster=self._simulation.cluster,
            rng=self.rng,
            name="ordered",
            namespace=self.namespace,
            uid=self._stage.store.new_uid("statefulset"),
            template=self._template(),
            replicas=self.rng.choice((1, 2, 3)),
            kind="StatefulSet",
        )
        self.sets.append(stateful)
        stateful.kick()

    def _act(self) -> None:
        if not self._stage.stormy:
            return
        rng = self.rng
        self._stage.agenda.after(rng.uniform(3.0, 40.0), self._act)
        match rng.choice(("scale", "scale", "update", "lose a node", "set")):
            case "scale" if self.deployments:
                self._scale(rng.choice(self.deployments), rng.choice(_REPLICAS))
            case "update" if self.deployments:
                self._update(rng.choice(self.deployments))
            case "lose a node":
                self._lose_a_node()
            case "set" if self.sets:
                self._change_set(self.sets[0])
            case _:
                pass

    def _scale(self, deployment: Deployment, replicas: int) -> None:
        self._stage.note("user", "scales Deployment %s to %d", deployment.name, replicas)
        deployment.replicas = replicas
        deployment.kick()

    def _update(self, deployment: Deployment) -> None:
        self._stage.note("user", "updates Deployment %s, maxSurge %d", deployment.name, deployment.surge)
        deployment.update()

    def _change_set(self, stateful: StatefulSet) -> None:
        if self.rng.random() < 0.5:
            self._stage.note("user", "updates StatefulSet %s", stateful.name)
            stateful.update()
            return
        stateful.replicas = self.rng.choice((0, 2) if isinstance(stateful, WideSet) else (0, 1, 2, 4))
        self._stage.note("user", "scales StatefulSet %s to %d", stateful.name, stateful.replicas)
        stateful.kick()

    def _lose_a_node(self) -> None:
        there = self._simulation.cloud.pools
        pools = sorted({pod.pool for pod in self._pods() if pod.node and pod.pool in there})
        pools = [name for name in pools if is_ours(there[name]) and there[name].status is PoolStatus.RUNNING]
        if pools:
            name, hosts_lost = self.rng.choice(pools), self.rng.choice((None, 1))
            self._stage.fault("shared pool preempted", "%s, hosts: %s", name, hosts_lost)
            self._simulation.cloud.world.preempt(name, hosts=hosts_lost)

    def begin_calm(self) -> None:
        self._step_since, self._next_at = self._stage.agenda.now, float("inf")
        self.intruders.begin_calm()

    def look(self) -> None:
        """Take the next step if the last one has settled; called every few seconds after the storm."""
        now, shared = self._stage.agenda.now, self._simulation.checker.shared
        shared.look()
        problem = next(self.unsettled(), "")
        if problem or (not self.serves and now - self._step_since < _UNSERVED_SECONDS):
            self._next_at = float("inf")
            if problem and now - self._step_since > _STEP_SECONDS:
                self._stage.violate(RUNS, f"{problem}, {now - self._step_since:.0f} s after the last step")
            return
        if self._next_at == float("inf"):
            self._next_at = now + self.rng.uniform(*_PAUSE_SECONDS)
        if now < self._next_at:
            return
        if not self._steps:
            self.done = self.intruders.done
            return
        self._step_since, self._next_at = now, float("inf")
        self._step(self._steps.pop(0))

    def _step(self, step: str) -> None:
        self._stage.note("team", "step: %s", step)
        rng = self.rng
        for deployment in self.deployments:
            match step:
                case "scale":
                    self._scale(deployment, rng.choice(_REPLICAS))
                case "burst" if deployment is self.deployments[0]:
                    self._scale(deployment, rng.choice(_BURST))
                case "scale in":
                    self._scale_in(deployment)
                case "scale to 0":
                    self._scale(deployment, 0)
                case "update":
                    self._update(deployment)
                case _:
                    pass
        for stateful in self.sets:
            self._change_set(stateful)
        if step == "lose a node":
            self._lose_a_node()

    def _scale_in(self, deployment: Deployment) -> None:
        """Scale in; if the ReplicaSet knows the deletion costs of all its pods, check which pods it deletes."""
        self._scale(deployment, self.rng.randint(0, deployment.replicas))
        controller, agenda = deployment.sets[-1], self._stage.agenda
        before = controller.active
        since = agenda.now - self._simulation.checker.shared.lag_seconds()
        steady = self.serves and not controller.template.own_cost and self._simulation.disturbed_at < since
        if not steady or any(not pod.node or pod.bound_at > since for pod in before):
            return

        def judge() -> None:
            if controller.replicas == deployment.replicas and len(deployment.sets) == 1:
                self._simulation.checker.shared.judge_scale_in(before, [pod for pod in before if pod.deadline is None])

        agenda.after(5.0, judge)

    def unsettled(self) -> Iterator[str]:
        """Yield a report on each workload that does not have exactly its replicas, running and up to date."""
        outranked = self._simulation.singled.outranks(0, self.shape)
        if not self.present or not self.serves or outranked or self._is_robbed:
            return
        for workload in (*self.deployments, *self.sets):
            if not workload.settled:
                running = sum(bool(pod.node) for pod in workload.pods)
                yield f"{workload.name} has {len(workload.pods)} pods of {workload.replicas}, {running} of them run"

    @property
    def _is_robbed(self) -> bool:
        """Whether other namespaces use a pool of the team, which the policy prevents if it marks the team's pods."""
        if self._simulation.admission.always_marks(self.namespace):
            return False
        pools = self._simulation.cloud.pools.values()
        own = {
            pool.name
            for pool in pools
            if is_ours(pool) and namespace_of(pool.body["config"]["labels"]) == self.namespace
        }
        return any(pod.pool in own and pod.namespace != self.namespace for pod in self._simulation.cluster.pods)

    def _pods(self) -> list[PodRun]:
        return [pod for deployment in (*self.deployments, *self.sets) for pod in deployment.pods]

    def controllers(self) -> list[Controller]:
        return [*(replicas for deployment in self.deployments for replicas in deployment.sets), *self.sets]
