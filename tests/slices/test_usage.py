"""Chip-seconds: what counts for how long, over rounds, restarts and clocks that jump; and what it costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import hypothesis
import pytest
from hypothesis import strategies

from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, PoolName, PoolStatus
from provisioner.settings import Prices, parse_prices
from provisioner.slices import usage
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.usage import OTHERS, Account, Amount, Ledger, PoolUse, Use
from tests.support.models import make_jobset
from tests.support.world import World

_PROPERTY = hypothesis.settings(max_examples=150, deadline=None, database=None)
_V4 = "tpu-v4-podslice"
_A_MOMENT = 1_800_000_000_000


def account(namespace: str = "default", use: Use = Use.RUNNING, capacity: CapacityKind = CapacityKind.SPOT) -> Account:
    """Return an account of v4 chips."""
    return Account(namespace, _V4, capacity.value, use.value)


def pool(*created_ms: int, chips: int = 4, price: int | None = None, of: Account | None = None) -> PoolUse:
    """Return a pool with nodes that were created at some moments."""
    nodes = {f"uid-{index}": moment for index, moment in enumerate(created_ms)}
    return PoolUse(account=of or account(), chips_per_node=chips, price=price, nodes=nodes)


def pools(*uses: PoolUse) -> dict[PoolName, PoolUse]:
    """Name pools by their place."""
    return {PoolName(f"pool-{index}"): each for index, each in enumerate(uses)}


def chip_ms(ledger: Ledger) -> dict[tuple[str, str], int]:
    """Return amounts by namespace and use."""
    return {(each.namespace, each.use): amount.chip_ms for each, amount in ledger.amounts.items()}


def restarted(ledger: Ledger) -> Ledger:
    """Return what a process begins with that finds the hints of one before it."""
    return usage.from_text(usage.to_text(ledger))


# --- one interval


def test_nothing_is_counted_before_the_first_round_ever() -> None:
    """Nobody knows whether somebody else has counted it."""
    ledger = usage.advance(Ledger(), pools(pool(0)), 50_000)
    assert chip_ms(ledger) == {("default", "running"): 0}
    assert chip_ms(usage.advance(ledger, pools(pool(0)), 51_000)) == {("default", "running"): 4000}


def test_a_node_counts_from_its_creation() -> None:
    """Also for the time before the round that sees it first."""
    ledger = usage.advance(Ledger(), {}, 10_000)
    assert chip_ms(usage.advance(ledger, pools(pool(12_000)), 15_000)) == {("default", "running"): 4 * 3000}


def test_a_node_counts_until_the_round_that_misses_it() -> None:
    """An event wakes a round as soon as it is gone."""
    ledger = usage.advance(Ledger(), pools(pool(0, 0)), 10_000)
    ledger = usage.advance(ledger, pools(pool(0)), 11_000)
    assert chip_ms(ledger) == {("default", "running"): 8000}
    assert chip_ms(usage.advance(ledger, {}, 12_000)) == {("default", "running"): 12_000}


def test_time_counts_for_the_use_at_its_beginning() -> None:
    """What was seen holds until something else is."""
    ledger = usage.advance(Ledger(), pools(pool(0)), 10_000)
    ledger = usage.advance(ledger, pools(pool(0, of=account(use=Use.IDLE))), 13_000)
    ledger = usage.advance(ledger, {}, 14_000)
    assert chip_ms(ledger) == {("default", "running"): 12_000, ("default", "idle"): 4000}


def test_a_node_that_was_not_shown_counts_from_the_last_round_on() -> None:
    """Whatever it did before was counted, or not, by the rounds of that time."""
    ledger = usage.advance(Ledger(), {}, 10_000)
    assert chip_ms(usage.advance(ledger, pools(pool(2000)), 11_000)) == {("default", "running"): 4000}


def test_a_round_that_took_long_counts_its_time() -> None:
    """As does a time without an answer of the API server."""
    ledger = usage.advance(Ledger(), pools(pool(0)), 10_000)
    assert chip_ms(usage.advance(ledger, pools(pool(0)), 3_610_000)) == {("default", "running"): 4 * 3_600_000}


def test_a_node_of_the_future_counts_later() -> None:
    """The API server's clock may be ahead."""
    ledger = usage.advance(Ledger(), {}, 10_000)
    assert chip_ms(usage.advance(ledger, pools(pool(12_000)), 11_000)) == {("default", "running"): 0}


