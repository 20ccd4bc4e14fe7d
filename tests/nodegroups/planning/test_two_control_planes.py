"""A control plane that was restored from a backup, next to the original, must not delete the original's machines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner.model.writes import AnsweredCall
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.specs import ManagedInstanceGroupSpec, ProvisioningModel
from provisioner.nodegroups.api.statuses import ConditionType, Reason, condition_of
from provisioner.nodegroups.api.types import Kind, ManagedInstanceGroup, ObjectMeta
from provisioner.nodegroups.compute.records import Manager, Scope
from provisioner.nodegroups.planning import decide as deciding
from provisioner.nodegroups.planning import strays
from provisioner.nodegroups.planning.actions import ListManagers, Target
from provisioner.nodegroups.planning.memory import Memory, ResourceMemory, fold
from provisioner.nodegroups.planning.round import Cluster, Node, Snapshot, begin_round
from rehearsal.simulators.compute.records import Loss
from tests.nodegroups.simulation.cluster import FACTS, Kube
from tests.nodegroups.simulation.process import Process
from tests.nodegroups.simulation.world import SETTINGS, World, ready_world
from tests.support.clock import NOW

pytestmark = pytest.mark.timeout(40)


def ready_node(*, minutes: float, **fields: Any) -> Node:
    return Node(**{"name": "n", "uid": "u", "ready": True, "created_at": NOW - timedelta(minutes=minutes), **fields})


KEY = (Kind.TPU_NODE_GROUP, "default", "train")


@dataclass(slots=True, kw_only=True)
class Worlds:
    """The original control plane, whose machines run pods, and a copy of it from a backup."""

    world: World
    copy: Kube

    @classmethod
    def begin(cls) -> Worlds:
        world = ready_world(topology="2x4")
        world.run_pods("train")
        copy = Kube(stage=world.stage)
        copy.objects = dict(world.kube.objects)
        copy.recache()
        # Machines report only to the original, so no machine exists for the copy.
        copy.machine = lambda _name: None
        copy.on_change = Process(world.stage, copy, world.cloud, SETTINGS).wake
        made, silent_since = cls(world=world, copy=copy), world.stage.wall()
        world.stage.after(40.0, lambda: made.change_nodes(ready=False, silent_since=silent_since))
        world.stage.after(340.0, made.evict)
        return made

    def change_nodes(self, **changes: Any) -> None:
        for node in self.copy.all("Node"):
            self.copy.change_node(node.name, **changes)

    def evict(self) -> None:
        for pod in self.copy.all("Pod"):
            self.copy.evict(pod, grace=timedelta(seconds=30))

    @property
    def message(self) -> str:
        group = self.copy.group("train")
        ready = condition_of(group.status.conditions, ConditionType.READY) if group is not None else None
        return f"{ready.reason}: {ready.message}" if ready is not None else ""


@pytest.fixture
def worlds() -> Worlds:
    return Worlds.begin()


def test_managed_instance_group_without_an_object_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that were created after a backup have no objects after its restore, but their machines cost money."""
    world = World()
    found: list[tuple[str, ...] | None] = []
    project = "project-1"
    decide = deciding.decide

    def recording(*arguments: Any) -> deciding.Plan:
        plan = decide(*arguments)
        listed = plan.strays.get(project)
        found.append(None if listed is None else tuple(manager.name for manager in listed))
        return plan

    monkeypatch.setattr(deciding, "decide", recording)
    before = dict(world.kube.objects)
    world.make("train", "other", topology="2x2")
    world.wait(7200.0)
    assert set(found) == {None, ()}
    (stray,) = (group.name for group in world.cloud.groups() if group.name.startswith("train-"))
    for key in [key for key in world.kube.objects if key[2].startswith("train") and key not in before]:
        world.kube.objects.pop(key)
    world.restart()
    world.wait(10.0)
    assert set(found) == {None, ()}
    world.wait(600.0)
    assert set(found) == {None, (), (stray,)}
    world.wait(7200.0)
    assert found.count((stray,)) < 100
    assert [group.name for group in world.cloud.groups() if group.name == stray] == [stray]


def test_copy_recreates_no_slice_whose_nodes_report_to_the_original(worlds: Worlds) -> None:
    """In an earlier version, the copy deleted the machines under running pods after nine minutes."""
    machines = worlds.world.machines("train")
    worlds.world.wait(3 * 3600.0)
    assert worlds.world.machines("train") == machines
    assert worlds.world.is_ready("train")
    assert worlds.message.startswith(f"{Reason.NODE_LOST}: node ")
    assert "its machine may work for another control plane with the same backup" in worlds.message


@pytest.mark.parametrize(
    "later_seconds", [120, 150, *(pytest.param(later, marks=pytest.mark.nightly) for later in (130, 140, 160, 170))]
)
def test_copy_does_not_change_a_slice_that_the_original_recreates(later_seconds: int) -> None:
    """The copy has only nodes of the old machines, and may list machines at a time when none exists."""
    worlds = Worlds.begin()
    worlds.world.wait(later_seconds)
    worlds.world.kube.finish_pods(*(pod.name for pod in worlds.world.kube.all("Pod")))
    worlds.world.cloud.lose(worlds.world.machines("train")[0], Loss.PREEMPTED)
    worlds.world.wait_until(lambda: not worlds.world.is_ready("train"))
    worlds.world.wait_until(lambda: worlds.world.is_ready("train"))
    machines = {machine.number for machine in worlds.world.machines("train")}
    worlds.world.run_pods("train")
    worlds.world.wait(3 * 3600.0)
    assert {machine.number for machine in worlds.world.machines("train")} == machines
    assert worlds.world.is_ready("train")


