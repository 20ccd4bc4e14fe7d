"""Chip-seconds, judged over crashes and changes of the leader: what was exported once is never taken back.

The hints of the meter are kept beside the API server, not in it: the calls of a run, and so its history, are the same
as without. One run of four is metered, which costs a tenth of its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provisioner.slices.meter import Meter
from provisioner.slices.usage import HINTS_KEY, Account, Amount
from tests.simulation.stage import Stage

_EVERY = 4
METERED = "8 no chip-seconds are taken back"


@dataclass(slots=True)
class Kept:
    """What outlasts the processes of one run."""

    stage: Stage
    text: str = ""
    #: The most that any process has exported.
    exported: dict[Account, int] = field(default_factory=dict)

    @property
    def metered(self) -> bool:
        """Whether this run is metered."""
        return self.stage.seed % _EVERY == 0


@dataclass(slots=True, kw_only=True)
class Metered(Meter):
    """The real one, whose hints are kept at once."""

    shared: Kept
    own_text: str = ""

    def restore(self, hints: Mapping[str, str]) -> None:
        """Go on where the last process ended: no lower than anything that was exported."""
        self.own_text = self.shared.text
        Meter.restore(self, {HINTS_KEY: self.shared.text})
        for account, most in self.shared.exported.items():
            amount = self._exported.get(account, Amount()).chip_ms
            if amount < most:
                self.shared.stage.violate(METERED, f"{account} began at {amount} chip ms, and {most} was exported")

    def hints(self, *, force: bool = False) -> dict[str, str]:
        """Keep what is to be kept, merged with what another leader has kept meanwhile; none of it goes to the store."""
        mine = Meter.hints(self, force=force)
        if mine and mine[HINTS_KEY] != self.own_text:
            if self.shared.text != self.own_text:
                mine = dict(self.resolve({HINTS_KEY: self.shared.text}, mine))
            self.shared.text = self.own_text = mine[HINTS_KEY]
            self.kept()
        return {}

    def _export(self) -> None:
        Meter._export(self)
        for account, amount in self._exported.items():
            self.shared.exported[account] = max(amount.chip_ms, self.shared.exported.get(account, 0))
