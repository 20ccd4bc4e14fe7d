"""Choices of capacity on a real control plane: what is tried when something is out of stock, and what people read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from rehearsal.demos import ProvisionerProcess, Rehearsal
from rehearsal.simulators.gke.capacity import FULL_RESERVATION_TEXTS
from rehearsal.simulators.gke.faults import Fault, FaultKind
from rehearsal.simulators.gke.records import PoolStatus
from tests.e2e.conftest import Shared, own_ground
from tests.e2e.kit import Ground, jobset, metric, of_shapes, told

pytestmark = pytest.mark.e2e

#: Of Google's domain, and in no list.
UNKNOWN = "cloud.google.com/gke-of-tomorrow"
ZONE, OTHER_ZONE = "us-central2-b", "us-central2-c"
#: What GKE says where there is nothing left.
STOCKOUT = "does not have enough resources available to fulfill the request"
#: What is out of stock is tried again after half a minute.
BACKED_OFF_SECONDS = 100.0
SPOT = {constants.SPOT: "true"}
TOLERATES_SPOT = [{"key": constants.SPOT, "operator": "Exists"}]
V4: dict[str, Any] = {"accelerator": "tpu-v4-podslice", "topology": "2x2x1"}
V4_PAIR: dict[str, Any] = {"accelerator": "tpu-v4-podslice", "topology": "2x2x2", "parallelism": 2}
V5E_4: dict[str, Any] = {"accelerator": "tpu-v5-lite-podslice", "topology": "2x2", "chips": 4}
V5E_8: dict[str, Any] = {"accelerator": "tpu-v5-lite-podslice", "topology": "2x4", "chips": 8}
#: Of machine types that no other test has: back-off goes by machine type, and outlives a provisioner.
V3: dict[str, Any] = {"accelerator": "tpu-v3-device", "topology": "2x2", "chips": 4}
V5P: dict[str, Any] = {"accelerator": "tpu-v5p-slice", "topology": "2x2x1"}
V5L_1: dict[str, Any] = {"accelerator": "tpu-v5-lite-device", "topology": "1x1", "chips": 1}
V5L_4: dict[str, Any] = {"accelerator": "tpu-v5-lite-device", "topology": "2x2", "chips": 4}
V5L_8: dict[str, Any] = {"accelerator": "tpu-v5-lite-device", "topology": "2x4", "chips": 8}
V6E_1: dict[str, Any] = {"accelerator": "tpu-v6e-slice", "topology": "1x1", "chips": 1}
V6E_4: dict[str, Any] = {"accelerator": "tpu-v6e-slice", "topology": "2x2", "chips": 4}
V6E_8: dict[str, Any] = {"accelerator": "tpu-v6e-slice", "topology": "2x4", "chips": 8}
#: Of each machine type something else.
OUT_OF_STOCK: tuple[dict[str, Any], ...] = (
    {"machine_type": "ct6e-standard-1t", "capacity": "reservation"},
    {"machine_type": "ct6e-standard-1t", "capacity": "on-demand"},
    {"machine_type": "ct3-hightpu-4t", "zone": ZONE},
    {"machine_type": "ct5l-hightpu-1t", "capacity": "spot"},
    {"machine_type": "ct5l-hightpu-4t", "zone": OTHER_ZONE},
    {"machine_type": "ct5lp-hightpu-4t", "zone": ZONE},
    {"machine_type": "ct6e-standard-4t"},
)
#: A service account that may not be used at first, and a policy that forbids one JobSet's pools for good.
ACCOUNT = "training@rehearsal-project.iam.gserviceaccount.com"
POLICY = Fault(
    kind=FaultKind.HTTP_ERROR,
    method="nodePools.create",
    pool="unlawful-.*",
    code=412,
    message="Constraint constraints/custom.approvedSlices violated for projects/rehearsal-project.",
)
#: Of those the ones that are not tried again: the on-demand V6E_1, and one zone each of V3, V5L_1 and V6E_4.
STILL_BACKED_OFF = 4
SETTINGS = {
    "CAPACITY": "reservation/r1, on-demand, spot",
    "ZONES": f"{ZONE}, {OTHER_ZONE}",
    "PARTIAL_HOLD": "5s",
    "NODEPOOL_READY_TIMEOUT": "10s",
}

#: Of the annotations.
_PREFIX = "tpu-provisioner.cloud.google.com/"


def asks(**wishes: str) -> dict[str, str]:
    """Return annotations."""
    return {f"{_PREFIX}{key.replace('_', '-')}": wish for key, wish in wishes.items()}


AS_ACCOUNT: dict[str, Any] = {
    "annotations": asks(capacity="on-demand", zones=ZONE),
    "pod_annotations": {constants.NODE_SERVICE_ACCOUNT: ACCOUNT},
    # Its pods fit no pool but its own.
    "selector": {constants.LEGACY_POOL_ID: "impostor"},
    "run_for": "1h",
}
#: Takes what CAPACITY has, in one zone alone so that there is less to try.
STEPS: dict[str, Any] = {**V6E_1, "annotations": asks(zones=ZONE), "tolerations": TOLERATES_SPOT, "run_for": "1h"}


def started(ground: Ground, name: str) -> list[str]:
    """Return the terms of all pools that were made for a JobSet, in order, as its pods' Events tell them."""
    return [message.rpartition(", ")[2] for message in told(ground, constants.CREATION_STARTED, name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Where much was out of stock, and has come back since."""

    ground: Ground
    provisioner: ProvisionerProcess
    #: The fault that keeps flex-start pools without nodes.
    no_flex_start: str
    #: Pods that the scheduler had bound of a JobSet that starts all together, when its one slice was given back.
    bound_of_half: list[str]


@pytest.fixture(scope="class")
def market(rehearsal: Rehearsal, shared: Shared) -> Iterator[Market]:
    """Let everything be wanted that is out of stock until all are told so, then let everything be had again.

    The tests of the class share it: what is out of stock is tried again only after half a minute.
    """
    shared.stop()
    with own_ground(rehearsal, shared) as ground:
        ground.gke.set(scale_up_seconds=0.2, service_accounts={ACCOUNT: "forbidden"})
        ground.gke.inject(POLICY)
        no_flex_start = ground.gke.inject(Fault(kind=FaultKind.STOCKOUT, capacity="flex-start"))
        ground.gke.inject(Fault(kind=FaultKind.NODES_NEVER_REGISTER, pool="beside-.*", count=1))
        shortages = [
            ground.gke.inject(Fault(kind=FaultKind.STOCKOUT, after_seconds=0.5, **fields)) for fields in OUT_OF_STOCK
        ]
        process = ground.provisioner(environment=SETTINGS)
        ground.apply("steps-a", **STEPS)
        ground.apply("elsewhere", **V3, annotations=asks(capacity="on-demand"), run_for="1h")
        ground.apply("cheap", **V5L_1, selector=SPOT, tolerations=TOLERATES_SPOT, run_for="1h")
        ground.apply(
            "there",
            **V6E_1,
            annotations=asks(capacity="on-demand"),
            selector={constants.ZONE: OTHER_ZONE},
            run_for="1h",
        )
        for name, wishes, shapes in (
            ("same", {"same_zone": "true"}, (V5E_8, V5E_4)),
            ("half", {"all_or_nothing": "true"}, (V6E_8, V6E_4)),
        ):
            annotations = asks(capacity="on-demand", **wishes)
            slices = [jobset(name, ground.namespace, **each, annotations=annotations, run_for="1h") for each in shapes]
            ground.post(of_shapes(*slices))
        # Of a shape of its own: its pod asks for no capacity, and would run on the pool of any other of its shape.
        ground.apply("flex", **V5P, annotations=asks(capacity="flex-start", max_run_duration="2h"), run_for="2s")
        ground.apply("impostor", **V4, **AS_ACCOUNT)
        ground.apply("unlawful", **V4_PAIR, annotations=asks(capacity="on-demand", zones=ZONE), run_for="1h")
        ground.apply("beside", **V5L_8, annotations=asks(capacity="on-demand"), run_for="1h")
        ground.wait(lambda: "spot" in {pool.capacity for pool in ground.living("steps-a-")}, "spot is tried")
        ground.apply("steps-b", **STEPS)
        ground.apply("insists", **{**STEPS, "selector": {constants.RESERVATION_NAME: "r1"}})
        for name in ("cheap", "there", "same", "impostor"):
            ground.wait(lambda name=name: told(ground, constants.CREATION_WAITING, name), f"{name} is told to wait")
        ground.wait(
            lambda: any(
                words.endswith("not all of them could be created")
                for words in told(ground, constants.DELETION_STARTED, "half", kind="JobSet")
            ),
            "the one slice of a JobSet that starts all together is given back",
        )
        bound = [
            event["involvedObject"]["name"]
            for event in ground.rehearsal.objects(collection_path("events", namespace=ground.namespace))
            if event["reason"] == "Scheduled" and event["involvedObject"]["name"].startswith("half-")
        ]
        # Of the same shape and terms as those that are refused.
        ground.apply("lawful", **V4, annotations=asks(capacity="on-demand"), run_for="1h")
        ground.wait(lambda: ground.runs("lawful"), "a JobSet that asks for no account runs")
        for shortage in shortages:
            ground.gke.clear(shortage)
        ground.gke.set(service_accounts={})
        yield Market(ground=ground, provisioner=process, no_flex_start=no_flex_start, bound_of_half=bound)


class TestOutOfStock:
    """Many JobSets meet with stockouts at once."""

    def test_choices_are_tried_in_order(self, market: Market) -> None:
        """Reservation, on-demand, spot: each step is told, in GKE's words, and the JobSet runs on what is there."""
        ground = market.ground
        ground.wait(lambda: ground.runs("steps-a"), "it runs")
        assert started(ground, "steps-a") == [
            f"reservation r1 in {ZONE}",
            f"on-demand in {ZONE}",
            f"spot in {ZONE}",
        ]
        failed = told(ground, constants.CREATION_FAILED, "steps-a")
        assert len(failed) == 2
        # Of a reservation GKE says it in other words, and each pool hears other ones.
        said = [any(text in words for text in (STOCKOUT, *FULL_RESERVATION_TEXTS)) for words in failed]
        assert said == [True, True]
        assert [pool.capacity for pool in ground.pools("steps-a-")] == ["spot"]

    def test_what_one_found_out_of_stock_the_next_does_not_try(self, market: Market) -> None:
        """A second JobSet of the shape gets spot at once."""
        market.ground.wait(lambda: market.ground.runs("steps-b"), "it runs")
        assert started(market.ground, "steps-b") == [f"spot in {ZONE}"]

    def test_another_zone(self, market: Market) -> None:
        """What is out of stock in the first zone is made in the second."""
        ground = market.ground
        ground.wait(lambda: ground.runs("elsewhere"), "it runs")
        assert started(ground, "elsewhere") == [f"on-demand in {ZONE}", f"on-demand in {OTHER_ZONE}"]
        assert [pool.zones for pool in ground.pools("elsewhere-")] == [(OTHER_ZONE,)]

    def test_flex_start_waits_for_capacity(self, market: Market) -> None:
        """A flex-start pool without nodes is not replaced, however long; once there is capacity, its JobSet runs.

        An on-demand pool that came up without nodes after it is replaced, and so shows that the time is up.
        """
        ground = market.ground
        ground.wait(
            lambda: told(ground, constants.DELETION_STARTED, "beside", kind="JobSet"),
            "a pool was without nodes for too long",
        )
        (words,) = told(ground, constants.DELETION_STARTED, "beside", kind="JobSet")
        assert words.endswith("not all of its hosts became ready in time")
        (pool,) = ground.pools("flex-")
        assert (pool.status, pool.capacity, pool.nodes) == (PoolStatus.RUNNING, "flex-start", ())
        assert ground.sent()[pool.name]["config"]["maxRunDuration"] == "7200s"
        ground.gke.clear(market.no_flex_start)
        ground.await_completed("flex")
        assert started(ground, "flex") == [f"flex-start in {ZONE}"]
        ground.await_gone("flex-")

    @pytest.mark.parametrize(
        ("name", "only"),
        [
            pytest.param("insists", {f"reservation r1 in {ZONE}"}, id="a reservation"),
            pytest.param("cheap", {f"spot in {ZONE}", f"spot in {OTHER_ZONE}"}, id="spot"),
            pytest.param("there", {f"on-demand in {OTHER_ZONE}"}, id="a zone"),
        ],
    )
    def test_what_a_pod_selects_is_kept(self, market: Market, name: str, only: set[str]) -> None:
        """A pod that pins its capacity or its zone waits for just that, and is told so."""
        ground = market.ground
        ground.wait(lambda: ground.runs(name), "it runs in the end", BACKED_OFF_SECONDS)
        (words, *_) = told(ground, constants.CREATION_WAITING, name)
        assert any(text in words for text in ("GCE_STOCKOUT", *FULL_RESERVATION_TEXTS))
        assert "next try" in words
        assert set(started(ground, name)) <= only

    def test_all_slices_in_one_zone(self, market: Market) -> None:
        """With same-zone the second slice waits for the zone of the first, although another zone has room."""
        ground = market.ground
        ground.wait(lambda: ground.runs("same", pods=2), "both slices run", BACKED_OFF_SECONDS)
        (words, *_) = told(ground, constants.CREATION_WAITING, "same")
        assert STOCKOUT in words
        assert f"zones/{ZONE}'" in words
        assert set(started(ground, "same")) == {f"on-demand in {ZONE}"}
        assert [pool.zones for pool in ground.pools("same-")] == [(ZONE,)] * 2

    def test_half_a_jobset_is_given_back(self, market: Market) -> None:
        """With all-or-nothing the one slice that was there went back unused; later both run."""
        ground = market.ground
        assert market.bound_of_half == []
        assert any("1 of 2 are" in words for words in told(ground, constants.HELD_FOR_OTHERS, "half"))
        ground.wait(lambda: ground.runs("half", pods=2), "both slices run", BACKED_OFF_SECONDS)
        assert len(ground.living("half-")) == 2

    def test_the_better_choice_is_taken_again(self, market: Market) -> None:
        """Once the back-off is over and the reservation has room, the next JobSet gets it."""
        ground = market.ground
        ground.wait(
            lambda: metric(market.provisioner, "backoff_active", kind="stockout") == STILL_BACKED_OFF,
            "all else that was out of stock is there again",
            BACKED_OFF_SECONDS,
        )
        ground.apply("steps-c", **STEPS)
        ground.wait(lambda: ground.runs("steps-c"), "it runs")
        assert started(ground, "steps-c") == [f"reservation r1 in {ZONE}"]

    def test_a_service_account_that_may_not_be_used(self, market: Market) -> None:
        """HTTP 400 is told with its remedy, holds nobody else up, and the pool is made by itself after the grant."""
        ground = market.ground
        (words, *_) = told(ground, constants.CREATION_WAITING, "impostor")
        assert f'The user does not have access to service account "{ACCOUNT}"' in words
        assert "Grant the provisioner's identity roles/iam.serviceAccountUser on that service account" in words
        ground.wait(lambda: ground.runs("impostor"), "it runs after the grant", BACKED_OFF_SECONDS)
        assert started(ground, "impostor") == [f"on-demand in {ZONE}"]
        assert ground.refused("nodePools.create", "400") == 1

    def test_a_policy_of_the_organisation(self, market: Market) -> None:
        """HTTP 412 that names a constraint is a refusal: told, and not sent again and again."""
        ground = market.ground
        (words, *_) = told(ground, constants.CREATION_FAILED, "unlawful")
        assert POLICY.message is not None
        assert POLICY.message in words
        assert ground.refused("nodePools.create", "412") == 1


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


def test_selectors_on_labels_of_google(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """Labels that GKE sets are foreseen; for one that nobody knows the pool is made, with one warning."""
    ground.apply(
        "foreseen",
        **V4,
        run_for="1h",
        selector={
            constants.METADATA_SERVER: "true",
            constants.MACHINE_FAMILY: "ct4p",
            constants.OS_DISTRIBUTION: "cos",
            constants.GKE_ZONE: ZONE,
            constants.BETA_INSTANCE_TYPE: "ct4p-hightpu-4t",
        },
    )
    ground.apply("guessed", **V5E_4, run_for="1h", selector={UNKNOWN: "yes"})
    block = {constants.RESERVATION_NAME: "r9", constants.RESERVATION_BLOCK: "b1"}
    ground.apply("block", **V5E_8, run_for="1h", selector={**block, constants.RESERVATION_AFFINITY: "specific"})
    for name in ("foreseen", "block"):
        ground.wait(lambda name=name: ground.runs(name), f"{name} runs")
        assert told(ground, constants.UNKNOWN_SELECTOR, name) == []
    sent = {name.partition("-")[0]: body["config"] for name, body in ground.sent().items()}
    assert constants.METADATA_SERVER not in sent["foreseen"]["labels"]
    # Of the cluster's own project, and the full path all the same.
    (reservation,) = sent["block"]["reservationAffinity"]["values"]
    assert reservation == "projects/rehearsal-project/reservations/r9/reservationBlocks/b1"

    ground.wait(
        lambda: any(pool.nodes for pool in ground.living("guessed-")), "a pool is made for a label nobody knows"
    )
    (pool,) = ground.living("guessed-")
    ground.wait(
        lambda: pool.nodes[0].name in [node["metadata"]["name"] for node in ground.nodes()], "its node is there"
    )
    # As GKE would have set it.
    ground.api.patch(object_path("nodes", pool.nodes[0].name), {"metadata": {"labels": {UNKNOWN: "yes"}}})
    ground.wait(lambda: ground.runs("guessed"), "it runs on that pool")
    (words,) = told(ground, constants.UNKNOWN_SELECTOR, "guessed")
    assert UNKNOWN in words
    assert len(ground.pools("guessed-")) == 1
