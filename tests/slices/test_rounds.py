"""Tests of rounds of the loop: pauses between them, metrics, writes of hints, and crashes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from provisioner.model.capacity import FailureKind
from provisioner.model.workloads import Workload, WorkloadKind
from provisioner.runtime.clock import FollowedClock
from provisioner.slices.act import Actor
from provisioner.slices.loop import Loop
from provisioner.slices.planning.memory.state import CallState
from provisioner.slices.report import Reporter
from tests.support.clock import FakeClock
from tests.support.controller import OTHER_CERTIFICATE, FakeWatch, World


def metric(world: World, name: str, **labels: str) -> float | None:
    return world.metrics.registry.get_sample_value(f"tpu_provisioner_{name}", labels)


class Stop(threading.Event):
    """Event that is set after `waits` waits. Each wait advances the clock; `waited` has the time-outs in seconds."""

    def __init__(self, waits: int, clock: FakeClock) -> None:
        super().__init__()
        self._left, self._clock = waits, clock
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        self._clock.advance(timeout)
        self._left -= 1
        if self._left == 0:
            self.set()
        return self.is_set()

    def asked_seconds_ago(self) -> None:
        """Return None: no watch requested a round."""


def run(world: World, rounds: int) -> list[float]:
    stop, wake = Stop(rounds, world.clock), Stop(-1, world.clock)
    world.loop.stopping, world.loop.wake = stop, wake
    world.loop.run()
    assert stop.waited == [0.05] * rounds
    return wake.waited


def test_rounds_have_a_minimum_gap_even_if_the_pause_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """The minimum gap of 0.05 s between rounds is part of the pause that the round returned."""
    world = World()
    pauses = iter([10.0, 0.0, 0.02])
    monkeypatch.setattr(Loop, "round", lambda loop: next(pauses))
    assert run(world, 3) == pytest.approx([9.95, 0.0, 0.0])


def test_crashed_round_is_followed_by_the_next_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    def crash(loop: Loop) -> float:
        world.clock.advance(3.0)
        raise TypeError("a mistake")

    monkeypatch.setattr(Loop, "round", crash)
    assert run(world, 2) == pytest.approx([0.95, 0.95])
    assert (metric(world, "rounds_total", result="crashed"), metric(world, "rounds_total", result="ok")) == (2.0, 0.0)
    assert metric(world, "round_duration_seconds_sum") == pytest.approx(6.0)
    assert not world.loop.failures()


def test_end_of_the_last_round_is_exposed_as_a_metric() -> None:
    world = World()
    run(world, 1)
    assert metric(world, "loop_last_round_timestamp_seconds") == pytest.approx(world.clock.now().timestamp(), abs=20)
    assert metric(world, "rounds_total", result="ok") == 1.0


def test_heartbeat_counts_from_the_start_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose first round hangs fails the liveness probe 300 s after its start."""
    world = World()
    seen = []

    def look(loop: Loop) -> float:
        for seconds in (299.0, 1.0):
            world.clock.advance(seconds)
            seen.append(not loop.failures())
        return 1.0

    monkeypatch.setattr(Loop, "round", look)
    run(world, 1)
    assert seen == [True, False]


def test_metrics_show_leadership_proof_and_watches() -> None:
    world = World(ca_pem=OTHER_CERTIFICATE)
    world.leading, world.pods.synced = False, False
    assert world.round() == 15.0
    assert metric(world, "leader") == 0.0
    assert metric(world, "watch_synced", resource="pods") == 0.0
    assert metric(world, "watch_synced", resource="nodes") == 1.0
    assert metric(world, "watch_last_contact_age_seconds", resource="jobsets") == float("inf")
    world.leading = True
    world.round()
    assert (metric(world, "leader"), metric(world, "cluster_proven")) == (1.0, 0.0)
    assert world.loop.problems() != ()
    world.leading = False
    world.pods.synced = True
    world.round()
    assert world.loop.problems() == ()


