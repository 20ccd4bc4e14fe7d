"""Reasons that keep the machines of a deleted group for a time, and the limit on recreations of a slice."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from provisioner.kube.fields import format_time
from provisioner.model import bounds
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.specs import InstanceConfig, InstanceTemplateSpec
from provisioner.nodegroups.api.statuses import ConditionType, Reason, TpuNodeGroupStatus, condition_of
from provisioner.nodegroups.api.types import InstanceTemplate, Kind, ObjectMeta, TpuNodeGroup
from provisioner.nodegroups.compute.records import ManagedInstance, Scope
from provisioner.nodegroups.planning.actions import (
    ApplyDevicePlugin,
    ApproveRequest,
    CreateToken,
    DeleteChild,
    DeleteDevicePlugin,
    DeleteNode,
    EvictPod,
    PatchNode,
    SetFinalizers,
    Write,
)
from provisioner.nodegroups.planning.repair import recorded, recreations
from provisioner.nodegroups.planning.round import Node, Pod
from rehearsal.simulators.compute.api import PERMISSIONS
from rehearsal.simulators.compute.records import Loss, MachineView
from tests.nodegroups.simulation.cloud import ZONE
from tests.nodegroups.simulation.cluster import Kube
from tests.nodegroups.simulation.world import SETTINGS, World, make_group, ready_world
from tests.support.clock import NOW

_REFUSED: dict[type[Write], str] = {
    PatchNode: "Node train-mig-",
    EvictPod: "Pod default/pod ",
    DeleteChild: "ManagedInstanceGroup default/train-mig-",
    DeleteNode: "Node train-mig-",
    SetFinalizers: "finalizers",
}
#: Time-out longer than the default, because some tests simulate several hours.
pytestmark = pytest.mark.timeout(40)


def test_pods_with_chips_keep_the_machines_until_the_annotation_force() -> None:
    """The disruption budget of the pods never allows their eviction."""
    world = ready_world(topology="2x4")
    world.kube.protected.update(world.run_pods("train"))
    world.delete_group("train")
    world.wait(3 * SETTINGS.drain_seconds)
    assert len(world.machines("train")) == 2
    assert all(node.unschedulable for node in world.kube.all("Node"))
    assert world.reason("train") == Reason.DRAINING_NODES
    assert "default/pod-train-mig-" in world.message("train")
    world.kube.annotate("train", names.FORCE, "true")
    world.wait_until(lambda: not world.kube.all(Kind.TPU_NODE_GROUP), within_seconds=600.0)
    world.check_nothing_left()


def test_pods_without_chips_keep_the_machines_until_the_deadline() -> None:
    """A disruption budget forbids the eviction of the pods, which keep the machines only until DRAIN_TIMEOUT."""
    world = ready_world(topology="2x4")
    world.kube.protected.update(world.run_pods("train", chips=0))
    world.delete_group("train")
    took = world.wait_until(lambda: not world.machines("train"), within_seconds=3 * SETTINGS.drain_seconds)
    assert SETTINGS.drain_seconds - 10 < took < SETTINGS.drain_seconds + 5


@pytest.mark.parametrize(
    ("namespace", "lost", "deleted", "limit_seconds"),
    [
        pytest.param("evil", False, True, 70.0, id="of another namespace"),
        pytest.param("evil", True, False, 520.0, id="of another namespace on a broken slice"),
        pytest.param("default", True, False, 520.0, id="of the group's namespace on a broken slice"),
        pytest.param("default", True, True, 120.0, id="of the group's namespace on a deleted broken slice"),
    ],
)
def test_pod_without_chips_keeps_foreign_or_broken_machines_for_a_minute(
    namespace: str, lost: bool, deleted: bool, limit_seconds: float
) -> None:
    """In an earlier version, a tenant's pod with a disruption budget kept another tenant's slice for an hour."""
    world = ready_world(topology="2x4")
    first, second = world.machines("train")
    world.kube.add_pod(Pod(namespace=namespace, name="squatter", uid="s", node=second.name, chips=0))
    world.kube.protected.add("squatter")
    if lost:
        world.cloud.lose(first, Loss.PREEMPTED)
        world.wait_until(lambda: not world.is_ready("train"))
    if deleted:
        world.delete_group("train")
        world.wait_until(lambda: not world.machines("train"), within_seconds=limit_seconds)
    else:
        world.wait_until(lambda: world.is_ready("train"), within_seconds=limit_seconds)


def test_pods_that_tolerate_the_cordon_do_not_keep_a_deleted_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller replaces each evicted pod, so the node would never be empty."""
    world = ready_world(topology="2x4")
    evict = Kube.evict

    def replacing(kube: Kube, pod: Pod, *, grace: timedelta) -> None:
        evict(kube, pod, grace=grace)
        name = f"{pod.name}x"
        kube.put_pod(replace(pod, name=name, uid=name, created_at=kube.stage.wall()))

    monkeypatch.setattr(Kube, "evict", replacing)
    node = world.machines("train")[0].name
    world.kube.add_pod(Pod(namespace="evil", name="p", uid="p", node=node, chips=1))
    world.kube.add_pod(Pod(namespace="evil", name="pending", uid="q", node=node, chips=1, started=False))
    world.kube.protected.add("pending")
    world.take_down("train")


