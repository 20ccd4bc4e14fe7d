"""What people are shown where it is easy to say something false: why, since when, and what happens next."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from provisioner import constants
from provisioner.model.capacity import FailureKind, PoolStatus
from provisioner.model.choices import parse_choices
from provisioner.model.workloads import Workload
from provisioner.slices.planning.memory.answers import DeleteAnswer, DeleteResult
from provisioner.slices.planning.memory.state import Memory, OperationLimit
from provisioner.slices.view.explain import explain
from provisioner.slices.view.types import PoolView, SliceView, State, View
from tests.support.board import view_of
from tests.support.models import CHIP_TOLERATION, make_jobset, make_pod, make_requirements
from tests.support.settings import settings
from tests.support.world import World, failure, running

STOCKOUT = failure(FailureKind.STOCKOUT, "us-central2-b has no capacity.")
V5E = make_requirements(accelerator="tpu-v5-lite-podslice", topology="2x2", tolerations=())


def slice_of(view: View, group: str) -> SliceView:
    (found,) = (each for each in view.slices if each.group == group)
    return found


def only_pool(view: View) -> PoolView:
    (found,) = view.pools
    return found


def headline(view: View, name: str) -> str:
    (found,) = explain(view, view.at, (), (), name)
    return found.headline


# --- which slice is where


def test_a_slice_whose_pool_others_occupy_waits() -> None:
    """Pods of nobody who is known are on the pool that was made for it: it does not run there."""
    world = World(make_jobset("train"))
    world.live(3)
    world.pods.clear()
    (uid,) = world.workloads
    workload = world.workloads[uid]
    gone = make_jobset("gone")
    for index, node in enumerate(sorted(world.nodes)):
        world.put(make_pod(gone, index=index, node=node))
    world.put(make_pod(workload))
    view = view_of(world)
    found = slice_of(view, "train-slice-0")
    assert (found.state, found.pool) == (State.WAITING, "")
    (pool,) = (each for each in view.pools if each.state is State.RUNNING)
    assert pool.slice == ""
    assert "whose workload is gone or not watched" in pool.reason


def test_a_slice_that_is_updated_to_another_shape_waits_while_its_old_pods_end() -> None:
    """They are still on the pool of the old shape; the new leader needs another."""
    small, large = (make_requirements(topology=topology) for topology in ("2x2x2", "2x2x4"))
    workload = make_jobset("train", template=small)
    world = World(workload)
    world.live(3)
    node = min(world.nodes)
    world.pods.clear()
    world.put(make_pod(workload, index=1, node=node, deletion_deadline=world.now + timedelta(seconds=30)))
    world.put(make_pod(workload, requirements=large))
    view = view_of(world)
    found = slice_of(view, "train-slice-0")
    assert (found.state, found.pool) == (State.WAITING, "")
    (pool,) = (each for each in view.pools if each.state is State.RUNNING)
    assert pool.slice == found.id
    world.step()
    world.run(2)
    assert slice_of(view_of(world), "train-slice-0").state is State.CREATING


def test_a_slice_that_runs_on_foreign_nodes_has_not_ended() -> None:
    """The pool that was made for it is idle; the slice lives on nodes of others."""
    workload = make_jobset("train")
    world = World(workload)
    world.step()
    world.finish_creates()
    for index in range(2):
        world.put(make_pod(workload, index=index, node=f"their-node-{index}"))
    world.run(2)
    view = view_of(world)
    found = slice_of(view, "train-slice-0")
    assert (found.state, found.pool) == (State.NONE, "")
    assert "their-node-0" in found.reason
    assert "has ended" not in headline(view, "slice/train-slice-0")
    assert only_pool(view).state is State.IDLE
    assert only_pool(view).slice == ""
    assert "run on other nodes" in only_pool(view).reason


def test_a_leader_that_finds_a_place_elsewhere_while_its_pool_is_made() -> None:
    workload = make_jobset("train")
    world = World(workload)
    world.step()
    for index in range(2):
        world.put(make_pod(workload, index=index, node=f"their-node-{index}"))
    view = view_of(world)
    assert "their-node-0" in slice_of(view, "train-slice-0").reason
    assert "waits for" not in headline(view, "slice/train-slice-0")


# --- why it is so


def test_a_slice_that_is_held_for_the_others_says_so() -> None:
    """Its pool is ready; that its pods are not bound is on purpose, and in the words of its Event."""
    workload = make_jobset("train", replicas=2, annotations={constants.ALL_OR_NOTHING: "true"})
    world = World(workload, settings_=settings(partial_hold_seconds=3600))
    world.refuse_create = lambda create: (
        STOCKOUT if create.request.labels[constants.PARENT_NAME].endswith("1") else None
    )
    world.run(2)
    world.finish_creates()
    view = view_of(world)
    found = slice_of(view, "train-slice-0")
    assert found.state is State.READY
    assert "is held until all slices of the JobSet are ready: 1 of 2 are ready" in found.reason
    (pool,) = (each for each in view.pools if each.name == found.pool)
    assert "1 of 2 are ready" in pool.reason
    assert "1 of 2 are ready" in headline(view, "slice/train-slice-0")


def test_a_pool_that_a_suspended_workload_keeps_says_so() -> None:
    """It is ready, and nobody waits for its pods to be bound."""
    workload = make_jobset("train")
    world = running(workload)
    world.settings = settings(keep_suspended=True)
    world.workloads[workload.uid] = replace(workload, suspended=True)
    world.run(2)
    assert only_pool(view_of(world)).state is State.DRAINING
    world.end_pods(workload)
    world.run(2)
    view = view_of(world)
    assert slice_of(view, "train-slice-0").state is State.READY
    for reason in (slice_of(view, "train-slice-0").reason, only_pool(view).reason):
        assert "KEEP_POOLS_OF_SUSPENDED_JOBSETS" in reason
        assert "is suspended" in reason
    assert "not been bound" not in headline(view, "slice/train-slice-0")


def test_a_pool_whose_slice_has_no_pods_says_until_when_it_is_kept() -> None:
    """The child Job has completed, the JobSet lives."""
    workload = make_jobset("train")
    world = running(workload)
    world.end_pods(workload)
    view = view_of(world)
    found = slice_of(view, "train-slice-0")
    assert found.state is State.READY
    assert "no pods at the moment" in found.reason
    assert "JobSet" in only_pool(view).reason


def test_a_pool_that_is_given_up_says_of_what() -> None:
    """GKE called it up, and its nodes never got ready."""
    world = World(make_jobset("train"))
    world.step()
    (name,) = world.pools
    world.put(replace(world.pools[name], status=PoolStatus.RUNNING))
    world.step()
    world.pass_time(world.settings.ready_timeout_seconds + 1)
    world.look()
    pool = next(each for each in view_of(world).pools if each.name == name)
    assert pool.state is State.FAILED
    assert "no reason" not in pool.reason
    assert "only 0 of its 2 nodes were ready" in pool.reason
    assert world.plans[-1].states[name].note in pool.reason


def test_a_failed_pool_that_stays_says_why() -> None:
    world = running(make_jobset("train"))
    (name,) = world.pools
    world.fail_pool(name, failure(FailureKind.UNAVAILABLE, "Internal error."))
    view = view_of(world)
    pool = only_pool(view)
    assert (pool.state, pool.delete_at) == (State.FAILED, None)
    assert "Internal error." in pool.reason
    assert "pods are still bound to it" in pool.reason
    assert "had node pool" not in headline(view, "slice/train-slice-0")


def test_a_pool_with_a_status_that_nobody_knows_is_not_unneeded() -> None:
    world = running(make_jobset("train"))
    world.pods.clear()
    world.workloads.clear()
    (name,) = world.pools
    world.put(replace(world.pools[name], status=PoolStatus.UNKNOWN))
    pool = only_pool(view_of(world))
    assert "is not needed" not in pool.reason
    assert "status" in pool.reason
    assert pool.delete_at is None


def test_a_pool_that_vanished_while_it_was_made_is_not_about_to_be_listed() -> None:
    """Somebody deleted it: GKE is asked what became of it."""
    world = World(make_jobset("train"))
    world.run(2)
    (name,) = world.pools
    world.remove_pool(name)
    pool = only_pool(view_of(world))
    assert pool.state is State.CREATING
    assert "outcome" in pool.reason


def test_flex_start_without_nodes_waits_for_capacity() -> None:
    template = make_requirements(accelerator="tpu-v5p-slice", tolerations=(CHIP_TOLERATION,))
    world = World(make_jobset("train", template=template), settings_=settings(capacity=parse_choices("flex-start")))
    world.step()
    (name,) = world.pools
    world.put(replace(world.pools[name], status=PoolStatus.RUNNING))
    world.run(2)
    assert "when flex-start capacity is available" in slice_of(view_of(world), "train-slice-0").reason


def test_a_pool_that_gke_still_makes_is_told_from_one_whose_nodes_are_missing() -> None:
    """The same number of hosts, and another thing to look at."""
    world = World(make_jobset("train"))
    world.step()
    assert "GKE is creating it" in only_pool(view_of(world)).reason
    (name,) = world.pools
    world.put(replace(world.pools[name], status=PoolStatus.RUNNING))
    assert "GKE is creating it" not in only_pool(view_of(world)).reason


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_sentence_of_the_event_is_the_views(replicas: int) -> None:
    one = {constants.ALL_OR_NOTHING: "true"}
    for world in (
        World(make_jobset("train", replicas=replicas), settings_=settings(max_chips=4)),
        World(make_jobset("train", replicas=replicas), settings_=settings(pause_creation=True)),
        World(make_jobset("train", replicas=replicas, template=make_requirements(topology="3x5x7", tolerations=()))),
        World(make_jobset("train", replicas=replicas, annotations=one), settings_=settings(max_chips=8 * replicas - 1)),
    ):
        for each in view_of(world).slices:
            assert each.state is State.WAITING
            assert each.reason in [notice.message for notice in each.notices]


# --- deletes


def test_a_delete_that_is_being_proven_is_not_sent_yet() -> None:
    """The gate may keep the pool; nothing says that GKE deletes it."""
    workload = make_jobset("train")
    world = running(workload)
    world.finish(workload)
    world.run(2)
    world.pass_time(60)
    assert world.look().deletes
    pool = only_pool(view_of(world))
    assert pool.state is State.DELETING
    assert "confirms" in pool.reason
    world.refuse_delete = lambda _: None
    (delete,) = world.plans[-2].deletes
    world.answer(world._delete(delete))
    pool = only_pool(view_of(world))
    assert "GKE is deleting it" in pool.reason
    assert "confirms" not in pool.reason


def test_a_delete_that_is_tried_again_says_what_kept_the_last_one() -> None:
    workload = make_jobset("train")
    world = running(workload)
    world.finish(workload)
    world.refuse_delete = lambda _: failure(FailureKind.UNAVAILABLE, "unfinished pods are on it: a/b on c")
    world.run(2)
    world.pass_time(60)
    world.step()
    pool = only_pool(view_of(world))
    assert pool.state is State.IDLE
    assert "unfinished pods are on it" in pool.reason
    world.pass_time(60)
    pool = only_pool(view_of(world))
    assert pool.state is State.DELETING
    assert "last attempt" in pool.reason


def test_a_pool_that_somebody_deletes_by_hand_under_its_pods() -> None:
    world = running(make_jobset("train"))
    (name,) = world.pools
    world.put(replace(world.pools[name], status=PoolStatus.STOPPING))
    view = view_of(world)
    told = headline(view, "slice/train-slice-0")
    assert "has ended" not in told
    assert "is being deleted" in told
    assert "requested that" in told
    assert "pods are still bound to it" in told


def unwatched() -> tuple[World, Workload]:
    """Return a world with a pool of a namespace that is not watched."""
    workload = make_jobset("train", namespace="other")
    world = running(workload)
    world.settings = settings(namespaces=("default",))
    world.workloads.clear()
    world.pods.clear()
    return world, workload


def test_a_pool_of_a_namespace_that_is_not_watched_is_not_called_unneeded() -> None:
    """Nobody knows, and then the API server says that its workload lives."""
    world, _ = unwatched()
    pool = only_pool(view_of(world))
    assert "is gone" not in pool.reason
    assert "not watched" in pool.reason
    world.pass_time(60)
    (delete,) = world.look().deletes
    reason = "JobSet other/train lives"
    world.answer(DeleteAnswer(name=delete.name, at=world.now, result=DeleteResult.NEEDED, reason=reason))
    pool = only_pool(view_of(world))
    assert reason in pool.reason
    assert "is gone" not in pool.reason
    assert (pool.delete_at, pool.delete_reason) == (None, "")


def test_pools_that_the_brake_holds_back_say_so_and_when_each_goes() -> None:
    workloads = [make_jobset(f"train-{index}") for index in range(6)]
    world = World(*workloads)
    world.live(4)
    world.workloads.clear()
    world.pods.clear()
    world.look()
    world.pass_time(100)
    world.step()
    view = view_of(world)
    held = sorted((each for each in view.pools if each.delete_at), key=lambda each: str(each.delete_at))
    assert len(held) == 5
    assert [each.name for each in held if "one node pool every 60 s" not in each.reason] == []
    # When three are left it is off.
    assert [(each.delete_at - world.now).total_seconds() for each in held if each.delete_at] == [59, 119, 119, 119, 119]


def test_a_delete_that_waits_for_operations_says_so() -> None:
    """It is due, and GKE's limit is in the way."""
    workloads = [make_jobset(f"train-{index}") for index in range(3)]
    world = World(*workloads)
    world.live(4)
    for each in workloads:
        world.finish(each)
    world.look()
    world.pass_time(100)
    world.memory = replace(world.memory, operations=OperationLimit(limit=1, rejected_at=world.now))
    view = view_of(world)
    waits = [each for each in view.pools if "other node pool operations" in each.reason]
    assert len(waits) == 2
    assert [each.delete_at for each in waits if each.delete_at is None or each.delete_at > world.now] == []
    for each in waits:
        assert "at the earliest" not in headline(view, f"pool/{each.name}")


