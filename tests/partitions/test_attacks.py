"""The controller of partitions where others do what they should not: settings, backups, servers and users."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.partitions import names
from provisioner.partitions.planning.ledger import encode, ledger_of
from tests.support.partitions import SYSTEM, Controller, partition

LEDGER = f"/api/v1/namespaces/{SYSTEM}/configmaps/{names.LEDGER_CONFIGMAP_NAME}"
_ROUNDS = 12
#: Five seconds each: until long after orphans are removed.
_LONG = 60


@pytest.fixture(name="controller")
def _controller() -> Controller:
    return Controller()


def test_a_ledger_of_another_cluster_removes_nothing_of_that_cluster(controller: Controller) -> None:
    """A backup that was restored here: its pods are not here, and its partitions are somebody else's."""
    controller.create_pod("train")
    controller.rounds(_ROUNDS)
    (entry,) = ledger_of(controller.kube.object(LEDGER)["data"], resource_version="1").entries  # type: ignore[index]
    theirs = replace(entry, id=names.partition_id("other-cluster", "uid-of-theirs"), pod_uid="uid-of-theirs")
    raw = controller.kube.object(LEDGER) or {}
    controller.kube.put_object(LEDGER, {**raw, "data": {**raw["data"], **encode([theirs])}})
    controller.vipu.partitions[theirs.id] = partition(theirs.id)
    after = controller.restarted()
    after.rounds(_LONG, seconds=5.0)
    assert theirs.id in after.vipu.partitions
    assert ("remove", theirs.id) not in after.vipu.calls
