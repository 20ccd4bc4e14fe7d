"""Tests of pools that hang in a status and of stuck slices: alerts, Events, and which pool is replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import Failure, FailureKind, Operation, OperationName, PoolStatus
from provisioner.model.workloads import Pod, Workload
from provisioner.slices.demand import group_key
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.memory.answers import CreateAnswer, DeleteAnswer, DeleteResult, LookUpAnswer
from provisioner.slices.planning.memory.state import LookUp
from provisioner.slices.planning.plan import Create, Delete, DeleteReason
from tests.support.models import make_job, make_jobset, make_lws, make_node, make_pod, make_pool, make_requirements
from tests.support.pod_world import Cluster, pod_of
from tests.support.settings import settings
from tests.support.world import World, failure, running

#: Template of a pod that uses all chips of one host: the pods run independently.
_SINGLE_HOST = make_requirements(topology="2x2x1", tolerations=())


def nodes_of(world: World, workload: Workload) -> list[str]:
    name = make_pool(workload).name
    return sorted(node.name for node in world.nodes.values() if node.pool_name == name)


def lose_half(world: World, workload: Workload, status: PoolStatus = PoolStatus.RUNNING) -> None:
    """Preempt the second of two nodes. The workload restarts, and its leader is bound to the first node."""
    first, second = nodes_of(world, workload)
    del world.nodes[second]
    world.put(replace(world.pools[make_pool(workload).name], status=status))
    world.end_pods(workload)
    waiting = make_pod(workload, index=1, unschedulable=True, unschedulable_since=world.now)
    world.put(make_pod(workload, node=first), waiting)


@pytest.mark.parametrize("status", [PoolStatus.RUNNING, PoolStatus.RECONCILING, PoolStatus.RUNNING_WITH_ERROR])
def test_slice_that_has_lost_half_of_its_nodes_gets_another_pool(status: PoolStatus) -> None:
    """The bound leader only waits for its follower, so it does not keep the pool, regardless of the pool's status."""
    workload = make_jobset()
    world = running(workload)
    (name,) = world.created
    lose_half(world, workload, status)
    world.run(10, seconds=60)
    assert world.told(EventReason.STUCK) == []
    world.run(5, seconds=60)
    (message,) = {notice.message for notice in world.told(EventReason.STUCK)}
    assert f"node pool {name}, which has status {status.value}" in message
    assert "only 1 of 2 nodes are ready with all their chips; nodes missing: 1" in message
    assert world.deleted == []
    (delete,) = world.step().deletes
    assert (delete.name, delete.reason) == (name, DeleteReason.SLICE_STUCK)
    assert delete.replaced_groups == {group_key("default", "train-slice-0")}
    world.finish_deletes()
    world.end_pods(workload)
    world.start_pods(workload)
    world.live(60, seconds=10)
    assert (len(world.created), world.bound(workload)) == (2, 1)


@pytest.mark.parametrize(
    ("node", "where"), [("foreign", "is on node foreign, of no node pool of it"), ("", "has ended")]
)
def test_event_says_why_pods_without_a_pending_leader_get_no_pool(node: str, where: str) -> None:
    """After an in-place restart, only a follower waits: its leader runs on a foreign node or has ended."""
    workload = make_jobset()
    world = World()
    world.workloads[workload.uid] = workload
    if node:
        world.put(make_pod(workload, node=node))
    world.put(make_pod(workload, index=1, unschedulable=True, unschedulable_since=world.now))
    world.run(9, seconds=60)
    assert world.told(EventReason.STUCK) == []
    world.run(3, seconds=60)
    (message,) = {notice.message for notice in world.told(EventReason.STUCK)}
    assert message.startswith(
        f"1 pod(s) of job train-slice-0 are unschedulable, and no node pool is created for them: its leader pod {where}"
    )
    assert world.created == []