@pytest.mark.parametrize(
    ("size", "reason", "advice"),
    [
        pytest.param(3, Reason.RECONCILE_ERROR, "delete-instances --instances=MACHINE", id="enlarged"),
        pytest.param(1, Reason.NODE_LOST, "resize --size=2", id="reduced"),
    ],
)
def test_resized_managed_instance_group_is_reported_until_its_size_is_restored(
    size: int, reason: Reason, advice: str
) -> None:
    """In an earlier version, the message was "2 of 1 nodes are ready"."""
    world = ready_world(topology="2x2", node_count=2)
    (group,) = world.cloud.groups()
    world.cloud.resize(group, size)
    world.wait(1200.0)
    assert world.reason("train") == reason
    (manager,) = world.kube.all(Kind.MANAGED_INSTANCE_GROUP)
    ready = condition_of(manager.status.conditions, ConditionType.READY)
    assert ready is not None
    assert f"was resized from 2 to {size} machines" in ready.message
    assert f"gcloud compute instance-groups managed {advice} --zone=us-central1-b {group.name}" in ready.message
    assert Reason.RECONCILE_ERROR in {event.reason for event in world.process.events if event.warning}
    world.cloud.resize(group, 2)
    world.wait_until(lambda: world.is_ready("train"), within_seconds=1800.0)


def test_status_says_that_compute_engine_deletes_the_machines() -> None:
    """In the past, the message stayed "its nodes are being cordoned" while Compute Engine deleted the machines."""
    world = ready_world(topology="2x4")
    world.cloud.world.change_settings({"operation_seconds": 600.0})
    world.delete_group("train")
    world.wait(60.0)
    assert world.reason("train") == Reason.DELETING_MIG
    assert world.message("train").endswith("is being deleted: Compute Engine is deleting the managed instance group")


def test_child_that_appears_after_its_finalizer_was_removed_is_deleted() -> None:
    """Otherwise a managed instance group whose create was in flight would keep its template, and so the group."""
    world = ready_world(topology="2x4")
    group = world.group("train")
    finalizers = tuple(finalizer for finalizer in group.meta.finalizers if finalizer != names.CLEANUP_MIG)
    world.kube.write(SetFinalizers(record=group, finalizers=finalizers))
    world.take_down("train", within_seconds=900.0)
    world.check_nothing_left()


def test_slice_is_not_recreated_more_often_than_the_setting_allows() -> None:
    world = ready_world(topology="2x4", settings=replace(SETTINGS, repairs_per_day=1))
    world.cloud.lose(world.machines("train")[0], Loss.PREEMPTED)
    world.wait_until(lambda: world.reason("train") == Reason.RECREATING)
    world.wait_until(lambda: world.is_ready("train"))
    world.wait(60.0)
    world.cloud.lose(world.machines("train")[0], Loss.PREEMPTED)
    world.wait_until(lambda: world.reason("train") == Reason.NODE_LOST)
    world.wait(2 * 3600.0)
    assert world.reason("train") == Reason.NODE_LOST
    assert "was recreated 1 times within a day, and will not be again before 2026-01-02T00:" in world.message("train")
    world.kube.annotate("train", names.RECREATIONS_RESET, "2026-01-01T02:30:00Z")
    world.wait_until(lambda: world.is_ready("train"))


@pytest.mark.parametrize(
    ("recreated_minutes", "reset_minutes", "counted"),
    [
        pytest.param(0, None, 1, id="no reset"),
        pytest.param(0, 1, 0, id="reset by a clock that is ahead"),
        pytest.param(0, 60, 1, id="reset in the future"),
        pytest.param(365 * 24 * 60, None, 0, id="recreation recorded while the clock was ahead"),
    ],
)
def test_recreations_are_counted_unless_they_are_reset_or_in_the_future(
    recreated_minutes: int, reset_minutes: int | None, counted: int
) -> None:
    """In an earlier version, a mistyped year of a reset lifted the limit, and the slice was recreated without end."""
    group = make_group("train")
    annotations = {}
    if reset_minutes is not None:
        annotations[names.RECREATIONS_RESET] = format_time(NOW + timedelta(minutes=reset_minutes))
    status = replace(group.status, recreated_at=(NOW + timedelta(minutes=recreated_minutes),))
    group = replace(group, meta=replace(group.meta, annotations=annotations), status=status)
    assert len(recreations(group, NOW)) == counted
    # A recorded time in the future would prevent recreations until that time.
    assert max(recorded(group, NOW)) == NOW


