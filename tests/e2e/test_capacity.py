"""Choices of capacity on a real control plane: what is tried when something is out of stock, and what people read."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from rehearsal.demos import ProvisionerProcess
from rehearsal.simulators.gke.capacity import FULL_RESERVATION_TEXTS
from rehearsal.simulators.gke.faults import Fault, FaultKind
from rehearsal.simulators.gke.records import PoolStatus
from tests.e2e.kit import Ground, metric, told

pytestmark = pytest.mark.e2e

ZONE = "us-central2-b"
#: What GKE says where there is nothing left.
STOCKOUT = "does not have enough resources available to fulfill the request"
V4: dict[str, Any] = {"accelerator": "tpu-v4-podslice", "topology": "2x2x1"}
V5E_4: dict[str, Any] = {"accelerator": "tpu-v5-lite-podslice", "topology": "2x2", "chips": 4}
#: Of machine types that no other test has: back-off goes by machine type, and outlives a provisioner.
V5P: dict[str, Any] = {"accelerator": "tpu-v5p-slice", "topology": "2x2x1"}
V6E_1: dict[str, Any] = {"accelerator": "tpu-v6e-slice", "topology": "1x1", "chips": 1}


def started(ground: Ground, name: str) -> list[str]:
    """Return the terms of all pools that were made for a JobSet, in order, as its pods' Events tell them."""
    return [message.rpartition(", ")[2] for message in told(ground, constants.CREATION_STARTED, name)]


def test_choices_are_tried_in_order(alone: Ground) -> None:
    """Reservation, on-demand, spot: each step is told, in GKE's words, and the JobSet runs on what is there."""
    for capacity in ("reservation", "on-demand"):
        alone.gke.inject(
            Fault(kind=FaultKind.STOCKOUT, after_seconds=0.5, machine_type="ct6e-standard-1t", capacity=capacity)
        )
    alone.provisioner(environment={"CAPACITY": "reservation/r1, on-demand, spot"})
    alone.apply("steps", **V6E_1, tolerations=[{"key": constants.SPOT, "operator": "Exists"}], run_for="1h")
    alone.wait(lambda: alone.runs("steps"), "it runs")
    assert started(alone, "steps") == [f"reservation r1 in {ZONE}", f"on-demand in {ZONE}", f"spot in {ZONE}"]
    failed = told(alone, constants.CREATION_FAILED, "steps")
    # Of a reservation GKE says it in other words, and each pool hears other ones.
    assert [any(text in words for text in (STOCKOUT, *FULL_RESERVATION_TEXTS)) for words in failed] == [True, True]
    assert [pool.capacity for pool in alone.pools("steps-")] == ["spot"]


def test_flex_start_waits_for_capacity(alone: Ground) -> None:
    """A flex-start pool without nodes is not replaced; once there is capacity, its JobSet runs."""
    alone.gke.set(scale_up_seconds=0.2)
    missing = alone.gke.inject(Fault(kind=FaultKind.STOCKOUT, capacity="flex-start"))
    alone.provisioner()
    wishes = {constants.CAPACITY: "flex-start", "tpu-provisioner.cloud.google.com/max-run-duration": "2h"}
    alone.apply("flex", **V5P, annotations=wishes, run_for="2s")
    alone.wait(lambda: [pool.status for pool in alone.pools("flex-")] == [PoolStatus.RUNNING], "its pool is made")
    (pool,) = alone.pools("flex-")
    assert (pool.capacity, pool.nodes) == ("flex-start", ())
    assert alone.sent()[pool.name]["config"]["maxRunDuration"] == "7200s"
    alone.gke.clear(missing)
    alone.await_completed("flex")
    assert started(alone, "flex") == [f"flex-start in {ZONE}"]
    alone.await_gone("flex-")


def test_warm_pools(alone: Ground) -> None:
    """A pool that is kept warm serves the next JobSet of its shape at once, and makes room for one of another shape."""
    process = alone.provisioner(environment={"NODEPOOL_DELETION_DELAY": "1h", "MAX_CHIPS": "4"})
    alone.apply("first", **V4, run_for="1s")
    alone.await_completed("first")
    alone.wait(lambda: metric(process, "chips", state="idle") == 4, "its chips are idle")
    alone.apply("second", **V4, run_for="1s")
    alone.await_completed("second")
    assert alone.accepted("nodePools.create") == 1
    assert not alone.pools("second-")
    alone.apply("third", **V5E_4, run_for="1s")
    alone.await_completed("third")
    assert not alone.pools("first-")
    assert (alone.accepted("nodePools.create"), alone.accepted("nodePools.delete")) == (2, 1)


def test_the_annotations_of_the_go_provisioner(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """What apple/axlearn sets on its pods works: service account, networks, copied labels and a selector of its own."""
    ground.apply(
        "axlearn",
        run_for="1h",
        selector={constants.LEGACY_POOL_ID: "axlearn-7"},
        pod_labels={"cloud.google.com/gke-tpu-auto-restart": "true", "bastion-tier": "0"},
        pod_annotations={
            constants.NODE_SERVICE_ACCOUNT: "nodes@rehearsal-project.iam.gserviceaccount.com",
            constants.ADDITIONAL_NODE_NETWORKS: "vpc-1:subnet-1,vpc-2:subnet-2",
            constants.COPY_LABELS: "cloud.google.com/gke-tpu-auto-restart,bastion-tier",
        },
    )
    ground.wait(lambda: ground.runs("axlearn"), "it runs")
    (node,) = ground.nodes()
    labels = node["metadata"]["labels"]
    assert (labels["cloud.google.com/gke-tpu-auto-restart"], labels["bastion-tier"]) == ("true", "0")
    assert labels[constants.LEGACY_POOL_ID] == "axlearn-7"
    (body,) = ground.sent().values()
    assert body["config"]["serviceAccount"] == "nodes@rehearsal-project.iam.gserviceaccount.com"
    assert body["networkConfig"]["additionalNodeNetworkConfigs"] == [
        {"network": "vpc-1", "subnetwork": "subnet-1"},
        {"network": "vpc-2", "subnetwork": "subnet-2"},
    ]
    ground.delete("axlearn")
    ground.await_gone("axlearn-")
