"""Tests that the supplier for GKE fulfils the contract of suppliers, with a simulated GKE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

import pytest

from provisioner.model.capacity import NodePoolRequest, PoolName
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from rehearsal.simulators.gke.app import Simulator
from rehearsal.simulators.gke.faults import Fault, FaultKind
from rehearsal.simulators.gke.settings import SimulatorSettings
from tests.slices.suppliers.conformance import SupplierContract
from tests.support.clock import FakeClock
from tests.support.gke import CLUSTER_NAME, SLICE

_CHANGES = ("nodePools.create", "nodePools.delete", "resourcePolicies.insert")
#: Request for a slice that needs a workload policy.
_WITH_POLICY = replace(
    SLICE,
    machine_type="tpu7x-standard-4t",
    hosts=2,
    topology="2x2x2",
    placement_topology="",
    policy_name="tpu-provisioner-2x2x2",
)


class _Newer(StrEnum):
    """A status that GKE may add in the future."""

    HIBERNATING = "HIBERNATING"


class GkeGround:
    """A simulated GKE, its client, and the supplier on it."""

    def __init__(self, slice_: NodePoolRequest) -> None:
        self._slice = slice_
        self._clock = FakeClock()
        policies = {_WITH_POLICY.policy_name: _WITH_POLICY.topology}
        self._simulator = Simulator(SimulatorSettings(workload_policies=policies), clock=self._clock.now)
        self._simulator.start()
        self._client = GkeClient(CLUSTER_NAME, endpoint=self._simulator.url)
        self.supplier = GkeSupplier(gke=self._client, clock=self._clock.now)

    def sells(self, accelerator: str) -> bool:
        return True

    def request(self, name: PoolName) -> NodePoolRequest:
        return replace(self._slice, name=name)

    def finish(self) -> None:
        self._clock.advance(120)
        self._simulator.world.advance()

    def changes(self) -> int:
        return sum(self._simulator.count(method) for method in _CHANGES)

    def lose_answer(self, *, to_create: bool, before_effect: bool) -> None:
        method = "nodePools.create" if to_create else "nodePools.delete"
        self._simulator.inject(
            Fault(kind=FaultKind.HTTP_ERROR, method=method, code=0, count=1, before_effect=before_effect)
        )

    def fail_creation(self) -> None:
        self._simulator.inject(Fault(kind=FaultKind.STOCKOUT, count=1))

    def create_foreign(self, name: PoolName) -> None:
        self._client.create_node_pool(replace(SLICE, name=name, labels={}, taints=()))

    def make_unreadable(self, name: PoolName) -> None:
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
    """Runs the contract with the GKE client, without and with a workload policy."""
