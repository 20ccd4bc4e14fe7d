"""Tests of pools that pods on single hosts share: nodes that are created, kept and deleted, and deletion costs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import FailureKind, PoolStatus
from provisioner.model.choices import parse_choices
from provisioner.model.placement import FREE, MARKS, SHARED
from provisioner.slices import hints
from provisioner.slices.planning.memory.state import Memory, Phase
from provisioner.slices.planning.plan import Plan
from tests.support.counting import counted
from tests.support.market import jobset_of
from tests.support.models import make_jobset, make_pod, make_pool, make_requirements
from tests.support.objects import pod_spec, toleration
from tests.support.pod_world import Cluster, pod_of
from tests.support.settings import settings
from tests.support.world import failure


def cluster(**changes: Any) -> Cluster:
    return Cluster(settings_=settings(concurrency=64, **changes))


def add_jobset(world: Cluster, name: str, *, priority: int = 0, topology: str = "2x2x1", **changes: Any) -> None:
    jobset = jobset_of(name, topology, **changes)
    world.workloads[jobset.uid] = jobset
    for index in range(jobset.groups[0].parallelism):
        world.put(make_pod(jobset, index=index, unschedulable_since=world.now, marked=True, priority=priority))


@pytest.mark.parametrize(
    ("number", "sizes"),
    [
        pytest.param(1, [1], id="one pod"),
        pytest.param(16, [16], id="one full pool"),
        pytest.param(17, [16, 1], id="one more"),
        pytest.param(300, [16] * 18 + [12], id="burst"),
    ],
)
def test_pending_pods_get_pools_of_at_most_16_nodes(number: int, sizes: list[int]) -> None:
    """One pool for each of 300 pods would slow down GKE, whose operations take longer from 200 pools on."""
    world = cluster()
    world.scale(number)
    world.settle()
    assert world.sizes == sizes
    assert all(pod.node_name for pod in world.pods.values())
    world.settle(rounds=20)
    assert len(world.created) == len(sizes)


@pytest.mark.parametrize(
    ("interval_seconds", "most"), [pytest.param(0, 2, id="burst"), pytest.param(2, 4, id="trickle")]
)
def test_pods_that_appear_one_after_the_other_share_pools(interval_seconds: int, most: int) -> None:
    """The scheduler reports the pods of a burst over several seconds; a pool for the first pods would be small."""
    world = cluster()
    for number in range(1, 21):
        world.scale(number)
        world.step(seconds=max(interval_seconds, 0.2))
        world.finish_creates()
        world.bind()
    world.settle()
    assert len(world.created) <= most
    assert all(pod.node_name for pod in world.pods.values())


def test_clock_that_is_ahead_does_not_delay_a_pool() -> None:
    """The time at which a pod became unschedulable is from the scheduler's clock, or from a status that users wrote."""
    world = cluster()
    world.scale(2)
    for pod in tuple(world.pods.values()):
        world.put(replace(pod, unschedulable_since=world.now + timedelta(days=1)))
    world.run(8)
    assert world.sizes == [2]


def test_pods_use_free_nodes_before_new_nodes_are_created() -> None:
    """Free nodes may be in a pool in creation, or in a pool that runs pods of another ReplicaSet of the namespace."""
    world = cluster()
    world.scale(6)
    world.run(4)
    world.scale(2, owner="other")
    for uid in [uid for uid, pod in world.pods.items() if pod.name in ("web-4", "web-5")]:
        del world.pods[uid]
    world.run(4)
    assert world.sizes == [6]
    world.settle()
    assert world.sizes == [6]
    assert all(pod.node_name for pod in world.pods.values())
    world.scale(1, owner="late")
    world.settle()
    assert world.sizes == [6, 1]


def test_pool_is_kept_while_one_node_is_used_and_deleted_afterwards() -> None:
    world = cluster()
    world.scale(3)
    world.settle()
    last = next(iter(world.pods))
    world.pods = {last: world.pods[last]}
    world.run(100)
    assert world.deleted == []
    world.pods.clear()
    world.run(100)
    world.finish_deletes()
    assert world.pools == {}