def test_slice_is_not_recreated_if_the_setting_is_zero() -> None:
    """A machine that must join again, as after `kubeadm reset`, gets a new token regardless of the setting."""
    world = ready_world(topology="2x4", settings=replace(SETTINGS, repairs_per_day=0))
    name = world.machines("train")[0].name
    world.kube.drop_node(name)
    world.wait(3600.0)
    assert world.reason("train") == Reason.NODE_LOST
    world.kube.join(name)
    world.wait_until(lambda: world.is_ready("train"))


def test_only_the_latest_recreations_that_the_crd_allows_are_recorded() -> None:
    """Otherwise the API server would reject the status."""
    moments = tuple(NOW - timedelta(minutes=minutes) for minutes in range(bounds.RECREATIONS, 0, -1))
    group = replace(make_group("train"), status=TpuNodeGroupStatus(recreated_at=moments))
    assert recorded(group, NOW) == (*moments[1:], NOW)


@pytest.mark.parametrize("listed", [0, 1])
def test_machines_that_are_not_listed_keep_pods_and_nodes(listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute Engine may list a machine late. The machines of a group older than an hour are listed every 300 s."""
    world = ready_world(topology="2x4", settings=replace(SETTINGS, repair_after_seconds=60.0))
    world.wait(3600.0)
    world.run_pods("train")
    client, whole = world.cloud.client, world.cloud.client.list_managed_instances
    monkeypatch.setattr(client, "list_managed_instances", lambda scope, name: whole(scope, name)[:listed])
    world.wait_until(lambda: world.reason("train") == Reason.NODE_LOST)
    world.wait(900.0)
    assert world.message("train").startswith(f"{2 - listed} of 2 machines are gone. The slice is recreated when ")
    for node in world.kube.all("Node"):
        world.kube.change_node(node.name, ready=False)
        world.wait(5.0)
        world.kube.change_node(node.name, ready=True)
    monkeypatch.undo()
    world.wait_until(lambda: world.is_ready("train"))
    assert world.process.writes["EvictPod"] + world.process.writes["DeleteNode"] == 0


def test_nodes_of_missing_machines_are_deleted_and_do_not_block_repairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise pods on these nodes would not end, and too many nodes that are not ready would block all repairs."""
    world = ready_world(topology="2x4")
    world.make("each", topology="2x2", node_count=6)
    client, whole = world.cloud.client, world.cloud.client.list_managed_instances
    monkeypatch.setattr(
        client, "list_managed_instances", lambda scope, name: () if name.startswith("each-") else whole(scope, name)
    )
    for machine in (*world.machines("each"), world.machines("train")[0]):
        world.kube.change_node(machine.name, ready=False)
    world.wait_until(lambda: world.reason("train") == Reason.RECREATING)
    assert [node for node in world.kube.all("Node") if node.name.startswith("each-")] == []


@pytest.mark.parametrize("deleted", [False, True])
def test_machine_that_was_restarted_after_the_list_keeps_its_pods(*, deleted: bool) -> None:
    """The state of the node is newer than the list of machines, which may be minutes old or fail."""
    world = ready_world()
    world.kube.protected.update(world.run_pods("train"))
    listed = world.cloud.client.list_managed_instances

    def of_before(scope: Scope, name: str) -> tuple[ManagedInstance, ...]:
        return tuple(replace(machine, status="TERMINATED") for machine in listed(scope, name))

    world.cloud.client.list_managed_instances = of_before  # type: ignore[method-assign]
    world.wait(900.0)
    if deleted:
        world.delete_group("train")
    world.wait(900.0)
    assert world.reason("train") == (Reason.DRAINING_NODES if deleted else Reason.READY)


def test_outages_before_and_after_an_unsynced_cache_are_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may have been ready while the nodes could not be listed, so the time of its outage begins again."""
    world = ready_world()
    name = world.machines("train")[0].name
    world.kube.change_node(name, ready=False)
    world.wait(10.0)
    assert world.reason("train") == Reason.NODE_LOST
    with monkeypatch.context() as blind:
        unseen = replace(world.kube.snapshot(frozenset()), not_synced=("the nodes are not listed yet",))
        blind.setattr(Kube, "snapshot", lambda _kube, _live: unseen)
        world.process.wake()
        world.wait(600.0)
    world.process.wake()
    world.wait(10.0)
    world.kube.change_node(name, ready=True)
    world.wait(60.0)
    assert world.is_ready("train")
    assert not world.group().status.recreated_at


@pytest.mark.parametrize("restarts", [False, True], ids=["", "and the controller is restarted"])
@pytest.mark.parametrize("same", [False, True], ids=["another machine", "the same machine"])
def test_short_outage_in_addition_to_a_missing_chip_evicts_no_pods(*, same: bool, restarts: bool) -> None:
    """The chip has been missing for an hour, but the duration of the outage is counted separately."""
    world = ready_world(topology="2x4")
    pods = world.run_pods("train")
    name, other = (machine.name for machine in world.machines("train"))
    world.kube.change_node(name, allocatable_chips=3)
    world.wait(3600.0)
    blip = name if same else other
    world.kube.change_node(blip, ready=False)
    if restarts:
        world.restart()
    world.wait(10.0)
    assert f"node {blip} is not ready" in world.message("train")
    world.kube.change_node(blip, ready=True)
    world.wait(60.0)
    assert sorted(pod.name for pod in world.kube.all("Pod")) == sorted(pods)
    world.kube.change_node(blip, ready=False)
    took = world.wait_until(lambda: world.reason("train") == Reason.RECREATING, within_seconds=600.0)
    assert SETTINGS.repair_after_seconds - 1 < took < SETTINGS.repair_after_seconds + 10


def test_slices_are_not_recreated_while_most_nodes_are_not_ready() -> None:
    """The zone has no network for an hour. A node that is not ready afterwards gets the full REPAIR_AFTER again."""
    world = World()
    elsewhere = make_group("elsewhere")
    world.kube.create_group(replace(elsewhere, spec=replace(elsewhere.spec, node_location="us-east5-a")))
    for name in ("one", "two"):
        world.kube.create_group(make_group(name, topology="2x4"))
    groups = ("one", "two", "elsewhere")
    world.wait_until(lambda: all(world.is_ready(name) for name in groups), within_seconds=1800.0)
    machines = [machine.name for name in groups[:2] for machine in world.machines(name)]
    pods = [pod for name in groups[:2] for pod in world.run_pods(name)]
    for machine in machines:
        world.kube.change_node(machine, ready=False)
    world.wait(1800.0)
    world.restart()
    world.wait(1800.0)
    assert (world.reason("one"), world.reason("two")) == (Reason.NODE_LOST, Reason.NODE_LOST)
    assert "check the network between the machines and the API server" in world.message("two")
    assert sorted(pod.name for pod in world.kube.all("Pod")) == sorted(pods)
    for machine in machines[:-1]:
        world.kube.change_node(machine, ready=True)
    took = world.wait_until(lambda: world.reason("two") == Reason.RECREATING, within_seconds=600.0)
    assert SETTINGS.repair_after_seconds - 60 < took < SETTINGS.repair_after_seconds + 10
    assert world.is_ready("one")
    assert world.is_ready("elsewhere")


def test_slices_are_recreated_even_if_most_machines_have_stopped() -> None:
    """The nodes are not ready because their machines stopped, and not because the network of the zone failed."""
    world = ready_world(topology="4x4")
    for machine in world.machines("train"):
        world.cloud.lose(machine, Loss.PREEMPTED)
        world.kube.change_node(machine.name, ready=False)
    world.wait_until(lambda: world.reason("train") == Reason.RECREATING, within_seconds=600.0)


def test_group_is_ready_when_all_nodes_have_their_labels_and_the_taint() -> None:
    world = World()
    world.kube.refused = (PatchNode,)
    world.kube.create_group(make_group("train", topology="2x4"))
    world.wait_until(lambda: "does not have" in world.message("train"))
    world.wait(300.0)
    assert world.reason("train") == Reason.AWAITING_NODE_JOIN
    assert f"{names.WORKER_INDEX}, google.com/tpu yet: not today" in (world.message("train"))
    world.kube.refused = ()
    world.wait_until(lambda: world.is_ready("train"), within_seconds=400.0)
    nodes = world.kube.all("Node")
    assert sorted(node.labels[names.WORKER_INDEX] for node in nodes) == ["0", "1"]
    told = [event.reason for event in world.process.events if event.object.kind == Kind.TPU_NODE_GROUP]
    assert told.count("Provisioned") == 1
    world.kube.change_node(nodes[0].name, tainted=False)
    world.wait_until(lambda: not world.is_ready("train"), within_seconds=10.0, step_seconds=0.01)
    world.wait_until(lambda: world.is_ready("train"), within_seconds=60.0)
    world.kube.change_node(nodes[1].name, labels={**nodes[1].labels, names.WORKER_INDEX: "2"})
    world.wait_until(lambda: world.kube.objects["Node", "", nodes[1].name].labels == nodes[1].labels)


def _with_script(script: str, name: str = "train") -> TpuNodeGroup:
    return make_group(name, topology="2x4", metadata={"startup-script": script, "own": "kept"})


@pytest.mark.parametrize(
    ("refused", "named", "recreated"),
    [
        *((refused, named, recreated) for refused, named in _REFUSED.items() for recreated in (False, True)),
        (DeleteDevicePlugin, "device plugin", False),
    ],
)
def test_condition_of_a_deletion_names_the_write_that_kubernetes_rejects(
    refused: type[Write], named: str, *, recreated: bool
) -> None:
    """In an earlier version, only the controller's log named the object and the cause."""
    world = ready_world(topology="2x4")
    node = world.machines("train")[0].name
    if refused is EvictPod:
        # Without a pod on the node, there would be no eviction to reject.
        world.kube.add_pod(Pod(namespace="default", name="pod", uid="u", node=node, chips=0))
    world.kube.refused = (refused,)
    if recreated:
        world.kube.change_node(node, ready=False)
    else:
        world.delete_group("train")
    world.wait_until(lambda: named in world.message("train") and "not today" in world.message("train"))
    world.kube.refused = ()
    if recreated:
        world.wait_until(lambda: world.is_ready("train"), within_seconds=3600.0)
    else:
        world.wait_until(lambda: world.kube.group("train") is None, within_seconds=3600.0)


def test_users_startup_script_runs_before_the_join_and_is_reported() -> None:
    world = World()
    world.kube.create_group(_with_script("#!/bin/sh\nmount-my-disk\n"))
    world.wait_until(lambda: world.is_ready("train"))
    assert world.message("train") == "the startup-script in metadata runs at each boot, before the join"
    for vm in world.machines("train"):
        script = vm.metadata["startup-script"]
        assert script.index("mount-my-disk") < script.index(SETTINGS.startup_script, 20)
        assert vm.metadata["own"] == "kept"


def test_users_startup_script_that_is_too_large_is_refused() -> None:
    world = World()
    world.kube.create_group(_with_script("#" * 262_144))
    world.wait_until(lambda: world.reason("train") == Reason.INVALID_SPEC)
    fits = int(world.message("train").rpartition("at most ")[2].partition(" ")[0])
    assert 261_000 < fits < 262_144
    assert set(world.process.calls) == {"ListManagers"}
    world.kube.create_group(_with_script("#" * fits, "fits"))
    world.wait_until(lambda: world.is_ready("fits"))


@pytest.mark.parametrize("meanwhile", ["", "the controller is restarted", "there is no capacity"])
def test_machine_that_compute_engine_recreates_joins_again(meanwhile: str) -> None:
    """The old node is deleted even without capacity for a new machine, so that its pods end."""
    world = ready_world(topology="2x2", node_count=4)
    lost = world.machines("train")[0]
    uid = world.kube.objects["Node", "", lost.name].uid
    world.cloud.limit(-1 if "capacity" in meanwhile else None)
    world.cloud.lose(lost, Loss.PREEMPTED)
    if "restarted" in meanwhile:
        world.wait_until(lambda: world.reason("train") == Reason.NODE_LOST)
        world.restart()
    if "capacity" in meanwhile:
        world.wait_until(lambda: ("Node", "", lost.name) not in world.kube.objects)
        world.cloud.limit(None)
    world.wait_until(lambda: world.is_ready("train") and all(node.uid != uid for node in world.kube.all("Node")))
    world.wait(60.0)
    (machine,) = (vm for vm in world.machines("train") if vm.name == lost.name)
    assert machine.number != lost.number
    world.check_tokens_gone()


def test_machine_that_is_recreated_before_its_node_has_labels_joins_again() -> None:
    """In an earlier version, the old node was attributed to the new machine, which then got no token."""
    world = World()
    world.kube.refused = (PatchNode,)
    world.kube.create_group(make_group("train", topology="2x2", node_count=2))
    world.wait_until(lambda: len(world.kube.all("Node")) == 2)
    lost = world.machines("train")[0]
    world.cloud.lose(lost, Loss.PREEMPTED)
    world.wait(60.0)
    world.kube.refused = ()
    world.wait_until(lambda: world.is_ready("train"))
    assert lost.number not in {machine.number for machine in world.machines("train")}


def test_machine_recreated_during_the_deletion_does_not_block_it() -> None:
    """The controller also cordons the node of the earlier machine with this name, because the gate checks that node."""
    world = ready_world(topology="2x2", node_count=2)
    world.cloud.world.change_settings({"group_repair_seconds": 120.0})
    world.kube.protected.update(world.run_pods("train"))
    lost = world.machines("train")[0]
    world.cloud.lose(lost, Loss.PREEMPTED)
    world.wait(100.0)
    world.delete_group("train")
    world.wait(300.0)
    assert lost.number not in {machine.number for machine in world.machines("train")}
    world.kube.finish_pods(*world.kube.protected)
    world.wait_until(lambda: not world.kube.all(Kind.TPU_NODE_GROUP))
    world.check_nothing_left()


def test_node_that_is_not_ready_is_not_attributed_to_the_current_machine() -> None:
    """Without the machine's number, which earlier releases did not write, the node may be an earlier machine's."""
    world = ready_world(topology="2x4")
    [node, *_] = world.kube.all("Node")
    labels = {key: value for key, value in node.labels.items() if key != names.MACHINE_ID}
    world.kube.change_node(node.name, labels=labels, ready=False)
    world.wait(60.0)
    assert world.kube.objects["Node", "", node.name].labels == labels
    world.kube.change_node(node.name, ready=True)
    world.wait_until(lambda: world.kube.objects["Node", "", node.name].labels == node.labels, within_seconds=60.0)


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param("", id="machines run"),
        pytest.param("project", id="the project is gone"),
        pytest.param("see the setting ALLOWED_PROJECTS", id="the project is not allowed"),
        pytest.param("compute.instanceGroupManagers.delete", id="a permission lacks"),
    ],
)
def test_group_is_abandoned_only_if_its_deletion_is_rejected(problem: str) -> None:
    """Compute Engine rejects all calls for a deleted project with 403. Then only an annotation ends the deletion."""
    world = ready_world("train", topology="2x4")
    if problem == "project":
        for machine in world.machines("train"):
            world.cloud.lose(machine, Loss.DELETED)
        world.deny(*sorted({permission for of in PERMISSIONS.values() for permission in of}))
    elif "setting" in problem:
        world.restart(projects=frozenset({"another-1"}))
    elif problem:
        world.deny(problem)
    else:
        world.kube.protected.update(world.run_pods("train"))
    world.delete_group("train")
    world.wait(600.0)
    assert problem in world.message("train")
    world.kube.annotate("train", names.ABANDON, "true")
    world.wait(600.0)
    assert len(world.cloud.resources()) == 3
    # Without the group, machines that run would cost money and not count against the limit of the namespace.
    assert (world.kube.group("train") is None) is bool(problem)
    if problem == "project":
        assert [key for key in world.kube.objects if key[0] != "DaemonSet"] == []