def test_a_pool_of_an_earlier_namesake_says_that_its_own_workload_is_gone() -> None:
    """The one that has its name now is another."""
    workload = make_jobset("train")
    world = running(workload)
    world.remove_jobset(workload)
    world.add(make_jobset("train", uid="second", template=make_requirements(topology="2x2x4", tolerations=())))
    pool = next(each for each in view_of(world).pools if each.state is State.IDLE)
    assert "another JobSet has its name" in pool.reason


# --- since when


def test_what_was_so_before_the_process_started_is_not_new() -> None:
    """A restart says nothing of how long a pool runs."""
    world = running(make_jobset("train"))
    world.pass_time(86400)
    world.memory, world.derived = Memory(), None
    world.look()
    world.pass_time(120)
    view = view_of(world)
    assert only_pool(view).since_start
    assert slice_of(view, "train-slice-0").since_start
    assert "for more than 2 min" in headline(view, "slice/train-slice-0")
    assert "for more than 2 min" in headline(view, f"pool/{only_pool(view).name}")


def test_the_first_line_about_a_workload_names_the_slice_that_does_not_run_whole() -> None:
    """All its slices have their pools; of one a pod is missing."""
    workload = make_jobset("train", replicas=2)
    world = running(workload)
    world.put(make_pod(workload, job=1, index=1, unschedulable=True))
    assert "train-slice-1 runs on node pool" in headline(view_of(world), "jobset/train")
    assert "1 of 2 pods are bound" in headline(view_of(world), "jobset/train")