def test_delete_for_a_slice_of_several_child_jobs_contains_their_groups() -> None:
    """In the past, the gate looked for pods of one child Job only, so no such pool was ever replaced."""
    workload = make_jobset(replicas=2)
    workload = replace(workload, groups=(replace(workload.groups[0], jobs=2, lowest_leads=True),))
    world = Cluster(workload, settings_=settings(replace_stuck_slices=True))
    pool = world.put_pool(make_pool(workload, job=1))
    bound = make_pod(workload, job=2, node=make_node(pool).name)
    world.put(bound, make_pod(workload, job=3, unschedulable_since=world.now))
    world.look()
    world.pass_time(601)
    (delete,) = world.look().deletes
    assert (delete.name, delete.reason) == (pool.name, DeleteReason.SLICE_STUCK)
    assert delete.replaced_groups == {group_key("default", f"train-slice-{job}") for job in (2, 3)}


def two_pools() -> tuple[World, Workload, Workload]:
    first, second = make_jobset("first"), make_jobset("second")
    world = World(first, second)
    world.live(3)
    assert (world.bound(first), world.bound(second)) == (1, 1)
    return world, first, second


def test_pool_with_half_of_its_nodes_is_kept_if_other_pods_use_it() -> None:
    world, lost, other = two_pools()
    lose_half(world, lost)
    world.put(make_pod(other, index=1, node=nodes_of(world, lost)[0]))
    world.run(60, seconds=60)
    assert world.deleted == []


def test_pool_with_half_of_its_nodes_is_deleted_despite_a_pod_without_chips() -> None:
    """The pod is of a LeaderWorkerSet of another namespace, for which the pool was not created."""
    workload, serve = make_jobset(), make_lws(namespace="other")
    world = running(workload)
    lose_half(world, workload)
    world.workloads[serve.uid] = serve
    guest = make_pod(serve, node=nodes_of(world, workload)[0])
    world.put(replace(guest, requirements=replace(guest.requirements, chips=0)))
    world.run(20, seconds=60)
    assert world.deleted == [make_pool(workload).name]


def test_only_a_share_of_the_pools_that_lost_nodes_is_replaced() -> None:
    """If many pools have lost nodes, the cause is probably elsewhere, and replacements do not help."""
    world, *workloads = two_pools()
    for workload in workloads:
        lose_half(world, workload)
    world.run(60, seconds=60)
    assert len(world.deleted) == 1


def test_slice_whose_pods_are_all_bound_keeps_its_pool_with_an_unready_node() -> None:
    """A node that is temporarily unready does not end the pods on it."""
    workload = make_jobset()
    world = running(workload)
    first, second = nodes_of(world, workload)
    world.put(replace(world.nodes[second], ready=False))
    world.end_pods(workload)
    world.put(make_pod(workload, node=first), make_pod(workload, index=1, node=second))
    world.run(60, seconds=60)
    assert world.deleted == []


def single_host_world(parallelism: int = 2, **changes: Any) -> tuple[World, Workload]:
    """Return a world in which a Job runs two pods on two hosts, and the Job after a change of its parallelism."""
    job = make_job(template=_SINGLE_HOST)
    world = World(job, settings_=settings(serve_jobs=True, **changes))
    world.run(2)
    world.finish_creates()
    for index, node in enumerate(nodes_of(world, job)):
        world.put(make_pod(job, index=index, node=node))
    world.run(2)
    grown = replace(job, groups=(replace(job.groups[0], parallelism=parallelism),))
    world.workloads[job.uid] = grown
    return world, grown


