"""One JobSet that GKE refuses for ever, and later ones of the same accelerator: they get what they ask for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from provisioner import constants
from rehearsal.demos import Rehearsal
from rehearsal.simulators.gke.faults import Fault, FaultKind
from tests.e2e.conftest import Shared, own_ground
from tests.e2e.kit import Ground, told

pytestmark = pytest.mark.e2e

#: Within which later JobSets run, from when the first of them is applied.
RUNS_WITHIN_SECONDS = 60.0
#: A missing permission is asked for again after a minute.
REFUSED_TWICE_SECONDS = 150.0
#: More often than anything is tried here: what is left of it tells how often a fault has struck.
FOR_EVER = 1_000_000
FULL = "Reservation does not have enough resources for the request"
FROM_RESERVATION = {constants.CAPACITY: "reservation/r1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A refusal of one shape, whose JobSet is there first, and a smaller one of the same machine type."""

    fault: Fault
    #: What GKE says.
    words: str
    elder: Mapping[str, Any]
    later: Mapping[str, Any]


#: Of shapes whose back-off, which outlives a provisioner, is in no other test's way.
CASES = {
    "forbidden": Case(
        fault=Fault(
            kind=FaultKind.HTTP_ERROR,
            method="nodePools.create",
            code=403,
            message="The caller does not have permission",
            machine_type="ct4p-hightpu-4t",
            topology="2x4x4",
        ),
        words="The caller does not have permission",
        elder={"topology": "2x4x4", "parallelism": 8},
        later={"topology": "2x2x1"},
    ),
    "full": Case(
        # Answered with the reason rateLimitExceeded.
        fault=Fault(
            kind=FaultKind.HTTP_ERROR,
            method="nodePools.create",
            code=429,
            message=FULL,
            machine_type="ct5p-hightpu-4t",
            topology="2x2x4",
            reservation="r1",
        ),
        words=FULL,
        elder={
            "accelerator": "tpu-v5p-slice",
            "topology": "2x2x4",
            "parallelism": 4,
            "annotations": FROM_RESERVATION,
        },
        later={"accelerator": "tpu-v5p-slice", "topology": "2x2x1", "annotations": FROM_RESERVATION},
    ),
    "sold-out": Case(
        fault=Fault(
            kind=FaultKind.STOCKOUT,
            machine_type="ct5lp-hightpu-4t",
            topology="4x8",
            after_seconds=0.5,
        ),
        words="does not have enough resources available to fulfill the request",
        elder={"accelerator": "tpu-v5-lite-podslice", "topology": "4x8", "parallelism": 8},
        later={"accelerator": "tpu-v5-lite-podslice", "topology": "2x2"},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Where the oldest JobSet of each case is refused, and has been more than once."""

    ground: Ground
    #: The fault of each case.
    faults: Mapping[str, str]

    def times(self, case: str) -> int:
        """Return how often the oldest JobSet of a case has been refused."""
        (fault,) = (each for each in self.ground.gke.world.faults.all() if each.fault_id == self.faults[case])
        return FOR_EVER - (fault.count or 0)


@pytest.fixture(scope="class")
def refused(rehearsal: Rehearsal, shared: Shared) -> Iterator[Refused]:
    """Let the oldest JobSet of each case be refused twice; all wait at once, or the test would take minutes."""
    shared.stop()
    with own_ground(rehearsal, shared) as ground:
        faults = {name: ground.gke.inject(replace(case.fault, count=FOR_EVER)) for name, case in CASES.items()}
        refused = Refused(ground=ground, faults=faults)
        ground.provisioner()
        for name, case in CASES.items():
            ground.apply(f"{name}-elder", **case.elder, run_for="1h")
        for name in CASES:
            ground.wait(
                lambda name=name: refused.times(name) >= 2, f"{name}-elder is refused twice", REFUSED_TWICE_SECONDS
            )
        yield refused


class TestRefusedForEver:
    """The cases share a world; each has an accelerator of its own, and the oldest of all are refused all along."""

    @pytest.mark.parametrize("name", CASES)
    def test_three_later_ones_run_within_a_minute(self, refused: Refused, name: str) -> None:
        """They neither wait for the older one's turn nor get nothing because it was refused."""
        ground, case = refused.ground, CASES[name]
        later = [f"{name}-{index}" for index in range(3)]
        applied = time.monotonic()
        for each in later:
            ground.apply(each, **case.later, run_for="1h")
        ground.wait(
            lambda: all(ground.runs(each) for each in later),
            "the later ones run",
            RUNS_WITHIN_SECONDS - (time.monotonic() - applied),
        )
        # JobSet makes the other pods only once the leader has a node.
        assert ground.phases(f"{name}-elder") == {"Pending": 1}
        assert refused.times(name) >= 2

    @pytest.mark.parametrize("name", CASES)
    def test_the_refused_one_is_told(self, refused: Refused, name: str) -> None:
        """In GKE's words."""
        ground = refused.ground
        ground.wait(lambda: told(ground, constants.CREATION_WAITING, f"{name}-elder"), "it is told")
        assert CASES[name].words in told(ground, constants.CREATION_WAITING, f"{name}-elder")[-1]