def test_many_pools_of_a_deployment_that_ends_are_deleted_at_the_same_time() -> None:
    """Workloads of kind POD end with their pods, so the end of many of them does not indicate an incomplete list."""
    world = cluster()
    world.scale(80)
    world.settle()
    world.pods.clear()
    world.run(60)
    assert len(world.deleted) == 5
    assert world.plans[-1].alerts == ()


@pytest.mark.parametrize(
    ("grace", "bought"),
    [
        pytest.param(30, 0, id="within the grace period"),
        pytest.param(-5, 0, id="killed at the end of the grace period"),
        pytest.param(-60, 1, id="after the grace period"),
        pytest.param(86400, 1, id="long grace period"),
    ],
)
def test_rolling_update_waits_for_the_node_of_a_terminating_pod(grace: int, bought: int) -> None:
    """A pod past its grace period is on a node that does not respond. A long grace period would delay the update."""
    world = cluster()
    world.scale(4)
    world.settle()
    uid, old = next(iter(world.pods.items()))
    world.pods[uid] = replace(old, deletion_deadline=world.now + timedelta(seconds=grace))
    world.scale(1, owner="next")
    world.run(5)
    assert len(world.created) == 1 + bought


@pytest.mark.parametrize("owner", ["web", "serve"])
def test_pods_that_cannot_be_bound_get_few_pools(owner: str) -> None:
    """If the scheduler refuses the nodes of the first pools, a pool of one node is tried a few times a day."""
    world = cluster()
    world.scale(20, owner)
    world.live(24 * 12, seconds=300, binds=False)
    assert 2 < len(world.created) <= 7
    assert {create.request.hosts for plan in world.plans for create in plan.creates} == {16, 4, 1}
    assert len(world.pools) <= 1


@pytest.mark.parametrize(
    ("number", "pause_seconds"),
    [
        pytest.param(4, 0, id="at once"),
        pytest.param(4, 1, id="after rounds"),
        # A full pool does not wait for the burst to end.
        pytest.param(16, 0, id="full pool"),
    ],
)
def test_pods_that_their_controller_replaces_wait_like_the_refused_pods(number: int, pause_seconds: int) -> None:
    """Otherwise each new pod would get a pool immediately, and the memory would grow with the deleted pods."""
    world = cluster()
    for hour in range(24):
        world.pods.clear()
        if pause_seconds:
            world.step(seconds=pause_seconds)
        for index in range(number):
            pod = replace(pod_of(f"web-{hour}-{index}"), created_at=world.now, unschedulable_since=world.now)
            world.put(replace(pod, unschedulable_since=None) if pause_seconds else pod)
        if pause_seconds:
            world.step(seconds=pause_seconds)
        world.pods = {uid: replace(pod, unschedulable_since=pod.created_at) for uid, pod in world.pods.items()}
        world.live(12, seconds=300, binds=False)
    assert 1 < len(world.created) <= 6
    assert (len(world.memory.refusals), len(world.memory.slices)) == (1, 0)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [pytest.param("eval-29", 2, 12, id="CronJob"), pytest.param("eval-20", 24, 48, id="other Jobs")],
)
@pytest.mark.parametrize(("topology", "hosts"), [("2x2x1", 1), ("2x2x2", 2)])
def test_next_job_of_a_cronjob_waits_like_the_refused_job(
    name: str, least: int, most: int, topology: str, hosts: int
) -> None:
    """In the past, a CronJob whose pods fit no node got a node pool for each of its Jobs."""
    world = cluster()
    for hour in range(24):
        world.pods.clear()
        job = f"{name}{100000 + 60 * hour}"
        for index in range(hosts):
            metadata = {"annotations": {constants.COMPLETION_INDEX: str(index)}}
            pod = pod_of(f"{job}-{index}", job, kind="Job", topology=topology, metadata=metadata)
            world.put(replace(pod, created_at=world.now, unschedulable_since=world.now))
        world.live(12, seconds=300, binds=False)
    assert least <= len(world.created) <= most