# --- restarts and clocks


def test_a_restart_counts_what_is_still_there() -> None:
    """A node of before from the last count on, one that came meanwhile from its creation."""
    ledger = restarted(usage.advance(Ledger(), pools(pool(0)), 10_000))
    assert chip_ms(usage.advance(ledger, pools(pool(0, 17_000)), 20_000)) == {
        ("default", "running"): 4 * (10_000 + 3000)
    }


def test_two_leaders_that_overlap_come_to_the_same() -> None:
    """Each counts all, so the one that writes last loses nothing and doubles nothing."""
    common = usage.advance(Ledger(), pools(pool(0)), 10_000)
    frozen = usage.advance(common, pools(pool(0)), 60_000)
    taken_over = usage.advance(restarted(common), pools(pool(0)), 30_000)
    taken_over = usage.advance(taken_over, pools(pool(0)), 60_000)
    assert taken_over.amounts == frozen.amounts


def test_ledgers_of_two_leaders_are_merged_to_what_neither_has_taken_back() -> None:
    """And nothing that the other has counted is counted once more."""
    common = usage.advance(Ledger(), pools(pool(0)), 10_000)
    ours = usage.advance(common, pools(pool(0)), 20_000)
    theirs = usage.advance(restarted(common), pools(pool(0), pool(0, of=account("other"))), 30_000)
    both = usage.merged(ours, theirs)
    assert chip_ms(both) == {("default", "running"): 80_000, ("other", "running"): 80_000}
    assert both.pools == ours.pools
    assert chip_ms(usage.advance(both, pools(pool(0)), 31_000))["default", "running"] == 84_000
    assert usage.merged(ours, Ledger()) == ours
    assert usage.merged(Ledger(), theirs).amounts == theirs.amounts


def test_a_clock_that_went_back_adds_nothing_twice() -> None:
    """Not until it has come up again."""
    ledger = usage.advance(Ledger(), pools(pool(0)), 10_000)
    for now, want in ((9_000, 0), (10_000, 0), (10_500, 2000), (10_400, 2000), (11_000, 4000)):
        ledger = usage.advance(ledger, pools(pool(0)), now)
        assert chip_ms(ledger) == {("default", "running"): want}


def test_a_clock_that_is_set_on_purpose_costs_no_time() -> None:
    """Only what has passed counts."""
    ledger = usage.advance(Ledger(), pools(pool(0)), 10_000_000)
    for by in (timedelta(hours=-2), timedelta(hours=5)):
        ledger = usage.shifted(ledger, by)
        assert ledger.at_ms is not None
        ledger = usage.advance(ledger, pools(pool(0)), ledger.at_ms + 1000)
    assert chip_ms(ledger) == {("default", "running"): 8000}
    assert usage.shifted(Ledger(), timedelta(hours=1)) == Ledger()


def test_a_last_count_in_the_future_is_forgotten_at_a_start() -> None:
    """The clock of the earlier process ran wrong: counting must not stop until then."""
    ledger = restarted(usage.advance(Ledger(), pools(pool(0)), 10**15))
    ledger = usage.advance(ledger, pools(pool(0)), 20_000)
    assert chip_ms(usage.advance(ledger, pools(pool(0)), 21_000)) == {("default", "running"): 4000}


# --- properties


