"""Tenants with LeaderWorkerSets whose leaders request no chips, and with StatefulSets of several hosts.

Many runs from FIRST_SEED on have these tenants; earlier runs have none, so that their histories stay valid. During the
storm, a hostile tenant scales and restarts its LeaderWorkerSets. The tenant also creates pods without chips ("guests")
that get the labels of a leader only later, so that the policy keeps them off no pools.

Runs without the placement policy have only guests, from FIRST_OPEN_SEED on. These guests run until their nodes are
deleted, so that a pool that a guest keeps breaks a check.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from provisioner.model.workloads import uid_in
from tests.simulation.deployments import Template, WideSet, new_pod
from tests.simulation.objects import HOSTILE_NAMESPACE, JobSetRun, PodRun, Shape
from tests.simulation.sets import SetRun

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

FIRST_SEED = 2001
FIRST_OPEN_SEED = 61_000
_CHANCE = 0.9
_GUEST_SECONDS = (20.0, 150.0)
_WIDE = Shape(accelerator="tpu-v6e-slice", topology="2x4", hosts=2, chips=4, parallelism=2)


class Guests:
    """Tenants with leaders without chips, and with StatefulSets of several hosts, in one run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._stage, self._cluster = simulation, simulation.stage, simulation.cluster
        self._rng = random.Random(f"guests {simulation.stage.seed}")
        scarce = simulation.market.scarce or simulation.market.gangs or simulation.hostile.present
        chosen = simulation.stage.seed >= FIRST_SEED and self._rng.random() < _CHANCE
        self._open = not simulation.admission.present
        self.present = chosen and not scarce and (not self._open or simulation.stage.seed >= FIRST_OPEN_SEED)
        self._sets: list[SetRun] = []
        self._guests: list[PodRun] = []
        self._wide: list[WideSet] = []

    def wide_uids(self) -> set[str]:
        """Return the UIDs that the provisioner gives to the StatefulSets of several hosts."""
        return {uid_in(stateful.namespace, stateful.uid) for stateful in self._wide}

    def begin(self) -> None:
        if not self.present:
            return
        self._stage.agenda.after(self._rng.uniform(1.0, 20.0), self._act)
        pods = self._simulation.pods
        for namespace in (pods.namespace, pods.namespace, HOSTILE_NAMESPACE) if pods.present and pods.serves else ():
            # Without marks, the pods of one slice may be bound to several pools.
            if self._simulation.admission.always_marks(namespace):
                self._come_wide(namespace)

    def leave(self) -> None:
        for run in self._sets:
            self._delete(run)
        for pod in () if self._open else self._guests:
            self._cluster.terminate(pod)
        for stateful in self._wide:
            stateful.replicas *= stateful.namespace != HOSTILE_NAMESPACE
            stateful.kick()

    def _come_wide(self, namespace: str) -> None:
        pods = self._simulation.pods
        stateful = WideSet(
            cluster=self._cluster,
            rng=self._rng,
            name=f"wide-{len(self._wide)}",
            namespace=namespace,
            uid=self._stage.store.new_uid("statefulset"),
            template=Template(shape=replace(_WIDE, tolerant=pods.shape.tolerant), annotated=True),
            replicas=_WIDE.hosts,
            kind="StatefulSet",
        )
        self._wide.append(stateful)
        pods.sets += [stateful] if namespace == pods.namespace else []
        self._stage.agenda.after(self._rng.uniform(0.5, 30.0), stateful.kick)
        if namespace == HOSTILE_NAMESPACE:
            self._stage.agenda.after(self._rng.uniform(60.0, 120.0), lambda: self._scale_up(stateful))

    def _scale_up(self, stateful: WideSet) -> None:
        """Add a pod for which the slice has no host: the slice that runs must keep its pool."""
        self._stage.fault("hostile pods", "StatefulSet %s is scaled up", stateful.name)
        stateful.replicas += 1
        stateful.kick()

    def _act(self) -> None:
        rng, workloads = self._rng, self._cluster.workloads.values()
        if not self._stage.stormy:
            return
        self._stage.agenda.after(rng.uniform(2.0, 12.0), self._act)
        fronts = [run for run in self._sets if not run.deleting and run.name.startswith("front")]
        pools = {pod.pool for pod in self._guests if pod.node and not pod.gone}
        jobsets = [run for run in workloads if isinstance(run, JobSetRun) and run.restarts_left]
        victims = [run for run in jobsets if not pools.isdisjoint(run.last_pool.values())]
        honest = [run.shape for run in workloads if run.namespace != HOSTILE_NAMESPACE and run.shape.feasible]
        acts = ("guest", "guest", "guest", "front", "scale", "restart", "fail", "fail")
        match "guest" if self._open else rng.choice(acts):
            case "guest":
                self._come_guest(rng.choice([*honest, _WIDE]))
            case "front" if len(fronts) < 2:
                self._create("front", rng.choice([*honest, _WIDE]))
            case "scale" if fronts:
                self._cluster.sets.scale(rng.choice(fronts), rng.choice((0, 1, 2)))
            case "restart" if fronts:
                self._cluster.sets.restart_group(rng.choice(fronts), 0)
            case "fail" if victims:
                self._cluster.restart(rng.choice(victims), "a container fails")
            case _:
                pass

    def _create(self, name: str, shape: Shape) -> SetRun:
        run = SetRun(
            name=f"{name}-{len(self._sets)}",
            namespace=HOSTILE_NAMESPACE,
            exclusive=self._simulation.admission.exclusive(HOSTILE_NAMESPACE),
            uid=self._stage.store.new_uid("set"),
            shape=replace(shape, parallelism=shape.hosts + 1),
            replicas=1,
            leads_without_chips=True,
            created=self._stage.agenda.now,
        )
        self._sets.append(run)
        self._cluster.create(run)
        return run

    def _delete(self, run: SetRun) -> None:
        if not run.deleting:
            self._cluster.sets.delete(run, foreground=False)

    def _come_guest(self, shape: Shape) -> None:
        """Create a LeaderWorkerSet and a pod with the name of its leader; add the leader's labels within 15 s."""
        name, template = f"guest-{len(self._sets)}-0", Template(shape=replace(shape, chips=0))
        pod = new_pod(self._cluster, template, name, HOSTILE_NAMESPACE, {})
        self._stage.fault("hostile pods", "guest %s", pod.name)
        self._cluster.add_plain(pod)
        self._guests.append(pod)
        run = self._create("guest", shape)

        def claim() -> None:
            if not pod.gone:
                pod.metadata = run.marks(0, 0)
                self._cluster.show(pod)

        self._stage.agenda.after(self._rng.uniform(1.0, 15.0), claim)
        seconds = self._rng.uniform(*_GUEST_SECONDS)
        if not self._open:
            self._stage.agenda.after(seconds, lambda: self._cluster.terminate(pod))
        self._stage.agenda.after(seconds, lambda: self._delete(run))