def test_refused_pod_waits_although_an_equal_pod_runs() -> None:
    world = cluster()
    world.scale(1)
    world.settle()
    world.scale(2)
    world.live(6, seconds=300, binds=False)
    assert (len(world.created), len(world.pools), len(world.memory.refusals)) == (2, 1, 1)
    for _ in range(6):
        world.step(seconds=300)
        world.finish_creates()
    world.bind()
    world.step()
    assert (len(world.created), world.memory.refusals) == (3, {})


def test_refused_pod_waits_although_an_equal_running_pod_is_replaced_on_its_node() -> None:
    """Otherwise each replacement of a running pod would cause a new pool for the refused pod."""
    world = cluster()
    world.scale(1)
    world.settle()
    (old,) = world.pods.values()
    world.scale(2)
    for _ in range(6):
        world.step(seconds=300)
        world.finish_creates()
        world.finish_deletes()
    assert len(world.memory.refusals) == 1
    del world.pods[old.uid]
    world.put(replace(pod_of("web-new"), created_at=world.now, node_name=old.node_name, phase="Running"))
    world.run(2)
    assert len(world.memory.refusals) == 1


@pytest.mark.parametrize("change", ["none", "restart of the controller", "new pods"])
def test_refused_pods_start_together_after_one_of_them_is_bound(change: str) -> None:
    """The scheduler may bind another pod to the pool that was created for the pod that is tried."""
    world = cluster()
    world.scale(6)
    world.live(6, seconds=300, binds=False)
    assert (world.pools, len(world.memory.refusals)) == ({}, 1)
    if change == "restart of the controller":
        world.memory, world.last_round = hints.from_text(hints.to_text(world.memory)), None
    elif change == "new pods":
        world.pods.clear()
        # The pod that is tried is the last that is bound.
        for index in reversed(range(6)):
            world.put(replace(pod_of(f"web-new-{index}"), created_at=world.now, unschedulable_since=world.now))
    world.settle(rounds=90, seconds=30)
    assert all(pod.node_name for pod in world.pods.values())
    assert len(world.sizes) <= 3


def test_work_for_a_refused_gang_grows_with_its_number_of_slices() -> None:
    """In the past, one decision took minutes of processor time with 4,000 pods in one gang."""

    def calls(number: int) -> int:
        world = cluster()
        for index in range(number):
            topology = "2x2x1" if index < number // 8 else "7x7"
            pod = pod_of(f"pod-{index}", f"owner-{index}", topology=topology)
            world.put(replace(pod, created_at=world.now, unschedulable_since=world.now, gang="gang"))
        while not world.memory.refusals:
            _, count = counted(lambda: world.step(seconds=60))
            world.finish_creates()
        assert len(world.memory.refusals) == number
        assert len({last.until for last in world.memory.refusals.values()}) == 1
        return count

    assert calls(160) <= 2.4 * calls(80)


def test_number_of_refusals_is_bounded_for_each_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "NAMESPACE_REFUSALS", 3)
    world = cluster()
    for namespace, number in (("crowd", 8), ("other", 1)):
        for index in range(number):
            pod = pod_of(f"pod-{index}", f"owner-{index}", namespace=namespace)
            world.put(replace(pod, created_at=world.now, unschedulable_since=world.now))
    for _ in range(12):
        world.step(seconds=60)
        world.finish_creates()
    assert sorted(key.namespace for key in world.memory.refusals) == ["crowd"] * 3 + ["other"]


