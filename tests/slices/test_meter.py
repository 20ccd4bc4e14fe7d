"""What is measured of rounds: chip-seconds that outlast the process, starts, failures, limits, operations."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pytest

from provisioner import constants
from provisioner.kube import errors
from provisioner.kube.protocol import object_path
from provisioner.model.capacity import FailureKind
from provisioner.settings import parse_prices
from provisioner.slices.usage import HINTS_KEY
from tests.support.controller import World, jobset_path

HINTS = object_path("configmaps", constants.HINTS_CONFIGMAP_NAME, namespace="tpu-provisioner-system")


def metric(world: World, name: str, **labels: str) -> float | None:
    """Return the value of a metric."""
    return world.metrics.registry.get_sample_value(f"tpu_provisioner_{name}", labels)


def chip_seconds(world: World, use: str = "running", name: str = "chip_seconds_total") -> float | None:
    """Return the chip-seconds of one use, or another number with these labels."""
    return metric(
        world, name, workload_namespace="research", accelerator="tpu-v4-podslice", capacity="on-demand", use=use
    )


@pytest.fixture
def world() -> World:
    """Give a controller that meters."""
    return World(metered=True, prices=parse_prices("tpu-v4-podslice=3.6"))


def test_only_what_is_kept_is_exported(world: World) -> None:
    """What a scrape has seen must not be taken back by a crash, so it is written first: once a minute."""
    world.run_to_use()
    world.rounds(5, every_seconds=10)
    assert chip_seconds(world) == 0
    writes = len(world.calls("PUT"))
    world.rounds(2, every_seconds=10)
    # Four chips since the round that found the leader bound; those before were starting.
    assert chip_seconds(world) == pytest.approx(4 * 60, abs=40)
    assert len(world.calls("PUT")) == writes + 1
    world.rounds(12, every_seconds=10)
    assert len(world.calls("PUT")) == writes + 3


def test_a_cluster_without_chips_is_not_written_about(world: World) -> None:
    """Nothing changes, so nothing is kept."""
    world.round()
    before = len(world.kube.calls)
    world.rounds(20, every_seconds=15)
    assert world.kube.calls[before:] == []


def test_the_counter_goes_on_over_a_crash(world: World) -> None:
    """At or above what was seen, with the time in which no process ran."""
    world.run_to_use()
    world.rounds(14, every_seconds=10)
    seen = chip_seconds(world)
    assert seen is not None
    assert seen > 0
    world.clock.advance(600)
    world.start()
    world.round(after_seconds=1)
    assert chip_seconds(world) == seen
    world.rounds(7, every_seconds=10)
    after = chip_seconds(world)
    assert after == pytest.approx(4 * (14 * 10 + 600 + 60), abs=80)
    # Four chips at 3.6 an hour are 4 thousandths a second.
    assert chip_seconds(world, name="cost_total") == pytest.approx((after or 0) * 0.001)
    assert chip_seconds(world, name="cost_per_hour") == pytest.approx(14.4)


def test_a_process_that_ends_in_good_order_keeps_everything(world: World) -> None:
    """The next one begins with the last moment of the one before."""
    world.run_to_use()
    world.rounds(3, every_seconds=10)
    world.stopping.set()
    world.loop.run()
    raw = world.kube.object(HINTS)
    assert raw is not None
    accounts = json.loads(raw["data"][HINTS_KEY])["accounts"]
    assert accounts["research/tpu-v4-podslice/on-demand/running"][0] == pytest.approx(4 * 30_000, abs=100)


def test_a_read_that_failed_at_the_start_resets_nothing(world: World) -> None:
    """The hints are used later then, as soon as they are known."""
    world.run_to_use()
    world.rounds(14, every_seconds=10)
    seen = chip_seconds(world)
    world.start()
    world.kube.fail("GET", "hints", errors.Unavailable("down"))
    world.put_jobset("second")
    world.rounds(3, every_seconds=5)
    assert chip_seconds(world) == seen
    world.rounds(14, every_seconds=10)
    assert (chip_seconds(world) or 0) > (seen or 0)


def test_what_cannot_be_kept_is_not_exported(world: World) -> None:
    """It is made up for as soon as it can."""
    world.run_to_use()
    world.rounds(2, every_seconds=5)
    world.kube.fail("*", "hints", errors.Forbidden("no", status=403), times=1000)
    world.rounds(20, every_seconds=10)
    assert chip_seconds(world) == 0
    world.kube.clear_faults()
    world.rounds(7, every_seconds=10)
    assert chip_seconds(world) == pytest.approx(4 * 270, abs=300)


def test_a_leader_that_overlaps_takes_nothing_back(world: World) -> None:
    """What another has written is more than this one knows: it goes on from there."""
    world.run_to_use()
    world.rounds(7, every_seconds=10)
    raw = world.kube.object(HINTS)
    assert raw is not None
    other = json.loads(raw["data"][HINTS_KEY])
    other["accounts"]["research/tpu-v4-podslice/on-demand/running"] = [10**9, 10**15]
    raw["data"][HINTS_KEY] = json.dumps(other)
    world.kube.put_object(HINTS, raw)
    world.rounds(7, every_seconds=10)
    assert (chip_seconds(world) or 0) >= 10**6
    # And it does not write in each round because of that.
    writes = len(world.calls("PUT"))
    world.rounds(5, every_seconds=10)
    assert len(world.calls("PUT")) <= writes + 1


def test_a_follower_counts_nothing(world: World) -> None:
    """Its clock runs, and its leader counts."""
    world.run_to_use()
    world.rounds(7, every_seconds=10)
    before = chip_seconds(world)
    world.leading = False
    world.rounds(20, every_seconds=10)
    assert chip_seconds(world) == before


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_clock_that_is_set_costs_nothing(world: World, hours: int) -> None:
    """Only time that has passed counts."""
    world.run_to_use()
    world.rounds(7, every_seconds=10)
    wall = world.clock.now
    world.clock.now = lambda: wall() + timedelta(hours=hours)  # type: ignore[method-assign]
    world.rounds(7, every_seconds=10)
    assert chip_seconds(world) == pytest.approx(4 * 140, abs=100)


def test_an_earlier_release_in_between(world: World) -> None:
    """One that does not know the key takes it away: counters begin again, and count nothing of before."""
    world.run_to_use()
    world.rounds(7, every_seconds=10)
    raw = world.kube.object(HINTS)
    assert raw is not None
    del raw["data"][HINTS_KEY]
    world.kube.put_object(HINTS, raw)
    world.start()
    world.rounds(8, every_seconds=10)
    assert 0 < (chip_seconds(world) or 0) <= 4 * 80


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
    pytest.param(lambda world: None, "gke_operations_in_flight", {}, 1, id="a create is an operation"),
    pytest.param(lambda world: None, "gke_operations_limit", {}, 0, id="no limit is learned yet"),
    pytest.param(_fail, "node_pool_failures_total", {"kind": "stockout"}, 1, id="a pool that failed"),
    pytest.param(_fail, "backoff_blocking", {"kind": "stockout"}, 1, id="its capacity waits"),
    pytest.param(_fail, "backoff_oldest_seconds", {"kind": "stockout"}, 3, id="and since when"),
    pytest.param(_limit, "notices", {"reason": constants.LIMIT_REACHED}, 1, id="an owner is told"),
    pytest.param(_limit, "limit", {"limit": "MAX_CHIPS", "scope": "all"}, 4, id="a limit"),
    pytest.param(_limit, "limit_used", {"limit": "MAX_CHIPS", "scope": "all"}, 4, id="a limit that is used up"),
    pytest.param(_limit, "limit_waiting_slices", {"limit": "MAX_CHIPS"}, 1, id="a slice that a limit keeps out"),
    pytest.param(_long_after, "longest_wait_seconds", {}, 1116, id="a leader that waits"),
    pytest.param(_long_after, "pool_list_age_seconds", {}, 0, id="the list of pools"),
]


@pytest.mark.parametrize(("prepare", "name", "labels", "want"), _CASES)
def test_what_is_measured(prepare: Callable[[World], None], name: str, labels: dict[str, str], want: float) -> None:
    """Of a world with one pool in the making."""
    world = World(metered=True, max_chips=4)
    world.put_jobset()
    world.round()
    world.round(after_seconds=1)
    prepare(world)
    assert metric(world, name, **labels) == pytest.approx(want, abs=1.5)


def test_a_pool_that_should_be_gone(world: World) -> None:
    """How long after its deletion delay; nothing before."""
    world.run_to_use()
    world.kube.remove_object(jobset_path("train"))
    world.remove_leader()
    world.round(after_seconds=1)
    world.round(after_seconds=25)
    assert metric(world, "unneeded_overdue_seconds") == 0
    world.gke.fail_next("delete_node_pool", FailureKind.PERMISSION, times=20)
    world.rounds(10, every_seconds=60)
    assert metric(world, "unneeded_overdue_seconds") == pytest.approx(600, abs=10)
