"""The controller of partitions with its real parts: from a waiting pod to the removed partition."""

from __future__ import annotations

import pytest

from provisioner.kube import errors
from provisioner.partitions import names
from provisioner.partitions.planning.ledger import Entry, encode, ledger_of
from tests.support.clock import NOW
from tests.support.partitions import NAMESPACE, SERVER, SYSTEM, Controller, partition

LEDGER = f"/api/v1/namespaces/{SYSTEM}/configmaps/{names.LEDGER_CONFIGMAP_NAME}"
_ROUNDS = 12


@pytest.fixture(name="controller")
def _controller() -> Controller:
    return Controller()


def entries(controller: Controller) -> list[str]:
    raw = controller.kube.object(LEDGER) or {}
    return [entry.id for entry in ledger_of(raw.get("data"), resource_version="1").entries]


@pytest.mark.parametrize("was_known", [False, True], ids=["from the start", "since a write failed"])
def test_no_partition_is_created_or_removed_while_the_ledger_is_unreadable(
    controller: Controller, was_known: bool
) -> None:
    """Without the ledger, the owners of partitions are unknown."""
    known = "tpu_provisioner_partitions_ledger_known"
    if was_known:
        controller.rounds(_ROUNDS)
    controller.create_pod("train")
    controller.vipu.partitions["other"] = partition("other")
    controller.kube.fail("*", "configmaps", errors.Forbidden("no", status=403), times=1000)
    controller.rounds(_ROUNDS)
    assert controller.vipu.calls == []
    assert any("ledger" in problem for problem in controller.loop.problems())
    assert f"{known} 0.0".encode() in controller.metrics.exposition()
    controller.kube.clear_faults()
    controller.rounds(_ROUNDS, seconds=10.0)
    assert f"{known} 1.0".encode() in controller.metrics.exposition()
    assert not controller.is_gated("train")
    assert "other" in controller.vipu.partitions


def test_pod_missing_only_in_the_cache_keeps_its_partition(controller: Controller) -> None:
    """The cache may have lost the pod, so the check before the remove reads the pod live."""
    partition_id = controller.create_pod("train")
    controller.rounds(_ROUNDS)
    controller.loop.pods._read = dict  # type: ignore[attr-defined]
    controller.rounds(30, seconds=10.0)
    assert partition_id in controller.vipu.partitions
    assert ("remove", partition_id) not in controller.vipu.calls
    assert b"tpu_provisioner_partitions_removals_kept_total 0.0" not in controller.metrics.exposition()


def test_foreign_partitions_are_never_removed(controller: Controller) -> None:
    """Partitions of a cluster whose ledger was restored here are foreign; an orphan of this cluster is removed."""
    foreign = names.partition_id("another-cluster", "uid-1", SERVER.address)
    orphan = names.partition_id("cluster-uid", "uid-of-nobody", SERVER.address)
    for partition_id in ("by-hand", foreign, orphan):
        controller.vipu.partitions[partition_id] = partition(partition_id)
    entry = Entry(id=foreign, namespace="n", pod="p", pod_uid="uid-1", size=4, server=SERVER.address, recorded_at=NOW)
    controller.kube.put_object(LEDGER, {"metadata": {}, "data": encode([entry])})
    controller.rounds(60, seconds=10.0)
    assert set(controller.vipu.partitions) == {"by-hand", foreign}
    assert ("remove", foreign) not in controller.vipu.calls
    assert b"tpu_provisioner_partitions_orphans_removed_total 1.0" in controller.metrics.exposition()


def test_no_change_is_sent_without_time_left_on_the_lease(controller: Controller) -> None:
    """Another process may lead when the change takes effect."""
    controller.create_pod("train")
    controller.lease_seconds = 0.0
    controller.rounds(_ROUNDS)
    assert controller.vipu.calls == []
    assert controller.kube.object(LEDGER) is None


def test_waiting_and_created_partitions_are_reported_as_events(controller: Controller) -> None:
    controller.create_pod("first", 64)
    controller.rounds(_ROUNDS)
    controller.create_pod("second", 64)
    controller.rounds(_ROUNDS)
    told = [(event.ref.name, event.reason) for event in controller.recorder.told]
    assert ("first", "PartitionCreated") in told
    assert ("second", "PartitionWaiting") in told
    assert all(event.ref.namespace == NAMESPACE for event in controller.recorder.told)
    assert b"tpu_provisioner_partitions_pods_waiting 1.0" in controller.metrics.exposition()
    assert b"tpu_provisioner_partitions_oldest_wait_ipus 64.0" in controller.metrics.exposition()


def test_entry_repaired_by_hand_is_read_within_two_minutes(controller: Controller) -> None:
    """A log line asks for the repair, which must not require a restart of the controller."""
    partition_id = controller.create_pod("train")
    controller.rounds(_ROUNDS)
    raw = controller.kube.object(LEDGER) or {}
    good = raw["data"][partition_id]
    controller.kube.put_object(LEDGER, {**raw, "data": {partition_id: "{"}})
    controller.rounds(3, seconds=61.0)
    assert partition_id in controller.loop.known.ledger.unreadable  # type: ignore[union-attr]
    controller.kube.put_object(LEDGER, {**raw, "data": {partition_id: good}})
    controller.rounds(3, seconds=61.0)
    assert controller.loop.known.ledger.unreadable == {}  # type: ignore[union-attr]
    controller.delete("train")
    controller.rounds(_ROUNDS, seconds=10.0)
    assert (controller.vipu.partitions, entries(controller)) == ({}, [])


def test_failed_reread_keeps_the_last_ledger(controller: Controller) -> None:
    """Only the leader writes the ledger, so the last written ledger is still valid."""
    controller.create_pod("first")
    controller.rounds(_ROUNDS)
    controller.kube.fail("GET", "configmaps", errors.Unavailable("away"), times=1000)
    controller.create_pod("second")
    controller.rounds(_ROUNDS, seconds=10.0)
    assert not controller.is_gated("second")
    assert controller.loop.problems() == ()


def test_rejected_removal_of_a_gate_is_reported_once_as_an_event(controller: Controller) -> None:
    """The pod holds its IPUs until a user corrects the cause."""
    controller.kube.fail("PATCH", "pods/train", errors.Forbidden("a policy says no", status=403), times=3)
    controller.create_pod("train")
    controller.rounds(_ROUNDS)
    told = [event.message for event in controller.recorder.told if event.reason == "PartitionFailed"]
    assert len(told) == 1
    assert "scheduling gate cannot be removed: a policy says no" in told[0]
    controller.rounds(_ROUNDS * 3, seconds=30.0)
    assert not controller.is_gated("train")