@dataclass
class _Fleet:
    """Nodes as they are, and what a process has counted of them."""

    now: int = _A_MOMENT
    ledger: Ledger = field(default_factory=Ledger)
    #: Pool -> namespace, use and creation of nodes.
    pools: dict[int, tuple[str, Use, dict[str, int]]] = field(default_factory=dict)
    kept: str = ""
    #: Chip milliseconds of nodes that are gone.
    gone: int = 0
    began: int | None = None
    made: int = 0

    def round(self) -> None:
        """Count."""
        seen = {
            PoolName(str(number)): PoolUse(account=account(namespace, use), chips_per_node=4, nodes=nodes)
            for number, (namespace, use, nodes) in self.pools.items()
        }
        self.ledger = usage.advance(self.ledger, seen, self.now)
        self.began = self.now if self.began is None else self.began

    def truth(self) -> int:
        """Return what there was since the first round."""
        began = self.began or self.now
        living = [moment for _, _, nodes in self.pools.values() for moment in nodes.values()]
        return self.gone + sum(4 * (self.now - max(began, moment)) for moment in living)

    def apply(self, step: tuple[str, int, int]) -> None:
        """Let one thing happen."""
        what, number, milliseconds = step
        self.now += milliseconds
        namespace, use, nodes = self.pools.get(number, (f"team-{number % 3}", Use.STARTING, {}))
        if what == "node":
            self.made += 1
            # Created since the last round, which is when this step began.
            created = self.now - self.made * 997 % (milliseconds + 1)
            self.pools[number] = (namespace, use, {**nodes, f"uid-{self.made}": created})
        elif what == "use":
            self.pools[number] = (namespace, list(Use)[milliseconds % 4], nodes)
        elif what == "gone" and nodes:
            self.round()
            before = self.truth()
            del self.pools[number]
            self.gone += before - self.truth()
            self.round()
            self.kept = usage.to_text(self.ledger)
        elif what == "keep":
            self.kept = usage.to_text(self.ledger)
        elif what == "crash" and self.kept:
            self.ledger = usage.from_text(self.kept)
        else:
            self.round()


_STEPS = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(("node", "node", "use", "gone", "keep", "crash", "round", "round")),
        strategies.integers(0, 4),
        strategies.integers(0, 100_000),
    ),
    max_size=40,
)


@_PROPERTY
@hypothesis.given(steps=_STEPS)
def test_nothing_is_lost_and_nothing_counts_twice(steps: list[tuple[str, int, int]]) -> None:
    """However often the process ends: all chips of all time, as long as the nodes outlast the gap."""
    fleet = _Fleet()
    fleet.round()
    fleet.kept = usage.to_text(fleet.ledger)
    for step in steps:
        # A node that is new at a round counts from its creation, so each step ends with one.
        before = fleet.now
        fleet.apply(step)
        if step[0] != "crash":
            fleet.round()
        assert fleet.now >= before
    fleet.round()
    assert sum(amount.chip_ms for amount in fleet.ledger.amounts.values()) == fleet.truth()


@_PROPERTY
@hypothesis.given(
    steps=strategies.lists(
        strategies.tuples(
            strategies.sampled_from(("round", "keep", "crash", "set")),
            strategies.integers(-7_200_000, 7_200_000),
            strategies.lists(strategies.integers(0, 4_000_000), max_size=3),
            strategies.sampled_from(tuple(Use)),
        ),
        max_size=30,
    )
)
def test_no_exported_amount_ever_falls(steps: list[tuple[str, int, list[int], Use]]) -> None:
    """Whatever clocks do, and however a process ends: what is exported is what was kept."""
    ledger, kept, exported = Ledger(), "", dict[Account, Amount]()
    now = 10_000_000
    for what, by, created, use in steps:
        now = max(0, now + by)
        if what == "set":
            ledger = usage.shifted(ledger, timedelta(milliseconds=by))
        elif what == "crash":
            ledger = usage.from_text(kept)
        elif what == "keep":
            kept = usage.to_text(ledger)
            new = dict(ledger.amounts)
            assert all(new[each] >= amount and new[each].cost >= amount.cost for each, amount in exported.items())
            exported = new
        before = ledger.amounts
        ledger = usage.advance(ledger, pools(pool(*created, price=3, of=account(use=use))), now)
        assert all(ledger.amounts[each].chip_ms >= amount.chip_ms for each, amount in before.items())
        assert all(amount.cost == 3 * amount.chip_ms for amount in ledger.amounts.values())


