"""Tests of the ends of reservations: read rarely, unknown without the permission, and read before a create."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from structlog.testing import capture_logs

from provisioner.model.capacity import CapacityKind, FailureKind, PoolName
from provisioner.model.sources import RESERVATIONS
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from rehearsal.simulators.gke.app import Simulator
from rehearsal.simulators.gke.settings import SimulatorSettings
from tests.support.clock import FakeClock
from tests.support.gke import CLUSTER_NAME, SLICE, FakeGke
from tests.support.waiting import wait_for

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
        self.submitted: list[Callable[[], object]] = []
        self.supplier.reservations.submit = self.submitted.append

    def listed(self, after: float = 0.0) -> datetime | None:
        """List the pools, run the submitted reads, list again, and return the end of the pool's reservation."""
        self.clock.advance(after)
        self.supplier.list_pools()
        while self.submitted:
            self.submitted.pop()()
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


def test_list_reads_no_reservation_and_submits_one_read_for_all_blocks() -> None:
    """In the past, a list of 144 pools in one reservation made 144 calls, and took 24 minutes if all timed out."""
    world = Reserved()
    for number in range(144):
        block = f"projects/q/reservations/r/reservationBlocks/b{number // 16}/reservationSubBlocks/s{number}"
        world.gke.set_pool(replace(world.gke.pools[SLICE.name], name=PoolName(f"p{number}"), reservation=block))
    for _ in range(3):
        assert {pool.ends_at for pool in world.supplier.list_pools()} == {None}
    assert (world.reads, len(world.submitted), world.supplier.unknown_sources()) == (0, 1, {RESERVATIONS})
    world.submitted.pop()()
    assert {pool.ends_at for pool in world.supplier.list_pools()} == {world.ends_at}
    assert (world.reads, world.submitted, world.supplier.unknown_sources()) == (1, [], frozenset())


def test_read_that_cannot_be_submitted_is_submitted_with_the_next_list() -> None:
    world = Reserved()

    def refuse(_call: Callable[[], object]) -> object:
        raise RuntimeError("can't start new thread")

    world.supplier.reservations.submit = refuse
    world.supplier.list_pools()
    world.supplier.reservations.submit = world.submitted.append
    assert (world.listed(), world.reads) == (world.ends_at, 1)


def test_reads_run_on_threads_while_a_list_returns() -> None:
    world = Reserved()
    world.supplier = GkeSupplier(gke=world.gke, clock=world.clock.now)  # type: ignore[arg-type]
    held, get_reservation = threading.Event(), world.gke.get_reservation

    def hang(**named: str) -> object:
        assert held.wait(10)
        return get_reservation(**named)

    world.gke.get_reservation = hang  # type: ignore[assignment, method-assign]
    assert {pool.ends_at for pool in world.supplier.list_pools()} == {None}
    held.set()
    wait_for(lambda: world.supplier.unknown_sources() == frozenset())
    assert {pool.ends_at for pool in world.supplier.list_pools()} == {world.ends_at}


def test_end_is_read_rarely_and_again_when_it_is_reached() -> None:
    """The owner of the reservation may have moved its end."""
    world = Reserved()
    assert [world.listed(), world.listed(590), world.reads] == [world.ends_at, world.ends_at, 1]
    assert (world.listed(3 * 3600 - 600), world.reads) == (world.ends_at, 2)
    moved = world.gke.ends[R] = world.ends_at + timedelta(days=1)
    assert (world.listed(11), world.reads) == (moved, 3)


def test_end_in_the_past_is_kept_if_the_reservation_is_not_found() -> None:
    world = Reserved()
    world.listed()
    world.gke.fail_always("get_reservation", FailureKind.NOT_FOUND)
    assert [world.listed(3 * 3600 + 1), world.listed(1), world.reads] == [world.ends_at, world.ends_at, 2]


@pytest.mark.parametrize("kind", [FailureKind.PERMISSION, FailureKind.NOT_FOUND, FailureKind.UNAVAILABLE])
def test_unreadable_end_is_unknown_and_logged_once(kind: FailureKind) -> None:
    world = Reserved()
    world.gke.fail_always("get_reservation", kind)
    with capture_logs() as logs:
        assert [world.listed(), world.listed(59), world.listed(2), world.reads] == [None, None, None, 2]
        assert bool(world.supplier.unknown_sources()) is (kind is not FailureKind.NOT_FOUND)
        world.supplier.create_pool(replace(REQUEST, name=PoolName("next")), lambda: None)
    assert [line["event"] for line in logs] == ["reservation.not_read"]


def test_reservations_that_do_not_exist_are_forgotten() -> None:
    """A later list of pools forgets the reservations that have neither a pool nor a known end."""
    world = Reserved()
    world.gke.fail_always("create_node_pool", FailureKind.INVALID)
    for number in range(20):
        request = replace(REQUEST, name=PoolName("next"), reservation=f"projects/q/reservations/invented-{number}")
        with pytest.raises(GkeError):
            world.supplier.create_pool(request, lambda: None)
    assert len(world.supplier.reservations._readings) == 20
    assert world.listed(601) == world.ends_at
    assert len(world.supplier.reservations._readings) == 1


def test_pools_of_other_clients_or_without_reservation_cause_no_read() -> None:
    world = Reserved()
    world.gke.set_pool(replace(world.gke.pools[SLICE.name], labels={}))
    world.supplier.create_pool(replace(SLICE, name=PoolName("next")), lambda: None)
    world.supplier.list_pools()
    assert world.reads == 0


def test_no_pool_is_created_in_the_last_45_minutes_of_a_reservation() -> None:
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


def test_machines_are_removed_at_the_end_of_their_reservation() -> None:
    clock = FakeClock()
    end = clock.now() + timedelta(hours=3)
    settings = SimulatorSettings(reservation_ends={f"{SLICE.zone}/r": end.isoformat().replace("+00:00", "Z")})
    with Simulator(settings, clock=clock.now) as simulator:
        client = GkeClient(CLUSTER_NAME, endpoint=simulator.url)
        supplier = GkeSupplier(gke=client, clock=clock.now)
        supplier.reservations.submit = lambda call: call()
        supplier.create_pool(REQUEST, lambda: None)
        clock.advance(600)
        assert [listed.ends_at for listed in supplier.list_pools()] == [end]
        clock.advance(3 * 3600)
        assert [listed.ends_at for listed in supplier.list_pools()] == [end]
        (pool,) = simulator.pools
        assert {node.state.value for node in pool.nodes} == {"removed"}
        with pytest.raises(GkeError) as caught:
            client.create_node_pool(replace(REQUEST, name=PoolName("next")))
        assert caught.value.failure.kind is FailureKind.INVALID
        supplier.delete_pool(REQUEST.name)
        client.close()


def test_reservation_that_is_forgotten_during_a_create_has_no_end() -> None:
    """In the past, a create crashed if a list of pools forgot the reservation while the create looked for its end."""
    stage = Reserved()
    del stage.gke.ends[R]
    assert stage.listed() is None
    reservations, begun = stage.supplier.reservations, stage.clock.now()

    def forget() -> datetime:
        stage.clock.advance(3600)
        reservations.clock = stage.clock.now
        reservations.follow(())
        return begun

    reservations.clock = forget
    assert reservations.read(REQUEST) is None
