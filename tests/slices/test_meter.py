"""Tests of the metrics of rounds: chip-seconds, costs, waits, failures, limits and operations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from provisioner import constants
from provisioner.kube.protocol import object_path
from provisioner.model.capacity import FailureKind
from provisioner.settings.forms import parse_prices
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.memory.state import Phase
from tests.support.controller import World

HINTS = object_path("configmaps", constants.HINTS_CONFIGMAP_NAME, namespace="tpu-provisioner-system")


def metric(world: World, name: str, **labels: str) -> float | None:
    return world.metrics.registry.get_sample_value(f"tpu_provisioner_{name}", labels)


def chip_seconds(world: World, use: str = "running", name: str = "chip_seconds_total") -> float | None:
    return metric(
        world, name, workload_namespace="research", accelerator="tpu-v4-podslice", capacity="on-demand", use=use
    )


@pytest.fixture
def world() -> World:
    return World(prices=parse_prices("tpu-v4-podslice=3.6"))


def test_chip_seconds_between_rounds_count_for_the_use_in_the_first_round(world: World) -> None:
    world.run_to_use()
    assert chip_seconds(world) == 0
    world.rounds(6, every_seconds=10)
    assert chip_seconds(world) == pytest.approx(4 * 60)
    # Each chip costs 3.6 per hour, which is 0.001 per second.
    assert chip_seconds(world, name="cost_total") == pytest.approx(4 * 60 * 0.001)
    assert chip_seconds(world, name="cost_per_hour") == pytest.approx(14.4)
    world.vanish()
    world.round(after_seconds=10)
    world.round(after_seconds=5)
    assert chip_seconds(world) == pytest.approx(4 * 70)
    assert chip_seconds(world, use="idle") == pytest.approx(4 * 5)


def test_follower_counts_no_chip_seconds(world: World) -> None:
    world.run_to_use()
    world.rounds(7, every_seconds=10)
    before = chip_seconds(world)
    world.leading = False
    world.rounds(20, every_seconds=10)
    assert chip_seconds(world) == before


@pytest.mark.parametrize("hours", [-2, 2])
def test_change_of_the_clock_adds_no_chip_seconds(world: World, hours: int) -> None:
    world.run_to_use()
    world.rounds(7, every_seconds=10)
    wall = world.clock.now
    world.clock.now = lambda: wall() + timedelta(hours=hours)  # type: ignore[method-assign]
    world.rounds(7, every_seconds=10)
    assert chip_seconds(world) == pytest.approx(4 * 140)


def _fail(world: World) -> None:
    (pool,) = world.gke.pools
    world.gke.fail_pool(pool, FailureKind.STOCKOUT, message="no v4 left")
    world.rounds(2, every_seconds=3)


def _limit(world: World) -> None:
    world.put_jobset("second")
    world.round()


def _long_after(world: World) -> None:
    world.rounds(3, every_seconds=40)


_CASES = [
    pytest.param(lambda world: None, "gke_operations_in_flight", {}, 1, id="operation of a create"),
    pytest.param(lambda world: None, "gke_operations_limit", {}, 0, id="unknown limit on operations"),
    pytest.param(_fail, "node_pool_failures_total", {"kind": "stockout"}, 1, id="failed pool"),
    pytest.param(_fail, "backoff_blocking", {"kind": "stockout"}, 1, id="back-off of the capacity"),
    pytest.param(_fail, "backoff_oldest_seconds", {"kind": "stockout"}, 3, id="age of the back-off"),
    pytest.param(_limit, "notices", {"reason": EventReason.LIMIT_REACHED}, 1, id="notice to the owner"),
    pytest.param(_limit, "limit", {"limit": "MAX_CHIPS", "scope": "all"}, 4, id="value of a limit"),
    pytest.param(_limit, "limit_used", {"limit": "MAX_CHIPS", "scope": "all"}, 4, id="use of a limit"),
    pytest.param(_limit, "limit_waiting_slices", {"limit": "MAX_CHIPS"}, 1, id="slice that waits for a limit"),
    pytest.param(_long_after, "longest_wait_seconds", {}, 1116, id="longest wait of a leader"),
    pytest.param(_limit, "waiting_oldest_seconds", {"cause": "MAX_CHIPS"}, 996, id="longest wait for a limit"),
    pytest.param(_long_after, "pool_list_age_seconds", {}, 0, id="age of the list of pools"),
]


@pytest.mark.parametrize(("prepare", "name", "labels", "want"), _CASES)
def test_metrics_show_failures_limits_waits_and_operations(
    prepare: Callable[[World], None], name: str, labels: dict[str, str], want: float
) -> None:
    world = World(max_chips=4)
    world.put_jobset()
    world.round()
    world.round(after_seconds=1)
    prepare(world)
    assert metric(world, name, **labels) == pytest.approx(want, abs=1.5)


def test_cause_of_a_wait_remains_stockout_until_the_pool_is_ready(world: World) -> None:
    world.put_jobset()
    world.round()
    world.round(after_seconds=1)
    assert metric(world, "waiting_oldest_seconds", cause="stockout") is None
    _fail(world)
    phases = set()
    for _ in range(12):
        world.finish_deletes()
        world.round(after_seconds=10)
        assert world.loop.last_plan is not None
        phases |= {state.phase for state in world.loop.last_plan.pools}
        assert metric(world, "waiting_oldest_seconds", cause="stockout") == metric(world, "longest_wait_seconds")
    assert phases >= {Phase.BLOCKED, Phase.WANTED, Phase.PROVISIONING}
    world.finish_creates()
    world.rounds(2, every_seconds=1)
    assert metric(world, "waiting_oldest_seconds", cause="stockout") == 0


def test_pool_not_deleted_after_its_delay_is_measured_as_overdue(world: World) -> None:
    world.run_to_use()
    world.vanish()
    world.round(after_seconds=1)
    world.round(after_seconds=25)
    assert metric(world, "unneeded_overdue_seconds") == 0
    world.gke.fail_next("delete_node_pool", FailureKind.PERMISSION, times=20)
    world.rounds(10, every_seconds=60)
    assert metric(world, "unneeded_overdue_seconds") == pytest.approx(600, abs=10)
