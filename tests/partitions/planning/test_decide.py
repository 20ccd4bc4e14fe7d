"""Decisions in the life of a partition, from a waiting pod to the removed partition."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from provisioner.model.capacity import FailureKind
from provisioner.model.writes import WriteFailure
from provisioner.partitions.planning.actions import CreatePartition, OpenGate, RemovePartition, SaveLedger
from provisioner.partitions.planning.memory import Memory
from provisioner.partitions.vipu.records import Allocation, PartitionState
from provisioner.settings.partitions import Server
from tests.partitions.planning.stories import (
    BOTH,
    NOW,
    OTHER,
    SERVER,
    Story,
    events_of,
    held,
    id_of,
    make_entry,
    make_partition,
    make_pod,
    reasons,
)


def test_partition_is_created_for_a_pod_and_removed_after_its_end() -> None:
    story = Story(pods=[make_pod("a")])
    told = reasons(story.settle())
    assert "PartitionCreated" in told
    pod = story.pods[0]
    assert (pod.gated, pod.server_annotation) == (False, SERVER.address)
    assert story.entries()["a"].allocation == "a"
    assert list(story.at()) == [id_of(pod)]
    story.change(pod, finished=True)
    assert "PartitionReleased" in reasons(story.settle())
    assert story.at() == {}
    assert story.entries() == {}
    plan = story.decide()
    assert (plan.writes, plan.calls) == ((), ())


@pytest.mark.parametrize(
    ("fields", "want_removed"),
    [
        pytest.param({"finished": True}, True, id="pod finished"),
        pytest.param({"released": True}, True, id="pod released"),
        pytest.param({"deletion_deadline": NOW - timedelta(hours=1)}, False, id="deletion just seen"),
        pytest.param({}, False, id="pod running"),
    ],
)
def test_partition_is_removed_only_if_its_pod_no_longer_needs_it(fields: dict[str, object], want_removed: bool) -> None:
    pod = make_pod("a", gated=False, server_annotation=SERVER.address, **fields)
    story = held(pod)
    story.read()
    assert bool(story.wants(RemovePartition)) is want_removed


def test_pod_deleted_again_keeps_its_partition_for_the_new_grace_period() -> None:
    """The new grace period counts, because the kubelet may have received only the second deletion."""
    pod = make_pod(
        "a", gated=False, server_annotation=SERVER.address, deletion_deadline=NOW, deletion_grace_seconds=600.0
    )
    story = held(pod)
    story.settle(rounds=20, seconds=5)
    story.change(pod, deletion_deadline=NOW + timedelta(seconds=5), deletion_grace_seconds=5.0)
    story.settle(rounds=6, seconds=5)
    assert list(story.at()) == [id_of(pod)]
    story.settle(rounds=4, seconds=5)
    assert list(story.at()) == []


def test_remove_that_the_live_check_prevents_is_retried_after_seconds() -> None:
    """The pod may be missing in the cache, so it is read live before the remove."""
    story = held(make_pod("a"), gone=True)
    story.read()
    (remove,) = story.wants(RemovePartition)
    assert remove.pod == ("team", "a", "uid-a")
    story.answer(remove, kept="pod team/a has not ended")
    assert story.wants(RemovePartition) == []
    story.pass_time(3)
    assert len(story.wants(RemovePartition)) == 1
    story.memory = Memory()
    story.answer(remove)
    assert story.memory == Memory()


def test_decision_without_a_ledger_is_empty_and_keeps_the_memory() -> None:
    story = Story(pods=[make_pod("a")], ledger=None)
    before = replace(Memory(), told={"x": frozenset({"y"})})
    story.memory = before
    plan = story.decide()
    assert (plan.calls, plan.writes, plan.memory) == ((), (), before)


def test_ledger_is_written_again_within_a_second_after_a_conflict() -> None:
    story = Story(pods=[make_pod("a")])
    story.read()
    story.write(story.wants(SaveLedger)[0], WriteFailure.CONFLICT)
    assert story.wants(SaveLedger) == []
    story.pass_time(1)
    assert len(story.wants(SaveLedger)) == 1


_ALIAS = Server(host="vipu.example", port=8090)


@pytest.mark.parametrize(
    "told", [SERVER, _ALIAS], ids=["annotation with the first name", "annotation with the second name"]
)
def test_server_with_two_names_keeps_the_partitions_of_existing_pods(told: Server) -> None:
    """The controller reads the server once by each name, and the two readings may differ."""
    pod = make_pod("train", gated=False, server_annotation=told.address, node="host-1", begun=True)
    story = Story(pods=[pod], servers=dict.fromkeys((SERVER, _ALIAS), (Allocation(name="a", ipus=64),)))
    story.partitions = dict.fromkeys((SERVER.address, _ALIAS.address), story.at())
    story.record(make_entry(pod, server=told))
    story.put(make_partition(pod, id=id_of(pod, told)))
    for ipus in (64, None, 60, 64):
        story.servers[_ALIAS] = (Allocation(name="a", ipus=ipus),)
        story.settle(10, seconds=20)
    assert set(story.at()) == {id_of(pod, told)}
    story.pods.clear()
    story.settle(10, seconds=20)
    assert (story.at(), story.entries()) == ({}, {})


@pytest.mark.parametrize("lost", [False, True], ids=["", "the ledger is lost"])
def test_second_partition_of_a_running_pod_on_another_server_is_removed(lost: bool) -> None:
    pod = make_pod("train", gated=False, server_annotation=OTHER.address, node="host-1", begun=True)
    story = Story(pods=[pod], servers=dict(BOTH))
    if not lost:
        story.record(make_entry(pod, server=OTHER))
    story.put(make_partition(pod))
    story.put(make_partition(pod, id=id_of(pod, OTHER)), server=OTHER)
    story.settle(20, seconds=20)
    assert (set(story.at()), set(story.at(OTHER))) == (set(), {id_of(pod, OTHER)})
    assert {entry.id for entry in story.ledger.entries} == {id_of(pod, OTHER)}  # type: ignore[union-attr]


def test_renamed_server_keeps_the_partitions_of_running_pods() -> None:
    """The id of the partition and the pod's annotation still depend on the old name."""
    pod, waits = (
        make_pod("train", gated=False, server_annotation="old:8090", node="host-1", begun=True),
        make_pod("waits"),
    )
    old = Server(host="old", port=8090)
    story = Story(pods=[pod, waits])
    story.record(make_entry(pod, server=old), make_entry(waits, server=old))
    story.put(make_partition(pod, id=id_of(pod, old)))
    story.settle(30, seconds=10)
    assert set(story.at()) == {id_of(pod, old), id_of(waits)}
    assert {entry.server for entry in story.entries().values()} == {SERVER.address}
    story.pods.clear()
    story.settle(10, seconds=20)
    assert (story.at(), story.entries()) == ({}, {})


