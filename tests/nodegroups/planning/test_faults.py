"""Faults of gke-labs/tpu-operator, named as the fact sheet numbers them; the simulation has others planted as bugs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.specs import ProvisioningModel, SizePolicyMode
from provisioner.nodegroups.api.statuses import Reason
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.bootstrap import metadata
from provisioner.nodegroups.compute.records import Scope
from provisioner.nodegroups.planning.actions import Call, Insert, ReadMachines, Target
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
def test_2_waiting_for_capacity_is_told_and_no_machine_is_called_that_is_not_there(terms: dict[str, Any]) -> None:
    """Placeholders without a machine get no call and no token; the message has Google's words and since when."""
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


def test_3_each_machine_gets_one_token_however_long_the_machines_take_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four machines are read together, which takes minutes in a large group. The Secrets are deleted at once."""
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


def test_6_machines_in_the_making_are_looked_at_within_a_minute_and_are_no_error() -> None:
    """A group that waits is read at a pace that follows its age, at most once a minute and not less often."""
    world = World()
    world.cloud.limit(0)
    world.kube.create_group(make_group("train"))
    world.wait(3000.0)
    before = Counter(world.process.calls)
    world.wait(600.0)
    made = world.process.calls - before
    assert 9 <= made["Read"] <= 15
    assert Reason.RECONCILE_ERROR not in {event.reason for event in world.process.events}


def test_7_a_machine_that_boots_late_finds_a_token_that_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an incomplete list; one that nobody could let join in JOIN_TIMEOUT has REPAIR_AFTER to do so."""
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


def test_8_a_token_stays_until_its_node_has_the_number_of_its_machine() -> None:
    """A node may register with the labels of its group; without the number nobody could tell whose it was."""
    world = World()
    world.kube.refused_nodes = True
    world.kube.create_group(make_group("train"))
    world.wait_until(lambda: len(world.kube.all("Node")) == 4)
    for node in world.kube.all("Node"):
        world.kube.change_node(node.name, labels=names.group_labels(world.group().meta))
    world.wait(30.0)
    assert len(world.kube.all("Secret")) == 4
    world.kube.refused_nodes = False
    world.wait_until(lambda: not world.kube.all("Secret"), within_seconds=400.0)
    assert all(names.MACHINE_ID in node.labels for node in world.kube.all("Node"))


def test_9_groups_whose_names_run_together_have_nodes_of_their_own() -> None:
    """The nodes of namespace a, group b-c are not those of namespace a-b, group c."""
    world = ready_world("c")
    group = world.group("c")
    other = replace(group, meta=replace(group.meta, namespace="a", name="b-c", uid="another"))
    other = replace(other, status=replace(other.status, machines=()))
    round_ = begin_round(world.kube.snapshot(frozenset()), world.process.memory, SETTINGS, world.stage.wall())
    assert left_over(other, None, round_) == ()
    assert len(left_over(group, None, round_)) == 4


def test_10_what_carries_our_mark_is_adopted() -> None:
    """A crash between a create and its record ends in the same resource, whose operation Google has forgotten."""
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
def test_10_what_does_not_carry_it_is_taken_only_where_the_user_says_so(*, adopt: bool) -> None:
    """Else it keeps the group from being made, with words that say what to do, and is never deleted."""
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


def test_12_children_with_defaults_filled_in_are_as_they_should_be() -> None:
    """A child that the API server has completed differs in nothing from what is wanted."""
    world = ready_world()
    group = world.group("train")
    assert group.spec.instance_config is not None
    template = instance_template(group, group.spec.instance_config, SETTINGS.startup_script)
    found = replace(template, spec=replace(template.spec, config=replace(template.spec.config)))
    without = replace(
        template, spec=replace(template.spec, config=replace(template.spec.config, provisioning_model=None))
    )
    assert not child_differs(found, template)
    assert not child_differs(without, template)
    assert child_differs(found, instance_template(group, group.spec.instance_config, "#!/bin/sh"))
    [manager] = world.kube.all(Kind.MANAGED_INSTANCE_GROUP)
    implicit, explicit, larger = (
        replace(manager, spec=replace(manager.spec, target_size_policy_mode=mode, target_size=size))
        for mode, size in ((None, 4), (SizePolicyMode.INDIVIDUAL, 4), (None, 5))
    )
    assert [child_differs(each, manager) for each in (implicit, explicit, larger)] == [False, True, True]
    world.kube._put((Kind.MANAGED_INSTANCE_GROUP, "default", manager.meta.name), larger)
    world.wait(60.0)
    assert f"{manager.meta.name} differs from what this release creates" in world.message("train")


def test_13_a_new_startup_script_is_told_and_comes_with_the_next_slice() -> None:
    """An upgrade rolls nothing under work; the template is recreated when the slice is."""
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


def test_15_the_device_plugin_is_applied_once_for_all_groups_and_goes_with_the_last() -> None:
    """Two groups need one DaemonSet; it is applied again when its manifest changes."""
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
        (replace(SETTINGS, namespaces=frozenset({"team-a"})), "namespace"),
    ],
    ids=["a project", "a namespace"],
)
def test_17_what_is_not_on_the_list_gets_no_call(settings: object, named: str) -> None:
    """Neither project nor namespace that is not allowed costs anything, and the condition says so."""
    world = World(settings=settings)  # type: ignore[arg-type]
    world.kube.create_group(make_group("train"))
    world.wait_until(lambda: world.reason("train") == Reason.NOT_ALLOWED)
    world.wait(600.0)
    assert named in world.message("train")
    assert set(world.process.calls) == {"ListManagers"}
    world.take_down("train")


def test_no_machines_are_made_while_it_is_not_known_how_they_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would cost for as long as nobody looks. What is missing is told."""
    world = World()
    with monkeypatch.context() as unknown:
        unknown.setattr(cluster, "FACTS", replace(cluster.FACTS, api_server=""))
        world.kube.create_group(make_group("train"))
        world.wait(600.0)
        assert not world.machines("train")
        assert "an IPv4 address or name of the API server" in world.message("train")
    world.wait_until(lambda: world.is_ready("train"))


@pytest.mark.parametrize(
    "change",
    [{"not_synced": ("the nodes are not listed yet",)}, {"cluster": Cluster(uid="")}],
    ids=["caches that are not synced", "a cluster whose UID is not known"],
)
def test_nothing_is_decided_on_what_is_not_known(change: dict[str, Any]) -> None:
    """What cannot be marked or is not seen is neither made nor deleted, and nothing is forgotten."""
    world = World()
    world.kube.create_group(make_group("train"))
    world.wait(10.0)
    memory = world.process.memory
    snapshot = replace(world.kube.snapshot(frozenset()), **change)
    plan = decide(snapshot, memory, SETTINGS, world.stage.wall())
    assert (plan.calls, plan.writes, plan.memory) == ((), (), memory)
