"""Tests that TPUNodeGroups fulfil the contract of suppliers, with their controller and a simulated Compute Engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from provisioner import constants
from provisioner.kube import errors
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model.capacity import CapacityKind, NodePoolRequest, PoolName, PoolStatus, Taint, Zone
from provisioner.nodegroups.api.types import Kind
from provisioner.slices.suppliers.nodegroup.supplier import API_ROOT, NodeGroupSupplier
from rehearsal.simulators.compute.faults import Fault, FaultKind
from tests.slices.suppliers.conformance import SupplierContract
from tests.support.nodegroup_controller import NAMESPACE, PROJECT, SPEC, ZONE, World
from tests.support.settings import settings

_WAIT_SECONDS = 600.0
_SETTINGS = settings(
    node_group_namespace=NAMESPACE,
    project_id=PROJECT,
    node_images=(("*", f"projects/{PROJECT}/global/images/u"),),
    capacity_wait_seconds=_WAIT_SECONDS,
)
_GROUPS = collection_path(Kind.TPU_NODE_GROUP.plural, namespace=NAMESPACE, root=API_ROOT)
SLICE = NodePoolRequest(
    name=PoolName(""),
    zone=Zone(ZONE),
    machine_type="ct6e-standard-4t",
    hosts=4,
    topology="4x4",
    labels={constants.NODEPOOL_MANAGER: constants.MANAGER, "team": "a"},
    taints=(Taint(key="team", value="a"),),
)
_MACHINE = replace(SLICE, machine_type="tpu7x-standard-4t", hosts=1, topology="2x2x1", capacity=CapacityKind.SPOT)


class NodeGroupGround:
    """A controller of node groups with a fake API server and a simulated Compute Engine, and the supplier."""

    def __init__(self, slice_: NodePoolRequest) -> None:
        self._slice = slice_
        self.world = World()
        self.supplier = NodeGroupSupplier(api=self.world.kube, settings=_SETTINGS, clock=self.world.time)

    def sells(self, accelerator: str) -> bool:
        return accelerator == "tpu7x"

    def request(self, name: PoolName) -> NodePoolRequest:
        return replace(self._slice, name=name)

    def finish(self) -> None:
        moving = (PoolStatus.PROVISIONING, PoolStatus.STOPPING)
        self.world.run(
            lambda: not any(pool.status in moving for pool in self.supplier.list_pools()), seconds=2 * _WAIT_SECONDS
        )

    def changes(self) -> int:
        calls = self.world.kube.calls
        return sum(call.method in ("POST", "DELETE") and call.path.startswith(_GROUPS) for call in calls)

    def lose_answer(self, *, to_create: bool, before_effect: bool) -> None:
        error = errors.Unavailable("Connection reset by peer.")
        method = "POST" if to_create else "DELETE"
        self.world.kube.fail(method, _GROUPS, error, after_effect=not before_effect)

    def fail_creation(self) -> None:
        self.world.compute.world.faults.add(Fault(kind=FaultKind.STOCKOUT))

    def create_foreign(self, name: PoolName) -> None:
        body = {"metadata": {"name": name, "namespace": NAMESPACE, "generation": 1}, "spec": SPEC}
        self.world.kube.put_object(self._path(name), body)

    def make_unreadable(self, name: PoolName) -> None:
        """Write a spec that the API server would have rejected."""
        raw = self.world.kube.object(self._path(name))
        assert raw is not None
        self.world.kube.put_object(self._path(name), {**raw, "spec": {"project": 7}})

    def close(self) -> None:
        self.world.thread.shutdown(wait=True)

    @staticmethod
    def _path(name: PoolName) -> str:
        return object_path(Kind.TPU_NODE_GROUP.plural, name, namespace=NAMESPACE, root=API_ROOT)


@pytest.fixture(params=[SLICE, _MACHINE], ids=["a slice of machines", "a machine"])
def ground(request: pytest.FixtureRequest) -> Iterator[NodeGroupGround]:
    ground = NodeGroupGround(request.param)
    yield ground
    ground.close()


class TestNodeGroups(SupplierContract):
    """Runs the contract with the supplier, the controller of node groups and a simulated Compute Engine."""
