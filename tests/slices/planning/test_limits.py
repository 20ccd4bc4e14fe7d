"""Tests of the limits on chips, pools and creates, their notices, and the pools that are deleted for waiting slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import FailureKind, PoolName, PoolStatus
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.messages.waits import message
from provisioner.slices.planning.contention.limits import Budget
from provisioner.slices.planning.contention.line import unit_of
from provisioner.slices.planning.contention.usage import ALL, CREATES_PER_HOUR, LimitScope, ScopeKind
from provisioner.slices.planning.contention.waits import Limit, WaitKind, WaitsFor
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.pipeline import decide
from provisioner.slices.planning.plan import DeleteReason, Plan
from provisioner.slices.planning.round import begin_round
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.slices.planning.test_capacity_requests import Asking
from tests.support.clock import after
from tests.support.counting import counted
from tests.support.market import jobset_of
from tests.support.models import make_jobset, make_nodes, make_pod, make_pool, make_requirements, make_slice
from tests.support.objects import raw_buffer
from tests.support.settings import settings
from tests.support.world import World, failure

#: Chips of a slice of `make_jobset`: v4, topology 2x2x2.
CHIPS = 8
V4, V5P = "tpu-v4-podslice", "tpu-v5p-slice"


def creates(plan: Plan) -> list[str]:
    return [create.workload.name for create in plan.creates]


def limited(**changes: Any) -> Any:
    return settings(**{"deletion_delay_seconds": 3600.0} | changes)


@pytest.mark.parametrize(
    ("changes", "want", "words"),
    [
        pytest.param(
            {"max_chips": 16},
            ["a", "d"],
            "all node pools: 16 of 16 chips in use; this slice needs 8",
            id="chips",
        ),
        pytest.param({"max_chips": 23}, ["a", "d"], "this slice needs 8", id="chips for less than three slices"),
        pytest.param({"max_chips": 0}, [], "this slice needs 8, so waiting will not help", id="no chips at all"),
        pytest.param(
            {"max_chips_per_namespace": (("team", 8), ("*", 100))},
            ["a", "d"],
            "Limit of namespace team: 8 of 8 chips in use",
            id="chips of a namespace",
        ),
        pytest.param(
            {"max_chips_per_namespace": (("other", 100), ("*", 16))},
            ["a", "d", "b"],
            "Limit of namespace team: 16 of 16 chips in use",
            id="chips of each namespace that is not named",
        ),
        pytest.param(
            {"max_chips_per_namespace": (("team", 16),)},
            ["a", "d", "b"],
            "Limit of namespace team: 16 of 16 chips in use",
            id="no limit for other namespaces",
        ),
        pytest.param(
            {"max_chips_per_accelerator": ((V4, 16),)},
            ["a", "d", "b"],
            f"Limit of accelerator {V4}: 16 of 16 chips in use",
            id="chips of an accelerator",
        ),
        pytest.param(
            {"max_chips_per_accelerator": ((V4, 100), ("*", 0))},
            ["a", "b", "c"],
            f"Limit of accelerator {V5P}: at most 0 chips; this slice needs 8, so waiting will not help",
            id="accelerators that are not named",
        ),
        pytest.param(
            {"max_creates_per_hour": 3},
            ["a", "d", "b"],
            "Limit of new node pools within an hour: 3 of 3 were created",
            id="creates",
        ),
        pytest.param(
            {"pause_creation": True},
            [],
            "PAUSE_CREATION is set: no node pools are created",
            id="a pause",
        ),
    ],
)
def test_creates_beyond_a_limit_are_reported_and_not_sent(changes: dict[str, Any], want: list[str], words: str) -> None:
    """Namespaces take turns, each with its oldest slice first."""
    (limit,) = map(str.upper, changes)
    workloads = [jobset_of(name, namespace="team") for name in "abc"]
    world = World(*workloads, jobset_of("d", namespace="zoo", accelerator=V5P), settings_=settings(**changes))
    plan = world.look()
    assert creates(plan) == want
    assert len(plan.notices) == 4 - len(want)
    for notice in plan.notices:
        assert notice.reason == EventReason.LIMIT_REACHED
        assert notice.warning
        assert notice.key.startswith(f"{limit} ")
        assert limit in notice.message
        assert [object_.kind for object_ in notice.objects] == ["Pod", "JobSet"]
    assert any(words in notice.message for notice in plan.notices)
    assert creates(world.look()) == [], "what is under way counts"


@pytest.mark.parametrize("scope", [ALL, CREATES_PER_HOUR, LimitScope(ScopeKind.NAMESPACE, "team")])
def test_text_about_a_limit_that_is_too_low_has_no_amounts_of_other_workloads(scope: LimitScope) -> None:
    """In the past, each change of these amounts was written to the status of a CapacityBuffer."""
    first, later = (
        WaitsFor(kind=WaitKind.LIMIT, final=True, limit=Limit("SETTING", scope, 4, 8, used=used, kept=kept))
        for used, kept in ((0, 0), (3, 2))
    )
    ctx = World().look().decided
    assert message(first, ctx, lasting=True) == message(later, ctx, lasting=True)


def test_pause_is_reported_and_lasts_until_its_end() -> None:
    world = World(jobset_of("a"))
    since = world.now - timedelta(days=8)
    plan = world.look(paused_since=since)
    assert creates(plan) == []
    words = f"Creation is paused since {since:%Y-%m-%d %H:%M} UTC, by ConfigMap tpu-provisioner-pause: no node pools"
    assert any(words in notice.message for notice in plan.notices)
    assert creates(world.look()) == ["a"]


def test_max_pools_per_jobset_creates_pools_up_to_the_limit() -> None:
    world = World(make_jobset("a", replicas=5), make_jobset("b"), settings_=settings(max_pools_per_jobset=3))
    plan = world.look()
    assert creates(plan) == ["a", "a", "a", "b"]
    assert "Limit of node pools of each JobSet: a uses 3 of 3; place 1 of 2." in plan.notices[0].message


@pytest.mark.parametrize(
    ("user", "want"),
    [
        pytest.param("thief", 1, id="another JobSet's pods came first"),
        pytest.param("owner", 0, id="its own JobSet's pods came first"),
    ],
)
def test_pool_used_by_another_jobset_does_not_count_against_its_owner(user: str, want: int) -> None:
    """Otherwise the JobSet would get no pool as long as the other JobSet runs on its pool."""
    owner, thief = make_jobset("owner", replicas=2), make_jobset("thief")
    world = World(owner, thief, settings_=settings(max_pools_per_jobset=1))
    world.put_pool(make_pool(owner))
    first, second = (thief, owner) if user == "thief" else (owner, thief)
    for workload, came_at in ((second, after(1)), (first, after(0))):
        nodes = enumerate(node.name for node in world.nodes.values())
        world.put(*(make_pod(workload, index=index, node=name, created_at=came_at) for index, name in nodes))
    assert creates(world.look()).count("owner") == want


def test_jobsets_of_one_name_in_two_namespaces_have_separate_limits() -> None:
    both = [make_jobset("a", namespace=namespace, replicas=2) for namespace in ("x", "y")]
    assert len(World(*both, settings_=settings(max_pools_per_jobset=1)).look().creates) == 2


@pytest.mark.parametrize("status", list(PoolStatus))
def test_pool_counts_in_a_limit_in_every_status(status: PoolStatus) -> None:
    """Google may charge for the chips in any status. With these chips, only one of two slices fits within the limit."""
    world = World(make_jobset(replicas=2), settings_=limited(max_chips=2 * CHIPS))
    world.put(make_pool(jobset_of("gone", accelerator=V5P), status=status))
    plan = world.look()
    assert len(plan.creates) == 1
    assert plan.notices[-1].reason == EventReason.LIMIT_REACHED


def test_flex_start_pool_without_nodes_counts_with_all_its_chips() -> None:
    template = make_requirements(accelerator=V5P, selector={constants.FLEX_START: "true"}, tolerations=())
    world = World(make_jobset(template=template, replicas=3), settings_=settings(max_chips=2 * CHIPS))
    world.live(5)
    assert [make_nodes(pool) for pool in world.pools.values()] == [(), ()]


def test_pause_prevents_only_creates() -> None:
    used, done, late = make_jobset("used"), make_jobset("done"), make_jobset("late")
    world = World(used, done)
    world.live(4)
    world.settings = settings(pause_creation=True)
    world.add(late)
    world.remove_jobset(done)
    world.live(3)
    assert world.bound(late) == 1, "an idle pool serves the next slice"
    world.remove_jobset(used)
    world.live(60)
    assert (len(world.created), len(world.deleted)) == (2, 1)
    world.add(make_jobset("last", replicas=2))
    world.live(2)
    assert len(world.created) == 2
    world.settings = settings()
    world.live(2)
    assert len(world.created) == 4


# --- MAX_CREATES_PER_HOUR ---


def test_creates_are_counted_in_a_sliding_window_of_an_hour() -> None:
    world = World(make_jobset("a"), settings_=settings(max_creates_per_hour=2))
    world.step(seconds=600)
    world.add(make_jobset("b"), make_jobset("c"))
    plan = world.step(seconds=0)
    assert creates(plan) == ["b"]
    assert plan.wake_at == after(3600)
    world.now = after(3599)
    assert creates(world.step(seconds=0)) == []
    world.now = after(3600)
    assert creates(world.step(seconds=0)) == ["c"]
    world.add(make_jobset("d"))
    # The plan of the second round contains the time at which the create of JobSet d is due.
    world.step(seconds=1)
    plan = world.step(seconds=0)
    assert (creates(plan), plan.wake_at) == ([], after(4200))
    world.settings = settings(max_creates_per_hour=1)
    assert world.look().wake_at == after(7200)


@pytest.mark.parametrize("kind", [FailureKind.STOCKOUT, FailureKind.INVALID, FailureKind.UNAVAILABLE])
def test_rejected_create_does_not_count_in_the_hourly_limit(kind: FailureKind) -> None:
    world = World(make_jobset("a"), settings_=settings(max_creates_per_hour=1))
    world.refuse_create = lambda _: failure(kind)
    world.run(2)
    assert world.memory.created_at == ()
    world.refuse_create = lambda _: None
    world.add(jobset_of("b", accelerator=V5P))
    world.pass_time(60)
    assert len(world.step().creates) == 1


def test_repeated_create_of_a_name_counts_again() -> None:
    """A JobSet that is suspended and resumed repeatedly gets pools of the same names."""
    workload = make_jobset()
    quick = {"deletion_delay_seconds": 0.0, "node_min_lifespan_seconds": 0.0}
    world = World(workload, settings_=settings(max_creates_per_hour=3, **quick))
    for _ in range(10):
        world.live(4)
        world.end_pods(workload)
        world.workloads[workload.uid] = replace(workload, suspended=True)
        world.live(4)
        world.add(workload)
    assert len(world.created) == 3


def test_create_times_in_the_future_do_not_count() -> None:
    world = World(make_jobset(), settings_=settings(max_creates_per_hour=1))
    world.memory = Memory(created_at=(after(10**7),))
    world.look()
    assert len(world.step().creates) + len(world.plans[0].creates) == 1


# --- Idle pools that use up a limit ---


def idle_world(
    *shapes: str, idle_seconds: float = 60.0, marked: bool = False, **changes: Any
) -> tuple[World, list[PoolName]]:
    """Return a world with idle pools and their names, the pool that has been idle for longest first."""
    world = World(settings_=limited(**changes), marked=marked)
    names = []
    for index, shape in enumerate(shapes):
        topology, _, accelerator = shape.partition(" ")
        gone = jobset_of(f"gone-{index}", topology=topology, accelerator=accelerator or V4)
        names.append(world.put_pool(make_pool(gone)).name)
        world.deleted_workloads.add(gone.uid)
        world.step(seconds=idle_seconds)
    return world, names


def test_idle_pools_that_block_a_limited_slice_are_deleted_before_their_delay() -> None:
    world, names = idle_world("2x2x1", "2x2x1", "2x2x1", "2x2x1", max_chips=16)
    world.add(make_jobset("a"))
    plan = world.step()
    assert [delete.name for delete in plan.deletes] == names[:2]
    assert [delete.reason for delete in plan.deletes] == [DeleteReason.WORKLOAD_GONE] * 2
    world.live(4)
    assert world.bound(make_jobset("a")) == 1
    assert set(names[2:]) <= set(world.pools)


def test_idle_pool_of_the_same_jobset_with_another_shape_is_deleted() -> None:
    """The JobSet was updated, and MAX_POOLS_PER_JOBSET allows it no second pool."""
    world = World(settings_=limited(max_pools_per_jobset=1))
    pool = world.put_pool(make_pool(jobset_of("a", topology="2x2x1")))
    world.add(jobset_of("a"))
    world.live(4)
    assert world.deleted == [pool.name]


@pytest.mark.parametrize(
    ("changes", "name", "namespace"),
    [
        pytest.param({"max_chips": 16}, "4x4x4", "default", id="more chips than are allowed at all"),
        pytest.param(
            {"max_chips": 16, "max_chips_per_namespace": (("team", 4),)}, "2x2x2", "team", id="another limit forbids it"
        ),
        pytest.param({"max_chips": 16, "pause_creation": True}, "2x2x2", "default", id="creation is paused"),
        pytest.param({"max_chips": 16, "max_pools_per_jobset": 0}, "2x2x2", "default", id="no pool for the JobSet"),
        pytest.param({"max_chips": 16, "max_creates_per_hour": 0}, "2x2x2", "default", id="no create within the hour"),
        pytest.param(
            {"max_chips": 16, "allowed_namespaces": ("default",)}, "2x2x2", "team", id="a forbidden namespace"
        ),
        pytest.param({"max_chips": 16}, "2x4x4", "default", id="more chips than the used pool leaves"),
    ],
)
def test_idle_pools_are_kept_if_the_slice_could_still_not_be_created(
    changes: dict[str, Any], name: str, namespace: str
) -> None:
    used = jobset_of("used", topology="2x2x1")
    world, names = idle_world("2x2x1", "2x2x1", "2x2x1", **changes)
    pool = world.put_pool(make_pool(used))
    world.add_with_pod(used, node=f"gke-{pool.name}-0")
    world.add(jobset_of("a", topology=name, namespace=namespace))
    world.live(20)
    assert world.deleted == []
    assert set(names) <= set(world.pools)


def test_idle_pools_are_kept_if_gke_rejects_the_slice() -> None:
    """The rejected create is not repeated when more chips are free, so the delete of a pool would not help."""
    world, names = idle_world("2x2x1", "2x2x1", "2x2x1", "2x2x1", max_chips=24)
    world.refuse_create = lambda _: failure(FailureKind.INVALID)
    world.add(jobset_of("a"))
    world.live(2)
    assert len(world.memory.backoffs) == 1
    world.settings = limited(max_chips=16)
    world.live(20)
    assert (world.deleted, set(world.pools)) == ([], set(names))


def test_idle_pool_of_another_accelerator_is_kept() -> None:
    world, names = idle_world(f"2x2x2 {V5P}", "2x2x1", max_chips_per_accelerator=((V4, 8),))
    world.add(make_jobset("a"))
    world.step()
    assert world.deleted == names[1:]


def test_idle_pools_too_small_for_all_slices_that_start_together_are_kept() -> None:
    """Even if all idle pools were deleted, one of the two slices would still exceed the limit."""
    world, _ = idle_world("2x2x1", "2x2x1", marked=True, max_chips=12)
    world.add(make_jobset("a", replicas=2, annotations={constants.ALL_OR_NOTHING: "true"}))
    world.live(20)
    assert (world.created, world.deleted) == ([], [])


def test_idle_pool_is_kept_for_an_hour_after_a_stockout_of_the_waiting_slice() -> None:
    workload = make_jobset("a", replicas=2, annotations={constants.ALL_OR_NOTHING: "true"})
    limits = limited(max_chips=2 * CHIPS, partial_hold_seconds=600.0, deletion_delay_seconds=1e6)
    world = World(workload, settings_=limits, marked=True)
    world.refuse_create = lambda _: failure(FailureKind.STOCKOUT) if world.pools else None
    world.live(14, seconds=60)
    (given_back,) = world.deleted
    idle = world.put_pool(make_pool(jobset_of("gone", topology="2x2x1")))
    world.live(6, seconds=60)
    assert world.deleted == [given_back]
    world.refuse_create = lambda _: None
    world.live(50, seconds=60)
    assert world.deleted == [given_back]
    world.live(30, seconds=60)
    assert world.deleted == [given_back, idle.name]
    assert world.bound(workload) == 2


HOURS = 6


def warm_world() -> Asking:
    """Return a world in which the ready warm slice of a buffer uses up the limit on chips."""
    world = Asking(raw_buffer(replicas=1), max_chips=8)
    world.live(4)
    assert [pool.status for pool in world.pools.values()] == [PoolStatus.RUNNING]
    return world


def live_for_hours(world: World, before_round: Callable[[int], None] = lambda _minute: None) -> float:
    """Run rounds for HOURS; return the share of the time for which the buffer had its slice, from 0 to 1."""
    warm = 0
    for minute in range(HOURS * 60):
        before_round(minute)
        world.live(1, seconds=60)
        warm += any(pool.status is PoolStatus.RUNNING and "warm" in pool.name for pool in world.pools.values())
    return warm / (HOURS * 60)


ACCOUNT = {constants.NODE_SERVICE_ACCOUNT: "x@p.iam.gserviceaccount.com"}


@pytest.mark.parametrize("minutes", [pytest.param(0, id="one JobSet"), pytest.param(5, id="recreated JobSet")])
@pytest.mark.parametrize(
    ("kind", "annotations"),
    [
        pytest.param(FailureKind.STOCKOUT, {}, id="capacity out of stock"),
        pytest.param(FailureKind.PERMISSION, ACCOUNT, id="403"),
        pytest.param(FailureKind.NOT_FOUND, ACCOUNT, id="404"),
        pytest.param(FailureKind.INVALID, ACCOUNT, id="400"),
    ],
)
def test_warm_pool_is_deleted_at_most_once_an_hour_for_slices_whose_creates_fail(
    kind: FailureKind, annotations: dict[str, str], minutes: int
) -> None:
    """In the past, a warm pool was recreated 348 times in 23 h."""
    world = warm_world()
    world.refuse_create = lambda create: failure(kind) if create.workload.namespace == "other" else None
    template = make_requirements(
        accelerator="tpu-v5-lite-podslice", topology="2x4", tolerations=(), annotations=annotations
    )
    scarce = make_jobset("scarce", namespace="other", template=template)
    world.add(scarce)

    def recreate(minute: int) -> None:
        if minutes and minute % minutes == 0:
            old = next(workload for workload in world.workloads.values() if workload.namespace == "other")
            world.remove_jobset(old)
            world.add(replace(old, uid=WorkloadUid(f"scarce-{minute}")))

    assert live_for_hours(world, recreate) > 0.9
    assert 1 <= len(world.deleted) <= HOURS + 1


def test_idle_pool_whose_delete_was_rejected_is_tried_after_the_others() -> None:
    """GKE rejects the delete of a pool with a running operation; the next idle pool frees as many chips."""
    world, names = idle_world("2x2x1", "2x2x1", max_chips=8)
    rejected = failure(FailureKind.OPERATION_IN_THE_WAY)
    world.refuse_delete = lambda delete: rejected if delete.name == names[0] else None
    waits = jobset_of("waits", "2x2x1", namespace="other", accelerator=V5P)
    world.add(waits)
    world.live(6)
    assert (world.deleted, world.bound(waits)) == (names[1:], 1)


def crowded(units: int, pools: int) -> World:
    """Return a world with idle pools, and with slices that would exceed the limit even without these pools."""
    world = World(settings_=settings(max_chips=2048, max_pools_per_jobset=100, deletion_delay_seconds=3600.0))
    over = jobset_of("over", "2x2x1", replicas=pools)
    world.workloads[over.uid] = over
    for job in range(pools):
        world.put_pool(make_pool(over, job=job))
    used = jobset_of("used", "2x2x1")
    world.workloads[used.uid] = used
    pool = world.put_pool(make_pool(used))
    world.put(make_pod(used, node=f"gke-{pool.name}-0"))
    world.finish(over)
    for number in range(units):
        large = jobset_of(f"large{number}", "8x16x16", namespace="other")
        world.add_with_pod(large, unschedulable_since=world.now)
    world.look()
    world.pass_time(5)
    world.look()
    return world


def test_work_of_a_decision_grows_linearly_with_waiting_slices_and_idle_pools() -> None:
    """In the past, a decision took 2.4 s with 1,000 slices and 400 pools."""

    def calls(size: int) -> int:
        world = crowded(size, size)
        snapshot = world.snapshot()
        plan, found = counted(
            lambda: decide(snapshot, world.memory, world.settings, world.rules, world.now, world.last_round)
        )
        assert (plan.creates, plan.deletes, len(plan.waits)) == ((), (), size)
        return found

    assert calls(80) < 2.2 * calls(40)


def test_no_further_idle_pool_is_deleted_while_a_delete_frees_enough_chips() -> None:
    world, _ = idle_world("2x2x2", "2x2x2", max_chips=16)
    world.add(jobset_of("a", "2x2x1"), jobset_of("b", "2x2x1", namespace="other"))
    started = world.now
    while world.now - started < timedelta(minutes=10):
        world.step(seconds=20)
    assert len(world.deleted) == 1
    world.finish_deletes()
    world.step()
    assert len(world.created) == 2


@pytest.mark.parametrize(("priority", "allowed"), [(0, False), (4, True)])
def test_idle_pool_is_withheld_for_all_units_of_higher_priorities(priority: int, *, allowed: bool) -> None:
    """In the past, only the largest amount of one priority was withheld from slices that take idle pools."""
    world = World(settings_=settings(max_chips=15))
    pool = world.put_pool(make_pool(make_jobset("gone")))
    ctx = begin_round(world.snapshot(), world.memory, world.settings, GKE_RULES, world.now)
    budget = Budget.of(ctx)
    asked = make_requirements(topology="2x2x1")
    for higher in (3, 5):
        waiting = make_slice(make_jobset(parallelism=1, template=asked), priority=higher, requirements=asked)
        budget.keep([waiting], unit_of(waiting, world.now))
    slice_ = make_slice(make_jobset(), priority=priority)
    assert budget.allows_claim(slice_, unit_of(slice_, world.now), ctx.owned[pool.name]) is allowed
