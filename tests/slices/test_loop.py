"""Tests of the loop, one round at a time: failed lists and watches, hints, Events, and changes of the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from provisioner import constants
from provisioner.kube import errors
from provisioner.kube.protocol import object_path
from provisioner.model.capacity import FailureKind, NodePool, PoolName
from provisioner.model.workloads import WorkloadKind
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.memory import answers
from provisioner.slices.planning.memory.state import Memory
from provisioner.workloads import KINDS
from tests.support.controller import FakeWatch, Told, World
from tests.support.models import make_lws, make_slice, pool_request
from tests.support.settings import settings

HINTS = object_path("configmaps", constants.HINTS_CONFIGMAP_NAME, namespace="tpu-provisioner-system")


@pytest.fixture
def world() -> World:
    return World()


def test_failed_list_of_pools_prevents_creates_until_it_succeeds(world: World) -> None:
    world.gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE, message="GKE is down")
    world.put_jobset()
    world.round()
    assert any("GKE is down" in problem for problem in world.loop.problems())
    world.rounds(20, every_seconds=3)
    assert world.gke.counts()["create_node_pool"] == 0
    world.gke.heal()
    world.round(after_seconds=31)
    assert world.gke.counts()["create_node_pool"] == 1
    assert world.loop.problems() == ()


def _not_synced(world: World) -> None:
    world.jobsets.synced = False
    world.jobsets.problem = "the JobSet CRD is not installed"


def _silent(world: World) -> None:
    world.pods.silent = True


def _no_nodes(world: World) -> None:
    world.nodes.synced = False


@pytest.mark.parametrize(
    ("spoil", "want"),
    [
        pytest.param(_not_synced, "the JobSet CRD is not installed", id="the JobSets are not listed"),
        pytest.param(_silent, "nothing was received about the pods", id="the pods' watch is silent"),
        pytest.param(_no_nodes, "the nodes are not listed yet", id="the nodes are not listed"),
    ],
)
def test_unreliable_watch_prevents_decisions_and_is_reported(
    world: World, spoil: Callable[[World], None], want: str
) -> None:
    world.run_to_use()
    world.put_jobset("second")
    world.vanish()
    spoil(world)
    memory = world.loop.memory
    world.rounds(10, every_seconds=15)
    assert len(world.gke.names_of("create_node_pool")) == 1
    assert world.gke.names_of("delete_node_pool") == []
    assert world.loop.memory.pools == memory.pools
    assert any(want in problem for problem in world.loop.problems())
    # The status page shows the problem above the last decision.
    document = world.board.document()
    assert any(want in problem for problem in document.problems)
    assert document.view is not None
    assert document.stalled
    for watch in (world.jobsets, world.pods, world.nodes):
        watch.synced, watch.silent, watch.problem = True, False, None
    world.round(after_seconds=1)
    assert world.loop.problems() == ()


@pytest.mark.parametrize("leading", [True, False], ids=["by the leader", "not by a follower"])
def test_hints_are_written_at_shutdown_only_by_the_leader(world: World, *, leading: bool) -> None:
    """An orderly shutdown saves the newest hints. A process that lost the Lease must not overwrite newer hints."""
    world.run_to_use()
    world.complete()
    world.round(after_seconds=0.1)
    before = world.calls("PUT") + world.calls("POST")
    world.leading = leading
    world.stopping.set()
    world.loop.run()
    assert leading or world.calls("PUT") + world.calls("POST") == before
    raw = world.kube.object(HINTS)
    assert not leading or (raw is not None and "train-" in raw["data"]["idle-since"])


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(errors.Unavailable("down", status=503), id="API server down"),
        pytest.param(errors.Forbidden("no", status=403), id="right missing"),
    ],
)
def test_restart_decides_nothing_until_the_hints_are_read(error: errors.ClusterError) -> None:
    """In the past, one 503 at a restart lost the count for MAX_CREATES_PER_HOUR: 4 pools were created instead of 2."""
    world = World(max_creates_per_hour=2)
    for name in ("one", "two"):
        world.put_jobset(name)
        world.round(after_seconds=3)
    world.finish_creates()
    world.rounds(3, every_seconds=5)
    before = world.kube.object(HINTS)
    world.kube.fail("GET", constants.HINTS_CONFIGMAP_NAME, error, times=3)
    world.start()
    world.put_jobset("three")
    world.rounds(3, every_seconds=3)
    assert world.kube.object(HINTS) == before
    (problem,) = world.loop.problems()
    assert constants.HINTS_CONFIGMAP_NAME in problem
    assert str(error) in problem
    assert world.metrics.registry.get_sample_value("tpu_provisioner_source_unknown", {"source": "hints"}) == 1
    world.rounds(5, every_seconds=5)
    assert world.loop.problems() == ()
    assert world.metrics.registry.get_sample_value("tpu_provisioner_source_unknown", {"source": "hints"}) == 0
    assert len(world.gke.names_of("create_node_pool")) == 2
    assert EventReason.LIMIT_REACHED in world.recorder.reasons("JobSet")


@pytest.mark.timeout(120)  # 60 pools for many rounds
@pytest.mark.parametrize("count", [1, 10, 60])
def test_calls_to_gke_do_not_grow_with_the_number_of_pools(world: World, count: int) -> None:
    for index in range(count):
        world.put_jobset(f"train-{index}")
    world.rounds(2, every_seconds=0.1)
    assert world.gke.counts()["create_node_pool"] == count
    before = len(world.gke.calls)
    world.rounds(10, every_seconds=2.5)
    assert len(world.gke.calls) - before == 10
    world.finish_creates()
    world.rounds(2, every_seconds=2.5)
    before = len(world.gke.calls)
    world.rounds(40, every_seconds=2.5)
    assert len(world.gke.calls) - before <= 3


def test_crash_on_one_answer_does_not_affect_other_answers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call whose answer was dropped counts as lost after a minute, and GKE is asked for its outcome."""
    real, refused = answers.fold, ""

    def choosy(memory: Memory, answer: answers.Answer, pools: Mapping[PoolName, NodePool]) -> Memory:
        nonlocal refused
        refused = refused or repr(answer)
        if repr(answer) == refused:
            raise TypeError("a mistake")
        return real(memory, answer, pools)

    monkeypatch.setattr(answers, "fold", choosy)
    world.put_jobset("train")
    world.put_jobset("tune")
    with capture_logs() as logs:
        world.rounds(40, every_seconds=3)
    assert {line["answer"][:100] for line in logs if line["event"] == "answer.crashed"} == {refused[:100]}
    assert not [line for line in logs if line["event"] == "round.crashed"]
    assert len(world.gke.names_of("create_node_pool")) == 2
    assert len(world.loop.memory.coming_up) == 2


