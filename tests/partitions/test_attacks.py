"""The controller of partitions where others do what they should not: settings, backups, servers and users."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.partitions import names
from provisioner.partitions.planning.ledger import encode, ledger_of
from provisioner.partitions.vipu.protocol import PartitionState
from tests.support.partitions import CLUSTER_UID, SERVER, SYSTEM, Controller, FakeVipu, partition

LEDGER = f"/api/v1/namespaces/{SYSTEM}/configmaps/{names.LEDGER_CONFIGMAP_NAME}"
RENAMED = replace(SERVER, host="vipu.example")
_ROUNDS = 12
#: Five seconds each: until long after orphans are removed.
_LONG = 60


@pytest.fixture(name="controller")
def _controller() -> Controller:
    return Controller()


def places(controller: Controller) -> dict[str, str]:
    """Return the server of each entry in the ledger, by id."""
    raw = controller.kube.object(LEDGER) or {}
    return {each.id: each.server for each in ledger_of(raw.get("data"), resource_version="1").entries}


def test_a_server_with_a_new_name_keeps_the_partitions_of_running_pods(controller: Controller) -> None:
    """The pod was told the old name, which nobody can ask any more; by the new one its partition is the pod's still."""
    partition_id = controller.create_pod("train")
    controller.rounds(_ROUNDS)
    after = controller.restarted(server=RENAMED)
    after.rounds(_LONG, seconds=5.0)
    assert list(after.vipu.partitions) == [partition_id]
    assert ("remove", partition_id) not in after.vipu.calls
    assert places(after) == {partition_id: RENAMED.address}
    after.end("train")
    after.rounds(_LONG, seconds=5.0)
    assert (after.vipu.partitions, places(after)) == ({}, {})


def test_a_pod_whose_server_no_setting_names_any_more_has_its_partition_elsewhere(controller: Controller) -> None:
    """It was told nothing yet, so it need not wait for a server that nobody can ask."""
    partition_id = controller.create_pod("train")
    controller.vipu.state = PartitionState.OTHER
    controller.rounds(_ROUNDS)
    assert controller.is_gated("train")
    assert places(controller) == {partition_id: SERVER.address}
    after = controller.restarted(vipu=FakeVipu(), server=RENAMED)
    after.rounds(_ROUNDS, seconds=5.0)
    assert not after.is_gated("train")
    moved = names.partition_id(CLUSTER_UID, "uid-train", RENAMED.address)
    assert places(after) == {moved: RENAMED.address}


def test_an_entry_of_a_pod_that_ended_does_not_outlive_its_server(controller: Controller) -> None:
    """It would count against its namespace for ever; should the server come back, the partition is an orphan there."""
    partition_id = controller.create_pod("train")
    controller.rounds(_ROUNDS)
    elsewhere = controller.restarted(vipu=FakeVipu(), server=RENAMED)
    elsewhere.rounds(_ROUNDS, seconds=5.0)
    assert places(elsewhere) == {partition_id: SERVER.address}
    elsewhere.end("train")
    elsewhere.rounds(_ROUNDS, seconds=5.0)
    assert places(elsewhere) == {}
    back = elsewhere.restarted(vipu=controller.vipu)
    back.rounds(_LONG, seconds=5.0)
    assert controller.vipu.partitions == {}


def test_people_are_told_that_no_setting_names_the_server_of_a_running_pod(controller: Controller) -> None:
    """Nobody can say whether the partition is there."""
    controller.create_pod("train")
    controller.rounds(_ROUNDS)
    after = controller.restarted(vipu=FakeVipu(), server=RENAMED)
    after.rounds(_ROUNDS)
    assert any(SERVER.address in each.message and "no setting" in each.message for each in after.recorder.told)


def test_a_pod_that_runs_with_a_partition_of_graphcores_plugin_gets_no_second_one(controller: Controller) -> None:
    """Somebody moves from the plugin while pods run, which have its label and annotation."""
    controller.create_pod("old", schedulingGates=[], initContainers=[{"name": "ipu-init"}], nodeName="host-1")
    controller.vipu.partitions["of-the-plugin"] = partition("of-the-plugin")
    controller.rounds(_LONG, seconds=5.0)
    assert (controller.vipu.calls, places(controller)) == ([], {})
    assert [each.reason for each in controller.recorder.told] == ["PartitionRejected"]


def test_a_ledger_of_another_cluster_removes_nothing_of_that_cluster(controller: Controller) -> None:
    """A backup that was restored here: its pods are not here, and its partitions are somebody else's."""
    controller.create_pod("train")
    controller.rounds(_ROUNDS)
    (entry,) = ledger_of(controller.kube.object(LEDGER)["data"], resource_version="1").entries  # type: ignore[index]
    theirs = replace(
        entry, id=names.partition_id("other-cluster", "uid-of-theirs", entry.server), pod_uid="uid-of-theirs"
    )
    raw = controller.kube.object(LEDGER) or {}
    controller.kube.put_object(LEDGER, {**raw, "data": {**raw["data"], **encode([theirs])}})
    controller.vipu.partitions[theirs.id] = partition(theirs.id)
    after = controller.restarted()
    after.rounds(_LONG, seconds=5.0)
    assert theirs.id in after.vipu.partitions
    assert ("remove", theirs.id) not in after.vipu.calls
