"""The condition of a group names a missing permission in Google Cloud; after the grant, the group makes progress."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner.model.capacity import Failure, FailureKind
from provisioner.nodegroups.api.statuses import ConditionStatus, ConditionType, Reason, condition_of, is_true
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute.records import ComputeError
from tests.nodegroups.simulation.world import SETTINGS, World, make_group, ready_world
from tests.support.nodegroup_rights import ACT_AS, METHODS, NEEDED

#: Maximum time in seconds until a condition names the missing permission.
_TOLD_WITHIN_SECONDS = 300.0
#: Time in seconds for which the permission is missing: longer than the longest wait between two attempts.
_AWAY_SECONDS = 1200.0
_DELETES = {
    "compute.instanceGroupManagers.delete": Reason.DELETING_MIG,
    "compute.instances.delete": Reason.DELETING_MIG,
    "compute.instanceTemplates.delete": Reason.DELETING_TEMPLATE,
    "compute.resourcePolicies.delete": Reason.DELETING_POLICY,
}
_READS = {
    "compute.instanceGroupManagers.get": Reason.DELETING_MIG,
    "compute.instanceGroupManagers.list": Reason.DELETING_MIG,
    "compute.instanceTemplates.get": Reason.DELETING_TEMPLATE,
    "compute.resourcePolicies.get": Reason.DELETING_POLICY,
}


_NAMED = "Required '{}' permission"


def _is_told(world: World, permission: str) -> bool:
    return _NAMED.format(permission) in world.message("train")


def test_controller_calls_only_the_documented_methods() -> None:
    world, called = World(), set()
    handle = world.cloud.api.handle

    def recorded(found: Any, request: Any) -> Any:
        called.add(found.method)
        return handle(found, request)

    world.cloud.api.handle = recorded
    world.make("train", topology="2x4")
    world.take_down("train")
    assert called == METHODS


@pytest.mark.parametrize("permission", sorted(NEEDED - _DELETES.keys()))
def test_group_is_created_after_a_missing_permission_is_granted(permission: str) -> None:
    # Machines without tokens are not recreated, although they do not join in time.
    world = World(settings=replace(SETTINGS, join_seconds=_AWAY_SECONDS / 4))
    world.deny(permission)
    world.kube.create_group(make_group("train", topology="2x4"))
    world.wait_until(lambda: _is_told(world, permission), within_seconds=_TOLD_WITHIN_SECONDS)
    assert world.reason("train") == Reason.REQUEST_REJECTED
    if permission != ACT_AS:
        assert "Grant the provisioner's identity" in world.message("train")
    assert Reason.REQUEST_REJECTED in {event.reason for event in world.process.events}
    world.wait(_AWAY_SECONDS)
    assert _is_told(world, permission)
    machines = {vm.name for vm in world.machines("train")}
    world.deny()
    world.wait_until(lambda: world.is_ready("train"), within_seconds=900.0)
    assert machines <= {vm.name for vm in world.machines("train")}
    world.take_down("train")
    world.check_nothing_left()


@pytest.mark.parametrize("permission", [read for read in _READS if "Managers" in read])
def test_restarted_process_names_the_missing_permission_of_a_group_that_waits(permission: str) -> None:
    """The status is Unknown, because with PROVIDER=gce a group is deleted if Ready is False after a rejection."""
    world = World()
    world.cloud.limit(0)
    world.kube.create_group(make_group("train", topology="2x4"))
    world.wait_until(lambda: world.reason("train") == Reason.INSTANCES_CREATION_FAILED)
    world.deny(permission)
    world.restart()
    world.wait_until(lambda: _is_told(world, permission), within_seconds=_TOLD_WITHIN_SECONDS)
    ready = condition_of(world.group().status.conditions, ConditionType.READY)
    assert ready is not None
    assert (ready.status, ready.reason) == (ConditionStatus.UNKNOWN, Reason.REQUEST_REJECTED)
    world.cloud.limit(None)
    world.deny()
    world.wait_until(lambda: world.is_ready("train"), within_seconds=1200.0)


@pytest.mark.parametrize("permission", [read for read in _READS if "Managers" in read])
def test_restarted_process_keeps_a_ready_group_and_names_the_missing_permission(permission: str) -> None:
    world = ready_world(topology="2x4")
    world.deny(permission)
    world.restart()
    world.wait_until(
        lambda: any(_NAMED.format(permission) in condition.message for condition in world.group().status.conditions)
    )
    assert world.is_ready("train")
    world.deny()
    world.wait_until(lambda: all(map(is_true, world.group().status.conditions)))
    assert set(world.process.writes) == {"PatchStatus"}


@pytest.mark.parametrize(("permission", "reason"), (_READS | _DELETES).items())
def test_group_is_deleted_after_a_missing_permission_is_granted(permission: str, reason: Reason) -> None:
    world = ready_world(topology="2x4")
    world.deny(permission)
    world.restart()
    world.delete_group("train")
    world.wait_until(lambda: _is_told(world, permission), within_seconds=_TOLD_WITHIN_SECONDS)
    assert world.reason("train") == reason
    world.wait(_AWAY_SECONDS)
    assert _is_told(world, permission)
    world.deny()
    world.wait_until(lambda: not world.kube.all(Kind.TPU_NODE_GROUP))
    world.check_nothing_left()


def test_unreachable_compute_engine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ComputeError(Failure(kind=FailureKind.UNAVAILABLE, message="Connection refused."))

    def is_told() -> bool:
        return any(
            "cannot be read: Connection refused." in condition.message for condition in world.group().status.conditions
        )

    world = World()
    with monkeypatch.context() as unreachable:
        unreachable.setattr(world.cloud, "call", fail)
        world.kube.create_group(make_group("train", topology="2x4"))
        world.wait_until(is_told, within_seconds=60.0)
    world.wait_until(lambda: world.is_ready("train"))
    world.wait(60.0)
    monkeypatch.setattr(world.cloud, "call", fail)
    world.restart()
    world.wait(600.0)
    assert all(map(is_true, world.group().status.conditions))
    world.delete_group("train")
    world.wait_until(is_told, within_seconds=60.0)


@pytest.mark.parametrize("permission", ["compute.instances.list", "compute.instances.setMetadata"])
def test_only_lasting_rejection_of_tokens_is_a_failure(permission: str) -> None:
    """With PROVIDER=gce, a failed group is deleted, and may not get machines again, so one rejection is no failure."""
    world = World()
    world.kube.create_group(make_group("train", topology="2x4"))
    world.wait_until(lambda: len(world.machines("train")) == 2, step_seconds=0.25)
    world.deny(permission)
    world.wait_until(lambda: world.reason("train") == Reason.REQUEST_REJECTED)
    statuses = set()
    for seconds in (10.0, 300.0):
        world.wait(seconds)
        ready = condition_of(world.group().status.conditions, ConditionType.READY)
        assert ready is not None
        statuses.add((seconds, ready.status, ready.reason))
    assert statuses == {
        (10.0, ConditionStatus.UNKNOWN, Reason.REQUEST_REJECTED),
        (300.0, ConditionStatus.FALSE, Reason.REQUEST_REJECTED),
    }


def test_machines_whose_tokens_compute_engine_does_not_accept_are_not_recreated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ComputeError(Failure(kind=FailureKind.UNAVAILABLE, message="try again"))

    world = World(settings=replace(SETTINGS, join_seconds=300.0))
    world.kube.create_group(make_group("train", topology="2x4"))
    world.wait_until(lambda: len(world.machines("train")) == 2, step_seconds=0.25)
    monkeypatch.setattr(world.cloud.client, "set_metadata", fail)
    # Longer than the 300 s in which machines must join.
    world.wait(1200.0)
    monkeypatch.undo()
    world.wait_until(lambda: world.is_ready("train"), within_seconds=900.0)
    assert world.group("train").status.recreated_at == ()
