"""JobSets whose slices start together or not at all, on a real control plane with its scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from rehearsal.simulators.gke.faults import Fault, FaultKind
from tests.e2e.kit import Ground, told

pytestmark = pytest.mark.e2e

V5E: dict[str, Any] = {"accelerator": "tpu-v5-lite-podslice", "topology": "2x2", "replicas": 2}
TOGETHER = {constants.ALL_OR_NOTHING: "true", constants.CAPACITY: "flex-start"}


@pytest.fixture
def scarce(alone: Ground) -> Ground:
    """Give a GKE that has nodes for one of the two pools of each JobSet, until the faults are cleared."""
    alone.gke.set(scale_up_seconds=0.2)
    for name in ("one", "two"):
        alone.gke.inject(Fault(kind=FaultKind.STOCKOUT, capacity="flex-start", pool=f"{name}-.*", count=1))
    return alone


def bound(ground: Ground, name: str) -> list[str]:
    """Return the pods of a JobSet that the scheduler has put somewhere."""
    return [pod["metadata"]["name"] for pod in ground.pods_of(name) if pod["spec"].get("nodeName")]


def held(ground: Ground) -> list[str]:
    """Return the nodes with the taint."""
    nodes = ground.nodes()
    return [
        node["metadata"]["name"]
        for node in nodes
        if any(taint["key"] in constants.HELD_KEYS for taint in node["spec"].get("taints", ()))
    ]


def scheduler_says(ground: Ground, name: str) -> list[str]:
    """Return why the scheduler finds no node for the pods of a JobSet."""
    return [
        str(condition["message"])
        for pod in ground.pods_of(name)
        for condition in pod["status"].get("conditions", ())
        if condition.get("reason") == "Unschedulable"
    ]


def test_the_first_slice_waits_for_the_second(scarce: Ground) -> None:
    """The slice that is there keeps its taint and no pod until the other is there, too; then both run."""
    scarce.provisioner()
    scarce.apply("one", **V5E, annotations=TOGETHER, run_for="1h")
    scarce.wait(lambda: told(scarce, constants.HELD_FOR_OTHERS, "one"), "one slice is ready and held")
    (words,) = told(scarce, constants.HELD_FOR_OTHERS, "one")
    assert "is held until all slices of the JobSet are ready: 1 of 2 are ready" in words
    assert len(held(scarce)) == len(scarce.nodes()) == 1
    scarce.wait(lambda: told(scarce, constants.NOT_SEPARATE, "one"), "it is told that others' pods fit its nodes, too")
    scarce.wait(
        lambda: any("untolerated taint" in message for message in scheduler_says(scarce, "one")),
        "a taint keeps the scheduler from its nodes",
    )
    assert bound(scarce, "one") == []
    scarce.gke.clear()
    scarce.wait(lambda: scarce.runs("one", pods=2), "both slices run")
    assert held(scarce) == []
    assert (scarce.accepted("nodePools.create"), scarce.accepted("nodePools.delete")) == (2, 0)
