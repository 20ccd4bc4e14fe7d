"""Tests of the reasons (`Refusal`) why a slice does not use a pool, and of their agreement with the claims."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants
from provisioner.model.capacity import CapacityKind, NodePool, PoolStatus, Taint, Zone
from provisioner.model.workloads import Toleration, Workload, WorkloadUid
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.messages.states import WHY_UNUSED
from provisioner.slices.planning import pipeline
from provisioner.slices.planning.contention.limits import Budget
from provisioner.slices.planning.contention.line import CREATES, in_line, unit_of
from provisioner.slices.planning.match import Matcher, Matching
from provisioner.slices.planning.memory.state import Claim, PoolMemory, SliceMemory
from provisioner.slices.planning.refusals import Refusal
from provisioner.slices.planning.round import OwnedPool, Round, begin_round
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.slices.planning.test_capacity_requests import Asking, served
from tests.support.board import view_of
from tests.support.clock import NOW
from tests.support.models import (
    make_jobset,
    make_node,
    make_nodes,
    make_pod,
    make_pool,
    make_requirements,
    make_slice,
    strange_taint,
)
from tests.support.objects import raw_request
from tests.support.settings import settings
from tests.support.world import World

ZONES = ("us-central2-b", "us-central2-a")


class CheckedMatcher(Matcher):
    """Matcher that fails if it claims a pool for a slice although `why_not` returns a refusal."""

    claims = 0

    def _claim(self, slice_: Slice, pool: OwnedPool) -> None:
        assert self.why_not(slice_, pool) is None
        super()._claim(slice_, pool)
        CheckedMatcher.claims += 1


def match(world: World, waiting_for_turn: Collection[WorkloadUid] = ()) -> tuple[Round, Matcher, Matching]:
    ctx = begin_round(world.snapshot(), world.memory, world.settings, GKE_RULES, world.now)
    line = in_line(CREATES, [unit_of(slice_, world.now) for slice_ in ctx.slices.values() if slice_.pending], {})
    matcher = CheckedMatcher(ctx, Budget.of(ctx), line, waiting_for_turn)
    return ctx, matcher, matcher.run(lambda *_: None)


def id_of(workload: Workload, job: int = 0) -> SliceId:
    return make_slice(workload, job=job).id


# --- A world for each refusal ---

TRAIN, GONE = make_jobset("train"), make_jobset("gone")


def lend(
    pool: NodePool | None = None, train: Workload = TRAIN, /, *, node: Any = None, marked: bool = False, **options: Any
) -> World:
    """Return a world in which JobSet train waits, and a pool exists that was created for another JobSet."""
    world = World(train, settings_=settings(**options), marked=marked)
    world.put_pool(pool or make_pool(GONE), **(node or {}))
    return world


def has_own_pool() -> World:
    world = lend()
    world.put_pool(make_pool(TRAIN))
    return world


def has_counted_in_vain() -> World:
    world = lend()
    claim = Claim(pool=make_pool(GONE).name, since=NOW - timedelta(minutes=7), has_pods=True)
    world.memory = replace(world.memory, slices={id_of(TRAIN): SliceMemory(claim=claim)})
    return world


def does_not_wait() -> World:
    world = lend()
    world.put(make_pod(TRAIN, unschedulable=False))
    return world


def other_returns() -> World:
    world = lend()
    world.add(GONE)
    return world


def pods_are_bound() -> World:
    world = lend()
    world.put(make_pod(GONE, node=make_node(make_pool(GONE)).name))
    return world


def runs_elsewhere() -> World:
    world = lend(make_pool(TRAIN))
    world.put(make_pod(TRAIN, node="a-node-of-no-pool"))
    return world


def keeps_to_another_zone() -> World:
    train = make_jobset("train", replicas=2)
    world = lend(make_pool(GONE, zones=ZONES[1:]), train, same_zone=True)
    world.put(make_pod(train, job=1, node=make_node(world.put_pool(make_pool(train, job=1))).name))
    return world


def selecting(**selector: str) -> Workload:
    return make_jobset("train", template=make_requirements(selector=selector))


OTHER_SETTINGS = {**make_pool(GONE).labels, constants.POOL_OWN_SETTINGS: "0123456789abcdef"}
#: Changes of a node whose host will be taken down for maintenance.
DOOMED = {"taints": (Taint(key=constants.IMPENDING_TERMINATION),)}
FLEX = make_pool(GONE, capacity=CapacityKind.FLEX_START)
ELSEWHERE = make_pool(make_jobset("gone", namespace="unwatched"))


@pytest.mark.parametrize(
    ("make_world", "refusal"),
    [
        pytest.param(has_own_pool, Refusal.HAS_POOL, id="own pool"),
        pytest.param(
            lambda: lend(None, selecting(**{constants.SLICE: "j-0", constants.SLICE_NAMESPACE: "other"})),
            Refusal.FORGED,
            id="label of another namespace",
        ),
        pytest.param(does_not_wait, Refusal.NOT_WAITING, id="leader pod not unschedulable yet"),
        pytest.param(has_counted_in_vain, Refusal.EXPIRED, id="no pod bound for 7 minutes"),
        pytest.param(lambda: lend(make_pool(GONE, status=PoolStatus.ERROR)), Refusal.UNUSABLE, id="ERROR pool"),
        pytest.param(lambda: lend(make_pool(TRAIN, status=PoolStatus.ERROR)), Refusal.UNUSABLE, id="own ERROR pool"),
        pytest.param(other_returns, Refusal.CLAIMED, id="pool of a slice that waits"),
        pytest.param(pods_are_bound, Refusal.IN_USE, id="bound pods"),
        pytest.param(lambda: lend(ELSEWHERE, namespaces=("default",)), Refusal.UNDECIDED, id="namespace not watched"),
        pytest.param(lambda: lend(node=DOOMED), Refusal.NOT_LENDABLE, id="host maintenance"),
        pytest.param(runs_elsewhere, Refusal.ELSEWHERE, id="pods on other nodes"),
        pytest.param(
            lambda: lend(None, selecting(**{constants.HOSTNAME: "n"}), marked=True), Refusal.HOST, id="node not in pool"
        ),
        pytest.param(lambda: lend(make_pool(GONE, hosts=3)), Refusal.SIZE, id="another number of hosts"),
        pytest.param(lambda: lend(make_pool(TRAIN, topology="2x2x4")), Refusal.SIZE, id="own pool with old topology"),
        pytest.param(lambda: lend(node={"taints": (strange_taint(),)}), Refusal.MISFIT, id="taint of nodes"),
        pytest.param(lambda: lend(make_pool(GONE, capacity=CapacityKind.SPOT)), Refusal.MISFIT, id="taint of pool"),
        pytest.param(
            lambda: lend(FLEX, marked=True), Refusal.NO_NODES, id="flex-start pool of another slice without nodes"
        ),
        pytest.param(lambda: lend(make_pool(GONE, labels=OTHER_SETTINGS)), Refusal.SETTINGS, id="node settings"),
        pytest.param(keeps_to_another_zone, Refusal.ZONE, id="zone of the workload"),
        pytest.param(
            lambda: lend(
                make_pool(make_jobset("gone", namespace="other")),
                max_chips_per_namespace=(("default", 4), ("other", 8)),
            ),
            Refusal.LIMIT,
            id="limit of the namespace",
        ),
    ],
)
def test_waiting_slice_refuses_a_pool_for_one_reason(make_world: Callable[[], World], refusal: Refusal) -> None:
    world = make_world()
    ctx, matcher, found = match(world)
    pool, slice_ = ctx.owned[next(iter(world.pools))], ctx.slices[id_of(TRAIN)]
    assert matcher.why_not(slice_, pool) is refusal
    assert found.claimed.get(pool.name) != slice_.id


def test_workload_that_waits_for_its_turn_refuses_every_pool() -> None:
    ctx, matcher, found = match(lend(), [TRAIN.uid])
    (pool,) = ctx.owned.values()
    assert matcher.why_not(ctx.slices[id_of(TRAIN)], pool) is Refusal.TURN
    assert found.claimed == {}


def test_every_refusal_has_a_case() -> None:
    """A refusal that no test produces may be unreachable code."""
    (mark,) = test_waiting_slice_refuses_a_pool_for_one_reason.pytestmark  # type: ignore[attr-defined]
    cases = {case.values[1] for case in mark.args[1]}
    assert cases | {Refusal.TURN} == {*Refusal}


# --- Explanations of idle pools ---


@pytest.mark.parametrize(
    ("world", "why"),
    [
        pytest.param(
            lend(node={"taints": (strange_taint(),)}),
            f"the pod does not tolerate the taint {strange_taint()}",
            id="taint of nodes",
        ),
        pytest.param(lend(node={"cordoned": True}), "too few of its nodes accept pods", id="cordoned nodes"),
        pytest.param(lend(make_pool(GONE, hosts=3)), "the number of hosts differs", id="another number of hosts"),
        pytest.param(lend(make_pool(GONE, labels=OTHER_SETTINGS)), "other node settings", id="node settings"),
    ],
)
def test_idle_pool_names_the_slice_that_waits_and_why_it_does_not_use_the_pool(world: World, why: str) -> None:
    view = next(pool for pool in view_of(world).pools if pool.name == next(iter(world.pools)))
    assert "Slice JobSet/default/train/train-slice-0 waits, and does not use it: " in view.reason
    assert why in view.reason


def test_idle_pool_of_another_topology_names_no_slice_that_waits() -> None:
    world = lend(make_pool(GONE, topology="2x2x4", hosts=4))
    assert not any("waits" in pool.reason for pool in view_of(world).pools)


def test_every_refusal_of_an_idle_pool_has_a_text() -> None:
    """The four reasons in `others` do not apply to a waiting slice and an idle pool."""
    others = {Refusal.HAS_POOL, Refusal.NOT_WAITING, Refusal.UNUSABLE, Refusal.CLAIMED}
    assert WHY_UNUSED.keys() == {*Refusal} - others


# --- Agreement with the claims ---


def test_pools_of_a_request_are_handed_over_only_without_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    world = served(4, 2)
    jobset = world.consume("req", 3)
    monkeypatch.setattr(pipeline, "Matcher", CheckedMatcher)
    world.run(2)
    ctx, matcher, found = match(world)
    ids = [id_of(jobset, job) for job in range(3)]
    assert sorted(found.claimed.values()) == sorted(ids)
    assert all(matcher.why_not(ctx.slices[user], ctx.owned[name]) is None for name, user in found.claimed.items())


def test_pools_of_a_request_are_not_handed_to_pods_that_do_not_fit() -> None:
    world = served(2)
    other = make_requirements(topology="2x2x1", tolerations=(), annotations={constants.CONSUMES_REQUEST: "req"})
    jobset = make_jobset("other", parallelism=1, template=other)
    world.add(jobset)
    ctx, matcher, found = match(world)
    (pool,) = ctx.owned.values()
    assert matcher.why_not(ctx.slices[id_of(jobset)], pool) is Refusal.SIZE
    assert id_of(jobset) not in found.claimed.values()


#: Labels of a pool for one child Job.
FOR_A_JOB = {**make_pool(GONE).labels, constants.NAMESPACED_JOB: "default_late-slice-0"}


@pytest.mark.parametrize(
    ("pool", "early", "late"),
    [
        pytest.param(FLEX, {"marked": True}, {}, id="flex-start pool that grows only for unmarked pods"),
        pytest.param(
            make_pool(GONE, labels=FOR_A_JOB),
            {},
            {"requirements": selecting(**{constants.NAMESPACED_JOB: "default_late-slice-0"}).groups[0].template},
            id="pool for one child Job",
        ),
    ],
)
def test_slice_takes_a_pool_that_an_earlier_slice_with_the_same_fit_refuses(
    pool: NodePool, early: dict[str, Any], late: dict[str, Any]
) -> None:
    """In the past, both slices shared one search over the free pools, which skipped the pool for the earlier slice."""
    world = World()
    world.put_pool(pool)
    tolerant = {"requirements": make_requirements(tolerations=(Toleration(operator="Exists"),)), **early}
    for name, options in (("early", tolerant), ("late", late)):
        workload = make_jobset(name)
        world.add_with_pod(workload, **options)
    _, _, found = match(world)
    assert found.claimed == {pool.name: id_of(make_jobset("late"))}


def test_slice_takes_no_pool_that_fits_only_an_earlier_slice() -> None:
    """In the past, the later slice waited for nodes that the autoscaler adds only for pods without marks."""
    world = World(make_jobset("early"))
    world.put(FLEX, make_pool(make_jobset("gone-2"), capacity=CapacityKind.FLEX_START))
    late = make_jobset("late")
    world.add_with_pod(late, marked=True)
    _, _, found = match(world)
    assert list(found.claimed.values()) == [id_of(make_jobset("early"))]


def test_request_beyond_its_limit_leaves_a_free_pool_to_pods_with_equal_needs() -> None:
    """In the past, request and pods shared one search over the free pools, which skipped the pool for the request."""
    world = Asking(raw_request("req", 2), max_requested_chips_per_namespace=(("default", 4),))
    world.put_pool(make_pool(GONE))
    world.pass_time(60)
    world.add(make_jobset("train", created_at=world.now))
    ctx, _, found = match(world)
    assert len(ctx.slices) == 2
    assert list(found.claimed.values()) == [id_of(TRAIN)]


def _workload(number: int, drawn: dict[str, Any]) -> Workload:
    template = make_requirements(topology=drawn["topology"])
    return make_jobset(
        f"w{number}",
        namespace=drawn["namespace"],
        replicas=drawn["replicas"],
        parallelism={"2x2x1": 1, "2x2x2": 2}[drawn["topology"]],
        template=template,
        suspended=drawn["suspended"],
    )


_WORKLOADS = st.fixed_dictionaries(
    {
        "topology": st.sampled_from(["2x2x2", "2x2x2", "2x2x1"]),
        "namespace": st.sampled_from(["default", "default", "other"]),
        "replicas": st.integers(1, 2),
        "marked": st.booleans(),
        "selector": st.sampled_from([{}] * 7 + [{constants.HOSTNAME: "n"}]),
        "suspended": st.sampled_from([False, False, False, True]),
        "exists": st.sampled_from([True, True, True, False]),
        "pods": st.sampled_from(["wait", "wait", "wait", "none", "elsewhere"]),
        "sidelined": st.sampled_from([False] * 5 + [True]),
        "minutes": st.sampled_from([None, None, 5, 7]),
    }
)
_POOLS = st.fixed_dictionaries(
    {
        "owner": st.integers(0, 3),
        "job": st.integers(0, 1),
        "attempt": st.integers(0, 1),
        "zone": st.sampled_from(ZONES),
        "status": st.sampled_from([PoolStatus.RUNNING] * 4 + [PoolStatus.PROVISIONING, PoolStatus.ERROR]),
        "capacity": st.sampled_from([CapacityKind.ON_DEMAND] * 4 + [CapacityKind.FLEX_START]),
        "node": st.sampled_from(
            [{}, {}, {}, {"cordoned": True}, {"ready": False}, DOOMED, {"taints": (strange_taint(),)}]
        ),
        "bound": st.sampled_from([None] * 5 + [0, 1]),
        "last_user": st.sampled_from([None, None, 0, 1, 2, 3]),
        "counted": st.booleans(),
    }
)


def world_of(workloads: list[dict[str, Any]], pools: list[dict[str, Any]], settings_: Settings) -> World:
    made = [_workload(number, drawn) for number, drawn in enumerate(workloads)]
    world = World(settings_=settings_)
    slices: dict[SliceId, SliceMemory] = {}
    users: dict[Any, PoolMemory] = {}
    for workload, drawn in zip(made, workloads, strict=True):
        if drawn["exists"]:
            world.workloads[workload.uid] = workload
        for job in range(workload.groups[0].replicas if drawn["exists"] and drawn["pods"] != "none" else 0):
            node = "unknown" if drawn["pods"] == "elsewhere" else ""
            asked = make_requirements(topology=drawn["topology"], selector=drawn["selector"])
            world.put(make_pod(workload, job=job, node=node, marked=drawn["marked"], requirements=asked))
    for drawn in pools:
        owner = replace(made[drawn["owner"] % len(made)], suspended=False)
        job = drawn["job"] % owner.groups[0].replicas
        pool = make_pool(owner, job=job, attempt=drawn["attempt"], status=drawn["status"], capacity=drawn["capacity"])
        pool = replace(pool, zones=(Zone(drawn["zone"]),))
        world.put(pool, *(make_nodes(pool, **drawn["node"]) if pool.status is PoolStatus.RUNNING else ()))
        user = replace(made[(drawn["last_user"] or 0) % len(made)], suspended=False)
        if drawn["last_user"] is not None:
            users[pool.name] = PoolMemory(last_user=id_of(user))
        minutes = workloads[(drawn["last_user"] or 0) % len(made)]["minutes"]
        if drawn["counted"]:
            since = NOW - timedelta(minutes=minutes) if minutes is not None else None
            slices[id_of(user)] = SliceMemory(claim=Claim(pool=pool.name, since=since, has_pods=True))
        if drawn["bound"] is not None and world.nodes:
            world.put(make_pod(made[drawn["bound"] % len(made)], index=1, node=next(reversed(world.nodes))))
    world.memory = replace(world.memory, pools=users, slices=slices)
    return world


@given(
    st.lists(_WORKLOADS, min_size=2, max_size=4),
    st.lists(_POOLS, min_size=1, max_size=6),
    st.sampled_from(
        [
            {},
            {"keep_suspended": True},
            {"same_zone": True},
            {"max_chips_per_namespace": (("default", 12), ("other", 8))},
        ]
    ),
)
def test_pool_is_claimed_exactly_if_no_refusal_applies(
    workloads: list[dict[str, Any]], pools: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    world = world_of(workloads, pools, settings(**options))
    waiting_for_turn = [_workload(number, drawn).uid for number, drawn in enumerate(workloads) if drawn["sidelined"]]
    ctx, matcher, found = match(world, waiting_for_turn)
    for name, user in found.claimed.items():
        assert matcher.why_not(ctx.slices[user], ctx.owned[name]) is None
    # If a slice of another namespace takes a pool, the use of a limit decreases, and a refusal may no longer apply.
    if "max_chips_per_namespace" not in options:
        for slice_ in ctx.slices.values():
            if slice_.id not in found.held and slice_.id not in found.claimed.values():
                assert all(matcher.why_not(slice_, pool) is not None for pool in ctx.owned.values())
