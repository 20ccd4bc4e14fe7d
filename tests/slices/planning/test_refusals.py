"""Tests of the reasons for which a slice does not count on a pool: each reason, and that they agree with the claims."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import CapacityKind, NodePool, PoolStatus, Taint
from provisioner.model.workloads import Workload, WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning import match as matching
from provisioner.slices.planning.contention.limits import Budget
from provisioner.slices.planning.contention.line import CREATES, in_line, unit_of
from provisioner.slices.planning.match import Matcher, Matching
from provisioner.slices.planning.memory.state import Claim, SliceMemory
from provisioner.slices.planning.refusals import Refusal
from provisioner.slices.planning.round import NOT_DERIVED, Round, Supply, begin_round
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.slices.planning.test_asks import Asking
from tests.support.clock import NOW
from tests.support.models import (
    make_jobset,
    make_node,
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
    """Fails if a pass claims a pool although `why_not` returns a reason."""

    claims = 0

    def _claim(self, slice_: Slice, pool: Supply) -> None:
        assert self.why_not(slice_, pool) is None
        super()._claim(slice_, pool)
        CheckedMatcher.claims += 1


def match(world: World, sidelined: Collection[WorkloadUid] = ()) -> tuple[Round, Matcher, Matching]:
    """Match the slices and pools of a world, and check each claim."""
    ctx = begin_round(world.snapshot(), world.memory, world.settings, GKE_RULES, world.now, NOT_DERIVED)
    line = in_line(CREATES, [unit_of(each, world.now) for each in ctx.slices.values() if each.pending], {})
    matcher = CheckedMatcher(ctx, Budget.of(ctx), line, sidelined)
    return ctx, matcher, matcher.run(lambda _slice: None)


def id_of(workload: Workload, job: int = 0) -> SliceId:
    """Return the id of one slice of a JobSet."""
    return make_slice(workload, job=job).id


# --- Each reason ---

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
    """Return JobSet train whose pods select further labels."""
    return make_jobset("train", template=make_requirements(selector=selector))


OTHER_SETTINGS = {**make_pool(GONE).labels, constants.POOL_OWN_SETTINGS: "0123456789abcdef"}
#: Change of a node whose host is taken down for maintenance.
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
    pool, slice_ = ctx.supply[next(iter(world.pools))], ctx.slices[id_of(TRAIN)]
    assert matcher.why_not(slice_, pool) is refusal
    assert found.claimed.get(pool.name) != slice_.id


def test_slice_may_count_on_a_pool_that_fits_and_on_its_claim() -> None:
    world = lend()
    ctx, matcher, found = match(world)
    (pool,) = ctx.supply.values()
    assert found.claimed == {pool.name: id_of(TRAIN)}
    assert matcher.why_not(ctx.slices[id_of(TRAIN)], pool) is None


def test_workload_that_waits_for_its_turn_refuses_every_pool() -> None:
    ctx, matcher, found = match(lend(), [TRAIN.uid])
    (pool,) = ctx.supply.values()
    assert matcher.why_not(ctx.slices[id_of(TRAIN)], pool) is Refusal.TURN
    assert found.claimed == {}


def test_every_refusal_has_a_case() -> None:
    """A reason that no test produces may be unreachable."""
    (mark,) = (each for each in test_waiting_slice_refuses_a_pool_for_one_reason.pytestmark)  # type: ignore[attr-defined]
    cases = {case.values[1] for case in mark.args[1]}
    assert cases | {Refusal.TURN} == {*Refusal}


# --- Agreement with the claims ---


def test_pools_of_a_request_are_handed_over_only_without_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Asking(raw_request("req", 4, 2))
    world.run(2)
    world.finish_creates()
    world.run(3)
    jobset = world.consume("req", 3)
    monkeypatch.setattr(matching, "Matcher", CheckedMatcher)
    world.run(2)
    ctx, matcher, found = match(world)
    ids = [id_of(jobset, job) for job in range(3)]
    assert sorted(found.claimed.values()) == sorted(ids)
    assert all(matcher.why_not(ctx.slices[user], ctx.supply[name]) is None for name, user in found.claimed.items())


def test_pools_of_a_request_are_not_handed_to_pods_that_do_not_fit() -> None:
    world = Asking(raw_request("req", 2))
    world.run(2)
    world.finish_creates()
    world.run(3)
    other = make_requirements(topology="2x2x1", tolerations=(), annotations={constants.CONSUMES_REQUEST: "req"})
    jobset = make_jobset("other", parallelism=1, template=other)
    world.add(jobset)
    ctx, matcher, found = match(world)
    (pool,) = ctx.supply.values()
    assert matcher.why_not(ctx.slices[id_of(jobset)], pool) is Refusal.SIZE
    assert id_of(jobset) not in found.claimed.values()
