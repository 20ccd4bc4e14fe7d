"""The client against the simulated GKE: two independent readings of one API must agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from provisioner.gke.client import GkeClient
from provisioner.gke.errors import GkeError
from provisioner.model.capacity import (
    FailureKind,
    NodePool,
    NodePoolRequest,
    Operation,
    OperationName,
    PoolName,
    PoolStatus,
    Taint,
    Zone,
)
from provisioner.simulator.app import Simulator
from provisioner.simulator.faults import Fault, FaultKind
from provisioner.simulator.settings import SimulatorSettings

SLICE = NodePoolRequest(
    name=PoolName("js-0123456789"),
    zone=Zone("us-east5-b"),
    machine_type="ct6e-standard-4t",
    node_count=4,
    topology="4x4",
    disk_type="hyperdisk-balanced",
    labels={"google.com/nodepool-manager": "tpu-provisioner", "team": "a"},
    taints=(Taint(key="team", value="a"),),
)
SINGLE = replace(SLICE, machine_type="ct6e-standard-1t", node_count=1, topology="")
IRONWOOD = replace(SLICE, machine_type="tpu7x-standard-4t", node_count=16, topology="", policy_name="w-4x4x4")


@dataclass
class Rehearsal:
    """A client, its GKE, and the clock of that."""

    now: list[datetime] = field(default_factory=lambda: [datetime(2026, 1, 1, tzinfo=UTC)])
    simulator: Simulator = field(init=False)
    client: GkeClient = field(init=False)

    def __post_init__(self) -> None:
        self.simulator = Simulator(SimulatorSettings(), clock=lambda: self.now[0])

    def start(self) -> None:
        """Open the port and make the client."""
        self.simulator.start()
        self.client = GkeClient(
            project="p", location="us-east5", cluster="c", endpoint=self.simulator.url, create_timeout_seconds=5.0
        )

    def stop(self) -> None:
        """End both."""
        self.client.close()
        self.simulator.stop()

    def wait(self, seconds: float) -> None:
        """Let time pass for GKE."""
        self.now[0] += timedelta(seconds=seconds)
        self.simulator.world.advance()

    def operation(self, name: OperationName) -> Operation:
        """Return an operation."""
        return self.client.get_operation(name)


@pytest.fixture
def gke() -> Iterator[Rehearsal]:
    """Return a running rehearsal."""
    rehearsal = Rehearsal()
    rehearsal.start()
    yield rehearsal
    rehearsal.stop()


def failure_of_create(gke: Rehearsal, request: NodePoolRequest) -> tuple[FailureKind, str]:
    """Return how a create is refused."""
    with pytest.raises(GkeError) as caught:
        gke.client.create_node_pool(request)
    return caught.value.failure.kind, caught.value.failure.message


@pytest.mark.parametrize("request_", [SLICE, SINGLE, IRONWOOD], ids=["multi-host", "single-host", "workload policy"])
def test_life_of_a_pool(gke: Rehearsal, request_: NodePoolRequest) -> None:
    """A pool is provisioned, runs, is deleted and gone, and reads back as it was asked for."""
    want = NodePool(
        name=request_.name,
        status=PoolStatus.PROVISIONING,
        labels=request_.labels,
        taints=request_.taints,
        machine_type=request_.machine_type,
        node_count=request_.node_count,
        zones=(request_.zone,),
        topology=request_.topology,
        policy_name=request_.policy_name,
    )
    create = gke.client.create_node_pool(request_)
    assert gke.client.get_node_pool(request_.name) == want
    assert want in gke.client.list_node_pools()
    assert gke.operation(create) == Operation(name=create, done=False)

    gke.wait(60)
    assert gke.operation(create) == Operation(name=create, done=True)
    assert gke.client.get_node_pool(request_.name) == replace(want, status=PoolStatus.RUNNING)

    delete = gke.client.delete_node_pool(request_.name)
    assert gke.client.get_node_pool(request_.name).status is PoolStatus.STOPPING
    gke.wait(60)
    assert gke.operation(delete) == Operation(name=delete, done=True)
    assert request_.name not in {pool.name for pool in gke.client.list_node_pools()}
    with pytest.raises(GkeError) as caught:
        gke.client.get_node_pool(request_.name)
    assert caught.value.failure.kind is FailureKind.NOT_FOUND


def test_spot_and_reservation_read_back(gke: Rehearsal) -> None:
    """What a pool costs reads back as it was asked for."""
    gke.client.create_node_pool(replace(SLICE, name=PoolName("s"), spot=True))
    gke.client.create_node_pool(replace(SLICE, name=PoolName("r"), reservation="projects/q/reservations/r"))
    pools = {pool.name: (pool.spot, pool.reservation) for pool in gke.client.list_node_pools()}
    assert {name: pools[PoolName(name)] for name in ("s", "r")} == {
        "s": (True, ""),
        "r": (False, "projects/q/reservations/r"),
    }


@pytest.mark.parametrize(
    ("fault", "want"),
    [
        pytest.param(FaultKind.STOCKOUT, FailureKind.STOCKOUT, id="a stockout"),
        pytest.param(FaultKind.QUOTA_EXCEEDED, FailureKind.QUOTA, id="a quota"),
    ],
)
def test_failed_creates(gke: Rehearsal, fault: FaultKind, want: FailureKind) -> None:
    """A create that fails says why in its operation and in its pool alike."""
    gke.simulator.inject(Fault(kind=fault))
    create = gke.client.create_node_pool(SLICE)
    gke.wait(7200)
    operation = gke.operation(create)
    pool = gke.client.get_node_pool(SLICE.name)
    assert operation.done
    assert pool.status is PoolStatus.ERROR
    assert operation.failure is not None
    assert pool.failure is not None
    assert (operation.failure.kind, pool.failure.kind) == (want, want)


def test_stockout_of_a_reservation_is_invalid(gke: Rehearsal) -> None:
    """A pool on a reservation never reads as a stockout."""
    gke.simulator.inject(Fault(kind=FaultKind.STOCKOUT))
    gke.client.create_node_pool(replace(SLICE, reservation="r"))
    gke.wait(7200)
    failure = gke.client.get_node_pool(SLICE.name).failure
    assert failure is not None
    assert failure.kind is FailureKind.INVALID


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        pytest.param(replace(SLICE, name=PoolName("Bad_Name")), "Must be a match of regex", id="a bad name"),
        pytest.param(replace(SINGLE, topology="1x1"), "single-host TPU slice pool", id="a topology on one host"),
        pytest.param(replace(SLICE, topology="3x5"), "3x5", id="a topology that does not exist"),
        pytest.param(replace(SLICE, disk_type="pd-balanced"), "pd-balanced", id="a disk that does not fit"),
        pytest.param(replace(SLICE, labels={"a": "x" * 64}), "x" * 64, id="a label that is too long"),
    ],
)
def test_invalid_requests(gke: Rehearsal, request_: NodePoolRequest, words: str) -> None:
    """What GKE refuses for good is INVALID, in GKE's words."""
    kind, message = failure_of_create(gke, request_)
    assert kind is FailureKind.INVALID
    assert words in message