def test_entry_of_a_finished_pod_is_removed_if_its_server_is_not_in_the_settings() -> None:
    """Otherwise the pod's IPUs would still count against the limit of its namespace."""
    pod = make_pod("train", gated=False, server_annotation=SERVER.address, node="host-1", begun=True)
    story = held(pod, servers={OTHER: (Allocation(name="a", ipus=64),)})
    told = events_of(story.settle(5))
    assert ["no longer names" in event.message for event in told] == [True]
    assert "train" in story.entries()
    story.change(pod, finished=True)
    story.settle(5)
    assert story.entries() == {}
    story.servers[SERVER] = (Allocation(name="a", ipus=64),)
    story.settle(5)
    assert story.at() == {}


def test_pod_with_two_entries_keeps_the_partition_in_its_annotation() -> None:
    """A user may have restored an old entry of the ledger."""
    pod = make_pod("train")
    story = Story(pods=[pod], servers=dict(BOTH))
    story.record(make_entry(pod), make_entry(pod, server=OTHER))
    story.settle(30, seconds=5)
    assert [set(story.at(server)) for server in (SERVER, OTHER)] in (
        [{id_of(pod)}, set()],
        [set(), {id_of(pod, OTHER)}],
    )
    told = story.pods[0].partition_annotation
    assert [entry.id for entry in story.ledger.entries] == [told]  # type: ignore[union-attr]


def test_gate_is_kept_during_a_remove_of_the_partition() -> None:
    """A partition that took too long may become active during its remove; without the gate, its pod would start."""
    pod = make_pod("train")
    story = held(pod, state=PartitionState.OTHER)
    story.read()
    story.read(after_seconds=story.settings.stuck_seconds - 0.01)
    (remove,) = story.calls(RemovePartition)
    story.live = frozenset({remove.key})
    story.put(make_partition(pod))
    for _ in range(3):
        story.read(after_seconds=10)
        assert story.calls(OpenGate) == []
    story.live = frozenset()
    story.answer(remove, FailureKind.UNAVAILABLE)
    assert [gate.pod for gate in story.wants(OpenGate)] == [pod]


def test_gate_is_kept_while_the_entry_is_removed_from_the_ledger() -> None:
    """The create was rejected, but the partition appears before the write of the ledger is answered."""
    pod = make_pod("train")
    story = held(pod, state=None)
    story.read()
    story.answer(story.wants(CreatePartition)[0], FailureKind.STOCKOUT)
    story.read(after_seconds=1)
    (save,) = story.wants(SaveLedger)
    story.live = frozenset({save.key})
    story.put(make_partition(pod))
    story.read(after_seconds=10)
    assert (save.entries, story.wants(OpenGate)) == ((), [])
    story.live = frozenset()
    story.write(save)
    story.settle()
    assert story.pods[0].partition_annotation == id_of(pod)
    assert "train" in story.entries()


def test_partition_is_kept_while_the_gate_of_its_pod_is_removed() -> None:
    """The live check before the remove could see the gate just before the gate is removed."""
    pod = make_pod("train")
    story = held(pod)
    story.read()
    (gate,) = story.wants(OpenGate)
    story.live = frozenset({gate.key})
    story.put(make_partition(pod, PartitionState.ERROR))
    story.read(after_seconds=100)
    assert story.wants(RemovePartition) == []
    story.live = frozenset()
    story.write(gate, WriteFailure.CONFLICT)
    assert [call.id for call in story.wants(RemovePartition)] == [id_of(pod)]
