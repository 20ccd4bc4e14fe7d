"""GKE keeps the contract of suppliers; the simulated one stands for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

import pytest

from provisioner.model.capacity import Failure, FailureKind, NodePoolRequest, PoolName
from provisioner.slices.supplier import SupplierError
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from rehearsal.simulators.gke.app import Simulator
from rehearsal.simulators.gke.faults import Fault, FaultKind
from rehearsal.simulators.gke.settings import SimulatorSettings
from tests.slices.suppliers.conformance import FIRST, SupplierContract
from tests.support.clock import FakeClock
from tests.support.gke import CLUSTER_NAME, SLICE

_CHANGES = ("nodePools.create", "nodePools.delete", "resourcePolicies.insert")
#: One that needs a workload policy.
_WITH_POLICY = replace(
    SLICE,
    machine_type="tpu7x-standard-4t",
    hosts=2,
    topology="2x2x2",
    placement_topology="",
    policy_name="tpu-provisioner-2x2x2",
)


class _Newer(StrEnum):
    """What GKE may say one day."""

    HIBERNATING = "HIBERNATING"


class GkeGround:
    """A simulated GKE, its client, and the supplier on it."""

    def __init__(self, slice_: NodePoolRequest, *, policy_exists: bool = True) -> None:
        self._slice = slice_
        self._clock = FakeClock()
        policies = {_WITH_POLICY.policy_name: _WITH_POLICY.topology} if policy_exists else {}
        self._simulator = Simulator(SimulatorSettings(workload_policies=policies), clock=self._clock.now)
        self._simulator.start()
        self._client = GkeClient(CLUSTER_NAME, endpoint=self._simulator.url, change_seconds=5.0)
        self.supplier = GkeSupplier(gke=self._client, clock=self._clock.now)

    def sells(self, accelerator: str) -> bool:
        """GKE has all that Google sells."""
        return True

    def request(self, name: PoolName) -> NodePoolRequest:
        """Return a request that GKE takes."""
        return replace(self._slice, name=name)

    def finish(self) -> None:
        self._clock.advance(120)
        self._simulator.world.advance()

    def changes(self) -> int:
        """Count creates and deletes, whatever their answers."""
        return sum(self._simulator.count(method) for method in _CHANGES)

    def policy_reads(self) -> int:
        """Count the reads of workload policies."""
        return self._simulator.count("resourcePolicies.get")

    def lose_answer(self, *, to_create: bool, before_effect: bool) -> None:
        """Let GKE hang up."""
        method = "nodePools.create" if to_create else "nodePools.delete"
        self._simulator.inject(
            Fault(kind=FaultKind.HTTP_ERROR, method=method, code=0, count=1, before_effect=before_effect)
        )

    def fail_creation(self) -> None:
        """Let GKE run out of stock."""
        self._simulator.inject(Fault(kind=FaultKind.STOCKOUT, count=1))

    def create_foreign(self, name: PoolName) -> None:
        """Create a pool with the client alone."""
        self._client.create_node_pool(replace(SLICE, name=name, labels={}, taints=()))

    def make_unreadable(self, name: PoolName) -> None:
        """Give a pool a status that is in no list."""
        self._simulator.world.set_status(name, _Newer.HIBERNATING)  # type: ignore[arg-type]

    def close(self) -> None:
        self._client.close()
        self._simulator.stop()


@pytest.fixture(params=[SLICE, _WITH_POLICY], ids=["COMPACT placement", "a workload policy"])
def ground(request: pytest.FixtureRequest) -> Iterator[GkeGround]:
    ground = GkeGround(request.param)
    yield ground
    ground.close()


class TestGke(SupplierContract):
    """The client and the workload policies together."""


def test_no_pool_is_created_once_it_is_blocked_while_its_policy_is_read() -> None:
    ground = GkeGround(_WITH_POLICY)
    failure = Failure(kind=FailureKind.UNAVAILABLE, message="not now")
    try:
        with pytest.raises(SupplierError):
            ground.supplier.create_pool(ground.request(FIRST), lambda: failure if ground.policy_reads() else None)
        assert (ground.policy_reads(), ground.changes()) == (1, 0)
    finally:
        ground.close()


@pytest.mark.parametrize("free_for", range(3))
def test_no_policy_is_created_once_it_is_blocked(free_for: int) -> None:
    """The policy comes before the pool, and each of them after a question of its own."""
    ground = GkeGround(_WITH_POLICY, policy_exists=False)
    sent: list[int] = []

    def blocked() -> Failure | None:
        sent.append(ground.changes())
        return Failure(kind=FailureKind.UNAVAILABLE, message="not now") if len(sent) > free_for else None

    try:
        # GKE takes its time with a policy: the first answer says so.
        with pytest.raises(SupplierError):
            ground.supplier.create_pool(ground.request(FIRST), blocked)
        assert sent[:2] == [0, 0][: len(sent)]
        assert ground.changes() == (1 if free_for > 1 else 0)
    finally:
        ground.close()