def test_resource_in_creation_is_not_forgotten_if_its_namespace_is_excluded() -> None:
    """New settings need a restart, so the process that sent the create ends before it records the result."""
    world = World()
    world.kube.create_group(make_group("train", topology="2x2"))
    world.wait_until(lambda: world.process.calls["Insert"] == 2, step_seconds=0.01)
    world.restart(namespaces=("other",))
    world.delete_group("train")
    world.wait(600.0)
    assert "see the setting SERVED_NAMESPACES" in world.message("train")
    world.restart(namespaces=())
    world.wait_until(lambda: world.kube.group("train") is None)
    world.check_nothing_left()


def test_device_plugin_is_kept_while_pods_with_chips_run_on_a_node() -> None:
    """The group with the pods is being deleted as well, and waits for the pods."""
    world = ready_world(topology="2x4")
    world.make("idle", topology="2x4")
    pods = world.run_pods("train")
    world.kube.protected.update(pods)
    for name in ("idle", "train"):
        world.delete_group(name)
    world.wait_until(lambda: world.kube.group("idle") is None)
    world.wait(60.0)
    assert world.kube.all("DaemonSet")
    world.kube.finish_pods(*pods)
    world.wait_until(lambda: not world.kube.all(Kind.TPU_NODE_GROUP))
    assert not world.kube.all("DaemonSet")