@pytest.mark.parametrize("replace_stuck", [False, True])
def test_job_that_is_scaled_up_keeps_its_pool_and_is_reported(*, replace_stuck: bool) -> None:
    world, job = single_host_world(4, replace_stuck_slices=replace_stuck)
    (pool,) = world.pools.values()
    for index in (2, 3):
        world.put(make_pod(job, index=index, unschedulable=True, unschedulable_since=world.now))
    world.run(60 * 5, seconds=60)
    assert (world.created, world.deleted, world.pools[pool.name].hosts) == ([pool.name], [], 2)
    (message,) = {notice.message for notice in world.told(EventReason.STUCK)}
    assert message == (
        f"job sweep now has parallelism 4, for 4 nodes, and its node pool {pool.name} has 2; for a Job that runs, no "
        "node pool is created or resized: set parallelism back, or suspend the Job and resume it when its pods have "
        "ended, for a node pool of 4 nodes"
    )
    # The owner suspends and resumes the Job, as the Event advises, and the Job gets a larger pool.
    world.workloads[job.uid] = replace(job, suspended=True)
    world.end_pods(job)
    world.run(2)
    world.workloads[job.uid] = job
    world.start_pods(job)
    world.run(2)
    assert world.pools[world.created[-1]].hosts == 4


@pytest.mark.parametrize("pods", [4, 1], ids=["more pods", "fewer pods"])
def test_running_slice_keeps_its_pool_after_a_change_of_parallelism(pods: int) -> None:
    """JobSet 0.12 allows changes of parallelism (ElasticJobSet), but a topology has a fixed number of hosts."""
    workload = make_jobset()
    world = running(workload)
    world.settings = settings(replace_stuck_slices=True)
    (name,) = world.created
    nodes = nodes_of(world, workload)
    world.end_pods(workload)
    world.put(*(make_pod(workload, index=index, node=node) for index, node in zip(range(pods), nodes, strict=False)))
    world.workloads[workload.uid] = replace(workload, groups=(replace(workload.groups[0], parallelism=pods),))
    for index in range(2, pods):
        world.put(make_pod(workload, index=index, unschedulable=True, unschedulable_since=world.now))
    world.run(30, seconds=60)
    assert (world.created, world.deleted) == ([name], [])
    (message,) = {notice.message for notice in (*world.told(EventReason.STUCK), *world.told(EventReason.UNDERUSED))}
    assert message == (
        "job train-slice-0 now has parallelism 4, and its slice of topology 2x2x2 has 2 hosts with one pod each; set "
        "parallelism back to 2"
        if pods > len(nodes)
        else "job train-slice-0 has parallelism 1, its slice of topology 2x2x2 has 2 hosts: 1 of them are paid for but "
        "not used"
    )


def test_stuck_slice_on_a_shared_pool_does_not_block_other_replacements() -> None:
    """In the past, the pool of `stuck` was never replaced: `split` came first, and its pool cannot be deleted."""
    split, guest, stuck = (make_jobset(name) for name in ("split", "guest", "stuck"))
    world = World(split, guest, stuck, settings_=settings(replace_stuck_slices=True))
    world.live(4)
    nodes = {workload.uid: nodes_of(world, workload) for workload in (split, guest, stuck)}
    for workload in (split, guest, stuck):
        world.end_pods(workload)
        others = (nodes[guest.uid][0], nodes[split.uid][1]) if workload is guest else (nodes[workload.uid][0], "")
        for index, node in enumerate(others):
            waits = {"unschedulable": True, "unschedulable_since": world.now} if not node else {}
            world.put(make_pod(workload, index=index, node=node, **waits))
    world.run(12, seconds=60)
    assert make_pool(stuck).name in world.deleted
    assert make_pool(split).name not in world.deleted


def wide_pod(world: World, kind: str, index: int, owner: str = "web") -> Pod:
    """Return an unschedulable pod of a StatefulSet or an Indexed Job whose two pods are one slice of two hosts."""
    name = f"{owner}-{index}" if kind == "StatefulSet" else f"{owner}-{index}-abcde"
    metadata = {"annotations": {constants.COMPLETION_INDEX: str(index)}} if kind == "Job" else {}
    pod = pod_of(name, owner, kind=kind, topology="2x2x2", metadata=metadata)
    return replace(pod, created_at=world.now, unschedulable_since=world.now)


def running_wide(kind: str, **changes: Any) -> Cluster:
    """Return a world in which both pods of `wide_pod` run on their pool."""
    world = Cluster(settings_=settings(**changes))
    world.put(wide_pod(world, kind, 0), wide_pod(world, kind, 1))
    world.settle(12)
    assert [bool(pod.node_name) for pod in world.pods.values()] == [True, True]
    return world