def test_pod_that_the_scheduler_never_binds_gets_a_pool_and_keeps_none() -> None:
    """The scheduler binds the pod to no free node of a used pool, and to no pool without pods."""
    world = cluster()
    world.scale(2)
    world.settle()
    first, second = sorted(world.pods)
    del world.pods[second]
    world.scale(1, "other")
    for _ in range(10):
        world.step(seconds=60)
        world.finish_creates()
    assert world.sizes == [2, 1]
    del world.pods[first]
    world.live(30, seconds=60, binds=False)
    assert world.sizes == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"ready": False}, id="not ready"),
        pytest.param({"allocatable_chips": 0}, id="without chips"),
        pytest.param(None, id="missing"),
    ],
)
def test_pod_waits_ten_minutes_for_a_broken_node(change: dict[str, Any] | None) -> None:
    world = cluster()
    world.scale(3)
    world.settle()
    pod = world.pods.pop(min(world.pods))
    node = world.nodes.pop(pod.node_name)
    if change is not None:
        world.put(replace(node, **change))
    world.put(replace(pod_of("web-new"), created_at=world.now, unschedulable_since=world.now))
    world.step(seconds=300)
    world.step(seconds=301)
    assert len(world.created) == 1
    world.step()
    assert len(world.created) == 2


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        pytest.param({"max_chips": 40}, [10], id="chips"),
        pytest.param({"max_chips_per_namespace": (("default", 72),)}, [16, 2], id="chips of the namespace"),
        pytest.param({"max_pools_per_jobset": 2}, [16, 16], id="pools of a workload"),
    ],
)
def test_pods_get_nodes_up_to_a_limit_and_the_other_pods_are_notified(limits: dict[str, Any], sizes: list[int]) -> None:
    world = cluster(**limits)
    world.scale(40)
    world.settle(rounds=6)
    assert world.sizes == sizes
    waiting = {pod.uid for pod in world.pods.values() if not pod.node_name}
    assert waiting
    notified = {ref.uid for notice in world.plans[-1].notices for ref in notice.objects}
    assert waiting <= notified


def test_pods_left_out_by_a_limit_are_notified_with_the_create() -> None:
    """The command `plan` makes only one decision. In the past, it did not report the pods that were left out."""
    world = cluster(max_chips=40)
    world.scale(13)
    world.run(4)
    [(plan, create)] = [(plan, create) for plan in world.plans for create in plan.creates]
    left = {ref.uid: notice for notice in plan.notices for ref in notice.objects[:1]}
    assert (create.request.hosts, len(left)) == (10, 3)
    assert all("40 of 40 chips in use; this slice needs 4" in notice.message for notice in left.values())
    states = [pool for pool in plan.pools if pool.phase.before_create]
    assert sorted(1 + len(state.seated) for state in states) == [3, 10]


def test_pods_do_not_wait_behind_the_limit_of_another_workload() -> None:
    """Pods of two workloads could share a pool, but the first workload has as many pools as the limit allows."""
    world = cluster(max_pools_per_jobset=1)
    world.scale(16, owner="full")
    world.settle()
    world.scale(17, owner="full")
    world.step(seconds=60)
    world.scale(2, owner="other")
    world.settle()
    assert world.sizes == [16, 2]


def test_limit_charges_the_namespace_that_uses_a_node() -> None:
    world = cluster(max_chips_per_namespace=(("default", 4), ("*", 64)))
    world.scale(2, owner="far", namespace="far")
    world.settle()
    world.pods = {uid: replace(pod, namespace="default") for uid, pod in world.pods.items()}
    world.step()
    used = {limit.scope: limit.used for limit in world.plans[-1].limits}
    assert used == {"default": 8, "*": 0}


def test_pods_of_another_topology_do_not_share_a_pool_in_creation() -> None:
    world = cluster()
    world.scale(3)
    world.run(4)
    for index in range(2):
        pod = pod_of(f"far-{index}", "far", kind="StatefulSet", topology="2x2x2")
        world.put(replace(pod, unschedulable_since=world.now))
    world.run(4)
    assert world.sizes == [3, 2]


def test_pod_of_another_namespace_takes_no_pool_that_is_being_created() -> None:
    """Otherwise the pods for which the pool is being created would get a second pool of the same size."""
    world = cluster()
    world.scale(8)
    world.run(4)
    assert len(world.created) == 1
    # Without this memory, no slice has a claim on the new pool.
    world.memory = replace(world.memory, slices={})
    world.scale(1, owner="a-far", namespace="a-far")
    world.run(5)
    assert world.sizes == [8, 1]