@pytest.mark.parametrize("before", [True, False], ids=["rejections before the deletion", "one rejected delete"])
def test_group_is_not_abandoned_for_few_or_earlier_rejections(*, before: bool) -> None:
    """If the group were abandoned, no object would delete its machines."""
    world = ready_world(topology="2x4")
    world.kube.annotate("train", names.ABANDON, "true")
    world.deny(f"compute.instanceGroupManagers.{'get' if before else 'delete'}")
    if not before:
        world.delete_group("train")
    world.wait(1000.0 if before else 20.0)
    world.deny()
    world.take_down("train")
    assert not world.cloud.resources()


def test_force_and_abandon_have_no_effect_without_a_deletion() -> None:
    """Pods on the other machines of a recreated slice get time to save their work, and rejected calls are repeated."""
    world = ready_world(topology="2x4")
    pods = world.run_pods("train")
    world.kube.protected.update(pods)
    for annotation in (names.FORCE, names.ABANDON):
        world.kube.annotate("train", annotation, "true")
    world.cloud.lose(world.machines("train")[0], Loss.PREEMPTED)
    world.wait_until(lambda: "unfinished pods keep its machines" in world.message("train"), within_seconds=600.0)
    assert names.FORCE not in world.message("train")
    world.wait(600.0)
    world.deny("compute.instanceGroupManagers.delete")
    world.kube.finish_pods(*pods)
    world.wait(3600.0)
    assert len(world.kube.all(Kind.MANAGED_INSTANCE_GROUP)) == 1
    assert world.reason("train") == Reason.RECREATING
    world.deny()
    world.wait_until(lambda: world.is_ready("train"))


