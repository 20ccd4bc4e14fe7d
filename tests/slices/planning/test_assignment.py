"""Tests of the node labels that make a pool open, free or assigned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import NodePool
from provisioner.model.placement import FREE, MARKS
from provisioner.model.workloads import Pod, Workload, WorkloadKind, WorkloadUid
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.plan import Assignment
from provisioner.slices.planning.round import Round, begin_round
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.slices.planning.test_capacity_requests import Asking
from tests.support.counting import counted, measured
from tests.support.models import make_jobset, make_lws, make_marks, make_pod, make_pool, make_requirements
from tests.support.objects import raw_buffer, raw_request
from tests.support.settings import settings
from tests.support.world import World

OPEN: Mapping[str, None] = dict.fromkeys(MARKS)
TRAIN, RIVAL = make_jobset("train"), make_jobset("rival", namespace="other")
#: Node labels of pools that are assigned to TRAIN and to RIVAL.
KEY, RIVALS = make_marks(TRAIN), make_marks(RIVAL)
FORGED = {**KEY, constants.SLICE_NAMESPACE: RIVAL.namespace}


def labels(world: World) -> list[dict[str, str]]:
    nodes = sorted(world.nodes.values(), key=lambda node: node.name)
    return [{key: node.labels[key] for key in MARKS if key in node.labels} for node in nodes]


def put_pool(world: World, workload: Workload, **marks: str) -> NodePool:
    pool = world.put_pool(make_pool(workload))
    label(world, **marks)
    return pool


def label(world: World, **marks: str) -> None:
    for node in list(world.nodes.values()):
        kept = {key: value for key, value in node.labels.items() if key not in MARKS}
        world.put(replace(node, labels={**kept, **marks}))


def put_pods(world: World, workload: Workload, **changes: Any) -> None:
    """Bind one pod of the workload to each node, in the order of the node names."""
    world.workloads[workload.uid] = workload
    nodes = enumerate(sorted(world.nodes))
    world.put(*(make_pod(workload, index=index, node=name, marked=world.marked, **changes) for index, name in nodes))


def marked_world(*workloads: Workload, **changes: Any) -> World:
    return World(*workloads, settings_=settings(**changes), marked=True)


# --- Open, free and assigned pools ---


def test_pool_of_a_marked_slice_is_assigned_from_its_creation() -> None:
    world = marked_world(TRAIN)
    (create,) = world.step().creates
    assert KEY.items() <= create.request.labels.items()
    world.finish_creates()
    assert labels(world) == [KEY, KEY]
    assert world.step().assignments == ()


def test_pool_of_an_unmarked_slice_is_open() -> None:
    world = World(TRAIN)
    (create,) = world.step().creates
    assert create.request.labels.keys().isdisjoint(MARKS)
    world.live(20)
    assert (labels(world), [plan.assignments for plan in world.plans if plan.assignments]) == ([{}, {}], [])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(KEY, FREE, id="an assigned pool becomes free"),
        pytest.param(FREE, FREE, id="a free pool stays free"),
        pytest.param({}, {}, id="an open pool stays open"),
    ],
)
def test_pool_that_nothing_needs_is_free_unless_it_is_open(before: dict[str, str], after: dict[str, str]) -> None:
    world = marked_world(deletion_delay_seconds=3600.0)
    put_pool(world, TRAIN, **before)
    world.run(3)
    assert labels(world) == [after, after]


@pytest.mark.parametrize("before", [KEY, {}, FREE, FORGED], ids=["own", "open", "free", "of another namespace"])
def test_pool_with_pods_of_one_marked_slice_is_assigned_to_it(before: dict[str, str]) -> None:
    world = marked_world()
    put_pool(world, TRAIN, **before)
    put_pods(world, TRAIN)
    plan = world.step()
    assert not any(assignment.verify for assignment in plan.assignments)
    assert labels(world) == [KEY, KEY]


def test_node_without_pods_of_its_slice_is_assigned_after_a_live_read() -> None:
    """The cache may lack a pod of another slice that was bound to the second node earlier."""
    world = marked_world(TRAIN)
    put_pool(world, TRAIN, **FREE)
    first, second = sorted(world.nodes)
    world.put(make_pod(TRAIN, node=first, marked=True), make_pod(TRAIN, index=1, marked=True))
    assert world.step().assignments == (Assignment(first, KEY), Assignment(second, KEY, (second,)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, {}, id="open"),
        pytest.param(FREE, {}, id="free"),
        # The pool may have been assigned to marked pods of this slice while the admission policy was being installed.
        pytest.param(KEY, KEY, id="assigned to their slice"),
        pytest.param(RIVALS, {}, id="assigned to another slice"),
    ],
)
def test_pool_with_unmarked_pods_is_open_unless_it_is_assigned_to_them(
    before: dict[str, str], after: dict[str, str]
) -> None:
    """Further unmarked pods of the slice can be bound only to nodes without assignment labels."""
    world = World()
    put_pool(world, RIVAL, **before)
    put_pods(world, TRAIN)
    world.run(3)
    assert labels(world) == [after, after]


def test_pool_with_pods_of_several_slices_keeps_its_labels() -> None:
    world = marked_world()
    put_pool(world, TRAIN, **KEY)
    put_pods(world, TRAIN)
    world.add_with_pod(RIVAL, node=min(world.nodes))
    world.run(3)
    assert labels(world) == [KEY, KEY]
    assert world.deleted == []


@pytest.mark.parametrize("before", [KEY, FREE], ids=["assigned", "free"])
@pytest.mark.parametrize("pods", [True, False], ids=["pods wait", "between two attempts"])
def test_pod_without_chips_and_marks_holds_no_pool_of_another_slice(pods: bool, before: dict[str, str]) -> None:
    """Admission marks a pod at its creation, so a pod that becomes a leader later, by new labels, has no marks."""
    world = marked_world(TRAIN)
    put_pool(world, TRAIN, **before)
    world.pods = world.pods if pods else {}
    rival = make_lws("rival", namespace="other")
    world.workloads[rival.uid] = rival
    leader = make_pod(rival, node=min(world.nodes))
    world.put(replace(leader, requirements=replace(leader.requirements, chips=0)))
    world.run(3)
    assert labels(world) == ([KEY, KEY] if pods else [before, before])
    assert world.created == []


# --- Pools that change their slice ---


def freed_world() -> World:
    """Return a world in which RIVAL waits for the pool of TRAIN, which has finished."""
    world = marked_world(TRAIN, deletion_delay_seconds=3600.0)
    world.live(4)
    assert world.bound(TRAIN) == 1
    world.add(RIVAL)
    world.settings = settings(max_chips=8, deletion_delay_seconds=3600.0)
    world.finish(TRAIN)
    return world


def test_pool_is_free_between_its_assignments_to_two_slices() -> None:
    world = freed_world()
    names = sorted(world.nodes)
    assert world.step().assignments == tuple(Assignment(name, FREE) for name in names)
    assert world.step().assignments == (Assignment(names[0], RIVALS, tuple(names)),)
    assert world.step().assignments == (Assignment(names[1], RIVALS, (names[1],)),)
    assert world.step().assignments == ()
    world.schedule()
    assert (world.bound(RIVAL), len(world.created)) == (1, 1)


def test_pool_with_an_uncached_pod_is_assigned_after_the_pod_is_deleted() -> None:
    """A pod of the first slice was bound before the node became free, but is missing in the cache."""
    world = freed_world()
    world.step()
    late = make_pod(TRAIN, node=max(world.nodes), marked=True)
    seen = world.snapshot
    world.put(late)
    world.snapshot = lambda **changes: replace(seen(**changes), pods=tuple(p for p in seen().pods if p != late))  # type: ignore[method-assign]
    world.run(2)
    assert labels(world) == [FREE, FREE]
    del world.pods[late.uid]
    world.run(2)
    assert labels(world) == [RIVALS, RIVALS]


def test_no_pool_is_created_while_nodes_of_another_pool_have_the_labels_of_the_slice() -> None:
    """Otherwise the scheduler could bind pods of the slice to both pools. The create waits for at most a minute."""
    larger = make_jobset("train", parallelism=4, template=make_requirements(topology="2x2x4"))
    for rejected in (False, True):
        world = marked_world(deletion_delay_seconds=3600.0)
        put_pool(world, TRAIN, **KEY)
        world.add(larger)
        assert (
            world.look().creates,
            set(world.nodes) - {assignment.node for assignment in world.step().assignments},
        ) == (
            (),
            set(),
        )
        if rejected:
            label(world, **KEY)
            assert world.step(seconds=70).creates == ()
            label(world, **KEY)
        assert len(world.step().creates) == 1


def test_free_pool_becomes_open_if_an_unmarked_slice_will_use_it() -> None:
    world = World(settings_=settings(deletion_delay_seconds=3600.0))
    put_pool(world, RIVAL, **FREE)
    world.add(TRAIN)
    plan = world.step()
    assert plan.creates == ()
    assert [assignment.labels for assignment in plan.assignments] == [OPEN, OPEN]
    world.schedule()
    assert (world.bound(TRAIN), labels(world)) == (1, [{}, {}])


# --- Recreated nodes, restarts, edited labels ---


def test_recreated_node_is_assigned_again_to_a_slice_between_two_attempts() -> None:
    """In the past, such a node kept the labels of the slice that the pool was created for."""
    world = marked_world(make_jobset("first"), deletion_delay_seconds=3600.0, max_chips=8)
    world.live(4)
    world.finish(make_jobset("first"))
    world.add(TRAIN)
    world.live(4)
    world.end_pods(TRAIN)
    node = min(world.nodes.values(), key=lambda node: node.name)
    world.put(replace(node, uid="recreated", labels={**node.labels, **make_marks(make_jobset("first"))}))
    world.run(5)
    assert (labels(world), world.deleted) == ([KEY, KEY], [])


@pytest.mark.parametrize("between", [False, True], ids=["pods bound", "between two attempts"])
@pytest.mark.parametrize("first", [TRAIN, make_jobset("first")], ids=["its own pool", "the pool of another JobSet"])
def test_restarted_provisioner_reads_the_assignment_back_from_the_nodes(first: Workload, *, between: bool) -> None:
    """In the past, after a restart, RIVAL got a pool that was assigned to TRAIN and created for another JobSet."""
    world = marked_world(first, deletion_delay_seconds=3600.0, max_chips=8)
    world.live(4)
    if first is not TRAIN:
        world.finish(first)
        world.add(TRAIN)
        world.live(4)
    assert world.bound(TRAIN) == 1
    world.add(RIVAL)
    if between:
        world.end_pods(TRAIN)
        world.step()
    world.memory, world.last_round = Memory(), None
    world.live(2)
    world.end_pods(TRAIN)
    world.live(3)
    world.start_pods(TRAIN)
    world.live(5)
    assert (world.bound(TRAIN), world.bound(RIVAL), len(world.created)) == (1, 0, 1)


@pytest.mark.parametrize("first", [WorkloadKind.JOBSET, WorkloadKind.RAY_CLUSTER])
def test_last_user_of_a_pool_after_a_restart_has_the_kind_of_the_mark(first: WorkloadKind) -> None:
    """A JobSet and a RayCluster of one name can have groups of the same name, and therefore equal keys."""
    other = replace(make_jobset("train", uid="ray"), kind=WorkloadKind.RAY_CLUSTER)
    world = World(marked=True)
    pool = put_pool(world, TRAIN, **KEY)
    for workload in sorted((TRAIN, other), key=lambda workload: workload.kind is not first):
        world.workloads[workload.uid] = workload
    ctx = begin_round(world.snapshot(), Memory(), world.settings, GKE_RULES, world.now)
    user = ctx.memory.pool(pool.name).last_user
    assert user is not None
    assert user.workload_uid == TRAIN.uid


def test_restart_is_cheap_in_a_namespace_with_many_child_jobs() -> None:
    """In the past, the names of all child Jobs were kept: 400 suspended JobSets exceeded the memory limit."""
    world = World(marked=True)
    pools = [put_pool(world, TRAIN, **KEY), world.put_pool(make_pool(make_jobset("gone")))]
    gone = make_marks(make_jobset("gone"))
    for node in (node for node in list(world.nodes.values()) if node.pool_name == pools[1].name):
        world.put(replace(node, labels={**node.labels, **gone}))
    queued = (make_jobset(f"queued-{number}", replicas=4096, suspended=True) for number in range(20))
    for workload in (*queued, make_jobset("sweep", replicas=4096), TRAIN):
        world.workloads[workload.uid] = workload
    snapshot = world.snapshot()

    def begin() -> Round:
        return begin_round(snapshot, Memory(), world.settings, GKE_RULES, world.now)

    (ctx, calls), (_, peak_bytes, _) = counted(begin), measured(begin)
    users = [ctx.memory.pool(pool.name).last_user for pool in pools]
    assert [user and user.workload_uid for user in users] == [TRAIN.uid, None]
    assert calls < 100_000
    assert peak_bytes < 4_000_000


def test_slice_whose_pods_are_deleted_right_after_binding_returns_to_its_pool() -> None:
    """In the past, RIVAL got the pool, because TRAIN became its last user only with a pod that was not terminating."""
    world = marked_world(make_jobset("first"), deletion_delay_seconds=3600.0, max_chips=8)
    world.live(4)
    world.finish(make_jobset("first"))
    world.add(TRAIN)
    world.run(3)
    world.add(RIVAL)
    world.schedule()
    deadline = world.now + timedelta(seconds=30)
    world.put(*(replace(pod, deletion_deadline=deadline) for pod in world.pods.values() if pod.node_name))
    world.run(2)
    world.end_pods(TRAIN)
    world.run(2)
    world.start_pods(TRAIN)
    world.live(5)
    assert (world.bound(TRAIN), world.bound(RIVAL), len(world.created)) == (1, 0, 1)


@pytest.mark.parametrize("by", ["restart", "recreation"])
def test_workload_keeps_its_pool_while_a_rival_waits(by: str) -> None:
    """Without the labels, RIVAL would get the pool. A recreated JobSet has the same key and name, but another UID."""
    world = marked_world(TRAIN, max_chips=8)
    world.live(4)
    world.add(RIVAL)
    for attempt in range(10):
        if by == "restart":
            current = TRAIN
            world.end_pods(current)
            world.schedule()
            world.step()
            world.schedule()
        else:
            current = replace(TRAIN, uid=WorkloadUid(f"uid-{attempt}"))
            world.remove_jobset(next(workload for workload in world.workloads.values() if workload.name == "train"))
        assert world.bound(RIVAL) == 0
        world.workloads[current.uid] = current
        world.start_pods(current)
        world.live(3)
        assert (world.bound(current), world.bound(RIVAL), len(world.created)) == (1, 0, 1)


def test_edited_labels_of_a_pool_that_a_slice_waits_for_are_written_again() -> None:
    world = marked_world(TRAIN)
    world.step()
    world.finish_creates()
    world.step()
    label(world, **RIVALS)
    world.run(3)
    assert labels(world) == [KEY, KEY]


# --- Forged marks ---


def forged(workload: Workload, marks: Mapping[str, str], **changes: Any) -> Pod:
    asked = make_requirements(selector=marks)
    return make_pod(workload, requirements=asked, **changes)


@pytest.mark.parametrize("marks", [KEY, FORGED], ids=["another namespace", "the key of another"])
def test_pod_with_a_forged_mark_gets_no_pool_of_another_slice(marks: dict[str, str]) -> None:
    world = marked_world(TRAIN, max_chips=8)
    world.live(4)
    without_rival(world)
    world.workloads[RIVAL.uid] = RIVAL
    world.put(forged(RIVAL, marks))
    world.live(4)
    world.end_pods(TRAIN)
    world.live(4)
    world.start_pods(TRAIN)
    world.live(4)
    assert (world.bound(TRAIN), world.bound(RIVAL), labels(world)) == (1, 0, [KEY, KEY])


def test_pool_is_not_kept_for_a_forged_mark() -> None:
    """The configuration of the pool still contains the key of the finished slice, which the rival's pod selects."""
    world = marked_world(TRAIN)
    world.live(4)
    without_rival(world)
    world.workloads[RIVAL.uid] = RIVAL
    world.put(forged(RIVAL, KEY))
    world.finish(TRAIN)
    world.live(60)
    assert (world.pools, len(world.created)) == ({}, 1)
    assert "tpu-provisioner/slice" in world.told(EventReason.INVALID_REQUEST)[-1].message


