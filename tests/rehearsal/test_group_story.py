"""The story of node groups, from what a cluster, a Compute Engine and a log show."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rehearsal.demos.groups import GroupStory
from tests.support.clock import FakeClock

GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
NAME = "default/slice"


@dataclass
class Machine:
    """A VM as the simulated Compute Engine shows it."""

    name: str
    status: str


@dataclass
class Compute:
    """The simulated Compute Engine, as far as the story looks at it."""

    machines: list[Machine] = field(default_factory=list)


@dataclass
class Stage:
    """Stands for the rehearsal and for the controller."""

    log: Path
    compute: Compute = field(default_factory=Compute)
    groups: list[dict[str, Any]] = field(default_factory=list)

    def objects(self, path: str, **_: str) -> list[dict[str, Any]]:
        """List a collection."""
        return self.groups if path == GROUPS else []

    def write(self, **record: Any) -> None:
        """Write a log line of the controller."""
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def show(self, *machines: tuple[str, bool], ready: str = "False", **metadata: str) -> None:
        """Show a group of two machines; of each its node, and whether that is ready."""
        listed = [{"name": f"m-{at}", "node": node, "ready": shown} for at, (node, shown) in enumerate(machines)]
        # Compute Engine says so once they all run.
        made = {"type": "ManagedInstanceGroupReady", "status": ready, "reason": "x"}
        reason = "Ready" if ready == "True" else "AwaitingNodeJoin"
        conditions = [made, {"type": "Ready", "status": ready, "reason": reason}]
        status = {"nodeCount": 2, "machines": listed, "conditions": conditions}
        self.groups = [{"metadata": {"namespace": "default", "name": "slice", **metadata}, "status": status}]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Give a cluster without groups."""
    return Stage(log=tmp_path / "log")


def test_a_group_comes_and_goes(stage: Stage) -> None:
    """Each thing is told once, and its time is taken."""
    clock = FakeClock()
    story = GroupStory(stage, stage, clock=clock)  # type: ignore[arg-type]
    assert list(story.advance()) == []
    assert not story.all_ready
    stage.show()
    assert list(story.advance()) == [f"TPUNodeGroup {NAME}: AwaitingNodeJoin"]
    clock.advance(3)
    stage.show(("", False), ("", False))
    stage.compute.machines = [Machine("m-0", "RUNNING"), Machine("m-1", "STAGING"), Machine("x", "RUNNING")]
    assert list(story.advance()) == [f"TPUNodeGroup {NAME}: 1 of 2 machines run"]
    clock.advance(2)
    stage.compute.machines[1].status = "RUNNING"
    assert list(story.advance()) == [f"TPUNodeGroup {NAME}: 2 of 2 machines run"]
    assert list(story.advance()) == []
    clock.advance(4)
    stage.show(("m-0", True), ("m-1", False))
    assert list(story.advance()) == [
        f"TPUNodeGroup {NAME}: 2 of 2 machines have joined the cluster",
        f"TPUNodeGroup {NAME}: 1 of 2 nodes are ready and show their chips",
    ]
    clock.advance(1)
    stage.show(("m-0", True), ("m-1", True), ready="True")
    assert list(story.advance()) == [
        f"TPUNodeGroup {NAME}: 2 of 2 nodes are ready and show their chips",
        f"TPUNodeGroup {NAME}: Ready",
    ]
    assert story.all_ready
    clock.advance(5)
    stage.show(("m-0", True), ("m-1", True), ready="True", deletionTimestamp="now")
    assert list(story.advance()) == []
    clock.advance(6)
    stage.groups = []
    assert list(story.advance()) == [f"TPUNodeGroup {NAME} is gone"]
    times = story.groups[NAME]
    steps = ("wanted", "made", "running", "joined", "ready", "deleting", "gone")
    assert [times.seconds(start, end) for start, end in pairwise(steps)] == [3, 2, 4, 1, 5, 6]
    assert times.seconds("wanted", "never") is None


@pytest.mark.parametrize(
    ("record", "line"),
    [
        pytest.param(
            {"event": "resource.create_accepted", "resource": "projects/p/global t-1", "object": "InstanceTemplate"},
            "requests instance template t-1 from Compute Engine",
            id="a request",
        ),
        pytest.param(
            {"event": "operation.done", "type": "DELETE", "resource": "projects/p p-1", "object": "WorkloadPolicy"},
            "workload policy p-1 is gone",
            id="the end of an operation",
        ),
        pytest.param(
            {
                "event": "node_group.notice",
                "kind": "TPUNodeGroup",
                "namespace": "a",
                "name": "b",
                "message": "node_group.notice: no room",
            },
            "on TPUNodeGroup a/b: no room",
            id="a notice",
        ),
        pytest.param(
            {"event": "round.crashed", "severity": "ERROR", "exception": "Traceback"},
            "controller: round.crashed: Traceback",
            id="an error",
        ),
        pytest.param({"event": "object.written", "severity": "INFO"}, None, id="what is of no interest"),
    ],
)
def test_what_the_log_says(stage: Stage, record: dict[str, Any], line: str | None) -> None:
    """In words for people."""
    story = GroupStory(stage, stage)  # type: ignore[arg-type]
    stage.write(**record)
    assert list(story.advance()) == ([line] if line is not None else [])
    assert list(story.advance()) == []


def test_the_token_of_a_machine_comes_and_goes(stage: Stage) -> None:
    """What is written later is of no interest."""
    story = GroupStory(stage, stage)  # type: ignore[arg-type]
    for _ in range(3):
        stage.write(event="machine.metadata_set", machine="gce://p/z/m-0")
    assert list(story.advance()) == [
        "machine m-0 gets a token of its own, to join with",
        "machine m-0 has joined: its token leaves its metadata",
    ]