def test_kind_without_crd_has_no_metrics() -> None:
    """Earlier values disappear when the CRD is deleted. A kind that RBAC forbids to read has metrics, as not synced."""
    world = World()
    sets = FakeWatch[Workload](dict)
    workloads = {**world.watches.workloads, WorkloadKind.LEADER_WORKER_SET: sets}
    world.loop.watches = replace(world.watches, workloads=workloads)
    found = []
    for synced, missing in ((False, True), (True, False), (False, True), (False, False)):
        sets.synced, sets.missing, sets.problem = synced, missing, None if synced else "404"
        world.round()
        found.append(
            [
                metric(world, name, resource="leaderworkersets")
                for name in ("watch_synced", "watch_last_contact_age_seconds")
            ]
        )
    assert found == [[None, None], [1.0, float("inf")], [None, None], [0.0, float("inf")]]


def test_pause_ends_when_the_earliest_event_is_due() -> None:
    world = World()
    plan = world.loop.last_plan
    assert plan is None
    world.round()
    plan = world.loop.last_plan
    assert plan is not None
    now = world.time()
    for seconds, want in ((None, 15.0), (70.0, 15.0), (4.0, 4.0), (-3.0, 0.0)):
        wake_at = now + timedelta(seconds=seconds) if seconds is not None else None
        assert world.loop.pause_seconds(wake_at, due_in_seconds=world.loop._due_in_seconds()) == pytest.approx(want)
    world.loop.last_plan = replace(plan, poll_seconds=2.0)
    assert world.loop._due_in_seconds() == pytest.approx(2.0)


def test_hints_are_written_at_most_every_2_s() -> None:
    """The first round after the 2 s writes all changes since the last write. A failed write is repeated."""
    world = World()
    world.run_to_use()
    writes: list[tuple[float, dict[str, str]]] = []

    def save(text: Mapping[str, str], _resolve: object = None) -> bool:
        writes.append((world.clock.seconds, dict(text)))
        return len(writes) != 2

    world.loop.store.save = save  # type: ignore[method-assign]
    world.complete()
    begun = world.clock.seconds
    world.round(after_seconds=2.5)
    world.put_jobset("second")
    world.gke.fail_next("create_node_pool", FailureKind.STOCKOUT)
    for _ in range(8):
        world.round(after_seconds=0.5)
    assert [seconds - begun for seconds, _ in writes] == pytest.approx([2.5, 4.5, 6.5])
    assert writes[0][1] != writes[1][1] == writes[2][1]


@pytest.mark.parametrize(("seconds", "want"), [(0.9, 0.0), (1.0, 1.0), (-0.9, 0.0), (-1.0, -1.0)])
def test_clock_change_of_at_least_a_second_is_followed(seconds: float, want: float) -> None:
    steady, by = FakeClock(), [0.0]
    clock = FollowedClock(lambda: datetime.fromtimestamp(steady() + by[0], tz=UTC), steady)
    by[0] = seconds
    assert clock.follow().total_seconds() == want


def test_crash_of_the_reporter_does_not_prevent_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.put_jobset()

    def crash(*_arguments: object) -> None:
        raise ValueError("cannot tell")

    monkeypatch.setattr(Reporter, "tell", crash)
    monkeypatch.setattr(Reporter, "tell_answer", crash)
    world.round()
    world.round(after_seconds=3)
    assert len(world.gke.pools) == 1
    assert not any(call.state is CallState.UNDER_WAY for call in world.loop.memory.creates.values())


def test_create_that_was_decided_but_not_sent_is_sent_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The create is recorded as in flight but was never sent. After a minute the pool is looked up and created."""
    world = World()
    world.put_jobset()

    def crash(*_arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(Actor, "carry_out", crash)
        with pytest.raises(MemoryError):
            world.round()
    world.rounds(25, every_seconds=2)
    assert not world.gke.pools
    world.rounds(15, every_seconds=2)
    assert len(world.gke.pools) == 1
