"""Tests with a number check a fault of gke-labs/tpu-operator. Equal numbers, also in ../bootstrap, mean one fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.specs import BootstrapConfig, ProvisioningModel, SizePolicyMode
from provisioner.nodegroups.api.statuses import Reason
from provisioner.nodegroups.api.types import Kind, TpuNodeGroup
from provisioner.nodegroups.bootstrap import metadata
from provisioner.nodegroups.compute.records import Scope
from provisioner.nodegroups.planning.actions import Call, Insert, PatchNode, ReadMachines, Target
from provisioner.nodegroups.planning.decide import decide
from provisioner.nodegroups.planning.group import differs as child_differs
from provisioner.nodegroups.planning.group import instance_template
from provisioner.nodegroups.planning.nodes import left_over
from provisioner.nodegroups.planning.round import Cluster, begin_round
from rehearsal.simulators.compute.records import Loss
from tests.nodegroups.simulation import cluster
from tests.nodegroups.simulation.process import Process
from tests.nodegroups.simulation.world import SETTINGS, World, make_group, ready_world


@pytest.mark.parametrize(
    "terms", [{}, {"provisioning_model": ProvisioningModel.FLEX_START, "max_run_duration_seconds": 604_800}]
)
def test_2_waiting_for_capacity_is_reported_without_calls_for_placeholders(terms: dict[str, Any]) -> None:
    world = World()
    world.cloud.limit(0)
    world.kube.create_group(make_group("train", **terms))
    world.wait_until(lambda: world.reason("train") == Reason.INSTANCES_CREATION_FAILED)
    message = world.message("train")
    assert "waiting for capacity since 2026-01-01T00:" in message
    assert "does not have enough resources available" in message
    world.wait(2 * SETTINGS.join_seconds)
    assert world.process.calls["ReadMachines"] == 0
    assert world.process.writes["CreateToken"] == 0
    assert world.message("train") == message
    world.cloud.limit(None)
    world.wait_until(lambda: world.is_ready("train"))
    assert not world.group().status.recreated_at


def test_3_each_machine_gets_one_token_if_reading_takes_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    arrive = Process._arrive

    def late(process: Process, call: Call, sent_at: object, fate: str) -> None:
        seconds = 310.0 if isinstance(call, ReadMachines) else 0.0
        process.stage.after(seconds, partial(arrive, process, call, sent_at, fate))

    monkeypatch.setattr(Process, "_arrive", late)
    world = World()
    world.make("train")
    assert (world.process.calls["SetMetadata"], world.process.writes["CreateToken"]) == (4, 4)
    assert world.process.calls["ReadMachines"] <= 2
    world.wait(5.0)
    world.check_tokens_gone()


def test_6_waiting_group_is_read_once_a_minute_and_is_deleted_without_delay() -> None:
    """The interval between reads grows with the age of the group, to 60 s."""
    world = World()
    world.cloud.limit(0)
    world.kube.create_group(make_group("train"))
    world.wait(3000.0)
    before = Counter(world.process.calls)
    world.wait(600.0)
    made = world.process.calls - before
    assert 9 <= made["Read"] <= 15
    assert Reason.RECONCILE_ERROR not in {event.reason for event in world.process.events}
    # The listed machines do not exist yet, so there is no node to drain.
    world.take_down("train", within_seconds=300.0)
    world.check_nothing_left()


def test_7_machine_that_boots_late_has_a_valid_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are renewed for hours, even after Compute Engine once listed only three of four machines."""
    world = World(settings=replace(SETTINGS, join_seconds=1e6))
    booted = []
    world.cloud.on_running = booted.append
    world.kube.create_group(make_group("train"))
    world.wait_until(lambda: len(booted) == 4)
    whole = world.cloud.client.list_managed_instances
    monkeypatch.setattr(world.cloud.client, "list_managed_instances", lambda scope, name: whole(scope, name)[:3])
    world.wait_until(lambda: "1 of 4 machines are gone" in world.message("train"))
    monkeypatch.undo()
    world.wait(3 * 3600.0)
    world.restart(join_seconds=SETTINGS.join_seconds)
    tokens = {token.value: token for token in world.kube.all("Secret")}
    for machine in world.machines("train"):
        expires_at = tokens[machine.metadata[metadata.TOKEN]].expires_at
        assert expires_at is not None
        assert expires_at > world.stage.wall() + timedelta(minutes=8)
        world.kube.join(machine.name)
    world.wait_until(lambda: world.is_ready("train"))
    assert not world.group().status.recreated_at


