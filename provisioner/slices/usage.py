"""Who uses how many chips for how long, and what that costs: the basis of a chargeback. Pure.

A chip counts from the creation of its node until the node is gone, so that a pool which GKE tries in vain to make
counts for nothing. `advance` adds what lies between two rounds: a node that was there in the last one counts for all of
the time, under what was its use then; one that is new, or met first after a start, from its creation or the last
round, whichever is later, under what is its use now. So nothing counts twice, whatever a restart has in between.

Amounts are whole numbers, of chip milliseconds: sums are exact, and never fall. What is exported must have been kept
first (see `provisioner.slices.meter`), so that a restart goes on at or above what was seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from provisioner import tpu
from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, PoolName
from provisioner.settings.prices import MILLIONTHS, Prices
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import PoolState
from provisioner.slices.planning.round import Supply

#: The namespace of all that come later. No namespace has this name, since none may contain "_".
OTHERS = "_other"
#: The key in the hints; earlier releases do not know it, and drop it when they write theirs.
HINTS_KEY = "usage"
#: Of an amount that is read back: 10 million chips for 100 years have 20 digits, and prices six to twelve more.
_MOST_AMOUNT = 10**36
_HOUR_MS = 3_600_000


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


_USE = {
    Phase.WANTED: Use.STARTING,
    Phase.BLOCKED: Use.STARTING,
    Phase.CREATING: Use.STARTING,
    Phase.PROVISIONING: Use.STARTING,
    Phase.READY: Use.STARTING,
    Phase.IN_USE: Use.RUNNING,
    Phase.IDLE: Use.IDLE,
    Phase.FAILED: Use.IDLE,
    Phase.DELETING: Use.DRAINING,
    Phase.GONE: Use.DRAINING,
}


# The values of enumerations, not these themselves: it is a key that is looked up several times for each pool and round.
class Account(NamedTuple):
    """What chips are counted by, as the labels of a metric have it."""

    namespace: str
    accelerator: str
    #: Of `CapacityKind`.
    capacity: str
    #: Of `Use`.
    use: str


class Amount(NamedTuple):
    """What came together on one account."""

    chip_ms: int = 0
    #: In millionths of the currency, for as many milliseconds of an hour: exact whatever the price.
    cost: int = 0

    @property
    def chip_seconds(self) -> float:
        """Chips times seconds."""
        return self.chip_ms / 1000

    @property
    def money(self) -> float:
        """The cost in the currency of the prices."""
        return self.cost / (MILLIONTHS * _HOUR_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """The chips of one pool that are there."""

    account: Account
    chips_per_node: int
    #: Of a chip for an hour, in millionths of the currency; None: no price says.
    price: int | None = None
    #: Nodes by UID, with their creation in milliseconds since 1970.
    nodes: Mapping[str, int]

    @property
    def chips(self) -> int:
        """All of them."""
        return self.chips_per_node * len(self.nodes)

    @property
    def cost_per_hour(self) -> float:
        """What they cost an hour now; 0 where no price says."""
        return self.chips * (self.price or 0) / MILLIONTHS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What has come together, until when, and what there was at that moment."""

    #: Milliseconds since 1970; None: nothing was ever counted.
    at_ms: int | None = None
    amounts: Mapping[Account, Amount] = field(default_factory=dict)
    #: Of the last round; None: there was none in this process.
    pools: Mapping[PoolName, PoolUse] | None = None


def milliseconds(moment: datetime) -> int:
    """Return a moment in whole milliseconds since 1970."""
    return int(moment.timestamp() * 1000)


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
    capacity = supply.pool.capacity
    return PoolUse(
        account=Account(state.namespace or OTHERS, accelerator.label, capacity.value, _USE[state.phase].value),
        chips_per_node=machine.chips,
        price=prices.of(accelerator.label, capacity),
        nodes=MappingProxyType({node.uid or node.name: milliseconds(node.created_at) for node in supply.nodes}),
    )


def advance(ledger: Ledger, pools: Mapping[PoolName, PoolUse], now_ms: int) -> Ledger:
    """Add what lies between the last round and this one, and remember what there is now.

    A clock that went back adds nothing until it has come up again: what was counted is not counted once more. Whoever
    set it on purpose tells by `shifted`. Only at a start, where nobody could tell, is a moment yet to come forgotten.
    """
    if ledger.at_ms is None or (ledger.pools is None and now_ms < ledger.at_ms):
        return replace(ledger, at_ms=now_ms, pools=pools, amounts=_opened(ledger.amounts, pools))
    passed_ms = now_ms - ledger.at_ms
    if passed_ms <= 0:
        return replace(ledger, pools=pools, amounts=_opened(ledger.amounts, pools))
    before = ledger.pools or {}
    amounts = dict(_opened(ledger.amounts, pools))
    for each in before.values():
        _add(amounts, each, each.chips * passed_ms)
    for name, each in pools.items():
        last = before.get(name)
        if last is each:
            continue
        known = last.nodes if last is not None else {}
        new_ms = sum(
            now_ms - max(ledger.at_ms, created_ms)
            for uid, created_ms in each.nodes.items()
            if uid not in known and created_ms < now_ms
        )
        _add(amounts, each, each.chips_per_node * new_ms)
    return Ledger(at_ms=now_ms, amounts=amounts, pools=pools)


