"""Which of many nodes fit: the same answers as for each alone, at a cost that does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from provisioner.model.capacity import Taint
from provisioner.model.fit import NodeView, label_misfit, misfit
from provisioner.model.fits import Fits
from provisioner.model.workloads import Expression, Requirements, Toleration
from provisioner.slices.planning.launch.limits import Budget
from provisioner.slices.planning.match.assignment import match
from provisioner.slices.planning.round import begin_round
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.models import make_jobset, make_requirements
from tests.support.world import World

_KEYS = st.sampled_from(["zone", "size", "kubernetes.io/unheard-of", "cloud.google.com/gke-spot", "nowhere"])
_WORDS = st.sampled_from(["", "a", "b", "9", "10", "010", "-1", "node-1"])
_EFFECTS = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])
_AMOUNTS = st.integers(0, 3)
_VIEWS = st.builds(
    NodeView,
    labels=st.dictionaries(_KEYS, _WORDS, max_size=3),
    taints=st.lists(st.builds(Taint, key=_KEYS, value=_WORDS, effect=_EFFECTS), max_size=2).map(tuple),
    chips=_AMOUNTS,
    cpu_millicores=_AMOUNTS,
    memory_bytes=_AMOUNTS,
    name=_WORDS,
    predicted=st.booleans(),
)
_EXPRESSIONS = st.builds(
    Expression,
    key=_KEYS,
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Near"]),
    values=st.lists(_WORDS, max_size=3).map(tuple),
    on_field=st.booleans(),
)
_REQUIREMENTS = st.builds(
    Requirements,
    chips=_AMOUNTS,
    cpu_millicores=_AMOUNTS,
    memory_bytes=_AMOUNTS,
    node_selector=st.dictionaries(_KEYS, _WORDS, max_size=1),
    affinity_terms=st.lists(st.lists(_EXPRESSIONS, max_size=3).map(tuple), max_size=2).map(tuple),
    tolerations=st.lists(
        st.builds(
            Toleration,
            key=st.one_of(st.just(""), _KEYS),
            operator=st.sampled_from(["Equal", "Exists"]),
            value=_WORDS,
            effect=st.one_of(st.just(""), _EFFECTS),
        ),
        max_size=2,
    ).map(tuple),
)


@hypothesis_settings(max_examples=500)
@given(st.lists(_VIEWS, max_size=6), st.lists(_REQUIREMENTS, min_size=1, max_size=3))
def test_the_answers_are_those_for_each_node_alone(views: list[NodeView], asked: list[Requirements]) -> None:
    """Whatever pods ask for, one after the other."""
    fits = Fits(views)
    for each in asked:
        assert _listed(fits.fitting(each), len(views)) == [not misfit(each, view) for view in views]
        assert _listed(fits.selected(each), len(views)) == [not label_misfit(each, view) for view in views]


def _listed(found: int, count: int) -> list[bool]:
    assert 0 <= found < 1 << count
    return [bool(found >> place & 1) for place in range(count)]


class _Term(tuple[Expression, ...]):
    """A term that counts how often somebody goes through it."""

    __slots__ = ()
    looks = 0

    def __iter__(self) -> Iterator[Expression]:
        _Term.looks += 1
        return super().__iter__()


@pytest.mark.parametrize("idle_pools", [1, 8])
def test_matching_looks_at_each_pods_affinity_once_beside_any_number_of_idle_pools(idle_pools: int) -> None:
    """Each pod avoids a node of every pool, so that none fits, and no two pods have a term in common."""
    asked = make_requirements(topology="2x2x2")
    gone = make_jobset("gone", replicas=idle_pools, parallelism=2, template=asked)
    world = World(gone)
    world.step()
    world.finish_creates()
    world.schedule()
    world.look()
    world.finish(gone)
    names = sorted(world.nodes)
    for number in range(6):
        avoided = Expression(key="metadata.name", operator="NotIn", values=(*names[number % 2 :: 2],), on_field=True)
        own = Expression(key=f"example.com/{number}", operator="DoesNotExist")
        hostile = replace(asked, memory_bytes=number, affinity_terms=(_Term((own, avoided)),))
        world.add(make_jobset(f"hostile-{number}", parallelism=2, template=hostile))
    round_ = begin_round(world.snapshot(), world.memory, world.settings, GKE_RULES, world.now)
    _Term.looks = 0
    matching = match(round_, Budget.of(round_))
    assert (len(round_.supply), len(matching.unserved), matching.claimed) == (idle_pools, 6, {})
    assert _Term.looks == 6