def test_status_of_a_large_group_is_not_written_for_each_machine_that_joins() -> None:
    """Each write stores the entries of all machines. In the past, 512 machines caused 470 writes, 64 MB in total."""
    world = World(settings=replace(SETTINGS, machines_per_namespace=0))
    world.cloud.on_running = lambda machine: world.stage.after(
        world.stage.rng.uniform(60.0, 120.0), lambda: world.kube.join(machine.name)
    )
    world.kube.create_group(make_group("train", topology="2x2", node_count=96))
    world.wait_until(lambda: len(world.group().status.machines) == 96)
    world.process.writes.clear()
    world.wait_until(lambda: world.is_ready("train"))
    assert world.process.writes["PatchNode"] == 96
    assert 5 < world.process.writes["PatchStatus"] < 30


def test_8_token_is_kept_until_its_node_has_the_machines_number() -> None:
    """A node may register with the labels of its group, but without the number that identifies its machine."""
    world = World()
    world.kube.refused = (PatchNode,)
    world.kube.create_group(make_group("train"))
    world.wait_until(lambda: len(world.kube.all("Node")) == 4)
    for node in world.kube.all("Node"):
        world.kube.change_node(node.name, labels=names.group_labels(world.group().meta))
    world.wait(30.0)
    assert len(world.kube.all("Secret")) == 4
    world.kube.refused = ()
    world.wait_until(lambda: not world.kube.all("Secret"), within_seconds=400.0)
    assert all(names.MACHINE_ID in node.labels for node in world.kube.all("Node"))


def test_9_nodes_are_not_those_of_another_group_with_a_copied_status() -> None:
    world = ready_world("c")
    group = world.group("c")
    other = replace(group, meta=replace(group.meta, namespace="a", name="b-c", uid="another"))
    ctx = begin_round(world.kube.snapshot(frozenset()), world.process.memory, SETTINGS, world.stage.wall())
    # A user with permission for the status can copy the machines of another group into it.
    for machines in ((), group.status.machines):
        assert left_over(replace(other, status=replace(other.status, machines=machines)), None, ctx) == ()
    assert len(left_over(group, None, ctx)) == 4


def test_10_resource_with_the_groups_mark_is_used_after_a_crash() -> None:
    """The process crashes before it records the insert, and Compute Engine no longer knows the operation."""
    world = World(3)
    world.cloud.forget_operations_after(0.1)
    inserted = []

    def crash(call: object) -> None:
        if isinstance(call, Insert) and call.target.kind not in inserted:
            inserted.append(call.target.kind)
            world.stage.after(0.0, restart)

    def restart() -> None:
        world.restart()
        world.process.on_call = crash

    world.process.on_call = crash
    world.make("train")
    assert len(inserted) == 3
    assert len(world.cloud.resources()) == 3


@pytest.mark.parametrize("adopt", [False, True])
def test_10_resource_without_a_mark_is_used_only_with_the_annotation(*, adopt: bool) -> None:
    world = World()
    world.kube.create_group(make_group("train"))
    name = names.child_name(world.group("train").meta, Kind.WORKLOAD_POLICY)
    scope = Scope(project="project-1", region="us-central1")
    world.cloud.hold(Target(uid="", namespace="", kind=Kind.WORKLOAD_POLICY, scope=scope, name=name))
    world.wait_until(lambda: world.reason("train") == Reason.REQUEST_REJECTED)
    assert names.ADOPT in world.message("train")
    if adopt:
        world.kube.annotate("train", names.ADOPT, "true")
        world.wait_until(lambda: world.is_ready("train"))
    world.take_down("train")
    assert [resource.name for resource in world.cloud.resources()] == ([] if adopt else [name])


