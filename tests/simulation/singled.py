"""One JobSet for which GKE refuses every create, for ever, while nothing is wrong with the others.

Its neighbours, those that come later too, must be served within their usual bound, whatever is said to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from provisioner import constants
from rehearsal.simulators.gke.faults import Fault, FaultKind
from tests.simulation.calls import Trouble, says

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

_CHANCE = 0.3
_STOCKOUT = "stockout"


#: What may be said, by the kind of fault.
_ANSWERS = {
    "singled out: permission": says(403, 'Required "container.clusters.update" permission(s).'),
    "singled out: rate limit": says(429, "Quota exceeded for quota metric 'API requests'."),
    "singled out: operations": says(429, "Too many operations: cluster hits the concurrent operations quota 5."),
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
#: Those after which a slice waits for longest are drawn more often: who wrongly waits with it is noticed then.
_LONG = ("singled out: permission",) * 3


class Singled:
    """Whose creates are refused in one run, and how."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._stage = stage = simulation.stage
        #: The JobSet's name, empty for none; whoever makes it again has the same trouble.
        self.name = f"train-{stage.rng.randint(1, 3)}" if stage.chance(_CHANCE) else ""
        # With several choices each is tried in turn, and there is no quiet in which a settled world could be told.
        kinds = (*_ANSWERS, *_LONG, *(() if simulation.market.choices else (_STOCKOUT,)))
        self._kind = stage.rng.choice(kinds)
        #: Whether a create of it was refused yet.
        self.met = False

    def begin(self) -> None:
        """Let GKE run out of stock for this JobSet's pools, where that is its trouble."""
        if self.name and self._kind == _STOCKOUT:
            pattern = rf"{self.name}-[0-9a-f]{{10}}"
            self._simulation.cloud.world.faults.add(Fault(kind=FaultKind.STOCKOUT, pool=pattern, after_seconds=5.0))

    def concerns(self, labels: dict[str, Any]) -> bool:
        """Whether a pool of these labels is for this JobSet."""
        return bool(self.name) and labels.get(constants.POOL_JOBSET_NAME) == self.name

    def answer(self, body: dict[str, Any]) -> Trouble | None:
        """Return what GKE says to a create, None where nothing is wrong with it."""
        if not self.concerns(body["nodePool"]["config"]["labels"]):
            return None
        self.met = True
        if self._kind == _STOCKOUT:
            return None
        self._stage.faults[self._kind] += 1
        return _ANSWERS[self._kind]
