"""What surrounds requests and makes GKE refuse some for a while: a permission, a policy, a network.

No refusal is permanent: once somebody has mended its reason, each slice that was refused asks again, as soon as the
back-off of its failure says. Meanwhile the others are served as ever. Chance comes from a source of its own.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from provisioner import constants
from tests.simulation.calls import Trouble, says
from tests.simulation.cloud import ZONE

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

_CHANCE = 0.25
#: Else it concerns those of the storm.
_LATE_CHANCE = 0.4
_ACCOUNT = "training@project-1.iam.gserviceaccount.com"
#: How the simulated GKE takes the account, by the kind of refusal.
_ACCOUNTS = {"service account forbidden": "forbidden", "service account missing": "missing"}
#: What is said of every create in one zone. The texts of the last two were not recorded.
_ANSWERS = {
    "policy of the organisation": says(
        412, f"Constraint constraints/gcp.resourceLocations violated for projects/project-1: {ZONE} is not allowed."
    ),
    "policy of the organisation, plain": says(400, f"Operation denied by org policy: {ZONE} is not allowed."),
    "network": says(400, "Network projects/project-1/global/networks/default has no subnetwork in this region."),
}
#: From the first refusal until somebody has mended its reason: a permission at once, other reasons later.
_LASTING_SECONDS = ((5.0, 40.0), (5.0, 300.0))
#: The longest wait after a refusal for want of a permission, and the first after one that GKE calls invalid: nothing
#: here is refused for so long that it is refused twice. And the time in which slices take turns.
_ASKED_AGAIN_SECONDS = 600.0 + 80.0
_SENT_AGAIN_SECONDS = 900.0 + 80.0


class Environment:
    """What refuses requests in one run, for a while."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._stage = stage = simulation.stage
        self.rng = rng = random.Random(f"refused for a while {stage.seed}")
        self._kind = rng.choice((*_ACCOUNTS, *_ANSWERS)) if rng.random() < _CHANCE else ""
        if simulation.hostile.present:
            self._kind = ""
        #: Whether it concerns JobSets that come after the storm.
        self.late = bool(self._kind) and rng.random() < _LATE_CHANCE
        self._name = "late-1" if self.late else f"train-{rng.randint(1, 2)}"
        self._since = simulation.storm_seconds if self.late else rng.uniform(0.0, 30.0)
        self._met = False
        #: Whether its reason is gone.
        self.mended = False
        #: Within which a slice that was refused sends its create again, from when the reason is gone.
        self.again_within_seconds = _ASKED_AGAIN_SECONDS if self._kind in _ACCOUNTS else _SENT_AGAIN_SECONDS

    def begin(self) -> None:
        """Let the simulated GKE know the service account that cannot be used."""
        if self._kind in _ACCOUNTS:
            self._use_account(_ACCOUNTS[self._kind])

    def account_of(self, name: str) -> str:
        """Return the service account that the pods of a JobSet ask for, empty for the default."""
        return _ACCOUNT if self._kind in _ACCOUNTS and name == self._name else ""

    def concerns(self, body: dict[str, Any]) -> bool:
        """Whether a create is refused now."""
        if not self._kind or self.mended or self._stage.agenda.now < self._since:
            return False
        pool = body["nodePool"]
        if self._kind in _ACCOUNTS:
            return bool(pool["config"].get("serviceAccount") == _ACCOUNT)
        return bool(pool["locations"][0] == ZONE)

    def answer(self, body: dict[str, Any]) -> Trouble | None:
        """Return what is said to a create, None where nothing is wrong, or where the simulated GKE itself says it."""
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
