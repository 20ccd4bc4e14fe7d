"""Tests that a ready pool to which the scheduler binds no pod is deleted, and created again only rarely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner.model.capacity import FailureKind, PoolName, PoolStatus, Taint
from provisioner.model.sources import CLAIMS, STORAGE_CLASSES, VOLUMES
from provisioner.model.workloads import Volumes
from provisioner.slices import hints
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.plan import DeleteReason
from provisioner.slices.view.explain import explain
from tests.support.board import view_of
from tests.support.models import make_jobset, make_requirements
from tests.support.settings import settings
from tests.support.world import World, failure

REFUSAL = "nodes are available: 2 Insufficient example.com/fuse."


def look_again(world: World) -> None:
    """Let the scheduler report that no node fits; its message contains the number of nodes."""
    message = f"0/{9 + len(world.nodes)} {REFUSAL}"
    for pod in list(world.pods.values()):
        if not pod.node_name:
            world.put(replace(pod, unschedulable_message=message))


def live(world: World, seconds: float, *, every: float = 5.0) -> float:
    """Run rounds while the scheduler binds no pod; return the sum of the lifetimes of all nodes in seconds."""
    paid, until = 0.0, world.now + timedelta(seconds=seconds)
    while world.now < until:
        # Without a pool, nothing changes until a back-off ends, so the second of the two steps may be long.
        pause = every if world.pools else min(40 * every, (until - world.now).total_seconds())
        world.step(seconds=every / 2)
        world.step(seconds=every / 2 if world.pools else pause)
        world.finish_creates()
        world.finish_deletes()
        look_again(world)
        paid += every * len(world.nodes)
    return paid


@pytest.mark.parametrize("changes", [{}, {"replace_stuck_slices": True}])
def test_pool_whose_nodes_the_scheduler_refuses_is_deleted_within_two_minutes(changes: dict[str, Any]) -> None:
    """In the past, pools that no pod could use were kept indefinitely, or replaced 120 times a day."""
    world = World(make_jobset(), settings_=settings(**changes))
    assert live(world, 180) <= 2 * 120
    assert (len(world.created), world.deleted, world.pools) == (1, world.created, {})
    (message,) = {notice.message for notice in world.told(EventReason.STUCK)}
    assert f": 0/11 {REFUSAL}" in message
    assert message.endswith("; the node pool is deleted, and another one is tried later")
    waits = [notice.message for notice in world.told(EventReason.CREATION_WAITING)]
    assert any("unschedulable since" in wait and REFUSAL in wait for wait in waits)
    view = view_of(world)
    (found,) = explain(view, view.at, (), (), "train-slice-0")
    assert REFUSAL in dict(found.facts)["why"]
    (backoff,) = view.capacity.backoffs
    assert (backoff.kind, backoff.failures) == ("unschedulable", 1)
    # With this reason, the gate checks before the delete that pods of the slice are still unschedulable.
    (delete,) = (delete for plan in world.plans for delete in plan.deletes)
    assert (delete.reason, delete.named.name) == (DeleteReason.SLICE_STUCK, "train")


@pytest.mark.parametrize("name", [f"train-{number}" for number in range(5)])
def test_workload_whose_pods_the_scheduler_refuses_gets_at_most_6_pools_a_day(name: str) -> None:
    world = World(make_jobset(name))
    paid = live(world, 24 * 3600, every=15.0)
    assert 3 <= len(world.created) <= 6
    assert paid <= 6 * 2 * 120


def test_restarts_do_not_add_pools_for_pods_that_the_scheduler_refuses() -> None:
    world = World(make_jobset())
    for _ in range(12):
        live(world, 2 * 3600, every=15.0)
        world.memory, world.last_round = hints.from_text(hints.to_text(world.memory)), None
    assert 3 <= len(world.created) <= 6
    # Pods with other requests get a pool immediately, also after a restart.
    world.memory = hints.from_text(hints.to_text(world.memory))
    live(world, 60)
    created = len(world.created)
    world.pods = {
        uid: replace(pod, requirements=make_requirements(cpu_millicores=7)) for uid, pod in world.pods.items()
    }
    live(world, 60)
    assert len(world.created) == created + 1


def test_only_the_first_of_several_refused_slices_is_tried_again() -> None:
    world = World(make_jobset(replicas=4))
    live(world, 24 * 3600, every=15.0)
    assert 4 + 2 <= len(world.created) <= 4 + 5
    leaders = sorted(world.pods)
    world.pods = {uid: replace(pod, unschedulable_message="") for uid, pod in world.pods.items()}
    world.live(25 * 12, seconds=300)
    assert [bool(world.pods[uid].node_name) for uid in leaders] == [True] * 4


def test_refused_workload_waits_although_it_is_suspended_and_resumed() -> None:
    """Kueue evicts workloads whose pods do not become ready, and admits them again."""
    workload = make_jobset()
    world = World(workload)
    live(world, 180)
    for _ in range(20):
        world.workloads[workload.uid] = replace(workload, suspended=True)
        world.end_pods(workload)
        live(world, 30)
        world.workloads[workload.uid] = workload
        world.start_pods(workload)
        live(world, 30)
    assert len(world.created) == 1


@pytest.mark.parametrize("unknown", [CLAIMS, VOLUMES, STORAGE_CLASSES])
def test_refused_workload_waits_while_its_volumes_are_unknown(unknown: str) -> None:
    """In the past, each round in which the volumes were unknown ended the wait, which caused 48 creates a day."""
    bound = Volumes(claims=("data",), zones=("us-central2-b",), disks=("pd-balanced",))
    world = World(make_jobset(template=make_requirements(volumes=bound, tolerations=())))
    live(world, 900)
    assert world.deleted == world.created
    before = world.pods
    world.pods = {
        uid: replace(pod, requirements=replace(pod.requirements, volumes=Volumes(claims=("data",))))
        for uid, pod in before.items()
    }
    plan = world.look(unknown=frozenset({unknown}))
    world.memory = plan.memory
    world.pods = before
    world.run(2)
    assert len(world.created) + len(plan.creates) == 1


def test_refused_slice_takes_no_free_pool() -> None:
    """In the past, another tenant's warm pool was assigned to the slice for 6 minutes, then deleted as unneeded."""
    refused, other = make_jobset("refused"), make_jobset("other")
    world = World(refused)
    live(world, 180)
    world.add(other)
    world.live(3, seconds=5)
    (pool,) = world.pools
    world.finish(other)
    world.step()
    assert world.plans[-1].pools
    assert {state.phase.value for state in world.plans[-1].pools if state.name == pool} == {"idle"}


