"""Tests of whether a pod fits a node, as the scheduler decides, and of the cost of checking many nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants
from provisioner.model.capacity import Taint
from provisioner.model.fit import NodeView, label_misfit, misfit
from provisioner.model.fits import Fits
from provisioner.model.workloads import Expression, Requirements, Toleration, Volumes
from provisioner.slices.planning.contention.limits import Budget
from provisioner.slices.planning.contention.line import CREATES, in_line, unit_of
from provisioner.slices.planning.match import match
from provisioner.slices.planning.round import begin_round
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.models import make_jobset, make_requirements
from tests.support.world import World


def view(**changes: Any) -> NodeView:
    fields: dict[str, Any] = {
        "labels": {"zone": "a", "size": "10", "word": "ten"},
        "taints": (),
        "chips": 4,
        "cpu_millicores": 2000,
        "memory_bytes": 2**31,
        "other_bytes": {"hugepages-2Mi": 0},
        "name": "node-1",
    }
    return NodeView(**fields | changes)


def asks(**changes: Any) -> Any:
    return make_requirements(**{"node_selector": {}, "tolerations": ()} | changes)


@pytest.mark.parametrize(
    ("key", "operator", "values", "holds"),
    [
        ("zone", "In", ("a", "b"), True),
        ("zone", "In", ("b",), False),
        ("none", "In", ("a",), False),
        ("zone", "NotIn", ("b",), True),
        ("zone", "NotIn", ("a",), False),
        ("none", "NotIn", ("a",), True),
        ("zone", "Exists", (), True),
        ("none", "Exists", (), False),
        ("none", "DoesNotExist", (), True),
        ("zone", "DoesNotExist", (), False),
        ("size", "Gt", ("9",), True),
        ("size", "Gt", ("10",), False),
        ("size", "Lt", ("11",), True),
        ("size", "Lt", ("10",), False),
        ("word", "Gt", ("1",), False),
        ("none", "Lt", ("1",), False),
        ("size", "Gt", (), False),
        ("size", "Lt", ("1_1",), False),
        ("size", "Lt", (" 11",), False),
        ("size", "Lt", ("+0011",), True),
        ("size", "Lt", ("9223372036854775807",), True),
        ("size", "Lt", ("9223372036854775808",), False),
        ("zone", "Near", ("a",), False),
    ],
)
def test_operator_of_node_affinity_holds_as_in_the_scheduler(
    *, key: str, operator: str, values: tuple[str, ...], holds: bool
) -> None:
    term = (Expression(key=key, operator=operator, values=values),)
    assert (misfit(asks(affinity_terms=(term,)), view()) == ()) is holds


def test_affinity_holds_if_all_expressions_of_any_term_hold() -> None:
    yes, no = Expression(key="zone", operator="Exists"), Expression(key="none", operator="Exists")
    assert misfit(asks(affinity_terms=((yes, no), (yes,))), view()) == ()
    assert "affinity" in misfit(asks(affinity_terms=((yes, no), (no,))), view())[0]


def test_field_expression_is_compared_with_the_node_name() -> None:
    term = (Expression(key="metadata.name", operator="In", values=("node-1",), on_field=True),)
    assert misfit(asks(affinity_terms=(term,)), view()) == ()
    assert misfit(asks(affinity_terms=(term,)), view(name="node-2"))


@pytest.mark.parametrize(
    ("taint", "toleration", "fits"),
    [
        pytest.param(Taint(key="k", value="v"), None, False, id="NoSchedule without toleration"),
        pytest.param(Taint(key="k", effect="PreferNoSchedule"), None, True, id="PreferNoSchedule without toleration"),
        pytest.param(Taint(key="k", effect="NoExecute"), None, False, id="NoExecute without toleration"),
        pytest.param(Taint(key="k", value="v"), Toleration(key="k", value="v"), True, id="Equal with the same value"),
        pytest.param(Taint(key="k", value="v"), Toleration(key="k", value="w"), False, id="Equal with another value"),
        pytest.param(
            Taint(key="k", value="v"), Toleration(key="k", operator="Exists"), True, id="Exists without a value"
        ),
        pytest.param(Taint(key="k"), Toleration(key="j", operator="Exists"), False, id="another key"),
        pytest.param(Taint(key="k"), Toleration(operator="Exists"), True, id="Exists without a key"),
        pytest.param(Taint(key="k"), Toleration(), False, id="Equal without a key"),
        pytest.param(
            Taint(key="k", effect="NoExecute"),
            Toleration(key="k", operator="Exists", effect="NoSchedule"),
            False,
            id="toleration of another effect",
        ),
    ],
)
def test_pod_fits_a_tainted_node_only_with_a_matching_toleration(
    *, taint: Taint, toleration: Toleration | None, fits: bool
) -> None:
    found = misfit(asks(tolerations=(toleration,) if toleration else ()), view(taints=(taint,)))
    assert (found == ()) is fits
    assert fits or f"{taint.key}={taint.value}:{taint.effect}" in found[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chips": 5}, "requests 5 chips, the node offers 4 to pods"),
        ({"cpu_millicores": 2001}, "requests 2.001 cpu, the node offers 2 to pods"),
        ({"memory_bytes": 2**31 + 1}, "requests 2.1Gi memory, the node offers 2Gi to pods"),
        ({"other_bytes": (("hugepages-2Mi", 2**21),)}, "requests 2Mi hugepages-2Mi, the node offers 0Mi to pods"),
        ({"node_selector": {"zone": "b"}}, "selects zone=b, the node has zone=a"),
        ({"node_selector": {"rack": "1"}}, "selects rack=1, the node has no label rack"),
    ],
)
def test_reason_names_the_request_and_the_value_of_the_node(changes: dict[str, Any], words: str) -> None:
    assert words in "; ".join(misfit(asks(**changes), view()))


@pytest.mark.parametrize("selected", [{}, {constants.TPU_DRA_DRIVER: "true"}])
@pytest.mark.parametrize("labels", [{}, {constants.TPU_DRA_DRIVER: "true"}])
def test_only_pods_of_the_dra_driver_fit_its_nodes(selected: dict[str, str], labels: dict[str, str]) -> None:
    """Nodes of the DRA driver have no google.com/tpu, and other nodes have no devices for resource claims."""
    assert (misfit(asks(node_selector=selected), view(labels=labels)) == ()) is (selected == labels)


_KEYS = st.sampled_from(
    ["zone", "size", "kubernetes.io/unheard-of", "cloud.google.com/gke-spot", constants.TPU_DRA_DRIVER, constants.ZONE]
)
_WORDS = st.sampled_from(["", "a", "b", "9", "10", "010", "-1", "node-1", "true"])
_EFFECTS = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])
_AMOUNTS = st.integers(0, 3)
_VOLUMES = st.builds(
    Volumes,
    zones=st.none() | st.sampled_from([(), ("a",), ("a", "b")]),
    problem=st.sampled_from(["", "", "", "is not bound"]),
)
_RESOURCES = st.sampled_from(["ephemeral-storage", "hugepages-2Mi"])
_VIEWS = st.builds(
    NodeView,
    labels=st.dictionaries(_KEYS, _WORDS, max_size=3),
    taints=st.lists(st.builds(Taint, key=_KEYS, value=_WORDS, effect=_EFFECTS), max_size=2).map(tuple),
    chips=_AMOUNTS,
    cpu_millicores=_AMOUNTS,
    memory_bytes=_AMOUNTS,
    other_bytes=st.dictionaries(_RESOURCES, _AMOUNTS, max_size=2),
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
    other_bytes=st.dictionaries(_RESOURCES, _AMOUNTS, max_size=2).map(lambda found: tuple(found.items())),
    volumes=st.none() | _VOLUMES,
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


@given(st.lists(_VIEWS, max_size=6), st.lists(_REQUIREMENTS, min_size=1, max_size=3))
def test_fits_returns_the_results_of_checking_each_node_separately(
    views: list[NodeView], asked: list[Requirements]
) -> None:
    """One `Fits` checks several requirements, because its caches must not mix up their results."""
    fits = Fits(views)
    for requirements in asked:
        assert _listed(fits.fitting(requirements), len(views)) == [not misfit(requirements, view) for view in views]
        assert _listed(fits.selected(requirements), len(views)) == [
            not label_misfit(requirements, view) for view in views
        ]


def _listed(found: int, count: int) -> list[bool]:
    assert 0 <= found < 1 << count
    return [bool(found >> place & 1) for place in range(count)]


class _Term(tuple[Expression, ...]):
    """A term that counts how often it is iterated."""

    __slots__ = ()
    looks = 0

    def __iter__(self) -> Iterator[Expression]:
        _Term.looks += 1
        return super().__iter__()


@pytest.mark.parametrize("idle_pools", [1, 8])
def test_matching_evaluates_the_affinity_of_a_pod_once_for_all_idle_pools(idle_pools: int) -> None:
    """No pod fits, because each pod avoids one node of every pool, and no two pods share an affinity term."""
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
    ctx = begin_round(world.snapshot(), world.memory, world.settings, GKE_RULES, world.now)
    _Term.looks = 0
    line = in_line(CREATES, [unit_of(slice_, world.now) for slice_ in ctx.slices.values() if slice_.pending], {})
    matching = match(ctx, Budget.of(ctx), line, (), lambda _slice: None)
    assert (len(ctx.owned), len(matching.unserved), matching.claimed) == (idle_pools, 6, {})
    assert _Term.looks == 6