def test_group_deleted_in_the_copy_keeps_its_machines_until_the_annotation_force(worlds: Worlds) -> None:
    worlds.world.wait(400.0)
    worlds.copy.delete(KEY)
    worlds.world.wait(7200.0)
    assert len(worlds.world.machines("train")) == 2
    assert "its machine may work for another control plane" in worlds.message
    worlds.world.kube.finish_pods(*(pod.name for pod in worlds.world.kube.all("Pod")))
    worlds.copy.annotate("train", names.FORCE, "true")
    worlds.world.wait_until(lambda: not worlds.world.machines("train"))


def test_copy_that_takes_over_the_machines_keeps_them(worlds: Worlds) -> None:
    worlds.world.process.kill()
    worlds.world.wait(3600.0)
    worlds.change_nodes(ready=True, silent_since=None)
    worlds.world.wait(3600.0)
    assert len(worlds.world.machines("train")) == 2
    assert worlds.message == f"{Reason.READY}: "


def test_slice_is_recreated_when_its_silent_nodes_have_been_deleted(worlds: Worlds) -> None:
    """The message requests this deletion, because only a user knows that no other control plane uses the machines."""
    worlds.world.process.kill()
    worlds.world.kube.finish_pods(*(pod.name for pod in worlds.world.kube.all("Pod")))
    worlds.world.wait(3600.0)
    before = {machine.number for machine in worlds.world.machines("train")}
    for node in worlds.copy.all("Node"):
        worlds.copy.drop_node(node.name)
    worlds.world.wait(3600.0)
    assert not before & {machine.number for machine in worlds.world.machines("train")}


@pytest.mark.parametrize("node_count", [None, 2], ids=["slice", "several slices"])
def test_machines_lost_while_the_control_plane_was_unavailable_are_replaced(node_count: int | None) -> None:
    """Nodes of another group report again, so the control plane is no copy, and no user has to repair the group."""
    world = ready_world("other", topology="2x2")
    spot = ProvisioningModel.SPOT
    world.make("train", topology="2x2" if node_count else "2x4", node_count=node_count, provisioning_model=spot)
    world.wait(600.0)
    before = {machine.number for machine in world.machines("train")}
    silent_since = world.stage.wall()
    for machine in world.machines("train"):
        world.cloud.lose(machine, Loss.PREEMPTED)
        world.kube.change_node(machine.name, ready=False, silent_since=silent_since)
    world.wait(3600.0)
    assert world.is_ready("train")
    assert not before & {machine.number for machine in world.machines("train")}


def test_group_of_several_slices_shows_why_its_silent_nodes_are_kept() -> None:
    world = ready_world(topology="2x2", node_count=2)
    for node in world.kube.all("Node"):
        world.kube.change_node(node.name, ready=False, silent_since=world.stage.wall())
    world.wait(600.0)
    assert "may work for another control plane with the same backup" in world.message("train")


@pytest.mark.parametrize(
    ("nodes", "running_seconds", "want"),
    [
        pytest.param((ready_node(minutes=9), ready_node(minutes=5)), 300.0, 9, id="the older node that reports"),
        pytest.param((ready_node(minutes=5, ready=False),), 300.0, None, id="a node that does not report"),
        pytest.param((ready_node(minutes=5, labels={names.CONTROL_PLANE: ""}),), 300.0, None, id="the control plane"),
        pytest.param((ready_node(minutes=5),), 299.0, None, id="a node that may not have reported since a restore"),
    ],
)
def test_oldest_ready_node_shows_that_the_cluster_is_no_copy(
    nodes: tuple[Node, ...], running_seconds: float, want: float | None
) -> None:
    memory = Memory(began_at=NOW - timedelta(seconds=running_seconds))
    ctx = begin_round(Snapshot(cluster=Cluster(uid="c"), nodes=nodes), memory, SETTINGS, NOW)
    assert ctx.oldest_ready == (NOW - timedelta(minutes=want) if want is not None else None)


@pytest.mark.parametrize(
    ("own", "want"),
    [
        pytest.param((set(), set(), set()), ("m",), id="no object"),
        pytest.param((set(), {"m"}, set()), (), id="an object at the second list"),
        pytest.param(({"m"}, set(), set()), (), id="an object at the first list"),
        pytest.param((set(), set(), {"m"}), (), id="an object now"),
    ],
)
def test_group_is_an_orphan_if_it_has_no_object_at_two_lists(own: tuple[set[str], ...], want: tuple[str, ...]) -> None:
    """A list may contain a managed instance group that is being deleted together with its object."""
    *at_lists, now = own
    mark = f"tpu-provisioner: TPUNodeGroup default/m uid u cluster {FACTS.uid}"
    stray = Manager(name="m", description=mark, url="u", template="t", target_size=1)
    target = Target(uid="project a", namespace="", kind=Kind.MANAGED_INSTANCE_GROUP, scope=Scope(project="a"), name="")
    memory = Memory(resources={target.uid: ResourceMemory()})
    for names_ in at_lists:
        call = ListManagers(target=target, own=frozenset(names_))
        memory = fold(memory, AnsweredCall(call=call, asked_at=NOW, at=NOW, result=(stray,)))
    meta = ObjectMeta(namespace="default", name="m", uid="m")
    spec = ManagedInstanceGroupSpec(project="a", location="z", instance_template="t", target_size=1)
    managers = tuple(ManagedInstanceGroup(meta=meta, spec=spec) for _ in now)
    settings = replace(SETTINGS, projects=("a", "b"))
    ctx = begin_round(Snapshot(cluster=FACTS, managers=managers), memory, settings, NOW)
    found = strays.find(strays.known(ctx), ctx)
    assert {project: tuple(manager.name for manager in listed) for project, listed in found.items()} == {"a": want}