def shifted(ledger: Ledger, by: timedelta) -> Ledger:
    """Return the ledger as it is by a clock that was set."""
    return ledger if ledger.at_ms is None else replace(ledger, at_ms=ledger.at_ms + by // timedelta(milliseconds=1))


def merged(ours: Ledger, theirs: Ledger) -> Ledger:
    """Return a ledger of which neither process has exported more: both count all of the same chips.

    What the other has counted after our last round is not counted again.
    """
    amounts = dict(ours.amounts)
    for account, amount in theirs.amounts.items():
        own = amounts.get(account, Amount())
        amounts[account] = Amount(max(own.chip_ms, amount.chip_ms), max(own.cost, amount.cost))
    moments = [each.at_ms for each in (ours, theirs) if each.at_ms is not None]
    return replace(ours, at_ms=max(moments, default=None), amounts=amounts)


def costs_per_hour(ledger: Ledger) -> dict[Account, float]:
    """Return what the chips that are there cost an hour now, by the account that they count on."""
    costs: dict[Account, float] = {}
    for each in (ledger.pools or {}).values():
        account = _account(ledger.amounts, each.account)
        costs[account] = costs.get(account, 0.0) + each.cost_per_hour
    return costs


def unpriced_chips(pools: Iterable[PoolUse]) -> int:
    """Count the chips for which no price says what they cost."""
    return sum(each.chips for each in pools if each.price is None)


def _opened(amounts: Mapping[Account, Amount], pools: Mapping[PoolName, PoolUse]) -> Mapping[Account, Amount]:
    """Open the accounts that pools count on, at zero: a counter that begins with a number hides it from `increase`."""
    opened: dict[Account, Amount] | None = None
    for each in pools.values():
        if each.account not in (opened or amounts):
            opened = dict(amounts) if opened is None else opened
            opened.setdefault(_account(opened, each.account), Amount())
    return amounts if opened is None else opened


def _account(amounts: Mapping[Account, Amount], wanted: Account) -> Account:
    """Return the account itself, or the one of all others where there are too many."""
    if wanted in amounts or wanted.namespace == OTHERS:
        return wanted
    namespaces = {account.namespace for account in amounts} - {OTHERS}
    full = len(amounts) >= bounds.METERED_ACCOUNTS or (
        wanted.namespace not in namespaces and len(namespaces) >= bounds.METERED_NAMESPACES
    )
    return wanted._replace(namespace=OTHERS) if full else wanted


def _add(amounts: dict[Account, Amount], each: PoolUse, chip_ms: int) -> None:
    account = _account(amounts, each.account)
    chips, cost = amounts.get(account, Amount())
    amounts[account] = Amount(chips + chip_ms, cost + chip_ms * (each.price or 0))


def to_text(ledger: Ledger) -> str:
    """Write what has to outlast the process."""
    amounts = {"/".join(account): list(amount) for account, amount in ledger.amounts.items()}
    return json.dumps({"at": ledger.at_ms, "accounts": amounts}, sort_keys=True, separators=(",", ":"))


def from_text(text: str | None) -> Ledger:
    """Read it back; what is not understood is left out, since anybody may edit a ConfigMap."""
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return Ledger()
    if not isinstance(content, dict):
        return Ledger()
    accounts = content.get("accounts")
    amounts: dict[Account, Amount] = {}
    for key, value in accounts.items() if isinstance(accounts, dict) else ():
        try:
            namespace, accelerator, capacity, use = key.split("/")
            account = Account(namespace, accelerator, CapacityKind(capacity).value, Use(use).value)
            chip_ms, cost = value
            amount = Amount(_whole(chip_ms), _whole(cost))
        except (ValueError, TypeError):
            continue
        if accelerator in tpu.ACCELERATORS and _account(amounts, account) == account:
            amounts[account] = amount
    try:
        at_ms = _whole(content.get("at"))
    except ValueError:
        return Ledger(amounts=amounts)
    return Ledger(at_ms=at_ms, amounts=amounts)


def _whole(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= _MOST_AMOUNT:
        raise ValueError(number)
    return number
