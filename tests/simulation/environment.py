"""Causes outside the provisioner for which GKE rejects creates: a permission, a policy, a network and others.

The cause in `Environment` is corrected after some time; then the create of each rejected slice is sent again after the
back-off of its failure. `Singled` rejects one JobSet permanently. All other slices must still be served.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from provisioner import constants
from rehearsal.simulators.gke.faults import Fault, FaultKind
from tests.simulation.calls import Trouble, says
from tests.simulation.cloud import ZONE

if TYPE_CHECKING:
    from tests.simulation.objects import Shape
    from tests.simulation.run import Simulation

_CHANCE = 0.25
#: Probability that the rejected JobSets come after the storm instead of during the storm.
_LATE_CHANCE = 0.4
_ACCOUNT = "training@project-1.iam.gserviceaccount.com"
#: The only cause that GKE reports as a missing permission; it reports all other causes as invalid requests.
_FORBIDDEN = "service account forbidden"
#: State of the service account in the simulated GKE, by cause.
_ACCOUNTS = {_FORBIDDEN: "forbidden", "service account missing": "missing"}
#: Responses to every create in one zone, by cause. The last two texts are invented.
_ANSWERS = {
    "policy of the organisation": says(
        412, f"Constraint constraints/gcp.resourceLocations violated for projects/project-1: {ZONE} is not allowed."
    ),
    "policy of the organisation, plain": says(400, f"Operation denied by org policy: {ZONE} is not allowed."),
    "network": says(400, "Network projects/project-1/global/networks/default has no subnetwork in this region."),
}
#: Minimum and maximum seconds until the cause of rejections is corrected: for accounts, and for other causes.
_LASTING_SECONDS = ((5.0, 40.0), (5.0, 300.0))
#: Maximum seconds until a create is sent again: the maximum back-off after a missing permission, and a margin.
_ASKED_AGAIN_SECONDS = 600.0 + 80.0
#: Maximum seconds until a create that GKE calls invalid is sent again: the first back-off, and a margin.
_SENT_AGAIN_SECONDS = 900.0 + 80.0
_SINGLED_CHANCE = 0.3
_STOCKOUT, _OPERATIONS = "stockout", "singled out: operations"
#: Responses to the creates of the JobSet whose creates all fail, by kind of fault.
_SINGLED_ANSWERS = {
    "singled out: permission": says(403, 'Required "container.clusters.update" permission(s).'),
    "singled out: rate limit": says(429, "Quota exceeded for quota metric 'API requests'."),
    _OPERATIONS: says(429, "Too many operations: cluster hits the concurrent operations quota 5."),
    "singled out: in the way": says(400, "Cluster is running incompatible operation.", status="FAILED_PRECONDITION"),
    "singled out: quota": says(
        403, "Insufficient regional quota to satisfy request: resource 'TPUS'.", of_capacity=True
    ),
    "singled out: reservation": says(
        429, "Reservation does not have enough resources for the request.", of_capacity=True
    ),
    "singled out: invalid": says(400, "Machine type x is not supported."),
    "singled out: outage": says(503, "The service is currently unavailable."),
}
#: A missing permission is drawn more often: its long back-off shows whether other JobSets wrongly share it.
_LONG = ("singled out: permission",) * 3


class Environment:
    """Cause for which GKE rejects creates in one run until the cause is corrected."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._stage = stage = simulation.stage
        self.rng = rng = random.Random(f"refused for a while {stage.seed}")
        self._kind = rng.choice((*_ACCOUNTS, *_ANSWERS)) if rng.random() < _CHANCE else ""
        if simulation.hostile.present:
            self._kind = ""
        self.late = bool(self._kind) and rng.random() < _LATE_CHANCE
        self._name = "late-1" if self.late else f"train-{rng.randint(1, 2)}"
        self._since = simulation.storm_seconds if self.late else rng.uniform(0.0, 30.0)
        self._met = False
        self.mended = False
        #: Seconds after the correction within which a rejected create must be sent again.
        self.again_within_seconds = _ASKED_AGAIN_SECONDS if self._kind == _FORBIDDEN else _SENT_AGAIN_SECONDS

    def begin(self) -> None:
        if self._kind in _ACCOUNTS:
            self._use_account(_ACCOUNTS[self._kind])

    def account_of(self, name: str) -> str:
        """Return the service account that the pods of a JobSet request, empty for the default."""
        return _ACCOUNT if self._kind in _ACCOUNTS and name == self._name else ""

    def concerns(self, body: dict[str, Any]) -> bool:
        """Whether GKE rejects a create now for the cause of this run."""
        if not self._kind or self.mended or self._stage.agenda.now < self._since:
            return False
        pool = body["nodePool"]
        if self._kind in _ACCOUNTS:
            return bool(pool["config"].get("serviceAccount") == _ACCOUNT)
        return bool(pool["locations"][0] == ZONE)

    def answer(self, body: dict[str, Any]) -> Trouble | None:
        """Return the rejection of a create for the run's cause; None for other creates and for service accounts."""
        if not self.concerns(body):
            return None
        self._stage.fault(self._kind, "%s", body["nodePool"]["config"]["labels"].get(constants.POOL_JOBSET_NAME))
        if not self._met:
            self._met = True
            self._stage.agenda.after(self.rng.uniform(*_LASTING_SECONDS[self._kind in _ANSWERS]), self._mend)
        self._simulation.checker.waiting.refused_for_a_while(body)
        return _ANSWERS.get(self._kind)

    def _mend(self) -> None:
        self.mended = True
        self._stage.note("somebody", "mends what was wrong: %s", self._kind)
        if self._kind in _ACCOUNTS:
            self._use_account(None)

    def _use_account(self, state: str | None) -> None:
        states = {_ACCOUNT: state} if state is not None else {}
        self._simulation.cloud.world.change_settings({"service_accounts": states})