def group_of(world: World, name: str) -> str:
    (group,) = (state.group_name for state in world.plans[-1].pools if state.name == name)
    return group


@pytest.mark.parametrize(("kind", "field"), [("StatefulSet", "replicas"), ("Job", "parallelism")])
@pytest.mark.parametrize("fault", ["none", "node not ready", "node without a chip"])
def test_running_slice_of_pods_keeps_its_pool_if_a_further_pod_is_unschedulable(
    kind: str, field: str, fault: str
) -> None:
    """A slice has no host for a further pod, so the pod does not show that the running pods make no progress."""
    world = running_wide(kind, replace_stuck_slices=True)
    (name,), node = world.created, max(world.nodes)
    world.put(wide_pod(world, kind, 2))
    broken = {"none": {}, "node not ready": {"ready": False}, "node without a chip": {"allocatable_chips": 3}}[fault]
    world.put(replace(world.nodes[node], **broken))  # type: ignore[arg-type]
    world.run(40, seconds=60)
    assert (world.created, world.deleted) == ([name], [])
    (message,) = {notice.message for notice in world.told(EventReason.STUCK)}
    assert message == (
        f"{kind} web now has {field} 3, and its slice of topology 2x2x2 has 2 hosts with one pod each; set {field} "
        "back to 2"
    )


@pytest.mark.parametrize("kind", ["StatefulSet", "Job"])
@pytest.mark.parametrize("pods", [1, 3], ids=["a pod is missing", "a further pod"])
def test_restarted_slice_of_pods_keeps_its_pool_although_its_number_of_pods_is_wrong(kind: str, pods: int) -> None:
    """A watch may show the first new pod before the second, while the pods of a rival already wait."""
    world = running_wide(kind)
    (name,) = world.created
    world.pods.clear()
    world.put(*(replace(wide_pod(world, kind, index), unschedulable_since=None) for index in range(pods)))
    world.put(*(wide_pod(world, kind, index, "a-rival") for index in range(2)))
    world.step()
    world.step()
    assert group_of(world, name) == "web"
    assert len(world.created) == 2


@pytest.mark.parametrize("kind", ["StatefulSet", "Job"])
def test_slice_of_pods_with_a_missing_pod_takes_no_free_pool(kind: str) -> None:
    world = running_wide(kind)
    (name,) = world.created
    world.pods.clear()
    world.put(wide_pod(world, kind, 0, "a-rival"))
    world.step()
    assert group_of(world, name) == "web"


@pytest.mark.parametrize("kind", ["StatefulSet", "Job"])
def test_pool_that_lost_a_node_is_deleted_although_a_further_pod_waits(kind: str) -> None:
    """The pod with the highest index may run while the slice lacks a pod with a lower index."""
    world = running_wide(kind)
    (name,) = world.created
    lost = min(world.nodes)
    world.pods = {uid: pod for uid, pod in world.pods.items() if pod.node_name != lost}
    del world.nodes[lost]
    world.put(wide_pod(world, kind, 0), wide_pod(world, kind, 2))
    world.run(20, seconds=60)
    assert world.deleted == [name]


@pytest.mark.parametrize("pods", [2, 3], ids=["all pods bound", "a further pod"])
def test_elastic_jobset_keeps_its_pool_with_an_unready_node(pods: int) -> None:
    workload = make_jobset()
    world = running(workload)
    nodes = nodes_of(world, workload)
    world.end_pods(workload)
    world.put(*(make_pod(workload, index=index, node=node) for index, node in enumerate(nodes)))
    world.workloads[workload.uid] = replace(workload, groups=(replace(workload.groups[0], parallelism=pods),))
    for index in range(2, pods):
        world.put(make_pod(workload, index=index, unschedulable=True, unschedulable_since=world.now))
    world.put(replace(world.nodes[nodes[1]], ready=False))
    world.run(60, seconds=60)
    assert world.deleted == []