@pytest.mark.parametrize("reports", [False, True])
def test_reason_that_prevents_a_recreation_is_reported(*, reports: bool) -> None:
    world = ready_world(topology="2x4")
    world.restart(startup_script=f"{world.settings.startup_script}\n# new")
    world.wait(60.0)
    lost, other = world.machines("train")
    if reports:
        world.cloud.on_stopped = lambda machine: None if machine.name == other.name else world.kube.stop(machine.name)
    permission = "compute.instanceTemplates.create"
    world.deny(permission)
    world.cloud.lose(lost, Loss.DELETED)
    reason = Reason.RECREATING if reports else Reason.REQUEST_REJECTED
    world.wait_until(lambda: permission in world.message("train") and world.reason("train") == reason)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (SetFinalizers, "its finalizers cannot be changed"),
        (CreateToken, "machines cannot join yet"),
        (ApproveRequest, "machines cannot join yet"),
        (ApplyDevicePlugin, "the device plugin is not applied"),
    ],
)
def test_rejected_write_that_a_group_needs_is_reported_and_recreates_no_machine(write: type[Write], words: str) -> None:
    """New machines could not join either, for example if tokens are rejected for the controller's clock."""
    world = World()
    world.kube.refused, world.kube.chips = (write,), 0
    world.kube.create_group(make_group("train", topology="2x4"))
    world.wait_until(lambda: f"{words}: not today" in world.message("train"), within_seconds=300.0)
    world.wait(3 * SETTINGS.join_seconds)
    assert words in world.message("train")
    assert world.process.writes[write.__name__] <= 100
    assert not world.group().status.recreated_at
    world.kube.refused, world.kube.chips = (), 4
    for machine in world.machines("train"):
        world.kube.change_node(machine.name, capacity_chips=4, allocatable_chips=4)
    world.wait_until(lambda: world.is_ready("train"))


