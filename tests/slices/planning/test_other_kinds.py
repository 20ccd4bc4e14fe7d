"""Tests of pools for plain Jobs and for the groups of LeaderWorkerSets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Workload, Workloads
from provisioner.slices.demand import SliceId
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.slices.planning.plan import DeleteReason
from tests.support.clock import after
from tests.support.models import find_slices, make_job, make_jobset, make_lws, make_pod, make_requirements
from tests.support.world import World, running


@pytest.mark.parametrize(
    ("workload", "pools", "api_version", "group"),
    [
        pytest.param(make_job(namespace="team"), 1, "batch/v1", "sweep", id="a Job"),
        pytest.param(make_lws(namespace="team", replicas=2), 2, "leaderworkerset.x-k8s.io/v1", "serve-0", id="a set"),
    ],
)
def test_pool_of_another_kind_has_no_labels_of_jobsets(
    workload: Workload, pools: int, api_version: str, group: str
) -> None:
    """A release that knows only JobSets would delete a pool with labels of JobSets as the pool of a deleted JobSet."""
    creates = World(workload).look().creates
    assert [(create.request.hosts, create.request.topology) for create in creates] == [(2, "2x2x2")] * pools
    assert (creates[0].workload.kind, creates[0].workload.api_version) == (workload.kind, api_version)
    labels = creates[0].request.labels
    assert labels[constants.POOL_WORKLOAD_KIND] == workload.kind
    assert labels[constants.POOL_WORKLOAD_NAME] == workload.name
    assert labels[constants.POOL_WORKLOAD_NAMESPACE] == "team"
    assert labels[constants.POOL_GROUP_NAME] == group
    assert not labels.keys() & {constants.POOL_JOBSET_NAME, constants.POOL_JOBSET_UID, constants.PARENT_NAMESPACE}


def test_workloads_of_one_name_and_different_kinds_share_no_pools() -> None:
    """The names of groups may be equal as well: `same-0` is a group of the LeaderWorkerSet and also a Job."""
    job, jobset, lws = make_job("same"), make_jobset("same"), make_lws("same")
    namesake = make_job("same-0")
    world = World(job, jobset, lws, namesake)
    assert len(world.step().creates) == 4
    world.finish_creates()
    world.schedule()
    world.remove_jobset(job)
    world.deleted_workloads.add(job.uid)
    world.look()
    world.pass_time(3600)
    # Only one pool has no pods after the Job was deleted.
    assert len(world.look().deletes) == 1
    assert len(world.plans[-1].states) == 4


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        pytest.param(make_job(), "sweep-0", id="a number"),
        pytest.param(make_job(), "other", id="another name"),
        pytest.param(make_lws("sweep"), "sweep", id="the set's own name, of a LeaderWorkerSet"),
        pytest.param(make_jobset("sweep"), "sweep", id="the JobSet's own name"),
    ],
)
def test_group_name_that_its_kind_cannot_have_is_ignored(workload: Workload, name: str) -> None:
    """The owner reference of a pod or the label of a pool may contain any name."""
    key = make_pod(make_job(name)).group_key
    pod = make_pod(workload, group_name=name, group_key=key)
    workloads = Workloads.of({workload.uid: workload})
    found = find_slices(workloads, (pod,), ServingPolicy(), {SliceId(workload.uid, key): name})
    assert name not in {slice_.group_name for slice_ in found.values()}


@pytest.mark.parametrize("name", ["sweep", ""])
def test_pool_of_a_suspended_job_is_attributed_to_the_job(name: str) -> None:
    """The label of the pool with the name of the group may be missing."""
    job = make_job(suspended=True)
    slice_id = SliceId(job.uid, make_pod(job).group_key)
    workloads = Workloads.of({job.uid: job})
    found = find_slices(workloads, (), ServingPolicy(), {slice_id: name}, keep_suspended=True)
    assert [(slice_.id, slice_.group_name) for slice_ in found.values()] == [(slice_id, "sweep")]


def test_pool_of_a_job_without_the_annotation_is_kept_while_pods_run() -> None:
    """Without the annotation `serve`, the Job is not read. With SERVE_PODS=none, new pods of the Job get no pool."""
    job = make_job()
    world = running(job)
    del world.workloads[job.uid]
    world.pass_time(3600)
    assert not world.look().deletes
    world.put(make_pod(job, index=1, unschedulable_since=world.now))
    assert not world.look().creates
    world.end_pods(job)
    world.look()
    world.pass_time(3600)
    (delete,) = world.look().deletes
    assert delete.reason is DeleteReason.WORKLOAD_GONE


def test_pool_of_a_job_is_kept_while_the_job_has_pods_or_completions_left() -> None:
    """With more completions than parallelism, index 0 ends early, and at times the Job has no pods."""
    job = make_job()
    world = running(job)
    world.end_pods(job)
    world.put(make_pod(job, index=3, node=max(world.nodes)))
    world.pass_time(3600)
    assert not world.look().deletes
    world.end_pods(job)
    world.pass_time(3600)
    assert not world.look().deletes, "more are to come as long as the Job lives"
    world.put(make_pod(job, index=4, unschedulable_since=world.now))
    plan = world.look()
    assert (plan.creates, plan.deletes) == ((), ())


@pytest.mark.parametrize(
    ("pods", "want"),
    [
        pytest.param([{"index": 1}, {"index": 0}], 0, id="index 0 exists"),
        pytest.param([{"index": 2, "node": "n"}, {"index": 3}], 2, id="lowest index is bound"),
        pytest.param(
            [{"index": 0, "deletion_deadline": after(30)}, {"index": 1}], 1, id="lowest index is being deleted"
        ),
        pytest.param([{"index": 0, "phase": "Failed"}, {"index": 1}], 1, id="lowest index has failed"),
        pytest.param([{"index": 0, "completion_index": None}], None, id="only pods without an index"),
        pytest.param([{"index": 0, "completion_index": None}, {"index": 7}], 7, id="pods with and without an index"),
    ],
)
def test_leader_is_the_unfinished_pod_of_the_lowest_index(pods: list[dict[str, Any]], want: int | None) -> None:
    job = make_job()
    workloads = Workloads.of({job.uid: job})
    (found,) = find_slices(workloads, [make_pod(job, **pod) for pod in pods], ServingPolicy()).values()
    assert (found.leader.completion_index if found.leader is not None else None) == want


def test_restarting_group_keeps_its_pool() -> None:
    lws = make_lws(replicas=2)
    world = running(lws)
    world.end_pods(lws, 1)
    assert not world.look().deletes
    world.pass_time(5)
    world.put(make_pod(lws, job=1, unschedulable_since=world.now))
    plan = world.look()
    assert (plan.creates, plan.deletes) == ((), ())


def test_group_has_the_size_of_its_own_pods_during_an_update() -> None:
    """The spec has the size of new groups. Groups that are not replaced yet may still wait for smaller pools."""
    small = make_lws(size=2, template=make_requirements(topology="2x2x2", tolerations=()))
    large = make_lws(size=4, template=make_requirements(topology="2x2x4", tolerations=()))
    world = World(large)
    world.pods.clear()
    world.put(make_pod(small, group_size=2, unschedulable_since=world.now))
    (create,) = world.look().creates
    assert (create.request.topology, create.request.hosts) == ("2x2x2", 2)


def test_extra_group_of_a_rolling_update_has_a_pool_while_it_has_pods() -> None:
    """With maxSurge, a rolling update begins with the create of extra groups and ends with their delete."""
    lws = make_lws(replicas=1)
    world = running(lws)
    surging = replace(lws, groups=(replace(lws.groups[0], surge=1),))
    world.workloads[lws.uid] = surging
    # Group 2 is beyond replicas and surge, so it is not served.
    world.put(make_pod(surging, job=2, unschedulable_since=world.now))
    assert not world.look().creates
    world.put(make_pod(surging, job=1, unschedulable_since=world.now))
    (create,) = world.step().creates
    world.finish_creates()
    world.schedule()
    world.look()
    world.end_pods(surging, 1)
    world.look()
    world.pass_time(3600)
    (delete,) = world.look().deletes
    assert (delete.name, delete.reason) == (create.request.name, DeleteReason.NOT_NEEDED)


@pytest.mark.parametrize("workload", [make_lws(), make_job()], ids=["LeaderWorkerSets", "Jobs"])
def test_unreadable_kind_does_not_block_other_kinds_or_raise_an_alert(workload: Workload) -> None:
    """The workloads may need their pools, so a live read decides before each delete."""
    kinds = frozenset({workload.kind})
    world = running(workload)
    world.end_pods(workload)
    del world.workloads[workload.uid]
    world.add(make_jobset("other"))
    plan = world.look(unknown_kinds=kinds)
    assert len(plan.creates) == 1
    world.pass_time(3600)
    assert not world.look(unknown_kinds=kinds).alerts
