"""What the owners of waiting pods hear while the provisioner can decide nothing for anybody."""

from __future__ import annotations

from provisioner import constants
from provisioner.model.capacity import FailureKind
from tests.support.controller import Told, World


def gke_is_away() -> World:
    """Return a world in which GKE lists nothing."""
    world = World()
    world.gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE, message="GKE is down")
    return world


def told(world: World) -> list[Told]:
    """Return the Events about it."""
    return [each for each in world.recorder.told if each.reason == constants.NOT_READY]


def test_a_waiting_pod_and_its_jobset_say_why_nothing_is_done() -> None:
    """Who looks at the pod first finds the cause there; what passes within a minute is told to nobody."""
    world = gke_is_away()
    world.put_jobset()
    world.rounds(5, every_seconds=10)
    assert told(world) == []
    world.rounds(5, every_seconds=10)
    assert [each.ref.kind for each in told(world)] == ["Pod", "JobSet"]
    assert all("GKE is down" in each.message and each.kind == "Warning" for each in told(world))
    # It is repeated as other Events are, about every five minutes.
    world.rounds(60, every_seconds=10)
    assert 4 <= len(told(world)) <= 8


def test_nobody_is_told_whose_pods_do_not_wait() -> None:
    world = World()
    world.run_to_use()
    world.gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE, message="GKE is down")
    world.rounds(20, every_seconds=10)
    assert told(world) == []


def test_when_it_is_over_the_slice_is_served_and_the_next_time_is_told_anew() -> None:
    world = gke_is_away()
    world.put_jobset()
    world.rounds(12, every_seconds=10)
    world.gke.heal()
    world.rounds(4, every_seconds=10)
    assert world.gke.counts()["create_node_pool"] == 1
    before = len(told(world))
    world.put_jobset("second")
    world.gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE, message="GKE is down again")
    world.rounds(5, every_seconds=10)
    assert len(told(world)) == before


def test_nothing_is_told_from_caches_that_nobody_trusts() -> None:
    world = gke_is_away()
    world.put_jobset()
    world.pods.silent = True
    world.rounds(20, every_seconds=10)
    assert told(world) == []


def test_a_follower_tells_nobody() -> None:
    world = gke_is_away()
    world.put_jobset()
    world.leading = False
    world.rounds(20, every_seconds=10)
    assert told(world) == []
