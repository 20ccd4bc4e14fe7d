"""Capacity of a run: choices, stock and limits, drawn for each run.

Each run has one or several choices of capacity (some of them out of stock permanently) in one or two zones. Some runs
have a stock so small that JobSets have to wait for each other, or limits on chips and pools.
"""

from __future__ import annotations

import random
import zlib
from typing import TYPE_CHECKING, Any

from provisioner.model.capacity import Zone
from provisioner.model.choices import parse_choices
from rehearsal.simulators.gke.capacity import FULL_RESERVATION_TEXTS
from rehearsal.simulators.gke.faults import Fault, FaultKind
from rehearsal.simulators.gke.records import PoolStatus
from tests.simulation.asks import BUFFER
from tests.simulation.calls import Trouble, says
from tests.simulation.cloud import ZONE
from tests.simulation.pools import chips_in, is_ours

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

OTHER_ZONE = "us-central2-c"
_CHOICES = (
    ("on-demand", "spot"),
    ("reservation/r1", "on-demand"),
    ("reservation/p-123456/r2", "spot", "on-demand"),
    ("spot", "flex-start"),
    ("on-demand", "flex-start"),
)
#: Maximum number of chips that one JobSet requests in runs with scarce capacity: three slices of 16 chips.
MAX_CHIPS_OF_A_JOBSET = 48
#: Probability that a run with buffers gets a limit on chips, at which pools of buffers are deleted for workloads.
_LIMIT_ON_BUFFERS = 0.5


class Market:
    """The capacity of one run."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.stage = stage = simulation.stage
        rng = stage.rng
        self.choices: tuple[str, ...] = rng.choice(_CHOICES) if stage.chance(0.35) else ()
        self.zones = (ZONE, OTHER_ZONE) if stage.chance(0.3) else (ZONE,)
        self.same_zone = len(self.zones) > 1 and stage.chance(0.4)
        #: Number of chips of each TPU generation in a zone; None if unlimited.
        self.stock_chips = rng.choice((MAX_CHIPS_OF_A_JOBSET, 64)) if not self.choices and stage.chance(0.2) else None
        self.max_chips = rng.choice((MAX_CHIPS_OF_A_JOBSET, 64)) if stage.chance(0.2) else None
        self.max_pools = 3 if stage.chance(0.1) else None
        self.gangs = stage.chance(0.3)
        self.hold_seconds = rng.choice((15.0, 45.0))
        #: Pairs of zone and capacity that are never available.
        self.barren: tuple[tuple[str, str], ...] = ()
        #: Ids of the faults for creates that will find no capacity, by name of the pool.
        self._shortages: dict[str, str] = {}
        # A separate source, so that these draws do not change the other draws of a seed.
        own = random.Random(f"market {stage.seed}")
        # Requests and buffers never get flex-start capacity.
        self.flex_start_alone = "flex-start" in self.choices and own.random() < 0.5 and not simulation.asks
        #: Status with which creates for a permanently full reservation are rejected; 0 if the pool fails instead.
        self._full_code = own.choice((0, 400, 429, 429))
        if BUFFER in simulation.asks and own.random() < _LIMIT_ON_BUFFERS:
            self.stock_chips, self.max_chips = None, MAX_CHIPS_OF_A_JOBSET
        if simulation.hostile.present:
            # With one choice in one zone, only the available capacity decides which tenant has to wait.
            self.choices, self.zones, self.same_zone, self.flex_start_alone = (), (ZONE,), False, False
            self.stock_chips, self.max_chips = simulation.hostile.stock_chips, simulation.hostile.max_chips
            self.max_pools, self.gangs = None, False
        if simulation.pods.present:
            # Deployments never end, so other workloads must not have to wait for their capacity.
            self.stock_chips, self.max_chips, self.max_pools, self.gangs = None, None, None, False

    @property
    def scarce(self) -> bool:
        """Whether JobSets may have to wait until other JobSets end."""
        return self.stock_chips is not None or self.max_chips is not None

    @property
    def spot_listed(self) -> bool:
        """Whether spot is one of the choices; if so, most pods tolerate spot nodes."""
        return "spot" in self.choices

    def settings(self) -> dict[str, Any]:
        """Return the settings that the market, the pod team, the hostile tenants and the administrator have drawn."""
        return {
            **self.simulation.pods.settings(),
            "capacity": parse_choices(", ".join(self.choices)),
            "zones": tuple(Zone(zone) for zone in self.zones),
            "same_zone": self.same_zone,
            "max_pools_per_jobset": self.max_pools,
            "partial_hold_seconds": self.hold_seconds,
            **self.simulation.hostile.settings(),
            **self.simulation.administrator.settings(),
        }

    def open(self) -> None:
        """Make some choices unavailable permanently, and leave at least one choice in one zone."""
        if not self.choices:
            return
        offers = [(zone, choice.split("/")[0]) for zone in self.zones for choice in self.choices]
        if self.flex_start_alone:
            self.barren = tuple(offer for offer in offers if offer[1] != "flex-start")
            self.restock()
            return
        # On-demand or spot is kept, because a pool of flex-start is created immediately and then waits for machines.
        good = [offer for offer in offers if offer[1] in ("on-demand", "spot")]
        kept = self.stage.rng.choice(good)
        others = [offer for offer in offers if offer != kept and offer[1] != "flex-start"]
        self.barren = tuple(offer for offer in others if self.stage.chance(0.5))
        self.restock()

    def restock(self) -> None:
        for zone, capacity in self.barren:
            if capacity == "reservation" and self._full_code:
                continue
            self.simulation.cloud.world.faults.add(Fault(kind=FaultKind.STOCKOUT, zone=zone, capacity=capacity))

    def answer(self, body: dict[str, Any]) -> Trouble | None:
        """Return GKE's rejection of a create for a full reservation, None without one; the texts vary by pool."""
        pool = body["nodePool"]
        reserved = bool(pool["config"].get("reservationAffinity", {}).get("values"))
        if not (self._full_code and reserved and (pool["locations"][0], "reservation") in self.barren):
            return None
        text = FULL_RESERVATION_TEXTS[zlib.crc32(pool["name"].encode()) % len(FULL_RESERVATION_TEXTS)]
        self.stage.fault("full reservation", text)
        return says(self._full_code, text, of_capacity=True)

    def before_create(self, body: dict[str, Any], chips: int) -> None:
        """Let a create find no capacity if the zone has too few chips of the requested TPU generation left."""
        zone, generation = body["nodePool"]["locations"][0], body["nodePool"]["config"]["machineType"].split("-")[0]
        stock = 0 if generation == self.simulation.hostile.rivals.barren else self.stock_chips
        if stock is None:
            return
        pools = [pool for pool in self.simulation.cloud.pools.values() if is_ours(pool)]
        same = (pool for pool in pools if pool.plan.machine.name.split("-")[0] == generation)
        # A pool in ERROR has no chips.
        used = sum(chips_in(pool) for pool in same if zone in pool.plan.zones and pool.status is not PoolStatus.ERROR)
        world, name = self.simulation.cloud.world, body["nodePool"]["name"]
        # If GKE rejected an earlier create of this name for too many operations, the fault of that create is still
        # unused.
        world.faults.remove(self._shortages.pop(name, ""))
        if used + chips > stock:
            self.stage.fault("stock too small", "%s has %d of %d chips in use", f"{zone} {generation}", used, stock)
            seconds = self.simulation.hostile.stockout_seconds
            shortage = Fault(kind=FaultKind.STOCKOUT, pool=name, count=1, after_seconds=seconds)
            self._shortages[name] = world.faults.add(shortage).fault_id