def _refuse(*writes: type[Write]) -> Callable[[World], None]:
    return lambda world: setattr(world.kube, "refused", writes)


@pytest.mark.parametrize("restarted", [False, True], ids=["", "after a restart"])
@pytest.mark.parametrize(
    ("refuse", "words"),
    [
        pytest.param(_refuse(CreateToken), "machines cannot join yet: not today", id="token"),
        pytest.param(_refuse(ApproveRequest), "machines cannot join yet: not today", id="certificate"),
        pytest.param(_refuse(DeleteNode), "is not deleted: Node train-mig-", id="delete of the earlier node"),
        pytest.param(
            lambda world: world.deny("compute.instances.setMetadata"),
            "cannot be given its join token: Required 'compute.instances.setMetadata' permission",
            id="metadata",
        ),
    ],
)
def test_lost_machine_that_cannot_join_again_is_reported_with_the_cause(
    refuse: Callable[[World], None], words: str, *, restarted: bool
) -> None:
    """The runbook of the alert TPUNodeGroupsNodeLost begins with this message."""
    world = ready_world(topology="2x2", node_count=2)
    machine = world.machines("train")[0]
    group = world.cloud.groups()[0]
    refuse(world)
    world.cloud.recreate(group, next(member for member in group.members if member.name == machine.name))
    if restarted:
        world.wait(120.0)
        world.restart()
    world.wait(900.0)
    assert world.reason("train") == Reason.NODE_LOST
    assert world.message("train").startswith(f"machine {machine.name} has not joined. ")
    assert words in world.message("train")


_REQUESTS = uuid.UUID("00000000-0000-4000-8000-000000000001")


def _insert_template(world: World, machine_type: str = "ct6e-standard-4t") -> None:
    config = InstanceConfig(
        machine_type=machine_type,
        image="projects/project-1/global/images/tpu",
        subnetwork="regions/us-central1/subnetworks/default",
    )
    spec = InstanceTemplateSpec(project="project-1", config=config)
    template = InstanceTemplate(meta=ObjectMeta(namespace="", name="mine", uid=""), spec=spec)
    request_id = str(uuid.uuid5(_REQUESTS, machine_type))
    world.cloud.client.insert(Scope(project="project-1"), template, "", request_id=request_id)


def _world_with_a_template_of_the_users(topology: str = "2x4", machine_type: str = "ct6e-standard-4t") -> World:
    world = World()
    _insert_template(world, machine_type)

    def join(machine: MachineView) -> None:
        place = f"gce://project-1/{ZONE}/{machine.name}"
        uid, name = f"uid-{machine.number}", machine.name
        node = Node(name=name, uid=uid, provider_id=place, ready=True, capacity_chips=4, allocatable_chips=4)
        world.kube._put(("Node", "", name), node)

    world.cloud.on_running = lambda machine: world.stage.after(10.0, partial(join, machine))
    group = make_group("train", topology=topology)
    uri = "projects/project-1/global/instanceTemplates/mine"
    spec = replace(group.spec, instance_config=None, bootstrap_kubernetes=None, instance_template_uri=uri)
    world.kube.create_group(replace(group, spec=spec))
    if machine_type.startswith("ct6e"):
        world.wait_until(lambda: world.is_ready("train"))
    world.wait(60.0)
    return world


