"""Tests of the timeline, which records the states of node pools over time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from provisioner.model.capacity import PoolName
from provisioner.slices.planning.plan import PoolState
from provisioner.slices.view import timeline as timelines
from provisioner.slices.view.timeline import Timeline, Track
from tests.support.models import make_jobset
from tests.support.settings import settings
from tests.support.world import World

DAY = timedelta(hours=24)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "_MAX_SEGMENTS_IN_ALL", 51)


def followed(world: World, timeline: Timeline) -> None:
    plan = world.look()
    timeline.follow(plan.pools, world.now)
    for create in plan.creates:
        world.answer(world._create(create))
    for delete in plan.deletes:
        world.answer(world._delete(delete))


def states(track: Track) -> list[str]:
    return [segment.state.value for segment in track.segments]


def life(world: World, timeline: Timeline) -> None:
    followed(world, timeline)
    world.pass_time(2)
    followed(world, timeline)
    world.finish_creates()
    world.pass_time(60)
    followed(world, timeline)
    world.schedule()
    world.pass_time(5)
    followed(world, timeline)


def test_a_pool_is_one_track_from_the_wait_to_the_end() -> None:
    workload = make_jobset("train")
    world, timeline = World(workload), Timeline()
    life(world, timeline)
    world.finish(workload)
    for seconds in (10, 60, 60):
        world.pass_time(seconds)
        followed(world, timeline)
    world.finish_deletes()
    world.pass_time(5)
    followed(world, timeline)
    (track,) = timeline.tracks()
    assert states(track) == ["waiting", "joining", "ready", "running", "idle", "deleting"]
    pairs = list(zip(track.segments, track.segments[1:], strict=False))
    assert all(before.until == after.since for before, after in pairs)
    assert track.segments[-1].until == world.now
    assert {segment.workload for segment in track.segments} == {"JobSet/default/train"}
    assert track.segments[0].slice == "JobSet/default/train/train-slice-0"


def test_a_pool_that_was_never_created_is_of_interest_while_its_slice_waits() -> None:
    """Events name the pool, so `explain` must find it, but the timeline on the status page no longer shows the pool."""
    workload = make_jobset("train")
    world, timeline = World(workload, settings_=settings(pause_creation=True)), Timeline()
    followed(world, timeline)
    (track,) = timeline.tracks()
    assert states(track) == ["waiting"]
    assert track.is_of_interest
    world.remove_jobset(workload)
    world.pass_time(5)
    followed(world, timeline)
    (track,) = timeline.tracks()
    assert not track.is_of_interest


@pytest.mark.usefixtures("few")
def test_number_of_tracks_and_of_segments_in_a_track_is_bounded() -> None:
    """A user who creates workloads in a loop must not fill the memory."""
    world = World(make_jobset("train"))
    timeline = Timeline()
    (pool,) = world.look().pools
    for number in range(120):
        timeline.follow([_named(pool, f"pool-{number}")], world.now)
    assert len(timeline.tracks()) == 51
    assert timeline.tracks()[0].pool == "pool-69"
    flapping = Timeline()
    for number in range(500):
        flapping.follow([_named(pool, "pool", chosen=bool(number % 2))], world.now + timedelta(seconds=number))
    (track,) = flapping.tracks()
    assert len(track.segments) == 50


@pytest.mark.usefixtures("few")
def test_total_number_of_segments_is_bounded() -> None:
    """A response contains all segments, so their number is bounded even if states change all the time."""
    world = World(make_jobset("train"))
    timeline = Timeline()
    (pool,) = world.look().pools
    for number in range(20):
        for turn in range(60):
            now = world.now + timedelta(seconds=60 * number + turn)
            timeline.follow([_named(pool, f"pool-{number}", chosen=bool(turn % 2))], now)
    tracks = timeline.tracks()
    assert sum(len(track.segments) for track in tracks) <= 51
    assert tracks[-1].pool == "pool-19"


@pytest.mark.usefixtures("few")
def test_many_pools_of_one_namespace_do_not_displace_other_namespaces() -> None:
    """The namespace with the most segments loses its oldest track."""
    world = World(make_jobset("train"))
    timeline = Timeline()
    (pool,) = world.look().pools
    quiet = [
        _named(pool._replace(named=pool.named._replace(namespace="quiet")), f"quiet-{number}") for number in range(20)
    ]
    timeline.follow(quiet, world.now)
    for number in range(100):
        timeline.follow(
            [_named(pool._replace(named=pool.named._replace(namespace="noisy")), f"noisy-{number}")], world.now
        )
    kept = [track.pool for track in timeline.tracks()]
    assert len(kept) == 51
    assert {state.name for state in quiet} <= set(kept)
    assert kept[20] == "noisy-69"
    # The track of a pool that exists again is kept; like other tracks, it is forgotten a day after the pool's end.
    timeline.follow(quiet[:1], world.now)
    timeline.follow(quiet[:1], world.now + DAY)
    assert [track.pool for track in timeline.tracks()] == ["quiet-0"]
    timeline.follow([], world.now + DAY)
    timeline.follow([], world.now + 2 * DAY)
    assert timeline.tracks() == []


def test_pool_that_is_created_again_continues_its_track() -> None:
    """A create may be repeated with the same name."""
    world = World(make_jobset("train"))
    timeline = Timeline()
    (pool,) = world.look().pools
    timeline.follow([pool], world.now)
    timeline.follow([], world.now + timedelta(seconds=5))
    timeline.follow([pool], world.now + timedelta(seconds=9))
    (track,) = timeline.tracks()
    assert [(segment.since - world.now).seconds for segment in track.segments] == [0, 9]
    timeline.follow([pool], world.now + 2 * DAY)
    assert len(timeline.tracks()) == 1


def test_times_shift_with_a_clock_that_is_set() -> None:
    """Without the shift, segments would overlap or be in the future."""
    world, timeline = World(make_jobset("train")), Timeline()
    life(world, timeline)
    (before,) = timeline.tracks()
    timeline.shift(timedelta(hours=-1))
    (after,) = timeline.tracks()
    assert [segment.since for segment in after.segments] == [
        segment.since - timedelta(hours=1) for segment in before.segments
    ]


def _named(pool: PoolState, name: str, *, chosen: bool = True) -> PoolState:
    return pool._replace(name=PoolName(name), slice_id=pool.slice_id if chosen else None)