def test_namespaces_that_come_too_late_are_counted_together() -> None:
    """Whoever may create namespaces does not fill Prometheus; nothing is lost, and the first keep their accounts."""
    ledger = usage.advance(Ledger(), pools(pool(0, of=account("first"))), 0)
    many = [pool(0, of=account(f"team-{index:04}", use)) for index in range(300) for use in Use]
    for now in (1000, 2000):
        ledger = usage.advance(ledger, pools(*many, pool(0, of=account("first"))), now)
    namespaces = {each.namespace for each in ledger.amounts}
    assert len(namespaces) == bounds.METERED_NAMESPACES + 1
    assert {"first", OTHERS} <= namespaces
    # The pool of "first" was another name in the first round.
    assert sum(amount.chip_ms for amount in ledger.amounts.values()) == 4 * (2 * 1200 + 1 + 1) * 1000
    assert restarted(ledger).amounts == ledger.amounts


def test_there_are_only_so_many_accounts() -> None:
    """A namespace that uses everything everywhere has them all, and later ones are others."""
    kinds = [(kind.value, use.value) for kind in CapacityKind for use in Use]
    many = [
        pool(0, of=Account(f"team-{index}", accelerator, kind, use))
        for index in range(99)
        for accelerator in ("tpu-v4-podslice", "tpu7x", "tpu-v6e-slice")
        for kind, use in kinds
    ]
    ledger = usage.advance(Ledger(), pools(*many), 0)
    assert len(ledger.amounts) <= bounds.METERED_ACCOUNTS + 3 * len(kinds)
    assert len(usage.to_text(ledger)) < 100_000


# --- what is kept


_WORDS = strategies.text('{}[]:,"-.0123456789/at ', max_size=40)
_SCALARS = strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | _WORDS
_VALUES = _SCALARS | strategies.lists(_SCALARS, max_size=3)
_ACCOUNTS = strategies.dictionaries(strategies.sampled_from(("a/tpu7x/spot/idle", "a/b/c/d", "")), _VALUES)
_JSON = strategies.dictionaries(strategies.sampled_from(("at", "accounts", "")), _VALUES | _ACCOUNTS)


@_PROPERTY
@hypothesis.given(text=_WORDS | (_VALUES | _JSON).map(json.dumps))
def test_a_spoilt_hint_is_no_obstacle(text: str) -> None:
    """Anybody may edit a ConfigMap."""
    ledger = usage.advance(usage.from_text(text), pools(pool(0)), _A_MOMENT)
    assert chip_ms(ledger)["default", "running"] >= 0


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"at":1,"accounts":{"default/tpu7x/spot/idle":[-1,0]}}', id="less than nothing"),
        pytest.param('{"at":1,"accounts":{"default/tpu7x/spot/idle":[1.5,0]}}', id="a fraction"),
        pytest.param('{"at":1,"accounts":{"default/tpu7x/spot/idle":[true,0]}}', id="a truth value"),
        pytest.param('{"at":1,"accounts":{"default/tpu7x/spot/idle":[1' + "0" * 40 + ",0]}}", id="too much"),
        pytest.param('{"at":1,"accounts":{"default/tpu9/spot/idle":[1,0]}}', id="no accelerator"),
        pytest.param('{"at":1,"accounts":{"default/tpu7x/cheap/idle":[1,0]}}', id="no capacity type"),
        pytest.param('{"at":1,"accounts":{"default/tpu7x/spot/asleep":[1,0]}}', id="no use"),
        pytest.param('{"at":1,"accounts":{"default/tpu7x/spot":[1,0]}}', id="too short a key"),
    ],
)
def test_an_account_that_makes_no_sense_is_left_out(text: str) -> None:
    """The others are kept."""
    kept = json.loads(text)
    kept["accounts"]["default/tpu7x/spot/running"] = [5, 10]
    ledger = usage.from_text(json.dumps(kept))
    assert ledger == Ledger(at_ms=1, amounts={Account("default", "tpu7x", "spot", "running"): Amount(5, 10)})


