"""Tests of reasons, times and next steps in the view, in cases in which a false statement is likely."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import constants
from provisioner.model.capacity import FailureKind, PoolStatus
from provisioner.slices.planning.memory.answers import DeleteAnswer, DeleteResult
from provisioner.slices.planning.memory.state import OperationLimit
from provisioner.slices.view.explain import explain
from provisioner.slices.view.types import PoolView, SliceView, State, View
from tests.support.board import view_of
from tests.support.models import make_jobset, make_pod, make_requirements
from tests.support.settings import settings
from tests.support.world import World, failure, running

STOCKOUT = failure(FailureKind.STOCKOUT, "us-central2-b has no capacity.")


def slice_of(view: View, group: str) -> SliceView:
    (found,) = (slice_ for slice_ in view.slices if slice_.group == group)
    return found


def only_pool(view: View) -> PoolView:
    (found,) = view.pools
    return found


def headline(view: View, name: str) -> str:
    (found,) = explain(view, view.at, (), (), name)
    return found.headline


# --- Reasons of slices and pools ---


def test_pool_kept_by_a_suspended_workload_names_the_setting() -> None:
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


def test_pool_whose_nodes_were_not_ready_in_time_has_that_reason() -> None:
    world = World(make_jobset("train"))
    world.step()
    (name,) = world.pools
    world.put(replace(world.pools[name], status=PoolStatus.RUNNING))
    world.step()
    world.pass_time(world.settings.ready_timeout_seconds + 1)
    world.look()
    pool = next(candidate for candidate in view_of(world).pools if candidate.name == name)
    assert pool.state is State.FAILED
    assert "no reason" not in pool.reason
    assert "only 0 of its 2 nodes were ready" in pool.reason
    assert world.plans[-1].states[name].note in pool.reason


def test_failed_pool_with_bound_pods_names_failure_and_pods() -> None:
    world = running(make_jobset("train"))
    (name,) = world.pools
    world.fail_pool(name, failure(FailureKind.UNAVAILABLE, "Internal error."))
    view = view_of(world)
    pool = only_pool(view)
    assert (pool.state, pool.delete_at) == (State.FAILED, None)
    assert "Internal error." in pool.reason
    assert "pods are still bound to it" in pool.reason
    assert "had node pool" not in headline(view, "slice/train-slice-0")


def test_pool_with_unknown_status_is_not_shown_as_unneeded() -> None:
    world = running(make_jobset("train"))
    world.pods.clear()
    world.workloads.clear()
    (name,) = world.pools
    world.put(replace(world.pools[name], status=PoolStatus.UNKNOWN))
    pool = only_pool(view_of(world))
    assert "is not needed" not in pool.reason
    assert "status" in pool.reason
    assert pool.delete_at is None


def test_slice_whose_pool_vanished_shows_the_message_of_the_scheduler() -> None:
    world = running(make_jobset("train"))
    leader = min(world.pods.values(), key=lambda pod: pod.name)
    world.pools.clear()
    for message, words in (("No room.", "No room."), ("", "no reason is given")):
        world.put(replace(leader, node_name="", unschedulable_since=world.now, unschedulable_message=message))
        assert slice_of(view_of(world), "train-slice-0").reason == f"Its leader pod cannot be scheduled: {words}"


@pytest.mark.parametrize("replicas", [1, 2])
def test_reason_of_a_waiting_slice_is_the_message_of_its_event(replicas: int) -> None:
    one, limited = {constants.ALL_OR_NOTHING: "true"}, settings(max_chips=8 * replicas - 1)
    for world in (
        World(make_jobset("train", replicas=replicas), settings_=settings(max_chips=4)),
        World(make_jobset("train", replicas=replicas), settings_=settings(pause_creation=True)),
        World(make_jobset("train", replicas=replicas, template=make_requirements(topology="3x5x7", tolerations=()))),
        World(make_jobset("train", replicas=replicas, annotations=one), settings_=limited, marked=True),
    ):
        for slice_ in view_of(world).slices:
            assert slice_.state in (State.WAITING, State.REJECTED)
            assert slice_.next_step or slice_.state is State.REJECTED or "until the administrator" in slice_.reason
            said = f"{slice_.reason.rstrip('.')}. {slice_.next_step}" if slice_.next_step else slice_.reason
            assert said in [notice.message for notice in slice_.notices]


# --- Deletes of pools ---


def test_pool_of_an_unwatched_namespace_is_not_shown_as_unneeded() -> None:
    """The workload may exist; in this test, a live read finds it."""
    world = running(make_jobset("train", namespace="other"))
    world.settings = settings(namespaces=("default",))
    world.workloads.clear()
    world.pods.clear()
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


def test_pool_whose_labels_lack_the_namespace_has_no_time_of_delete() -> None:
    world = running(make_jobset("train"))
    world.workloads.clear()
    world.pods.clear()
    (pool,) = world.pools.values()
    labels = {key: value for key, value in pool.labels.items() if value != "default"}
    world.put(replace(pool, labels=labels))
    world.look()
    world.pass_time(60)
    (delete,) = world.look().deletes
    reason = "its labels do not say in which namespace its workload is; delete it by hand"
    world.answer(DeleteAnswer(name=delete.name, at=world.now, result=DeleteResult.KEPT, reason=reason))
    shown = only_pool(view_of(world))
    assert reason in shown.reason
    assert (shown.delete_at, shown.delete_reason) == (None, "")


def test_pools_with_delayed_deletes_show_the_reason_and_the_times() -> None:
    workloads = [make_jobset(f"train-{index}") for index in range(6)]
    world = World(*workloads)
    world.live(4)
    world.workloads.clear()
    world.pods.clear()
    world.look()
    world.pass_time(100)
    world.step()
    view = view_of(world)
    held = sorted((pool for pool in view.pools if pool.delete_at), key=lambda pool: str(pool.delete_at))
    assert len(held) == 5
    assert [pool.name for pool in held if "one node pool every 60 s" not in pool.reason] == []
    # When only three pools remain, the limit on the rate of deletes no longer applies, so their times are equal.
    assert [(pool.delete_at - world.now).total_seconds() for pool in held if pool.delete_at] == [59, 119, 119, 119, 119]


def test_delete_that_waits_for_operations_has_that_reason() -> None:
    workloads = [make_jobset(f"train-{index}") for index in range(3)]
    world = World(*workloads)
    world.live(4)
    for workload in workloads:
        world.finish(workload)
    world.look()
    world.pass_time(100)
    world.memory = replace(world.memory, operations=OperationLimit(limit=1, rejected_at=world.now))
    view = view_of(world)
    waits = [pool for pool in view.pools if "other node pool operations" in pool.reason]
    assert len(waits) == 2
    assert [wait.delete_at for wait in waits if wait.delete_at is None or wait.delete_at > world.now] == []
    for wait in waits:
        assert "at the earliest" not in headline(view, f"pool/{wait.name}")


def test_headline_of_a_workload_names_the_slice_with_a_missing_pod() -> None:
    workload = make_jobset("train", replicas=2)
    world = running(workload)
    world.put(make_pod(workload, job=1, index=1, unschedulable=True))
    assert "train-slice-1 runs on node pool" in headline(view_of(world), "jobset/train")
    assert "1 of 2 pods are bound" in headline(view_of(world), "jobset/train")