def test_pod_that_is_first_in_line_takes_no_pool_that_is_created_for_another() -> None:
    """Otherwise a pod that waits for its burst to end would take the pool, and a second pool would be created."""
    world = cluster()
    world.scale(1)
    world.step(seconds=2)
    other = pod_of("a-0", "a")
    asked = replace(other.requirements, cpu_millicores=100)
    world.put(replace(other, requirements=asked, created_at=world.now, unschedulable_since=world.now))
    for _ in range(20):
        world.step(seconds=0.5)
    assert [name.partition("-")[0] for name in world.created] == ["web", "a"]


@pytest.mark.parametrize("number", [1, 4], ids=["some nodes", "all nodes"])
def test_pods_of_another_namespace_close_no_pool_to_its_own_pods(number: int) -> None:
    """The scheduler still binds pods of the pool's own namespace to the nodes that become free."""
    world = cluster()
    world.scale(4)
    world.settle()
    uids = list(world.pods)
    for uid in uids[:number]:
        world.pods[uid] = replace(world.pods[uid], namespace="far", uid=f"far-{uid}")
    leaving = uids[-1]
    world.pods[leaving] = replace(world.pods[leaving], deletion_deadline=world.now + timedelta(seconds=30))
    world.scale(1, owner="next")
    world.run(5)
    assert world.sizes == [4]


def test_pod_beyond_its_namespace_limit_keeps_no_node_from_the_pools_namespace() -> None:
    world = cluster(max_chips_per_namespace=(("far", 4), ("*", 64)))
    world.scale(4)
    world.settle()
    _, *others = world.pods
    world.pods = {uid: replace(world.pods[uid], namespace="far") for uid in others}
    world.scale(1, owner="a-far", namespace="far")
    world.run(3)
    world.scale(1, owner="next")
    world.run(5)
    assert world.sizes == [4]


@pytest.mark.parametrize("kind", ["JobSet", "pod"])
def test_pods_of_two_namespaces_take_an_empty_pool_by_turns(kind: str) -> None:
    """In the past, pods of the namespace of the pool's creator took it first, and others waited without bound."""
    world, started = cluster(max_chips=4), list[str]()
    world.scale(1, owner="near", namespace="near", marked=True)
    world.run(4)
    for number in range(6):
        if kind == "pod":
            world.scale(1, owner=f"far-{number}", namespace="far", marked=True)
        else:
            add_jobset(world, f"far-{number}", namespace="far")
    world.scale(6, owner="near", namespace="near", marked=True)
    while len(started) < 8:
        world.settle(4)
        (bound,) = (uid for uid, pod in world.pods.items() if pod.node_name)
        ended = world.pods.pop(bound)
        started.append(ended.namespace)
        if (jobset := world.workloads.get(ended.workload_uid)) is not None:
            world.finish(jobset)
    assert started == ["near", "far"] * 4
    assert len(world.created) == 1


@pytest.mark.parametrize(("hosts", "topology"), [(1, "2x2x1"), (2, "2x2x2")], ids=["the pool", "the chips"])
def test_empty_shared_pool_goes_to_the_slice_of_the_highest_priority(hosts: int, topology: str) -> None:
    world = cluster(max_chips=4 * hosts)
    world.scale(hosts, marked=True)
    world.settle()
    add_jobset(world, "urgent", namespace="far", priority=1000, topology=topology)
    world.step(seconds=60)
    world.pods = {uid: pod for uid, pod in world.pods.items() if not pod.node_name}
    world.scale(1, owner="next", marked=True)
    world.settle()
    assert {pod.namespace for pod in world.pods.values() if pod.node_name} == {"far"}