def test_amounts_without_a_moment_are_kept() -> None:
    """Then the time since then is not counted."""
    ledger = usage.from_text('{"at":"soon","accounts":{"default/tpu-v4-podslice/spot/running":[5,10]}}')
    assert ledger.at_ms is None
    assert chip_ms(usage.advance(ledger, pools(pool(0)), _A_MOMENT)) == {("default", "running"): 5}


# --- what a pool's chips are doing, and what they cost


def _made(world: World) -> None:
    world.step()
    world.now += timedelta(seconds=60)


def _up(world: World) -> None:
    _made(world)
    world.finish_creates()


def _running(world: World) -> None:
    _up(world)
    world.step()
    world.schedule()


def _finished(world: World) -> None:
    _running(world)
    world.step()
    world.finish(next(iter(world.workloads.values())))


def _leaving(world: World) -> None:
    _finished(world)
    world.step()
    for each in list(world.pools.values()):
        world.put(replace(each, status=PoolStatus.STOPPING))


@pytest.mark.parametrize(
    ("prepare", "want"),
    [
        pytest.param(_made, None, id="without nodes nothing is used"),
        pytest.param(_up, Use.STARTING, id="ready and without pods"),
        pytest.param(_running, Use.RUNNING, id="with pods"),
        pytest.param(_finished, Use.IDLE, id="after the pods"),
        pytest.param(_leaving, Use.DRAINING, id="being deleted"),
    ],
)
def test_what_chips_are_doing(prepare: Callable[[World], None], want: Use | None) -> None:
    """Over the life of a pool."""
    world = World(make_jobset())
    prepare(world)
    plan = world.step()
    assert plan.derived is not None
    (state,) = plan.pools
    made = usage.use_of(plan.derived.supply[state.name], state, parse_prices("*=2.5"))
    if want is None:
        assert made is None
        return
    assert made is not None
    assert made.account == Account("default", _V4, "on-demand", want.value)
    assert (made.chips, made.cost_per_hour) == (8, 20.0)


def test_every_phase_is_a_use() -> None:
    """No pool is left out of a sum."""
    assert usage._USE.keys() == set(Phase)


def test_an_hour_costs_its_price() -> None:
    """Exactly, whatever the rounds are; a price that changes does not change the past."""
    ledger = usage.advance(Ledger(), pools(pool(0, price=1_350_000)), 0)
    for second in range(1, 3601):
        ledger = usage.advance(ledger, pools(pool(0, price=1_350_000)), second * 1000)
    assert ledger.amounts[account()].money == 4 * 1.35
    ledger = usage.advance(ledger, pools(pool(0, price=1)), 3_600_001)
    assert ledger.amounts[account()].money >= 4 * 1.35
    assert usage.costs_per_hour(ledger) == {account(): 4e-6}


@pytest.mark.parametrize(
    ("machine_type", "nodes", "want"),
    [("ct4p-hightpu-4t", 2, 20.0), ("ct6e-standard-1t", 3, None), ("n2-standard-4", 1, None)],
)
def test_the_cost_of_a_pool(machine_type: str, nodes: int, want: float | None) -> None:
    """Without a price, or a TPU, there is none."""
    prices = parse_prices(f"{_V4}/spot=2.5, tpu-v6e-slice/reservation=1")
    assert usage.cost_per_hour(prices, machine_type, CapacityKind.SPOT, nodes) == want


def test_chips_without_a_price_are_told() -> None:
    """A typing error in a setting is seen."""
    assert usage.unpriced_chips([pool(0, 0), pool(0, price=1), pool(0, price=0)]) == 8
    assert usage.cost_per_hour(Prices(), "ct4p-hightpu-4t", CapacityKind.SPOT, 1) is None


def test_a_moment_in_milliseconds() -> None:
    """Since 1970."""
    assert usage.milliseconds(datetime(1970, 1, 1, 0, 0, 2, 345_678, tzinfo=UTC)) == 2345