@pytest.mark.parametrize(
    ("config", "differs"),
    [
        ({}, False),
        ({"provisioning_model": None}, False),
        ({"metadata": {}}, True),
        # tpu-operator wrote bare names; this controller writes the path, as Compute Engine accepts no bare name.
        ({"subnetwork": "default"}, False),
        ({"subnetwork": "other"}, True),
        ({"subnetwork": "regions/us-east1/subnetworks/default"}, True),
    ],
)
def test_12_template_is_outdated_if_a_value_differs_from_its_default(config: dict[str, Any], *, differs: bool) -> None:
    group = make_group("train")
    wanted = instance_template(group, group.spec.instance_config, SETTINGS.startup_script)
    assert wanted.spec.config.subnetwork == "regions/us-central1/subnetworks/default"
    found = replace(wanted, spec=replace(wanted.spec, config=replace(wanted.spec.config, **config)))
    assert child_differs(found, wanted) is differs


def test_12_managed_instance_group_with_defaults_of_the_api_server_is_not_outdated() -> None:
    world = ready_world()
    [manager] = world.kube.all(Kind.MANAGED_INSTANCE_GROUP)
    implicit, explicit, larger = (
        replace(manager, spec=replace(manager.spec, target_size_policy_mode=mode, target_size=size))
        for mode, size in ((None, 4), (SizePolicyMode.INDIVIDUAL, 4), (None, 5))
    )
    assert [child_differs(child, manager) for child in (implicit, explicit, larger)] == [False, True, True]
    world.kube._put((Kind.MANAGED_INSTANCE_GROUP, "default", manager.meta.name), larger)
    world.wait(60.0)
    assert f"{manager.meta.name} differs from what this release creates" in world.message("train")


def test_13_new_startup_script_is_reported_and_used_for_the_next_slice() -> None:
    """An upgrade does not replace machines in use: the template is recreated together with the slice."""
    world = ready_world()
    world.restart(startup_script="#!/bin/bash\necho new")
    world.wait(120.0)
    assert world.is_ready("train")
    assert "is recreated with the slice" in world.message("train")
    assert world.process.writes["DeleteChild"] == 0
    world.cloud.lose(world.machines("train")[0], Loss.PREEMPTED)
    world.wait_until(lambda: world.reason("train") == Reason.RECREATING)
    world.wait_until(lambda: world.is_ready("train"))
    assert {vm.metadata["startup-script"] for vm in world.machines("train")} == {"#!/bin/bash\necho new"}
    assert world.message("train") == ""


def test_15_device_plugin_is_applied_once_and_deleted_with_the_last_group() -> None:
    world = ready_world("one")
    world.make("two")
    assert world.process.writes["ApplyDevicePlugin"] == 1
    world.restart(device_plugin_version="v2")
    world.wait(60.0)
    assert [plugin.version for plugin in world.kube.all("DaemonSet")] == ["v2"]
    world.take_down("one")
    assert world.kube.all("DaemonSet")
    world.take_down("two")
    assert not world.kube.all("DaemonSet")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (replace(SETTINGS, projects=frozenset({"project-2"})), "project"),
        (replace(SETTINGS, namespaces=("team-a",)), "namespace"),
    ],
    ids=["a project", "a namespace"],
)
def test_17_project_or_namespace_that_is_not_allowed_gets_no_call(settings: object, named: str) -> None:
    world = World(settings=settings)  # type: ignore[arg-type]
    world.kube.create_group(make_group("train"))
    world.wait_until(lambda: world.reason("train") == Reason.NOT_ALLOWED)
    world.wait(600.0)
    assert named in world.message("train")
    assert set(world.process.calls) == {"ListManagers"}
    world.take_down("train")
    # The provisioner creates groups in its own namespace, which SERVED_NAMESPACES in settings.env may lack.
    world.restart(projects=frozenset(), own_namespace="default")
    world.make("train")


