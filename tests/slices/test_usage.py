"""What chips are doing, which accounts count them, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, PoolStatus
from provisioner.settings.forms import parse_prices
from provisioner.slices.meter import PoolUse, account_of, use_of
from provisioner.slices.metrics import OTHERS, Account, Use
from tests.support.models import make_jobset
from tests.support.world import World

_V4 = "tpu-v4-podslice"


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
    world = World(make_jobset())
    prepare(world)
    plan = world.step()
    assert plan.derived is not None
    (state,) = plan.pools
    made = use_of(plan.derived.supply[state.name], state, parse_prices("*=2.5"))
    if want is None:
        assert made is None
        return
    assert made is not None
    assert made.account == Account("default", _V4, "on-demand", want.value)
    assert (made.chips, made.cost_per_hour) == (8, 20.0)
    unpriced = use_of(plan.derived.supply[state.name], state, parse_prices("tpu7x=1"))
    assert unpriced == PoolUse(made.account, 8, None)


def test_namespaces_that_come_too_late_are_counted_together() -> None:
    """Whoever may create namespaces does not fill Prometheus, and the first keep their accounts."""
    known: set[Account] = set()
    many = [Account(f"team-{index:04}", _V4, "spot", use.value) for index in range(300) for use in Use]
    for each in (Account("first", _V4, "spot", "idle"), *many, *many):
        known.add(account_of(known, each))
    namespaces = {each.namespace for each in known}
    assert len(namespaces) == bounds.METERED_NAMESPACES + 1
    assert {"first", OTHERS} <= namespaces


def test_accounts_are_bounded() -> None:
    """A namespace that uses everything everywhere has them all, and later ones are others."""
    kinds = [(kind.value, use.value) for kind in CapacityKind for use in Use]
    accelerators = (_V4, "tpu7x", "tpu-v6e-slice")
    known: set[Account] = set()
    for index in range(99):
        for accelerator in accelerators:
            for kind, use in kinds:
                known.add(account_of(known, Account(f"team-{index}", accelerator, kind, use)))
    assert len(known) <= bounds.METERED_ACCOUNTS + len(accelerators) * len(kinds)
