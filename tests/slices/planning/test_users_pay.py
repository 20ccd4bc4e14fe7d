"""Tests of the namespace that chips are charged to, and of unused pools, which must not block other slices."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Pod, PodGroup, Workload, group_key
from provisioner.slices.planning.contention.limits import Budget
from provisioner.slices.planning.round import begin_round
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.clock import NOW
from tests.support.models import (
    CHIP_TOLERATION,
    make_jobset,
    make_lws,
    make_marks,
    make_node,
    make_pod,
    make_pool,
    make_requirements,
)
from tests.support.settings import settings
from tests.support.world import World, running

SMALL = make_requirements(topology="2x2x1", tolerations=())


def leader_without_chips(workload: Workload, *, job: int = 0, node: str) -> Pod:
    leader = make_pod(workload, job=job, node=node)
    return replace(leader, requirements=replace(leader.requirements, chips=0))


def charged(world: World) -> dict[str, int]:
    budget = Budget.of(begin_round(world.snapshot(), world.memory, world.settings, GKE_RULES, world.now))
    return {scope.name: chips for scope, chips in budget.used.items() if scope.kind == "namespace" and chips}


@pytest.mark.parametrize("claims", [False, True], ids=["resource", "resource claims"])
def test_chips_count_for_the_namespaces_whose_pods_are_bound(claims: bool) -> None:
    """Unused nodes count for the namespace that uses most nodes, and an idle pool for the namespace of its creator."""
    creator, user, other = (
        make_jobset(name, namespace=name, parallelism=4, template=SMALL) for name in ("creator", "user", "other")
    )
    world = World(settings_=settings(max_chips=100))
    pool = world.put_pool(make_pool(creator))
    assert charged(world) == {"creator": 16}
    for index, who in enumerate((user, user, other)):
        world.workloads[who.uid] = who
        pod = make_pod(who, index=index, node=make_node(pool, index).name)
        world.put(replace(pod, requirements=replace(pod.requirements, claims=True, chips=0)) if claims else pod)
    assert charged(world) == {"user": 12, "other": 4}


def test_chips_of_a_shared_node_are_charged_to_one_namespace() -> None:
    """Each node counts for the namespace of its oldest pod that requests chips."""
    creator, first, second = (make_jobset(name, namespace=name, parallelism=2, template=SMALL) for name in "abc")
    world = World(settings_=settings(max_chips=100))
    pool = world.put_pool(make_pool(creator))
    for place, who in enumerate((first, second)):
        world.workloads[who.uid] = who
        for index in range(2):
            pod = make_pod(who, index=index, node=make_node(pool, index).name, uid=f"{who.name}{index}")
            world.put(replace(pod, created_at=NOW + timedelta(seconds=place)))
    assert charged(world) == {"b": 8}
    for index in range(2):
        pod = world.pods[f"b{index}"]
        world.put(replace(pod, requirements=replace(pod.requirements, chips=0)))
    assert charged(world) == {"c": 8}


@pytest.mark.parametrize("pod", ["never bound", "without chips", "without chips, of an unknown workload"])
def test_pod_of_a_namespace_without_chips_keeps_no_pool_of_another_namespace(pod: str) -> None:
    """The limit of namespace b is 0 chips. A pod without chips is not charged, so the creator's namespace would pay."""
    world = World(settings_=settings(max_chips_per_namespace=(("a", 8), ("b", 0))))
    first, serve = make_jobset("first", namespace="a"), make_lws(namespace="b", size=3)
    world.add(first)
    world.live(3)
    if pod == "never bound":
        world.add(make_jobset("never-bound", namespace="b"))
        world.run(5)
    else:
        world.workloads |= {serve.uid: serve} if pod == "without chips" else {}
        world.put(leader_without_chips(serve, node=min(world.nodes)))
    world.finish(first)
    world.add(make_jobset("second", namespace="a", parallelism=1, template=SMALL))
    for _ in range(20):
        world.step(seconds=60)
        world.finish_deletes()
    assert [pool.labels[constants.POOL_JOBSET_NAME] for pool in world.pools.values()] == ["second"]


def test_leader_without_chips_keeps_and_pays_for_a_pool_with_its_slices_labels() -> None:
    """The pool was created for another namespace, and the workers of the slice come later."""
    world = World(settings_=settings(max_chips_per_namespace=(("*", 64),)))
    first, serve = make_jobset("first", namespace="a"), make_lws(namespace="b", size=3)
    world.add(first)
    world.live(3)
    world.workloads |= {serve.uid: serve}
    marks = make_marks(serve)
    world.nodes = {name: replace(node, labels=node.labels | marks) for name, node in world.nodes.items()}
    leader = leader_without_chips(serve, node=min(world.nodes))
    world.finish(first)
    selector = leader.requirements.node_selector | marks
    world.put(replace(leader, requirements=replace(leader.requirements, node_selector=selector)))
    world.run(20, seconds=60)
    assert (charged(world), world.deleted) == ({"b": 8}, [])


