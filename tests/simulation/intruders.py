"""A hostile tenant with pods without a workload, in most runs with a team of Deployments.

Its pods are of one to three kinds in each run: pods with forged owners, pods that squat on nodes of other namespaces,
many alike pods, pods with different requests, pods that fit no host, and pods that are deleted and recreated
repeatedly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner.kube.protocol import JsonObject
from tests.simulation.deployments import Controller, Template, new_pod
from tests.simulation.objects import HOSTILE_NAMESPACE, PodRun

if TYPE_CHECKING:
    from tests.simulation.podteam import PodTeam
    from tests.simulation.run import Simulation

_CHANCE = 0.7
_KINDS = ("forges owners", "squats", "crowd", "distinct", "misfits", "predicted misfits", "flaps")
_CROWD, _DISTINCT = (18, 40), 10
#: Requests for a resource that only the scheduler knows to be missing, and requests that exceed every machine.
_UNKNOWN, _PREDICTED = {"example.com/fuse": "1"}, {"memory": "4000Gi"}
#: Seconds until a bare pod ends, and seconds between deletes of a pod that is recreated.
_SQUATS_SECONDS, _FLAPS_SECONDS = (20.0, 400.0), (2.0, 40.0)
#: Seconds between deletes of pods that fit no host; such a pod counts as refused after 60 s at the earliest.
_REPLACED_SECONDS = (100.0, 900.0)
#: Minimum seconds for which the tenant stays after the storm; 3600 s include retries for misfits after 40 minutes.
_STAYS_SECONDS = (300.0, 300.0, 600.0, 600.0, 3600.0)


class Intruders:
    """The hostile tenant of one run."""

    def __init__(self, simulation: Simulation, team: PodTeam) -> None:
        self._simulation, self._stage, self._team = simulation, simulation.stage, team
        self._rng = rng = team.rng
        present = rng.random() < _CHANCE
        self._kinds = rng.sample(_KINDS, k=rng.choice((1, 2, 3))) if present else []
        self._stays_until = 0.0
        self._gone = False
        self._controllers: list[Controller] = []
        self._bare: list[PodRun] = []

    @property
    def done(self) -> bool:
        return self._stage.agenda.now >= self._stays_until

    def begin(self) -> None:
        if not self._stage.stormy or not self._kinds:
            return
        for kind in self._kinds:
            if kind in ("squats", "forges owners", "flaps"):
                self._stage.agenda.after(self._rng.uniform(1.0, 60.0), lambda kind=kind: self._come(kind))

    def begin_calm(self) -> None:
        """Start the hostile pods of the run, 110 to 250 s after the storm."""
        if not self._kinds:
            return
        self._stays_until = self._stage.agenda.now + self._rng.choice(_STAYS_SECONDS)
        for kind in self._kinds:
            self._stage.agenda.after(self._rng.uniform(110.0, 250.0), lambda kind=kind: self._come(kind))

    def leave(self) -> None:
        self._gone = True
        if self._kinds:
            self._stage.note("mallory", "leaves")
        for controller in self._controllers:
            controller.replicas = 0
            controller.kick()
        for pod in self._bare:
            self._simulation.cluster.terminate(pod)

    def _come(self, kind: str) -> None:
        if self._gone:
            return
        self._stage.fault("hostile pods", kind)
        match kind:
            case "forges owners":
                self._forge()
            case "squats":
                self._squat()
            case "crowd":
                self._control("crowd", self._rng.randint(*_CROWD))
            case "distinct":
                for number in range(_DISTINCT):
                    self._control(f"distinct-{number}", 1, requests={"cpu": f"{100 + number}m"})
            case "misfits":
                fuse = self._control("fuse", self._rng.choice((1, 3)), requests=_UNKNOWN, bindable=False)
                self._flap(fuse, _REPLACED_SECONDS)
            case "predicted misfits":
                self._control("fits-none", 3, requests=_PREDICTED, bindable=False)
            case _:
                self._flap(self._control("flaps", self._rng.choice((1, 4))), _FLAPS_SECONDS)

    def _template(self, **options: object) -> Template:
        annotated = self._team.serve_pods == "annotated" and self._rng.random() < 0.7
        return Template(shape=self._team.shape, annotated=annotated, **options)  # type: ignore[arg-type]

    def _control(self, name: str, replicas: int, **options: object) -> Controller:
        controller = Controller(
            cluster=self._simulation.cluster,
            rng=self._rng,
            name=name,
            namespace=HOSTILE_NAMESPACE,
            uid=self._stage.store.new_uid("replicaset"),
            template=self._template(**options),
            replicas=replicas,
        )
        self._controllers.append(controller)
        controller.kick()
        return controller

    def _flap(self, controller: Controller, interval_seconds: tuple[float, float]) -> None:
        """Delete pods of a controller repeatedly; the controller replaces them."""
        if self._gone:
            return
        if active := controller.active:
            self._simulation.cluster.terminate(self._rng.choice(active))
        pause = self._rng.uniform(*interval_seconds)
        self._stage.agenda.after(pause, lambda: self._flap(controller, interval_seconds))

    def _squat(self) -> None:
        """Create a pod that tolerates every taint, and repeat this every 10 to 90 s."""
        if self._gone:
            return
        self._add_bare({}, tolerates_all=True)
        self._stage.agenda.after(self._rng.uniform(10.0, 90.0), self._squat)

    def _forge(self) -> None:
        """Create a pod with a forged owner reference, and repeat this every 10 to 60 s."""
        if self._gone:
            return
        rng = self._rng
        victims = [
            (controller.kind, controller.name, controller.uid, "apps/v1") for controller in self._team.controllers()
        ]
        workloads = self._simulation.cluster.workloads.values()
        victims += [
            (workload.kind.value, workload.name, workload.uid, workload.kind.api_version) for workload in workloads
        ]
        victims.append(("Job", "nobody", "job-of-nobody", "batch/v1"))
        kind, name, uid, version = rng.choice(victims)
        kind, version = rng.choice(((kind, version), ("Job", "batch/v1"), ("x" * 300, "v1")))
        reference = {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}
        self._add_bare({"ownerReferences": [reference]})
        self._stage.agenda.after(rng.uniform(10.0, 60.0), self._forge)

    def _add_bare(self, metadata: JsonObject, **options: object) -> None:
        cluster = self._simulation.cluster
        template = self._template(**options)
        pod = new_pod(cluster, template, cluster.new_name("bare"), HOSTILE_NAMESPACE, metadata)
        if cluster.add_plain(pod):
            self._bare = [*(bare for bare in self._bare if not bare.gone), pod]
            self._stage.agenda.after(self._rng.uniform(*_SQUATS_SECONDS), lambda: self._end(pod))

    def _end(self, pod: PodRun) -> None:
        if pod.gone or pod.deadline is not None:
            return
        if pod.node and self._rng.random() < 0.3:
            self._simulation.cluster.end(pod, "Succeeded")
        else:
            self._simulation.cluster.terminate(pod)