def startup_taint(world: World) -> None:
    taint = Taint(key="node.example.com/agent-not-ready")
    world.nodes = {name: replace(node, taints=(*node.taints, taint)) for name, node in world.nodes.items()}


def silent_scheduler(world: World) -> None:
    world.pods = {uid: replace(pod, unschedulable_message="old") for uid, pod in world.pods.items()}


def cordon(world: World) -> None:
    world.nodes = {name: replace(node, cordoned=True) for name, node in world.nodes.items()}


def lose_readiness(world: World) -> None:
    world.nodes = {name: replace(node, ready=False) for name, node in world.nodes.items()}


def new_volume(world: World) -> None:
    volumes = Volumes(claims=("data",))
    for pod in list(world.pods.values()):
        world.put(replace(pod, requirements=replace(pod.requirements, volumes=volumes)))


@pytest.mark.parametrize("change", [new_volume, startup_taint, silent_scheduler, cordon, lose_readiness])
def test_pool_is_kept_while_the_refusal_may_have_a_temporary_cause(change: Callable[[World], None]) -> None:
    world = World(make_jobset())
    silent_scheduler(world)
    for _ in range(36):
        live(world, 5)
        change(world)
    assert (len(world.created), world.deleted) == (1, [])


def test_pool_with_a_pod_of_the_slice_is_kept() -> None:
    """The leader runs, and its follower waits. The owner has to decide whether the slice is stuck."""
    workload = make_jobset()
    world = World(workload)
    live(world, 30)
    world.schedule()
    (follower,) = (pod for pod in world.pods.values() if pod.completion_index == 1)
    world.put(replace(follower, node_name="", unschedulable_since=world.now))
    live(world, 300)
    assert world.deleted == []