@pytest.mark.parametrize("terminating", [False, True], ids=["pod of the dead node deleted", "pod terminates"])
def test_pool_of_four_hosts_with_a_dead_node_is_deleted(*, terminating: bool) -> None:
    """The kubelet of a dead node never confirms the end of a pod, which then terminates without end."""
    workload = make_jobset(parallelism=4, template=make_requirements(topology="2x2x4"))
    world = running(workload)
    (name,) = world.created
    dead = nodes_of(world, workload)[3]
    world.put(replace(world.nodes[dead], ready=False))
    pod = next(pod for pod in world.pods.values() if pod.node_name == dead)
    world.pods.pop(pod.uid)
    world.put(replace(pod, node_name="", uid="again", phase="Pending", unschedulable_since=world.now))
    if terminating:
        world.put(replace(pod, deletion_deadline=world.now))
    world.run(20, seconds=60)
    assert world.deleted == [name]


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips", "parallelism", "words"),
    [
        pytest.param(
            *("tpu-v5-lite-podslice", "2x2", 1, 1),
            "requests 1 of the 4 chips of its ct5lp-hightpu-4t: 3 of them are paid for but not used; ct5lp-hightpu-1t "
            "(topology 1x1) has 1",
            id="one chip of four",
        ),
        pytest.param(
            *("tpu-v4-podslice", "2x2x1", 2, 3),
            "requests 6 of the 8 chips of its ct4p-hightpu-4t: 2 of them are paid for but not used",
            id="a half-used second host, and no smaller machine",
        ),
        pytest.param("tpu-v5-lite-podslice", "2x2", 1, 4, "", id="four pods on one host"),
        pytest.param("tpu-v5-lite-podslice", "2x2", 4, 2, "", id="two hosts"),
    ],
)
def test_unused_chips_of_single_hosts_are_reported(
    accelerator: str, topology: str, chips: int, parallelism: int, words: str
) -> None:
    asked = make_requirements(accelerator=accelerator, topology=topology, chips=chips)
    world = World(make_jobset(parallelism=parallelism, template=asked))
    world.live(5)
    found = {notice.message for notice in world.told(EventReason.UNDERUSED)}
    assert found == ({f"job train-slice-0 {words}"} if words else set())


@pytest.mark.parametrize("lost", [True, False], ids=["a node is gone", "a node takes no pod"])
def test_running_single_host_pod_keeps_the_pool_while_another_is_stuck(*, lost: bool) -> None:
    """The bound pod runs without the pending pod, which needs another host."""
    world, job = single_host_world(replace_stuck_slices=True)
    second = nodes_of(world, job)[1]
    if lost:
        del world.nodes[second]
    world.put(make_pod(job, index=1, unschedulable=True, unschedulable_since=world.now))
    world.run(60, seconds=60)
    assert world.deleted == []
    assert world.told(EventReason.STUCK) != []


@pytest.mark.parametrize(
    ("status", "minutes", "words", "used"),
    [
        (PoolStatus.PROVISIONING, 60, "status PROVISIONING", True),
        (PoolStatus.STOPPING, 30, "status STOPPING", True),
        (PoolStatus.STOPPING, 30, "status STOPPING", False),
        (PoolStatus.RECONCILING, 30, "status RECONCILING", True),
        (PoolStatus.UNKNOWN, 10, "a status that this release does not know", True),
        (PoolStatus.UNKNOWN, 10, "a status that this release does not know", False),
    ],
)
def test_pool_that_hangs_in_a_status_raises_an_alert(
    status: PoolStatus, minutes: int, words: str, *, used: bool
) -> None:
    workload = make_jobset()
    world = running(workload)
    (pool,) = world.pools.values()
    if not used:
        world.finish(workload)
    world.put(replace(pool, status=status))
    since = world.now
    world.run(minutes, seconds=60)
    assert not any(plan.alerts for plan in world.plans)
    (alert,) = world.look().alerts
    assert (alert.kind, alert.pool) == ("pool_stuck", pool.name)
    assert alert.message == (
        f"Node pool {pool.name} has had {words} since {since:%H:%M:%S} UTC; look at it and at its operations in GKE"
    )
    events = {notice.message for notice in world.plans[-1].notices if notice.reason == EventReason.STUCK}
    assert bool(events) is used
    assert all(words in message and pool.name in message for message in events)
    world.put(replace(pool, status=PoolStatus.RUNNING))
    assert world.look().alerts == ()


