"""How long slices take to start: from when the leader pod is unschedulable, over restarts of all kinds."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.slices.demand import SliceId
from provisioner.slices.meter import Startup, follow
from provisioner.slices.metrics import Stage
from tests.support.clock import after
from tests.support.models import make_jobset, make_pod
from tests.support.world import World


class Watched(World):
    """A world whose starts are measured."""

    waiting: Mapping[SliceId, Startup] = {}

    def measure(self, *, seconds: float = 60.0) -> list[tuple[str, float]]:
        """Decide, return what was measured, and let time pass."""
        now = self.now
        plan = self.step(seconds=seconds)
        self.waiting, measured = follow(self.waiting, plan.pools, now)
        return [(stage.value, took) for stage, took in measured]


def test_each_stage_is_measured_once_from_when_the_leader_was_unschedulable() -> None:
    """Not from when the pool was planned: the provisioner may have been away."""
    world = Watched(make_jobset())
    world.now = after(100)
    assert world.measure() == []
    assert [each.since for each in world.waiting.values()] == [after(0)]
    assert world.measure() == [("created", 160.0)]
    assert world.measure() == []
    world.finish_creates()
    assert world.measure() == [("ready", 280.0)]
    world.schedule()
    assert world.measure() == [("running", 340.0)]
    assert world.measure() == []
    assert world.waiting == {}


def test_what_comes_together_is_measured_together() -> None:
    world = Watched(make_jobset())
    world.measure()
    world.finish_creates()
    world.schedule()
    assert world.measure() == [("created", 60.0), ("ready", 60.0), ("running", 60.0)]


def test_a_restart_of_the_provisioner_makes_nothing_up() -> None:
    """When the pool was created is not known any more; when the leader became unschedulable is."""
    world = Watched(make_jobset())
    world.measure()
    world.measure()
    world.waiting = {}
    assert world.measure() == []
    world.finish_creates()
    assert world.measure() == [("ready", 180.0)]


def test_a_slice_that_ran_already_is_not_measured() -> None:
    world = Watched(make_jobset())
    world.live(4)
    assert world.measure() == []
    assert world.waiting == {}


def test_a_restarted_job_is_measured_anew_and_its_old_pool_is_not() -> None:
    """The pool was there before; how long the new leader waits for it counts."""
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


def test_a_leader_that_is_replaced_while_it_waits_begins_anew() -> None:
    jobset = make_jobset()
    world = Watched(jobset)
    world.measure(seconds=1000)
    world.end_pods(jobset)
    world.put(make_pod(jobset, uid="uid-of-the-next", unschedulable_since=world.now))
    world.measure(seconds=10)
    world.finish_creates()
    assert world.measure() == [("ready", 10.0)]


def test_slices_are_apart() -> None:
    """Each has its own start, and the longest wait is the longest."""
    first, second = make_jobset("first"), make_jobset("second")
    world = Watched(first)
    world.measure()
    world.now = after(500)
    world.add(second)
    world.put(make_pod(second, unschedulable_since=after(500)))
    world.measure(seconds=0)
    assert [each.since for each in world.waiting.values()] == [after(0), after(500)]


def test_a_clock_behind_the_api_server_measures_nothing_below_zero() -> None:
    jobset = make_jobset()
    world = Watched(jobset)
    world.put(make_pod(jobset, unschedulable_since=after(3600)))
    world.measure()
    assert world.measure() == [("created", 0.0)]
    assert {stage.value for stage in Stage} == {"created", "ready", "running"}