def gke_is_away() -> World:
    world = World()
    world.gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE, message="GKE is down")
    return world


def told(world: World) -> list[Told]:
    return [event for event in world.recorder.told if event.reason == EventReason.NOT_READY]


def test_long_outage_of_gke_is_reported_on_waiting_pod_and_jobset() -> None:
    """The pod gets an Event because some users look at the pod first. Problems of less than a minute cause no Event."""
    world = gke_is_away()
    world.put_jobset()
    world.rounds(5, every_seconds=10)
    assert told(world) == []
    world.rounds(5, every_seconds=10)
    assert [event.ref.kind for event in told(world)] == ["Pod", "JobSet"]
    assert all("GKE is down" in event.message and event.kind == "Warning" for event in told(world))
    # The Events are repeated like other Events, about every five minutes.
    world.rounds(60, every_seconds=10)
    assert 4 <= len(told(world)) <= 8


def test_outage_of_gke_is_not_reported_on_pods_that_run() -> None:
    world = World()
    world.run_to_use()
    world.gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE, message="GKE is down")
    world.rounds(20, every_seconds=10)
    assert told(world) == []


def test_outage_of_gke_is_not_reported_while_the_pod_watch_is_silent() -> None:
    world = gke_is_away()
    world.put_jobset()
    world.pods.silent = True
    world.rounds(20, every_seconds=10)
    assert told(world) == []


BOTH_WAYS = pytest.mark.parametrize(
    "by",
    [
        pytest.param(timedelta(hours=-2), id="set back by two hours"),
        pytest.param(timedelta(hours=2), id="set forward by two hours"),
    ],
)


class SetClock:
    """Replaces the time of day of a world by a time that differs by `by`; the monotonic clock is not changed."""

    def __init__(self, world: World) -> None:
        self._now = world.clock.now
        self.by = timedelta()
        world.clock.now = lambda: self._now() + self.by  # type: ignore[method-assign]


@BOTH_WAYS
def test_times_are_shifted_once_if_the_clock_is_set_during_a_round(by: timedelta) -> None:
    """Times that a round records by the new clock must not be shifted again in the next round."""
    world = World()
    clock = SetClock(world)
    loop = world.start()
    load = loop.store.load

    def load_meanwhile() -> dict[str, str]:
        clock.by = by
        return load()

    loop.store.load = load_meanwhile  # type: ignore[method-assign]
    world.round()
    assert clock.by == by
    world.round(after_seconds=3)
    assert 0.0 <= loop.pools.age_seconds(world.clock.now()) <= 60.0


@BOTH_WAYS
def test_back_off_of_an_answer_before_a_clock_change_keeps_its_length(by: timedelta) -> None:
    world = World()
    clock = SetClock(world)
    world.start()
    world.gke.fail_always("create_node_pool", FailureKind.PERMISSION)
    world.put_jobset()
    world.round()
    clock.by = by
    world.rounds(4, every_seconds=10)
    assert world.gke.counts()["create_node_pool"] == 1
    world.rounds(4, every_seconds=10)
    assert world.gke.counts()["create_node_pool"] == 2


def test_times_before_the_next_follow_use_the_old_clock() -> None:
    """`follow` returns the change of the clock, by which the loop then shifts all earlier times."""
    world = World()
    clock = SetClock(world)
    before = world.time()
    clock.by = timedelta(hours=2)
    assert world.time() == before
    assert world.time.follow() == timedelta(hours=2)
    assert world.time() == before + timedelta(hours=2)
    assert world.time.follow() == timedelta()


def test_pool_of_a_kind_without_crd_is_deleted_after_a_day() -> None:
    """Uninstalling LeaderWorkerSet deletes its objects and pods, so no later change causes deletes of the pools."""
    world, kind = World(), KINDS[WorkloadKind.LEADER_WORKER_SET]
    serve = make_lws("serve", namespace="research")
    sets = FakeWatch(lambda: {("research", "serve"): serve})
    world.watches = replace(world.watches, workloads={**world.watches.workloads, kind.kind: sets})
    world.start()
    request = pool_request(make_slice(serve), settings(), 0)
    world.gke.create_node_pool(request)
    world.gke.finish_create(request.name)
    world.put_nodes(request.name)
    world.kube.uninstall(kind.root)
    sets.synced, sets.missing, sets.problem = False, True, "there are no LeaderWorkerSets (404)"
    sets.absent_seconds = 86_000.0
    world.rounds(6, every_seconds=300)
    assert world.gke.names_of("delete_node_pool") == []
    sets.absent_seconds = 87_000.0
    world.rounds(6, every_seconds=300)
    assert world.gke.names_of("delete_node_pool") == [request.name]
    assert world.loop.last_plan is not None
    assert world.loop.last_plan.alerts == ()
