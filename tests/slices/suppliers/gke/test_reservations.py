"""When reservations end: read rarely, from whoever lets us, and right before a pool is made in one."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from structlog.testing import capture_logs

from provisioner.model.capacity import CapacityKind, FailureKind, PoolName
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from rehearsal.simulators.gke.app import Simulator
from rehearsal.simulators.gke.settings import SimulatorSettings
from tests.support.clock import FakeClock
from tests.support.gke import CLUSTER_NAME, SLICE, FakeGke

REQUEST = replace(
    SLICE, capacity=CapacityKind.RESERVATION, reservation="projects/q/reservations/r/reservationBlocks/b", taints=()
)
R = ("q", str(SLICE.zone), "r")


class Reserved:
    """A supplier, and a GKE with one pool in a reservation that ends in three hours."""

    def __init__(self) -> None:
        self.clock, self.gke = FakeClock(), FakeGke()
        self.gke.create_node_pool(REQUEST)
        self.ends_at = self.gke.ends[R] = self.clock.now() + timedelta(hours=3)
        self.supplier = GkeSupplier(gke=self.gke, clock=self.clock.now)  # type: ignore[arg-type]

    def listed(self, after: float = 0.0) -> datetime | None:
        self.clock.advance(after)
        (pool,) = self.supplier.list_pools()
        return pool.ends_at

    @property
    def reads(self) -> int:
        return self.gke.counts()["get_reservation"]

    def refusal(self) -> str:
        with pytest.raises(GkeError) as caught:
            self.supplier.create_pool(replace(REQUEST, name=PoolName("next")), lambda: None)
        assert caught.value.failure.kind is FailureKind.INVALID
        return caught.value.failure.message


def test_the_end_is_read_rarely_and_again_when_it_has_come() -> None:
    """Somebody may have moved it."""
    world = Reserved()
    assert [world.listed(), world.listed(590), world.reads] == [world.ends_at, world.ends_at, 1]
    assert (world.listed(3 * 3600 - 600), world.reads) == (world.ends_at, 2)
    moved = world.gke.ends[R] = world.ends_at + timedelta(days=1)
    assert (world.listed(11), world.reads) == (moved, 3)


def test_an_end_that_has_come_stands_when_the_reservation_is_not_found_any_more() -> None:
    world = Reserved()
    world.listed()
    world.gke.fail_always("get_reservation", FailureKind.NOT_FOUND)
    assert [world.listed(3 * 3600 + 1), world.listed(1), world.reads] == [world.ends_at, world.ends_at, 2]


@pytest.mark.parametrize("kind", [FailureKind.PERMISSION, FailureKind.NOT_FOUND, FailureKind.UNAVAILABLE])
def test_an_end_that_cannot_be_read_is_not_known_and_is_told_once(kind: FailureKind) -> None:
    world = Reserved()
    world.gke.fail_always("get_reservation", kind)
    with capture_logs() as logs:
        assert [world.listed(), world.listed(601), world.reads] == [None, None, 2]
        world.supplier.create_pool(replace(REQUEST, name=PoolName("next")), lambda: None)
    assert [each["event"] for each in logs] == ["reservation.not_read"]


def test_reservations_that_users_invent_are_not_remembered() -> None:
    """Only of those that pools are in, and of ends that Compute Engine has told, anything is kept."""
    world = Reserved()
    world.gke.fail_always("create_node_pool", FailureKind.INVALID)
    for number in range(20):
        request = replace(REQUEST, name=PoolName("next"), reservation=f"projects/q/reservations/invented-{number}")
        with pytest.raises(GkeError):
            world.supplier.create_pool(request, lambda: None)
    assert len(world.supplier._ends) == 20
    assert world.listed(601) == world.ends_at
    assert len(world.supplier._ends) == 1


def test_pools_of_others_and_without_reservations_are_not_asked_about() -> None:
    world = Reserved()
    world.gke.set_pool(replace(world.gke.pools[SLICE.name], labels={}))
    world.supplier.create_pool(replace(SLICE, name=PoolName("next")), lambda: None)
    world.supplier.list_pools()
    assert world.reads == 0


def test_nothing_begins_in_the_last_time_of_a_reservation() -> None:
    world = Reserved()
    world.clock.advance(2 * 3600)
    world.supplier.create_pool(replace(REQUEST, name=PoolName("in time")), lambda: None)
    world.clock.advance(16 * 60)
    assert world.refusal() == (
        f"The reservation ends at {world.ends_at:%Y-%m-%d %H:%M} UTC, and nothing begins in its last 45 minutes."
    )
    world.gke.ends[R] += timedelta(hours=1)
    world.clock.advance(600)
    world.supplier.create_pool(replace(REQUEST, name=PoolName("again")), lambda: None)


def test_at_its_end_a_reservation_goes_with_its_machines() -> None:
    clock = FakeClock()
    end = clock.now() + timedelta(hours=3)
    settings = SimulatorSettings(reservation_ends={f"{SLICE.zone}/r": end.isoformat().replace("+00:00", "Z")})
    with Simulator(settings, clock=clock.now) as simulator:
        client = GkeClient(CLUSTER_NAME, endpoint=simulator.url)
        supplier = GkeSupplier(gke=client, clock=clock.now)
        supplier.create_pool(REQUEST, lambda: None)
        clock.advance(600)
        assert [each.ends_at for each in supplier.list_pools()] == [end]
        clock.advance(3 * 3600)
        assert [each.ends_at for each in supplier.list_pools()] == [end]
        (pool,) = simulator.pools
        assert {node.state.value for node in pool.nodes} == {"removed"}
        with pytest.raises(GkeError) as caught:
            client.create_node_pool(replace(REQUEST, name=PoolName("next")))
        assert caught.value.failure.kind is FailureKind.INVALID
        supplier.delete_pool(REQUEST.name)
        client.close()