def test_new_shared_pool_is_kept_for_its_pods_after_a_restart() -> None:
    """The process lost its memory after the create. A slice of another namespace is first in the queue."""
    world = cluster(max_chips=4)
    world.scale(1, marked=True)
    world.run(8)
    world.finish_creates()
    add_jobset(world, "first", namespace="far", priority=1000)
    world.memory = Memory()
    world.settle()
    assert {pod.namespace for pod in world.pods.values() if pod.node_name} == {"default"}


def test_node_with_labels_in_a_pool_of_several_pods_is_opened() -> None:
    """A recreated node may have the labels of a free pool again, but unmarked pods fit only nodes without labels."""
    world = cluster()
    world.scale(3)
    world.settle()
    pod = world.pods.pop(min(world.pods))
    node = world.nodes[pod.node_name]
    world.put(replace(node, labels={**node.labels, **FREE}))
    world.run(2)
    assert world.nodes[node.name].labels.keys().isdisjoint(MARKS)


def marks_of_nodes(world: Cluster) -> set[tuple[str, ...]]:
    return {tuple(node.labels.get(key, "") for key in MARKS) for node in world.nodes.values()}


def test_marked_pods_of_a_namespace_share_pools_that_no_other_namespace_can_use() -> None:
    """Otherwise waiting pods beyond the limit of their namespace would take the nodes of other namespaces."""
    world = cluster(max_chips_per_namespace=(("far", 8), ("*", 64)))
    world.scale(12, owner="far", namespace="far", marked=True)
    world.settle()
    world.scale(3, marked=True)
    world.settle()
    world.scale(2, owner="other", marked=True)
    world.settle()
    assert world.sizes == [3, 2, 2]
    bound = [pod.workload_name for pod in world.pods.values() if pod.node_name]
    assert sorted(bound) == ["ReplicaSet.far"] * 2 + ["ReplicaSet.other"] * 2 + ["ReplicaSet.web"] * 3
    assert marks_of_nodes(world) == {(SHARED, "default"), (SHARED, "far")}


def test_marked_pod_uses_a_node_that_a_pod_without_a_mark_has_left() -> None:
    """Otherwise the first rolling update with the placement policy would buy all nodes a second time."""
    world = cluster()
    world.scale(3)
    world.settle()
    world.pods.pop(min(world.pods))
    world.scale(1, owner="new", marked=True)
    world.settle()
    assert (world.sizes, marks_of_nodes(world)) == ([3], {(SHARED, "default")})
    assert all(pod.node_name for pod in world.pods.values())


@pytest.mark.parametrize(
    ("namespace", "marked"),
    [
        # While pods of another namespace run, the nodes keep their labels; a marked pod needs nodes with its marks.
        pytest.param("far", False, id="marked pod, pods of another namespace without marks"),
        pytest.param("default", True, id="pod without a mark, marked pods"),
    ],
)
def test_pod_does_not_wait_for_a_node_whose_pool_keeps_other_marks(namespace: str, *, marked: bool) -> None:
    world = cluster()
    world.scale(3, marked=marked)
    world.settle()
    world.pods = {uid: replace(pod, namespace=namespace) for uid, pod in world.pods.items()}
    world.pods.pop(min(world.pods))
    world.scale(1, owner="new", marked=not marked)
    world.run(5)
    assert world.sizes == [3, 1]


@pytest.mark.parametrize("owner", ["a-pinned", "z-pinned"])
def test_marked_pod_that_selects_a_host_shares_no_pool_with_other_pods(owner: str) -> None:
    """The selected host does not exist, so a pool for this pod and the others would have one node too many."""
    world = cluster()
    world.scale(1, owner=owner, marked=True)
    (pod,) = world.pods.values()
    selector = {**pod.requirements.node_selector, constants.HOSTNAME: "lost"}
    world.put(replace(pod, requirements=replace(pod.requirements, node_selector=selector)))
    world.scale(3, marked=True)
    world.run(8)
    assert world.sizes == [3]