def gang_of_four(**changes: Any) -> World:
    """Return a world with a JobSet of four slices whose pods are one gang of the scheduler (PodGroup)."""
    world = World(make_jobset(replicas=4), settings_=settings(**changes))
    world.pods = {uid: replace(pod, gang="train") for uid, pod in world.pods.items()}
    return world


def bring_up(world: World, *names: PoolName) -> None:
    for name in names:
        world.put_pool(replace(world.pools[name], status=PoolStatus.RUNNING), created_at=world.now)


def wait(world: World, seconds: float) -> None:
    """Let time pass; the scheduler binds no pod, and its message changes when nodes are added or deleted."""
    for _ in range(int(seconds // 10)):
        world.step(seconds=10)
        world.finish_deletes()
        look_again(world)


@pytest.mark.parametrize("replace_stuck", [False, True])
@pytest.mark.parametrize("late", [120, 2400])
def test_pools_of_a_gang_are_kept_until_its_last_pool_is_ready(late: int, *, replace_stuck: bool) -> None:
    """The scheduler binds no pod of a gang before all its pods fit."""
    world = gang_of_four(replace_stuck_slices=replace_stuck)
    world.step()
    *first, last = sorted(world.pools)
    bring_up(world, *first)
    wait(world, late)
    bring_up(world, last)
    wait(world, 480)
    assert (len(world.created), world.deleted, world.told(EventReason.STUCK)) == (4, [], [])


def test_gang_gets_its_last_pool_after_a_stockout() -> None:
    world = gang_of_four()
    began = world.now

    def refuse(_: object) -> Any:
        out_of_stock = len(world.created) == 3 and (world.now - began).total_seconds() < 14 * 60
        return failure(FailureKind.STOCKOUT) if out_of_stock else None

    world.refuse_create = refuse
    for _ in range(30):
        world.step(seconds=60)
        world.finish_creates()
        look_again(world)
        if len(world.nodes) == 8:
            break
    assert (len(world.created), world.deleted, len(world.nodes)) == (4, [], 8)


def test_gang_that_the_scheduler_refuses_on_all_its_pools_is_tried_again_as_a_whole() -> None:
    """One slice alone would never be bound, because the scheduler waits for the other slices of the gang."""
    world = gang_of_four()
    world.step()
    bring_up(world, *world.pools)
    late = max(world.pools)
    world.refuse_delete = lambda delete: failure(FailureKind.UNAVAILABLE) if delete.name == late else None
    wait(world, 640)
    world.refuse_delete = lambda _: None
    wait(world, 120)
    assert sorted(world.deleted) == sorted(world.created)
    wait(world, 2400)
    assert len(world.created) == 8
    assert len(world.pools) == 4


def test_slice_of_a_gang_keeps_another_slices_pool_until_the_last_pool_is_ready() -> None:
    """In the past, the claim expired after 6 minutes, and a further pool was created."""
    other = make_jobset("other")
    world = World(other)
    world.live(3, seconds=5)
    (free,) = world.pools
    world.finish(other)
    world.add(make_jobset(replicas=4))
    world.pods = {uid: replace(pod, gang="train") for uid, pod in world.pods.items()}
    world.step()
    *first, last = sorted(name for name in world.pools if name != free)
    bring_up(world, *first)
    wait(world, 1200)
    bring_up(world, last)
    wait(world, 300)
    assert (len(world.created), world.deleted) == (4, [])


def test_unused_pools_of_a_gang_are_deleted_if_one_of_its_slices_is_invalid() -> None:
    """The gang never starts, so waiting for the invalid slice would keep the other pools without limit."""
    world = gang_of_four()
    pod = max(world.pods.values(), key=lambda pod: pod.name)
    world.put(replace(pod, requirements=make_requirements(chips=3)))
    world.step()
    bring_up(world, *world.pools)
    wait(world, 700)
    assert (len(world.created), sorted(world.deleted)) == (3, sorted(world.created))


@pytest.mark.parametrize("cause", ["too much memory", FailureKind.INVALID, FailureKind.STOCKOUT])
def test_gang_loses_its_pools_if_no_further_slice_is_ready_within_partial_hold(cause: str | FailureKind) -> None:
    """In the past, the pools of a gang that could never be complete were kept without limit."""
    world = gang_of_four(partial_hold_seconds=1200)
    pod = max(world.pods.values(), key=lambda pod: pod.name)
    if isinstance(cause, FailureKind):
        failed = failure(cause)
        world.refuse_create = lambda create: failed if create.slice_id.group_key == pod.group_key else None
    else:
        world.put(replace(pod, requirements=replace(pod.requirements, memory_bytes=10**15)))
    world.step()
    bring_up(world, *world.pools)
    wait(world, 1700)
    assert (len(world.created), world.deleted) == (3, [])
    wait(world, 200)
    assert (len(world.created), sorted(world.deleted)) == (3, sorted(world.created))


def test_gang_that_a_limit_keeps_incomplete_gives_its_chips_to_other_slices() -> None:
    """The slice without a pool is tried again with the other slices of its gang, so it does not take their chips."""
    world = gang_of_four(max_chips=24, partial_hold_seconds=60)
    world.step()
    bring_up(world, *world.pools)
    wait(world, 700)
    assert (len(world.created), world.pools) == (3, {})
    other = make_jobset("other", created_at=world.now)
    world.add(other)
    world.step()
    assert [name.partition("-")[0] for name in world.pools] == ["other"]


def test_one_of_two_gangs_gets_all_its_pools_after_both_blocked_each_other() -> None:
    """The gangs hold 2 of 4 pools each and need 3. After the back-off of one of them, all pools are free for it."""
    first, second = make_jobset("a", namespace="a", replicas=3), make_jobset("b", namespace="b", replicas=3)
    world = World(first, second, settings_=settings(max_chips=32))
    world.pods = {uid: replace(pod, gang="train") for uid, pod in world.pods.items()}
    for _ in range(200):
        world.step(seconds=30)
        world.step(seconds=30)
        world.finish_creates()
        world.finish_deletes()
        look_again(world)
        owners = [name.partition("-")[0] for name in world.pools]
        if max(map(owners.count, "ab")) == 3:
            break
    assert max(map(owners.count, "ab")) == 3


def test_one_gang_is_tried_again_if_the_gangs_of_all_child_jobs_are_refused() -> None:
    world = gang_of_four()
    world.pods = {uid: replace(pod, gang=pod.group_name) for uid, pod in world.pods.items()}
    world.step()
    bring_up(world, *world.pools)
    wait(world, 3600)
    assert (len(world.created), len(world.deleted)) == (5, 4)


@pytest.mark.parametrize(
    ("changes", "created"), [({}, 4), ({"max_chips": 16}, 3)], ids=["pools in creation", "slices without a pool"]
)
def test_refused_pool_of_a_gang_that_runs_is_deleted_and_delays_no_other_slice(
    changes: dict[str, int], created: int
) -> None:
    """A PodGroup may run with fewer pods than it has; then the scheduler binds each further pod separately."""
    world = gang_of_four(**changes)
    world.step()
    runs, refused, *_ = sorted(world.pools)
    bring_up(world, runs)
    world.schedule()
    bring_up(world, refused)
    wait(world, 700)
    assert (world.deleted, len(world.created)) == ([refused], created)


def test_slice_without_pods_at_the_refusal_of_its_gang_is_tried_again_with_it() -> None:
    """The gang of the slice is unknown without pods. If the slice waited for a day, the gang would wait as well."""
    world = gang_of_four()
    world.step()
    bring_up(world, *world.pools)
    wait(world, 3300)
    bring_up(world, *world.pools)
    world.pods = {uid: pod for uid, pod in world.pods.items() if pod.group_name != "train-slice-3"}
    wait(world, 700)
    refusals = world.memory.refusals.values()
    assert ([last.failures for last in refusals], len({last.until for last in refusals})) == ([2] * 4, 1)