class Singled:
    """JobSet whose creates all fail, in some runs; all other JobSets must still be served."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._stage = stage = simulation.stage
        #: Name of the JobSet, also after it is recreated; empty if the run has no such JobSet.
        self.name = f"train-{stage.rng.randint(1, 3)}" if stage.chance(_SINGLED_CHANCE) else ""
        # With several choices of capacity, a stockout would let the slice try each choice repeatedly and never settle.
        kinds = (*_SINGLED_ANSWERS, *_LONG, *(() if simulation.market.choices else (_STOCKOUT,)))
        self._kind = stage.rng.choice(kinds)
        #: Whether GKE has received a create of the JobSet.
        self.met = False

    def begin(self) -> None:
        if self.name and self._kind == _STOCKOUT:
            pattern = rf"{self.name}-[0-9a-f]{{10}}"
            self._simulation.cloud.world.faults.add(Fault(kind=FaultKind.STOCKOUT, pool=pattern, after_seconds=5.0))

    @property
    def of_capacity(self) -> bool:
        """Whether the creates of the JobSet fail because the capacity is out of stock or exceeds a quota."""
        answer = _SINGLED_ANSWERS.get(self._kind)
        return bool(self.name) and (answer is None or answer.of_capacity)

    def outranks(self, priority: int, shape: Shape) -> bool:
        """Whether the JobSet has a higher priority than a slice, and its creates delay all creates of the slice."""
        return any(
            run.name == self.name and run.alive and run.priority > priority
            for run in self._simulation.cluster.workloads.values()
            if self._kind == _OPERATIONS or (self.of_capacity and run.shape.topology == shape.topology)
        )

    def concerns(self, labels: dict[str, Any]) -> bool:
        return bool(self.name) and labels.get(constants.POOL_JOBSET_NAME) == self.name

    def answer(self, body: dict[str, Any]) -> Trouble | None:
        """Return GKE's rejection of a create; None for other JobSets, and if the fault is a stockout."""
        if not self.concerns(body["nodePool"]["config"]["labels"]):
            return None
        self.met = True
        if self._kind == _STOCKOUT:
            return None
        self._stage.faults[self._kind] += 1
        return _SINGLED_ANSWERS[self._kind]
