"""Who uses how many chips for what, and what that costs: the basis of a chargeback. Pure.

A chip counts while its node exists, so that a pool which GKE tries in vain to make counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from provisioner import tpu
from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind
from provisioner.settings.prices import MILLIONTHS, Prices
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import PoolState
from provisioner.slices.planning.round import Supply

#: The namespace of all that come later. No namespace has this name, since none may contain "_".
OTHERS = "_other"


class Use(Enum):
    """What a chip is doing."""

    #: A slice counts on its pool, and no pod of the slice is bound there (yet, or between two restarts).
    STARTING = "starting"
    #: Unfinished pods are bound to its pool.
    RUNNING = "running"
    #: Nothing needs its pool, or the pool has failed.
    IDLE = "idle"
    #: Its pool is being deleted.
    DRAINING = "draining"


_USE: Mapping[Phase, Use] = {
    Phase.IN_USE: Use.RUNNING,
    Phase.IDLE: Use.IDLE,
    Phase.FAILED: Use.IDLE,
    Phase.DELETING: Use.DRAINING,
    Phase.GONE: Use.DRAINING,
}


# The values of enumerations, not these themselves: it is a key that is looked up for each pool and round.
class Account(NamedTuple):
    """What chips are counted by, as the labels of a metric have it."""

    namespace: str
    accelerator: str
    #: Of `CapacityKind`.
    capacity: str
    #: Of `Use`.
    use: str


class PoolUse(NamedTuple):
    """The chips of one pool that exist."""

    account: Account
    chips: int
    #: Of a chip for an hour, in millionths of the currency; None: no price says.
    price: int | None = None

    @property
    def cost_per_hour(self) -> float:
        """What they cost an hour now; 0 where no price says."""
        return self.chips * (self.price or 0) / MILLIONTHS


def cost_per_hour(prices: Prices, machine_type: str, capacity: CapacityKind, nodes: int) -> float | None:
    """Return what nodes of a TPU machine type cost an hour, in the currency of the prices; None: no price says."""
    known = tpu.machine_type(machine_type)
    price = prices.of(known[0].label, capacity) if known is not None else None
    return None if known is None or price is None else nodes * known[1].chips * price / MILLIONTHS


def use_of(supply: Supply, state: PoolState, prices: Prices) -> PoolUse | None:
    """Return what the chips of a pool are doing; None where it has none (yet), or nobody knows how many."""
    known = tpu.machine_type(supply.pool.machine_type)
    if known is None or not supply.nodes:
        return None
    accelerator, machine = known
    capacity, use = supply.pool.capacity, _USE.get(state.phase, Use.STARTING)
    account = Account(state.named.namespace or OTHERS, accelerator.label, capacity.value, use.value)
    return PoolUse(account, machine.chips * len(supply.nodes), prices.of(accelerator.label, capacity))


def account_of(known: Collection[Account], wanted: Account) -> Account:
    """Return the account itself, or the one of all other namespaces where the known ones are too many already."""
    if wanted in known or wanted.namespace == OTHERS:
        return wanted
    namespaces = {account.namespace for account in known} - {OTHERS}
    full = len(known) >= bounds.METERED_ACCOUNTS or (
        wanted.namespace not in namespaces and len(namespaces) >= bounds.METERED_NAMESPACES
    )
    return wanted._replace(namespace=OTHERS) if full else wanted


def unpriced_chips(pools: Iterable[PoolUse]) -> int:
    """Count the chips for which no price says what they cost."""
    return sum(each.chips for each in pools if each.price is None)