def test_hanging_pool_whose_delete_is_rejected_raises_one_alert() -> None:
    world = World()
    world.put(make_pool(make_jobset(), status=PoolStatus.PROVISIONING))
    world.refuse_delete = lambda _: failure(FailureKind.OPERATION_IN_THE_WAY, "Another operation.")
    world.run(90, seconds=60)
    (alert,) = world.plans[-1].alerts
    assert (alert.kind, "Another operation." in alert.message) == ("pool_stuck", True)


def test_pool_in_creation_within_capacity_wait_does_not_count_as_hanging() -> None:
    workload = make_jobset()
    world = World(workload, settings_=settings(capacity_wait_seconds=86400.0))
    world.put(make_pool(workload, status=PoolStatus.PROVISIONING))
    world.run(24 * 12, seconds=300)
    assert (world.created, world.deleted) == ([], [])
    assert not any(plan.alerts for plan in world.plans)
    assert world.told(EventReason.STUCK) == []


def test_time_in_a_status_starts_when_the_status_changes() -> None:
    """50 minutes of creation do not shorten the time that the delete of the pool may take."""
    workload = make_jobset()
    world = World(workload)
    world.run(50, seconds=60)
    (pool,) = world.pools.values()
    world.put(replace(pool, status=PoolStatus.STOPPING))
    world.run(30, seconds=60)
    assert not any(plan.alerts for plan in world.plans)
    assert world.look().alerts != ()


class Accepting(World):
    """A world whose GKE accepts creates and deletes; their operations never end and do not change the list of pools."""

    def _create(self, create: Create) -> CreateAnswer:
        self.created.append(create.request.name)
        return CreateAnswer(name=create.request.name, at=self.now, operation=OperationName("create"))

    def _delete(self, delete: Delete) -> DeleteAnswer:
        self.deleted.append(delete.name)
        operation = OperationName("delete")
        return DeleteAnswer(name=delete.name, at=self.now, result=DeleteResult.ACCEPTED, operation=operation)

    def _look_up(self, look_up: LookUp) -> LookUpAnswer:
        operation = Operation(name=look_up.operation, done=False, failure=None)
        return LookUpAnswer(look_up=look_up, at=self.now, operation=operation)


def test_accepted_create_without_effect_raises_an_alert() -> None:
    world = Accepting(make_jobset())
    world.run(62, seconds=60)
    (alert,) = world.plans[-1].alerts
    assert (alert.kind, "status PROVISIONING" in alert.message) == ("pool_stuck", True)
    assert len(world.created) == 1


def test_message_of_a_hanging_pool_contains_the_failure_of_the_pool() -> None:
    """If a TPUNodeGroup waits for a limit on machines, its user reads the cause in the Event SliceStuck."""
    jobset = make_jobset()
    world = World(jobset)
    limit = Failure(kind=FailureKind.QUOTA, message="MAX_MACHINES_PER_NAMESPACE leaves 2 machines")
    world.put_pool(make_pool(jobset, status=PoolStatus.PROVISIONING, failure=limit))
    world.run(62, seconds=60)
    assert {f"({limit.message})" in notice.message for notice in world.told(EventReason.STUCK)} == {True}


def test_accepted_delete_without_effect_raises_an_alert() -> None:
    world = Accepting()
    world.put_pool(make_pool(make_jobset()))
    world.run(33, seconds=60)
    (alert,) = world.plans[-1].alerts
    assert (alert.kind, "status STOPPING" in alert.message) == ("pool_stuck", True)
