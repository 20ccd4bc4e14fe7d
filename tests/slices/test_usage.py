"""Tests of the use and cost of chips, the bounded number of accounts, and the time that slices take to start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, PoolStatus
from provisioner.settings.forms import parse_prices
from provisioner.slices.demand import SliceId
from provisioner.slices.metrics import OTHERS, Account, PoolUse, Stage, Startup, Use, account_of, follow, use_of
from tests.support.clock import after
from tests.support.models import make_jobset, make_pod
from tests.support.world import World

_V4 = "tpu-v4-podslice"


def _made(world: World) -> None:
    world.step()
    world.now += timedelta(seconds=60)


def _up(world: World) -> None:
    _made(world)
    world.finish_creates()


def _running(world: World) -> None:
    _up(world)
    world.step()
    world.schedule()


def _finished(world: World) -> None:
    _running(world)
    world.step()
    world.finish(next(iter(world.workloads.values())))


def _leaving(world: World) -> None:
    _finished(world)
    world.step()
    for pool in list(world.pools.values()):
        world.put(replace(pool, status=PoolStatus.STOPPING))


@pytest.mark.parametrize(
    ("prepare", "want"),
    [
        pytest.param(_made, None, id="no nodes yet"),
        pytest.param(_up, Use.STARTING, id="ready and without pods"),
        pytest.param(_running, Use.RUNNING, id="pods running"),
        pytest.param(_finished, Use.IDLE, id="pods ended"),
        pytest.param(_leaving, Use.DRAINING, id="being deleted"),
    ],
)
def test_use_of_chips_follows_the_state_of_the_pool(prepare: Callable[[World], None], want: Use | None) -> None:
    world = World(make_jobset())
    prepare(world)
    plan = world.step()
    (state,) = plan.pools
    made = use_of(plan.decided.owned[state.name], state, parse_prices("*=2.5"))
    if want is None:
        assert made is None
        return
    assert made is not None
    assert made.account == Account("default", _V4, "on-demand", want.value)
    assert (made.chips, made.cost_per_hour) == (8, 20.0)
    unpriced = use_of(plan.decided.owned[state.name], state, parse_prices("tpu7x=1"))
    assert unpriced == PoolUse(made.account, 8, None)


def test_namespaces_beyond_the_limit_share_one_label_value() -> None:
    """Users who create many namespaces cannot fill Prometheus. The first namespaces keep their own accounts."""
    known: set[Account] = set()
    many = [Account(f"team-{index:04}", _V4, "spot", use.value) for index in range(300) for use in Use]
    for entry in (Account("first", _V4, "spot", "idle"), *many, *many):
        known.add(account_of(known, entry))
    namespaces = {account.namespace for account in known}
    assert len(namespaces) == bounds.METERED_NAMESPACES + 1
    assert {"first", OTHERS} <= namespaces


def test_accounts_beyond_the_limit_are_shared() -> None:
    kinds = [(kind.value, use.value) for kind in CapacityKind for use in Use]
    accelerators = (_V4, "tpu7x", "tpu-v6e-slice")
    known: set[Account] = set()
    for index in range(99):
        for accelerator in accelerators:
            for kind, use in kinds:
                known.add(account_of(known, Account(f"team-{index}", accelerator, kind, use)))
    assert len(known) <= bounds.METERED_ACCOUNTS + len(accelerators) * len(kinds)


class Watched(World):
    """World that measures the time of the stages in which slices start."""

    waiting: Mapping[SliceId, Startup] = {}

    def measure(self, *, seconds: float = 60.0) -> list[tuple[str, float]]:
        """Make a decision, advance the clock, and return the stages reached with their durations in seconds."""
        now = self.now
        plan = self.step(seconds=seconds)
        self.waiting, measured = follow(self.waiting, plan.pools, now)
        return [(stage.value, took) for stage, took in measured]


def test_stage_is_measured_once_since_its_leader_became_unschedulable() -> None:
    """The time before the first decision counts as well, because the provisioner may not have been running."""
    world = Watched(make_jobset())
    world.now = after(100)
    assert world.measure() == []
    assert [waiting.since for waiting in world.waiting.values()] == [after(0)]
    assert world.measure() == [("created", 160.0)]
    assert world.measure() == []
    world.finish_creates()
    assert world.measure() == [("ready", 280.0)]
    world.schedule()
    assert world.measure() == [("running", 340.0)]
    assert world.measure() == []
    assert world.waiting == {}


def test_stages_reached_in_one_round_are_measured_together() -> None:
    world = Watched(make_jobset())
    world.measure()
    world.finish_creates()
    world.schedule()
    assert world.measure() == [("created", 60.0), ("ready", 60.0), ("running", 60.0)]


def test_restart_of_the_provisioner_measures_only_later_stages() -> None:
    """The new process does not know the time of the create, but the pod has the time when it became unschedulable."""
    world = Watched(make_jobset())
    world.measure()
    world.measure()
    world.waiting = {}
    assert world.measure() == []
    world.finish_creates()
    assert world.measure() == [("ready", 180.0)]


def test_slice_that_runs_at_the_first_round_is_not_measured() -> None:
    world = Watched(make_jobset())
    world.live(4)
    assert world.measure() == []
    assert world.waiting == {}


def test_restarted_job_on_its_old_pool_is_measured_only_until_it_runs() -> None:
    jobset = make_jobset()
    world = Watched(jobset)
    world.live(4)
    world.measure()
    world.end_pods(jobset)
    world.measure()
    world.put(make_pod(jobset, uid="uid-of-the-next", unschedulable_since=world.now))
    assert world.measure() == []
    world.schedule()
    assert world.measure() == [("running", 60.0)]


def test_wait_is_measured_from_the_replacement_of_a_waiting_leader() -> None:
    jobset = make_jobset()
    world = Watched(jobset)
    world.measure(seconds=1000)
    world.end_pods(jobset)
    world.put(make_pod(jobset, uid="uid-of-the-next", unschedulable_since=world.now))
    world.measure(seconds=10)
    world.finish_creates()
    assert world.measure() == [("ready", 10.0)]


def test_clock_behind_the_api_server_gives_no_negative_durations() -> None:
    jobset = make_jobset()
    world = Watched(jobset)
    world.put(make_pod(jobset, unschedulable_since=after(3600)))
    world.measure()
    assert world.measure() == [("created", 0.0)]
    assert {stage.value for stage in Stage} == {"created", "ready", "running"}
