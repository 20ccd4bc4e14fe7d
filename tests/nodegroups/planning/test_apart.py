"""An object whose decision raises an exception does not affect other objects, and loses no state."""

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


def test_other_groups_are_served_if_a_decision_raises() -> None:
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


def test_memory_of_a_group_is_kept_if_its_decision_raises() -> None:
    """Without the memory, resources would be read again, and failed calls repeated without their back-off."""
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


def test_other_groups_are_created_under_a_limit_if_a_decision_raises() -> None:
    """The order of groups under the limit is computed from all groups, and must not fail because of one of them."""
    world = ready_world("bad", settings=replace(SETTINGS, machines_per_namespace=100), topology="2x4")
    world.kube.poisoned |= {key[2] for key in world.kube.cached if key[0] == Kind.MANAGED_INSTANCE_GROUP}
    world.kube.create_group(make_group("good", topology="2x4"))
    world.wait_until(lambda: world.is_ready("good"), within_seconds=300.0)


def test_slice_is_recreated_after_its_decision_raised() -> None:
    """The condition keeps the reason Recreating, because the old machines are deleted only with this reason."""
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


def test_child_without_a_group_is_reported_if_its_decision_raises() -> None:
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


def test_other_groups_are_served_if_reporting_an_exception_raises(monkeypatch: pytest.MonkeyPatch) -> None:
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