def without_rival(world: World) -> None:
    """Let the simulated scheduler bind no pod of RIVAL. The placement policy rejects or replaces forged marks."""
    place = world._free_pool
    world._free_pool = lambda leader: [] if leader.namespace == RIVAL.namespace else place(leader)  # type: ignore[method-assign]


@pytest.mark.parametrize("raw", [raw_request("req", 2), raw_buffer(replicas=1)], ids=["request", "buffer"])
def test_pool_of_a_request_or_buffer_is_free_until_a_marked_slice_uses_it(raw: dict[str, Any]) -> None:
    world = Asking(raw, marked=True)
    (create,) = world.step().creates
    assert FREE.items() <= create.request.labels.items()
    world.live(6)
    assert labels(world) == [FREE, FREE]
    stranger = make_jobset("stranger")
    world.add_with_pod(stranger)
    world.schedule()
    assert world.bound(stranger) == 0
    world.remove_jobset(stranger)
    jobset = world.consume("req", 1) if raw["kind"] == "ProvisioningRequest" else TRAIN
    world.add(*([TRAIN] if jobset is TRAIN else []))
    world.step()
    world.schedule()
    world.live(2)
    assert (world.bound(jobset), world.created[0] in world.pools) == (1, True)
    world.nodes = {name: node for name, node in world.nodes.items() if node.pool_name == world.created[0]}
    assert labels(world) == [make_marks(jobset)] * 2
