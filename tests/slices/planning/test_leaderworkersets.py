"""LeaderWorkerSets: each group is a slice, and its pool lasts as long as the group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import constants
from provisioner.model.workloads import Workload
from provisioner.slices.planning.plan import DeleteReason
from tests.support.models import make_job, make_jobset, make_lws, make_pod, make_requirements
from tests.support.world import World, running


def scaled(workload: Workload, replicas: int) -> Workload:
    """Return a set with another number of groups."""
    return replace(workload, groups=(replace(workload.groups[0], replicas=replicas),))


def test_each_group_gets_a_pool_whose_labels_say_nothing_of_jobsets() -> None:
    """Of the template's shape; a release that knows JobSets alone must not take it for one of a JobSet that is gone."""
    create, other = World(make_lws("serve", namespace="team", replicas=2)).look().creates
    assert {(each.request.hosts, each.request.topology) for each in (create, other)} == {(2, "2x2x2")}
    assert (create.workload.kind, create.workload.api_version) == ("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1")
    labels = create.request.labels
    assert labels[constants.POOL_WORKLOAD_KIND] == "LeaderWorkerSet"
    assert labels[constants.POOL_WORKLOAD_NAME] == "serve"
    assert labels[constants.POOL_WORKLOAD_NAMESPACE] == "team"
    assert labels[constants.POOL_GROUP_NAME] == "serve-0"
    assert not labels.keys() & {constants.POOL_JOBSET_NAME, constants.POOL_JOBSET_UID, constants.PARENT_NAMESPACE}


def test_a_group_that_restarts_keeps_its_pool() -> None:
    """All its pods go, and there is a moment without any; the new leader has the same name."""
    lws = make_lws(replicas=2)
    world = running(lws)
    world.end_pods(lws, 1)
    assert not world.look().deletes
    world.pass_time(5)
    world.put(make_pod(lws, job=1, unschedulable_since=world.now))
    plan = world.look()
    assert (plan.creates, plan.deletes) == ((), ())


def test_during_an_update_each_group_has_the_size_of_its_own_pods() -> None:
    """The set tells the size of new groups; those that are not replaced yet may wait for pools of their own."""
    small = make_lws(size=2, template=make_requirements(topology="2x2x2", tolerations=()))
    large = make_lws(size=4, template=make_requirements(topology="2x2x4", tolerations=()))
    world = World(large)
    world.pods.clear()
    world.put(make_pod(small, group_size=2, unschedulable_since=world.now))
    (create,) = world.look().creates
    assert (create.request.topology, create.request.hosts) == ("2x2x2", 2)


def test_a_group_beyond_the_replicas_has_a_pool_as_long_as_it_has_pods() -> None:
    """With maxSurge a rolling update begins with groups that are deleted at its end."""
    lws = make_lws(replicas=1)
    world = running(lws)
    surging = replace(lws, groups=(replace(lws.groups[0], surge=1),))
    world.workloads[lws.uid] = surging
    assert not world.look().creates
    world.put(make_pod(surging, job=1, unschedulable_since=world.now))
    (create,) = world.step().creates
    world.finish_creates()
    world.schedule()
    world.look()
    for pod in [pod for pod in world.pods.values() if pod.group_name == "serve-1"]:
        del world.pods[pod.uid]
    world.look()
    world.pass_time(3600)
    (delete,) = world.look().deletes
    assert (delete.name, delete.reason) == (create.request.name, DeleteReason.NOT_NEEDED)


def test_no_group_is_served_that_the_set_does_not_list() -> None:
    """Neither beyond the replicas, nor beyond those that an update adds."""
    lws = make_lws(replicas=1)
    lws = replace(lws, groups=(replace(lws.groups[0], surge=1),))
    world = running(lws)
    world.put(make_pod(lws, job=2, unschedulable_since=world.now))
    assert not world.look().creates


@pytest.mark.parametrize("workload", [make_lws(), make_job()], ids=["LeaderWorkerSets", "Jobs"])
def test_while_nothing_is_known_of_a_kind_the_others_are_served(workload: Workload) -> None:
    """Its pools are not known to be unneeded: their delete asks the API server first, which knows."""
    kinds = frozenset({workload.kind})
    world = running(workload)
    world.end_pods(workload)
    del world.workloads[workload.uid]
    world.add(make_jobset("other"))
    plan = world.look(unknown_kinds=kinds)
    assert len(plan.creates) == 1
    world.pass_time(3600)
    assert not world.look(unknown_kinds=kinds).alerts
