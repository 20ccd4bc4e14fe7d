"""The whole controller of node groups, step by step: from an object to nodes, and to an empty cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from provisioner.kube.errors import Forbidden
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.statuses import ConditionType, condition_of
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.planning import memory
from provisioner.nodegroups.planning.actions import Call, CallAnswer
from provisioner.nodegroups.planning.memory import ResourceMemory
from tests.support.nodegroup_controller import World

_HOUR = 3600.0


@pytest.fixture
def world() -> World:
    world = World()
    world.put_group()
    return world


@pytest.fixture
def ready(world: World) -> World:
    world.run(world.is_ready)
    for _ in range(20):
        world.round(after_seconds=1)
    return world


def test_answer_whose_processing_raises_does_not_affect_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call without a recorded answer counts as lost after 60 s, and is repeated even if recording the loss raises."""
    real = memory._of_resource

    def choosy(known: ResourceMemory, call: Call, answer: CallAnswer) -> ResourceMemory:
        if call.target.kind is Kind.WORKLOAD_POLICY:
            raise ValueError
        return real(known, call, answer)

    monkeypatch.setattr(memory, "_of_resource", choosy)
    with capture_logs() as logs:
        world.run(lambda: any(name.startswith("template") for name in world.resources()), seconds=300)
        world.run(lambda: world.clock.seconds > 1600, seconds=900)
    crashed = [line for line in logs if line["event"] == "answer.crashed"]
    assert all(line["answer"].startswith("AnsweredCall(call=Read(") for line in crashed)
    assert 5 <= len(crashed) <= 12
    assert not [line for line in logs if line["event"] == "round.crashed"]
    monkeypatch.undo()
    world.run(world.is_ready)


def test_follower_does_not_read_or_write(world: World) -> None:
    world.leading = False
    assert world.round() == 15.0
    assert (world.wire.sent, world.writes(), world.loop.problems()) == ([], [], ())
    assert world.loop.cluster.cluster is None


@pytest.mark.parametrize("name", ["groups", "managers", "nodes", "pods", "tokens"])
def test_nothing_is_decided_while_a_watch_is_stale(world: World, name: str) -> None:
    world.run(world.is_ready)
    getattr(world.watches, name).silent = True
    memory = world.loop.memory
    world.kube.delete(world.path())
    changes, writes = world.changes(), world.writes()
    for _ in range(5):
        world.round(after_seconds=10)
    assert (world.changes(), world.writes()) == (changes, writes)
    assert world.loop.memory.resources.keys() == memory.resources.keys()
    assert len(world.loop.problems()) == 1
    getattr(world.watches, name).silent = False
    world.run(world.is_gone)


@pytest.mark.parametrize("hours", [-2, 2])
def test_group_becomes_ready_although_the_clock_is_set(world: World, hours: int) -> None:
    """All times in the memory are shifted by the same amount as the clock."""
    for _ in range(8):
        world.round(after_seconds=0.5)
    before = world.clock.now
    world.clock.now = lambda: before() + timedelta(hours=hours)  # type: ignore[method-assign]
    with capture_logs() as logs:
        world.run(world.is_ready, seconds=900)
    assert [line["by_seconds"] for line in logs if line["event"] == "clock.set"] == [hours * _HOUR]


@pytest.mark.parametrize("kind", list(names.CHILD_FINALIZERS))
def test_rejected_create_of_a_child_is_reported_with_its_reason(world: World, kind: Kind) -> None:
    words = f"{kind.plural} is forbidden: exceeded quota: objects"
    world.kube.fail("POST", f"/{kind.plural}", Forbidden(words, status=403), times=1000)

    def told() -> str:
        ready = condition_of(world.group().status.conditions, ConditionType.READY)
        return ready.message if ready is not None else ""

    world.run(lambda: words in told())
    assert f". {kind} slice-" in told()
    world.kube.clear_faults()
    world.run(world.is_ready)


def test_tokens_are_not_logged(world: World) -> None:
    drawn: set[str] = set()
    original = world.kube.post

    def post(path: str, body: dict[str, object], **parts: object) -> dict[str, object]:
        texts = body.get("stringData")
        if isinstance(texts, dict):
            drawn.add(str(texts["token-secret"]))
        return original(path, body, **parts)

    world.kube.post = post  # type: ignore[method-assign,assignment]
    with capture_logs() as logs:
        world.run(world.is_ready)
    assert len(drawn) == 4
    assert not any(secret in str(logs) for secret in drawn)


def test_metrics_have_groups_nodes_and_open_calls(ready: World) -> None:
    text = ready.metrics.exposition().decode()
    for line in (
        'groups{reason="Ready"} 1.0',
        'nodes{state="ready"} 4.0',
        "nodes_wanted 4.0",
        'open{sort="call"} 0.0',
        'writes_total{result="ok",write="create_token"} 4.0',
        'compute_requests_total{code="200",method="insert_manager"} 1.0',
        "cluster_known 1.0",
        "leader 1.0",
        'watch_synced{resource="nodes"} 1.0',
    ):
        assert f"tpu_provisioner_nodegroups_{line}" in text, line


def actions_of(logs: list[Any]) -> list[str]:
    """Return the changes that the log names as omitted; fail if one is logged twice."""
    actions = [line["action"] for line in logs if line["event"] == "dry_run.would"]
    assert len(actions) == len(set(actions))
    return actions


def quiet(logs: list[Any]) -> bool:
    return not {line["event"] for line in logs} - {"dry_run.would"}


def test_dry_run_changes_nothing_and_logs_the_first_step_of_a_group() -> None:
    """Further steps would depend on omitted changes."""
    world = World(dry_run=True)
    world.put_group()
    with capture_logs() as logs:
        for _ in range(100):
            world.round(after_seconds=5)
    assert (world.changes(), world.writes(), world.recorder.told) == ([], [], [])
    assert quiet(logs)
    assert actions_of(logs) == ["set finalizers: TPUNodeGroup research/slice"]


def test_dry_run_with_an_existing_group_reads_and_changes_nothing(ready: World) -> None:
    """Without the dry run, the deleted group would lose its machines."""
    ready.dry_run = True
    ready.start()
    ready.kube.delete(ready.path())
    ready.wire.sent.clear()
    before = len(ready.writes())
    with capture_logs() as logs:
        for _ in range(20):
            ready.round(after_seconds=10)
    assert (ready.changes(), ready.writes()[before:]) == ([], [])
    assert ready.wire.sent != []
    assert quiet(logs)
    (manager,) = ready.state()[Kind.MANAGED_INSTANCE_GROUP.plural]
    assert actions_of(logs) == [f"delete child: ManagedInstanceGroup research/{manager}"]