def test_wrong_placement_ends_in_an_invalid_pool(gke: Rehearsal) -> None:
    """What GKE finds out later is INVALID in the pool."""
    gke.client.create_node_pool(replace(IRONWOOD, policy_name="", topology="4x4x4"))
    gke.wait(7200)
    pool = gke.client.get_node_pool(SLICE.name)
    assert pool.failure is not None
    assert (pool.status, pool.failure.kind) == (PoolStatus.ERROR, FailureKind.INVALID)
    assert "Use workload policy instead" in pool.failure.message


def test_conflicts(gke: Rehearsal) -> None:
    """A name that is taken, and operations in the way, are told apart from mistakes."""
    gke.client.create_node_pool(SLICE)
    assert failure_of_create(gke, SLICE)[0] is FailureKind.ALREADY_EXISTS
    with pytest.raises(GkeError) as creating:
        gke.client.delete_node_pool(SLICE.name)
    gke.wait(60)
    gke.client.delete_node_pool(SLICE.name)
    with pytest.raises(GkeError) as stopping:
        gke.client.delete_node_pool(SLICE.name)
    kinds = [one.value.failure.kind for one in (creating, stopping)]
    assert kinds == [FailureKind.OPERATION_IN_THE_WAY] * 2


def test_quota_of_operations(gke: Rehearsal) -> None:
    """The quota of concurrent operations is no quota of chips."""
    gke.simulator.set(operations_quota=1)
    gke.client.create_node_pool(SLICE)
    kind, _ = failure_of_create(gke, replace(SLICE, name=PoolName("second")))
    assert kind is FailureKind.TOO_MANY_OPERATIONS


def test_lost_answer_of_a_create(gke: Rehearsal) -> None:
    """A create whose answer is lost is unknown, sent once, and found by its name."""
    gke.simulator.inject(
        Fault(kind=FaultKind.HTTP_ERROR, method="nodePools.create", code=0, before_effect=False, count=1)
    )
    assert failure_of_create(gke, SLICE)[0] is FailureKind.UNKNOWN_OUTCOME
    assert gke.simulator.count("nodePools.create") == 1
    assert gke.client.get_node_pool(SLICE.name).status is PoolStatus.PROVISIONING


def test_missing_things(gke: Rehearsal) -> None:
    """What is not there is NOT_FOUND."""
    for call in (
        lambda: gke.client.delete_node_pool(PoolName("nobody")),
        lambda: gke.client.get_operation(OperationName("operation-1-nobody")),
    ):
        with pytest.raises(GkeError) as caught:
            call()
        assert caught.value.failure.kind is FailureKind.NOT_FOUND


def test_cluster(gke: Rehearsal) -> None:
    """The cluster is read, and its instance groups follow its pools."""
    gke.client.create_node_pool(SLICE)
    gke.wait(60)
    cluster = gke.client.get_cluster()
    assert (cluster.name, cluster.status) == ("c", "RUNNING")
    assert any("/zones/us-east5-b/instanceGroupManagers/gke-c-" in url for url in cluster.instance_group_urls)