@pytest.mark.parametrize("worker", [True, False], ids=["worker bound", "no worker bound"])
def test_leader_without_chips_keeps_its_own_pool_and_another_pool_only_with_workers(worker: bool) -> None:
    """The leader's slice counts on the pool of another workload for at most six minutes without a bound worker."""
    first = make_jobset("first")
    serve = make_lws(size=2, replicas=2)
    world = running(first)
    world.add(serve)
    world.finish(first)
    world.step()
    world.finish_creates()
    world.pods = {uid: pod for uid, pod in world.pods.items() if pod.workload_name == "first"}
    borrowed, own = (
        sorted(node.name for node in world.nodes.values() if node.pool_name == name) for name in world.created
    )
    world.put(leader_without_chips(serve, node=borrowed[0]), leader_without_chips(serve, job=1, node=own[0]))
    if worker:
        world.put(make_pod(serve, index=1, node=borrowed[1]))
    world.run(5, seconds=60)
    assert world.deleted == []
    world.run(30, seconds=60)
    assert world.deleted == ([] if worker else world.created[:1])


def test_claim_on_an_idle_pool_ends_if_no_pod_is_bound() -> None:
    """A slice waits on an idle pool for six minutes. Then the pool is deleted, and a new pool is created."""
    first, never = make_jobset("first", namespace="a"), make_jobset("never-bound", namespace="b")
    world = running(first)
    world.add(never)
    world.finish(first)
    world.step()
    assert world.created == [make_pool(first).name]
    for _ in range(6):
        world.step(seconds=60)
    assert world.deleted == []
    world.run(4, seconds=60)
    assert world.deleted == [make_pool(first).name]
    assert len(world.created) == 2


def test_pool_of_a_child_job_without_pods_is_deleted_while_its_jobset_runs() -> None:
    """The child Job has had no pods for longer than the Job controller waits before it creates new pods."""
    workload = make_jobset("two", replicas=2)
    world = running(workload)
    world.end_pods(workload, 0)
    world.run(14, seconds=60)
    assert world.deleted == []
    world.run(4, seconds=60)
    assert len(world.deleted) == 1
    assert world.bound(workload) == 1


@pytest.mark.parametrize(
    ("succeeded", "ended", "deleted"),
    [
        pytest.param(3, [0], 1, id="all child jobs"),
        pytest.param(1, [0], 1, id="the child job without pods"),
        pytest.param(0, [0], 0, id="no child job"),
        pytest.param(1, [0, 1], 0, id="one of two child jobs without pods, of which the other may get new pods"),
    ],
)
def test_pool_of_a_succeeded_child_job_is_deleted_after_the_delay(
    succeeded: int, ended: list[int], deleted: int
) -> None:
    """The status of the running JobSet contains the number of child Jobs that succeeded."""
    workload = make_jobset("three", replicas=3)
    world = running(workload)
    world.workloads[workload.uid] = replace(workload, groups=(replace(workload.groups[0], succeeded=succeeded),))
    world.end_pods(workload, *ended)
    world.run(4, seconds=15)
    assert (len(world.deleted), world.bound(workload)) == (deleted, 3 - len(ended))


@pytest.mark.parametrize("limits", [{"max_chips": 8}, {"max_pools_per_jobset": 1}], ids=str)
def test_next_group_of_a_jobset_gets_a_pool_after_the_previous_group_ended(limits: dict[str, Any]) -> None:
    """The second group has `dependsOn: Complete`, and the limit allows only one of the two pools."""
    workload = make_jobset("steps")
    workload = replace(
        workload, groups=(*workload.groups, PodGroup(name="b", replicas=1, parallelism=1, template=SMALL))
    )
    world = World(settings_=settings(**limits))
    world.add_with_pod(workload, unschedulable_since=world.now)
    world.live(5)
    assert world.bound(workload) == 1
    world.pods = {}
    pod = make_pod(workload, requirements=replace(SMALL, tolerations=(CHIP_TOLERATION,)), unschedulable_since=world.now)
    world.put(
        replace(pod, name="steps-b-0-0-x", uid="b", group_name="steps-b-0", group_key=group_key("default", "steps-b-0"))
    )
    for _ in range(25):
        world.live(1, seconds=60)
    assert world.pods["b"].node_name