def test_flex_start_pool_in_creation_serves_the_marked_pods_it_was_created_for() -> None:
    """The autoscaler adds nodes only for pods with the labels of the pool; other namespaces have other labels."""
    world = cluster(capacity=parse_choices("flex-start"))
    spec = pod_spec(accelerator="tpu-v6e-slice", topology="2x2", tolerations=[toleration()])
    world.scale(2, owner="a-far", namespace="far", marked=True, spec=spec)
    world.run(4)
    world.scale(2, marked=True, spec=spec)
    world.run(8)
    assert world.sizes == [2, 2]


def test_pool_for_a_pod_of_higher_priority_has_no_nodes_for_pods_of_lower_priority() -> None:
    """The free chips are kept for the JobSet of priority 100, so the pool for the pod of priority 200 has one node."""
    world = cluster(max_chips=64)
    world.scale(10, owner="old", namespace="old")
    world.settle()
    train = make_jobset("train", parallelism=8, template=make_requirements(topology="2x4x4"))
    world.workloads[train.uid] = train
    world.put(replace(make_pod(train, unschedulable_since=world.now), priority=100))
    world.scale(6)
    first = min(uid for uid, pod in world.pods.items() if pod.name.startswith("web"))
    world.put(replace(world.pods[first], priority=200))
    world.run(8)
    assert world.sizes == [10, 1]


def test_pods_and_jobset_do_not_use_the_same_free_pool() -> None:
    template = make_requirements(topology="2x2x1", tolerations=())
    ended = make_jobset("ended", template=template)
    world = Cluster(ended, settings_=settings(concurrency=64))
    world.live(2)
    assert world.sizes == [2]
    world.finish(ended)
    world.scale(2)
    world.add(make_jobset("next", template=template))
    world.run(5)
    assert world.sizes == [2, 2]


def test_each_pod_behind_a_failed_create_is_notified_and_in_the_read_model() -> None:
    """The status page shows the state of each waiting pod, not only of the pod that the create is for."""
    world = cluster(max_chips_per_namespace=(("*", 40),))
    world.refuse_create = lambda _: failure(FailureKind.STOCKOUT)
    world.scale(20)
    world.run(6)
    assert world.pools == {}
    assert {pod.uid for pod in world.pods.values()} <= {
        ref.uid for plan in world.plans for notice in plan.notices for ref in notice.objects
    }
    states = [pool for pool in world.plans[-1].pools if pool.phase.before_create]
    named = [slice_id for state in states for slice_id in (state.slice_id, *state.seated)]
    assert len(named) == len(set(named)) == 20


@pytest.mark.parametrize("late", [False, True], ids=["create refused", "pool failed"])
def test_pod_of_a_failed_create_does_not_take_the_node_for_another_pod(*, late: bool) -> None:
    """Otherwise the other pod gets one more pool after each failed create."""
    world = cluster()
    if not late:
        world.refuse_create = lambda create: failure(FailureKind.STOCKOUT) if create.request.hosts > 1 else None
    world.scale(3)
    tolerations = [toleration(), {"key": "example.com/other", "operator": "Exists"}]
    world.scale(1, owner="z-other", spec={**pod_spec(topology="2x2x1"), "tolerations": tolerations})
    for _ in range(12):
        world.step()
        for name, pool in list(world.pools.items()):
            if pool.hosts > 1 and pool.status is PoolStatus.PROVISIONING:
                world.fail_pool(name, failure(FailureKind.STOCKOUT))
    assert [name for name in world.created if not name.startswith("web")] == world.created[late:]
    assert len([name for name in world.created if name.startswith("z-other")]) == 1