def test_corrected_template_of_a_user_is_noticed_within_minutes() -> None:
    world = _world_with_a_template_of_the_users(machine_type="n1-standard-1")
    assert not world.machines("train")
    scope, request_id = Scope(project="project-1"), str(uuid.uuid5(_REQUESTS, "delete"))
    world.cloud.client.delete(Kind.INSTANCE_TEMPLATE, scope, "mine", request_id=request_id)
    world.wait(10.0)
    _insert_template(world)
    world.wait_until(lambda: world.is_ready("train"), within_seconds=900.0)


def test_restart_changes_nothing_about_a_group_with_a_users_template() -> None:
    """A new process must read the template again; until then the status is unchanged."""
    world = _world_with_a_template_of_the_users()
    status = world.group().status
    world.restart()
    world.wait(60.0)
    assert world.group().status == status
    world.kube.change_node(world.machines("train")[0].name, ready=False)
    world.wait(120.0)
    world.restart()
    took = world.wait_until(lambda: world.reason("train") == Reason.RECREATING)
    assert took < SETTINGS.repair_after_seconds - 100.0
    world.restart()
    world.wait_until(lambda: world.is_ready("train"))
    assert len(world.group().status.recreated_at) == 1


@pytest.mark.parametrize("topology", ["2x4", "2x2"])
def test_slice_with_a_loss_and_an_unreadable_template_is_reported_and_kept(topology: str) -> None:
    """In an earlier version, a slice without a machine was Ready until the new process could read the template."""
    world = _world_with_a_template_of_the_users(topology)
    before = world.group().status
    permission = "compute.instanceTemplates.get"
    world.deny(permission)
    world.restart()
    world.wait_until(lambda: permission in world.message("train"), within_seconds=120.0)
    assert world.is_ready("train")
    assert world.group().status.machines == before.machines
    nodes = {node.name: node.labels for node in world.kube.all("Node")}
    name = world.machines("train")[0].name
    world.kube.change_node(name, ready=False)
    world.wait_until(lambda: world.reason("train") == Reason.NODE_LOST, within_seconds=120.0)
    world.wait(2 * SETTINGS.repair_after_seconds)
    assert world.message("train").startswith(
        f"node {name} is not ready. The slice is not recreated while its template is unknown or invalid. "
        f"instanceTemplateURI: the template cannot be read: Required '{permission}' permission"
    )
    assert world.group().status.nodes == f"{len(nodes) - 1}/{len(nodes)}"
    world.kube.change_node(name, ready=True)
    world.wait_until(lambda: world.is_ready("train"), within_seconds=120.0)
    assert {node.name: node.labels for node in world.kube.all("Node")} == nodes
    world.kube.change_node(name, allocatable_chips=3, capacity_chips=3)
    world.wait_until(lambda: "3 of 4 chips" in world.message("train"), within_seconds=120.0)
    world.deny()
    world.wait_until(lambda: world.reason("train") == Reason.RECREATING)


@pytest.mark.parametrize("kind", [Kind.INSTANCE_TEMPLATE, Kind.WORKLOAD_POLICY])
def test_deleted_child_is_kept_while_a_managed_instance_group_uses_it(kind: Kind) -> None:
    """Compute Engine would reject the delete."""
    world = ready_world(topology="2x4")
    [child] = world.kube.all(kind)
    world.kube.delete((kind, "default", child.meta.name))
    world.wait(60.0)
    [child] = world.kube.all(kind)
    ready = condition_of(child.status.conditions, ConditionType.READY)
    assert ready is not None
    assert "uses it, and is deleted first" in ready.message


def test_slice_is_repaired_if_a_label_was_missing_when_the_node_was_lost() -> None:
    """Otherwise the slice would count as still joining, and the loss would be noticed only after JOIN_TIMEOUT."""
    world = ready_world(topology="2x4")
    world.wait(2 * SETTINGS.join_seconds)
    lost, other = (machine.name for machine in world.machines("train"))
    world.kube.refused = (PatchNode,)
    node = next(node for node in world.kube.all("Node") if node.name == other)
    world.kube.change_node(other, labels={k: v for k, v in node.labels.items() if k != names.WORKER_INDEX})
    world.wait_until(lambda: names.WORKER_INDEX in world.message("train"))
    world.kube.change_node(lost, ready=False)
    world.wait(60.0)
    assert world.reason("train") == Reason.NODE_LOST