def test_group_without_bootstrap_kubernetes_reports_that_its_image_has_to_join() -> None:
    world = World()
    group = make_group("train", topology="2x4")
    world.kube.create_group(replace(group, spec=replace(group.spec, bootstrap_kubernetes=None)))
    note = "without bootstrapKubernetes, the image has to join the cluster on its own"
    world.wait(300.0)
    assert note in world.message("train")
    world.wait_until(lambda: world.message("train").startswith("machine"), within_seconds=SETTINGS.join_seconds)
    assert note in world.message("train")


def test_machines_that_never_become_ready_get_one_warning() -> None:
    """Machines of a group in mode INDIVIDUAL are not recreated, so no other Event reports them."""
    world = World()
    world.kube.chips = 0
    world.kube.create_group(make_group("train", topology="2x2", node_count=3))
    world.wait(4 * SETTINGS.join_seconds)
    warnings = [event for event in world.process.events if event.warning]
    assert [event.reason for event in warnings] == [Reason.AWAITING_NODE_JOIN]
    assert "has 0 of 4 chips" in warnings[0].message


_GIVEN = "10.128.0.2:6443"


def _with_address(name: str) -> TpuNodeGroup:
    group, bootstrap = make_group(name), BootstrapConfig(control_plane_ip="10.128.0.2")
    return replace(group, spec=replace(group.spec, bootstrap_kubernetes=bootstrap))


@pytest.mark.parametrize(
    ("setting", "group"),
    [("", make_group("train")), (_GIVEN, make_group("train")), ("", _with_address("train"))],
    ids=["no address", "API_SERVER_ADDRESS", "controlPlaneIP"],
)
def test_no_machines_are_created_while_data_to_join_is_unknown(
    monkeypatch: pytest.MonkeyPatch, setting: str, group: TpuNodeGroup
) -> None:
    """The tool kubeadm reads cluster-info at the given address, and then joins at the address in cluster-info."""
    world = World(settings=replace(SETTINGS, api_server=setting))
    with monkeypatch.context() as unknown:
        unknown.setattr(cluster, "FACTS", replace(cluster.FACTS, api_server=""))
        world.kube.create_group(group)
        world.wait(600.0)
        assert not world.machines("train")
        assert "an IPv4 address or name of the API server" in world.message("train")
    world.wait_until(lambda: world.is_ready("train"))


@pytest.mark.parametrize(
    ("setting", "group", "reports"),
    [
        (cluster.FACTS.api_server, make_group("train"), False),
        (_GIVEN, make_group("train"), True),
        ("", _with_address("train"), True),
    ],
    ids=["same address", "API_SERVER_ADDRESS", "controlPlaneIP"],
)
def test_address_that_differs_from_cluster_info_is_reported_until_machines_join(
    *, setting: str, group: TpuNodeGroup, reports: bool
) -> None:
    world = World(settings=replace(SETTINGS, api_server=setting))
    world.kube.create_group(group)
    world.wait_until(lambda: "has not joined" in world.message("train"))
    note = "ConfigMap cluster-info in kube-public at 10.128.0.2:6443, and then join at its server 10.0.0.2:6443"
    assert (note in world.message("train")) == reports
    world.wait_until(lambda: world.is_ready("train"))
    assert not world.message("train")


@pytest.mark.parametrize(
    "change",
    [{"not_synced": ("the nodes are not listed yet",)}, {"cluster": Cluster(uid="")}],
    ids=["caches that are not synced", "a cluster whose UID is not known"],
)
def test_plan_is_empty_if_caches_or_the_cluster_are_unknown(change: dict[str, Any]) -> None:
    """With incomplete caches or an unknown cluster, resources could be created twice or deleted by mistake."""
    world = World()
    world.kube.create_group(make_group("train"))
    world.wait(10.0)
    memory = world.process.memory
    snapshot = replace(world.kube.snapshot(frozenset()), **change)
    plan = decide(snapshot, memory, SETTINGS, world.stage.wall())
    assert (plan.calls, plan.writes, plan.memory) == ((), (), memory)