@pytest.mark.parametrize("claimed", [False, True], ids=["own node settings, idle pools", "own marks, claimed pools"])
def test_work_does_not_grow_with_the_product_of_pools_and_pods(*, claimed: bool) -> None:
    """In the past, a decision took 2 s with 400 pools and 2,000 pods that each differ from the others."""

    def calls(size: int) -> int:
        world = Cluster(settings_=settings(deletion_delay_seconds=3600.0))
        other = make_jobset("other", replicas=size, parallelism=1, template=pod_of("web-0").requirements)
        for job in range(size):
            world.put_pool(make_pool(other, job=job))
        if claimed:
            world.add(other)
        for number in range(size):
            pod, asked = pod_of(f"web-{number}"), pod_of("web-0").requirements
            marks = dict(zip(MARKS, (f"b-{number}", pod.namespace), strict=True))
            own = {f"{constants.NODE_SETTING_PREFIX}max-run-duration": f"{number + 600}s"}
            changed = {"node_selector": {**asked.node_selector, **marks}} if claimed else {"annotations": own}
            requirements = replace(asked, **changed)  # type: ignore[arg-type]
            world.put(replace(pod, requirements=requirements, unschedulable_since=world.now))
        world.look()
        world.look()
        plan, found = counted(world.look)
        assert sum(pool.phase is (Phase.READY if claimed else Phase.IDLE) for pool in plan.pools) == size
        return found

    assert calls(80) < 2.3 * calls(40)


# --- Deletion costs of pods ---


#: Number of pods, larger than the number of pods to which one decision writes costs.
_MANY = 40


def scaled(number: int, *, kind: str = "ReplicaSet", on: bool = True) -> Cluster:
    world = Cluster(settings_=settings(concurrency=64, pod_deletion_cost=on))
    world.scale(number, kind=kind)
    world.settle()
    assert all(pod.node_name for pod in world.pods.values())
    return world


def carry_out(world: Cluster, plan: Plan) -> None:
    by_name = {pod.name: pod for pod in world.pods.values()}
    for entry in plan.costs:
        pod = by_name[entry.name]
        annotations = {**pod.requirements.annotations, constants.POD_DELETION_COST: str(entry.cost)}
        world.put(replace(pod, requirements=replace(pod.requirements, annotations=annotations)))


def test_pods_of_small_pools_have_lower_costs_and_each_pod_is_written_once() -> None:
    """After pods that are not ready, a ReplicaSet that scales in deletes the pods with the lowest cost."""
    world = scaled(_MANY)
    written = 0
    while costs := (plan := world.look()).costs:
        written += len(costs)
        carry_out(world, plan)
    assert written == _MANY
    costs_of: dict[str, set[int]] = {}
    for pod in world.pods.values():
        pool = world.nodes[pod.node_name].pool_name
        costs_of.setdefault(pool, set()).add(int(pod.requirements.annotations[constants.POD_DELETION_COST]))
    assert {len(pool_costs) for pool_costs in costs_of.values()} == {1}
    assert len(set.union(*costs_of.values())) == len(costs_of) == 3
    smallest = min(world.pools.values(), key=lambda pool: pool.hosts)
    assert costs_of[smallest.name] == {min(set.union(*costs_of.values()))}
    assert max(set.union(*costs_of.values())) < 2**31


def test_rejected_writes_do_not_block_writes_to_other_pods() -> None:
    """A webhook may reject all writes to the pods of one namespace, which may be the first pods of each plan."""
    world = scaled(_MANY)
    before = world.look().costs
    rejected = frozenset(f"Pod {entry.namespace}/{entry.name}" for entry in before)
    after = {entry.name for entry in world.look(rejected=rejected).costs}
    assert after == {pod.name for pod in world.pods.values()}


@pytest.mark.parametrize(
    ("number", "kind", "on"),
    [
        pytest.param(16, "ReplicaSet", True, id="one pool"),
        pytest.param(20, "StatefulSet", True, id="controller that ignores costs"),
        pytest.param(20, "ReplicaSet", False, id="disabled by the setting"),
    ],
)
def test_no_costs_are_written_if_disabled_or_without_effect(number: int, kind: str, on: bool) -> None:
    assert scaled(number, kind=kind, on=on).look().costs == ()


def test_cost_that_a_user_has_set_is_kept() -> None:
    world = scaled(20)
    uid, pod = next(iter(world.pods.items()))
    annotations = {constants.POD_DELETION_COST: "-7"}
    world.pods[uid] = replace(pod, requirements=replace(pod.requirements, annotations=annotations))
    assert pod.name not in {entry.name for entry in world.look().costs}
