"""A cluster, a cloud and a controller in virtual time, and invariants that hold in every run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.specs import BootstrapConfig, InstanceConfig, TpuNodeGroupSpec
from provisioner.nodegroups.api.statuses import Condition, ConditionStatus, ConditionType, condition_of
from provisioner.nodegroups.api.types import Kind, ObjectMeta, TpuNodeGroup
from provisioner.nodegroups.planning.actions import Proof
from provisioner.nodegroups.planning.round import PlanningSettings, Pod
from rehearsal.simulators.compute.records import MachineView, Resource
from tests.nodegroups.simulation.cloud import ZONE, Cloud
from tests.nodegroups.simulation.cluster import FACTS, Kube
from tests.nodegroups.simulation.process import Process
from tests.support.simulations.stage import Stage

SETTINGS = PlanningSettings(project_id="project-1", startup_script="#!/bin/bash", device_plugin_version="v1")
READY = ConditionType.READY
_ROUNDS_OF_A_CRASHING_PROCESS = (2, 5)


def make_group(name: str, *, topology: str = "4x4", node_count: int | None = None, **terms: Any) -> TpuNodeGroup:
    return TpuNodeGroup(
        meta=ObjectMeta(namespace="default", name=name, uid=""),
        spec=TpuNodeGroupSpec(
            project="project-1",
            node_location=ZONE,
            node_count=node_count,
            topology=topology,
            instance_config=InstanceConfig(
                machine_type="ct6e-standard-4t", image="projects/project-1/global/images/tpu", **terms
            ),
            bootstrap_kubernetes=BootstrapConfig(),
        ),
    )


class World:
    """Compute Engine, Kubernetes and the controller's process of one run."""

    def __init__(self, seed: int = 0, *, settings: PlanningSettings = SETTINGS, recording: bool = False) -> None:
        self.stage = Stage(seed, recording=recording)
        self.stage.stormy = False
        self.settings = settings
        self.cloud = Cloud(self.stage)
        self.kube = Kube(stage=self.stage)
        self.kube.machine = self.cloud.machine
        self.cloud.on_running = self._boot
        self.cloud.on_stopped = lambda machine: self.kube.stop(machine.name)
        self.cloud.on_delete = self._check_delete
        self.fault_chance = self.loss_chance = 0.0
        #: Whether each process dies after 2 to 5 rounds.
        self.crash_looping = False
        self.process = self._start()
        self._expire_tokens()

    def wait(self, seconds: float) -> None:
        self.stage.agenda.wait(seconds)

    def wait_until(
        self, condition: Callable[[], bool], *, within_seconds: float = 1800.0, step_seconds: float = 1.0
    ) -> float:
        """Let time pass until a condition holds; return the seconds. Raises Violated after `within_seconds`."""
        began = self.stage.agenda.now
        while not condition():
            if self.stage.agenda.now - began > within_seconds:
                self.stage.violate(f"waited for {within_seconds:.0f} s in vain")
            self.wait(step_seconds)
        return self.stage.agenda.now - began

    def restart(self, **settings: Any) -> None:
        """Kill the process and start another one, with these settings changed."""
        self.stage.note("world", "restarts the process")
        self.settings = replace(self.settings, **settings)
        self.process.kill()
        self.process = self._start()

    def _start(self) -> Process:
        process = Process(self.stage, self.kube, self.cloud, self.settings)
        process.fault_chance, process.loss_chance = self.fault_chance, self.loss_chance
        if self.crash_looping:
            process.rounds_left = self.stage.rng.randint(*_ROUNDS_OF_A_CRASHING_PROCESS)
            process.on_death = lambda: self._start_after_death(process)
        self.kube.on_change = process.wake
        return process

    def _start_after_death(self, dead: Process) -> None:
        def start() -> None:
            if self.process is dead:
                self.process = self._start()

        self.stage.note("world", "the process has died")
        self.stage.after(self.stage.rng.uniform(0.5, 5.0), start)

    def make(self, *names: str, **spec: Any) -> None:
        for name in names:
            self.kube.create_group(make_group(name, **spec))
        self.wait_until(lambda: all(self.is_ready(name) for name in names))

    def take_down(self, name: str, *, within_seconds: float = 1800.0) -> None:
        self.delete_group(name)
        self.wait_until(lambda: self.kube.group(name) is None, within_seconds=within_seconds)

    def deny(self, *permissions: str) -> None:
        self.cloud.world.change_settings({"denied_permissions": permissions})

    def group(self, name: str = "train") -> TpuNodeGroup:
        group = self.kube.group(name)
        assert group is not None
        return group

    def is_ready(self, name: str) -> bool:
        ready = self._ready(name)
        return ready is not None and ready.status is ConditionStatus.TRUE

    def reason(self, name: str) -> str:
        ready = self._ready(name)
        return ready.reason if ready is not None else ""

    def message(self, name: str) -> str:
        ready = self._ready(name)
        return ready.message if ready is not None else ""

    def _ready(self, name: str) -> Condition | None:
        group = self.kube.group(name)
        return condition_of(group.status.conditions, READY) if group is not None else None

    def machines(self, name: str) -> list[MachineView]:
        return [machine for machine in self.cloud.machines() if machine.group.startswith(f"{name}-mig-")]

    def run_pods(self, name: str, *, chips: int = 4) -> list[str]:
        """Bind a pod to each usable node of a group; return the names of the pods of all machines."""
        pods = []
        for vm in self.machines(name):
            pod = Pod(namespace="default", name=f"pod-{vm.name}", uid=f"pod-{vm.number}", node=vm.name, chips=chips)
            self.kube.add_pod(pod)
            pods.append(pod.name)
        return pods

    def delete_group(self, name: str) -> None:
        self.kube.delete((Kind.TPU_NODE_GROUP, "default", name))

    def _check_delete(self, resource: Resource) -> None:
        """Check that a deleted resource names this cluster, and that no pods with chips run on its machines."""
        mark = names.parse_mark(resource.body.get("description", ""))
        groups = self.kube.all(Kind.TPU_NODE_GROUP)
        adopts = any(group.meta.annotations.get(names.ADOPT) for group in groups)
        if (mark is None or mark.cluster_uid != FACTS.uid) and not adopts:
            self.stage.violate(f"{resource.name} is deleted, and it does not carry our mark")
        forced = any(
            group.meta.deleting
            and group.meta.annotations.get(names.FORCE) == "true"
            and resource.name.startswith(f"{group.meta.name}-mig-")
            for group in groups
        )
        running = {vm.name for vm in self.cloud.machines() if vm.group == resource.name and vm.status == "RUNNING"}
        now, proof = self.stage.wall(), None
        for child in self.kube.all(Kind.MANAGED_INSTANCE_GROUP):
            if child.meta.name == resource.name:
                requested_at = child.meta.deleted_at
                proof = Proof(namespace="", name=resource.name, uid=child.meta.uid, requested_at=requested_at)
        for pod in self.kube.all("Pod"):
            over = pod.finished or (pod.deletion_deadline is not None and pod.deletion_deadline <= now)
            if pod.node in running and pod.holds_chips(proof) and not over and not forced:
                self.stage.violate(f"machine {pod.node} is deleted under pod {pod.name}")

    def check_nothing_left(self, *, foreign: int = 0) -> None:
        """Check that no object of a group and no node is left, and only `foreign` resources of other users."""
        left = [resource.name for resource in self.cloud.resources()]
        if len(left) != foreign:
            self.stage.violate(f"left in Compute Engine: {left}")
        kinds = ("TPUNodeGroup", "WorkloadPolicy", "InstanceTemplate", "ManagedInstanceGroup", "Secret", "Node")
        for kind in kinds:
            found = sorted(key[2] for key in self.kube.objects if key[0] == kind)
            if found:
                self.stage.violate(f"left in Kubernetes: {kind} {', '.join(found)}")

    def check_tokens_gone(self) -> None:
        if self.kube.all("Secret"):
            self.stage.violate("Secrets of tokens are left")
        if self.process.memory.machines:
            self.stage.violate("the metadata of machines that have joined is kept")

    def _boot(self, machine: MachineView) -> None:
        self.stage.after(self.stage.rng.uniform(1.0, 20.0), lambda: self.kube.join(machine.name))

    def _expire_tokens(self) -> None:
        self.kube.expire_tokens()
        self.stage.after(60.0, self._expire_tokens)


def ready_world(*names: str, settings: PlanningSettings = SETTINGS, **spec: Any) -> World:
    """Return a world with groups that have been ready for 60 s."""
    world = World(settings=settings)
    world.make(*(names or ("train",)), **spec)
    world.wait(60.0)
    return world
