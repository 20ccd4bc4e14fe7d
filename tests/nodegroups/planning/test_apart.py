"""An object that a mistake of ours keeps from being decided on costs no other its turn, and loses nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.nodegroups.api.specs import WorkloadPolicySpec
from provisioner.nodegroups.api.statuses import Reason, condition_of
from provisioner.nodegroups.api.types import Kind, ObjectMeta, WorkloadPolicy
from provisioner.nodegroups.planning import events
from provisioner.nodegroups.planning.decide import decide
from provisioner.nodegroups.planning.memory import Memory
from rehearsal.simulators.compute.records import Loss
from tests.nodegroups.simulation.world import SETTINGS, World, make_group, ready_world

pytestmark = pytest.mark.timeout(40)


def test_the_others_are_decided_on_as_ever() -> None:
    """The condition says that it is a mistake; people are told once; when it is mended the group becomes ready."""
    world = World()
    world.kube.poisoned.add("bad")
    for name in ("bad", "good"):
        world.kube.create_group(make_group(name, topology="2x4"))
    world.wait_until(lambda: world.is_ready("good"), within_seconds=300.0)
    assert world.reason("bad") == Reason.RECONCILE_ERROR
    assert "a mistake in the provisioner" in world.message("bad")
    assert "AttributeError" in world.message("bad")
    assert {crashed.object.name for crashed in world.process.crashed} == {"bad"}
    world.wait(1800.0)
    warnings = [event for event in world.process.events if event.object.name == "bad"]
    assert [event.reason for event in warnings] == [Reason.RECONCILE_ERROR]
    world.kube.poisoned.clear()
    world.wait_until(lambda: world.is_ready("bad"), within_seconds=300.0)


def test_what_is_known_of_it_is_kept() -> None:
    """Neither reading nor listing is forgotten, nothing is made twice, and the other group is served on."""
    world = ready_world("bad", "good", topology="2x4")
    before = dict(world.process.memory.resources)
    world.kube.poisoned.add("bad")
    world.wait(60.0)
    assert world.reason("bad") == Reason.RECONCILE_ERROR
    assert world.process.memory.resources.keys() == before.keys()
    world.take_down("good", within_seconds=600.0)
    assert len(world.machines("bad")) == 2
    world.kube.poisoned.clear()
    world.wait_until(lambda: world.is_ready("bad"), within_seconds=600.0)
    assert world.process.calls["Insert"] == 6


def test_the_others_are_made_under_a_limit_of_machines() -> None:
    """Whose turn it is depends on every managed instance group of the cluster, also on one of another namespace."""
    world = ready_world("bad", settings=replace(SETTINGS, machines_per_namespace=100), topology="2x4")
    world.kube.poisoned |= {key[2] for key in world.kube.cached if key[0] == Kind.MANAGED_INSTANCE_GROUP}
    world.kube.create_group(make_group("good", topology="2x4"))
    world.wait_until(lambda: world.is_ready("good"), within_seconds=300.0)


def test_a_slice_that_is_being_made_anew_stays_one() -> None:
    """The reason Recreating decides which machines are to go: it is kept."""
    world = ready_world("bad", topology="2x4")
    old = {vm.name for vm in world.machines("bad")}
    world.cloud.lose(world.machines("bad")[0], Loss.PREEMPTED)
    world.wait_until(lambda: world.reason("bad") == Reason.RECREATING, step_seconds=0.01)
    world.kube.poisoned.add("bad")
    world.wait(30.0)
    assert world.reason("bad") == Reason.RECREATING
    assert "a mistake in the provisioner" in world.message("bad")
    world.kube.poisoned.clear()
    world.wait_until(lambda: world.is_ready("bad"))
    assert old.isdisjoint(vm.name for vm in world.machines("bad"))


def test_a_child_of_nobody_is_set_apart_too() -> None:
    """It says so in its own condition."""
    world = ready_world("good", topology="2x4")
    key = (Kind.WORKLOAD_POLICY, "default", "bad")
    spec = WorkloadPolicySpec(project="project-1", region="us-central1", accelerator_topology="4x4")
    meta = ObjectMeta(namespace="default", name="bad", uid="bad")
    world.kube.poisoned.add("bad")
    world.kube._put(key, WorkloadPolicy(meta=meta, spec=spec))
    world.wait(60.0)
    ready = condition_of(world.kube.objects[key].status.conditions, "Ready")
    assert ready is not None
    assert (ready.reason, ready.status.value) == (Reason.RECONCILE_ERROR, "False")
    assert world.is_ready("good")


def test_where_not_even_the_condition_can_be_made_the_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the log alone tells."""
    world = World()
    world.kube.create_group(make_group("bad"))
    world.wait(1.0)
    snapshot = world.kube.snapshot(frozenset())
    [group] = snapshot.groups
    other = replace(group, meta=replace(group.meta, name="other", uid="other", finalizers=()))
    snapshot = replace(snapshot, groups=(replace(group, spec=None), other))

    def fails(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(events, "propose", fails)
    plan = decide(snapshot, Memory(), SETTINGS, world.stage.wall())
    assert [write.key for write in plan.writes] == ["TPUNodeGroup default/other"]
    assert [crashed.object.name for crashed in plan.crashed] == ["bad"]
