"""Whether a pod can run on a node, as the scheduler sees it."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.model.capacity import Taint
from provisioner.model.fit import NodeView, misfit
from provisioner.model.workloads import Expression, Toleration
from tests.support.models import make_requirements


def view(**changes: Any) -> NodeView:
    """Return a node with four chips."""
    fields: dict[str, Any] = {
        "labels": {"zone": "a", "size": "10", "word": "ten"},
        "taints": (),
        "chips": 4,
        "cpu_millicores": 2000,
        "memory_bytes": 2**31,
        "name": "node-1",
    }
    return NodeView(**fields | changes)


def asks(**changes: Any) -> Any:
    """Return requirements that any node of four chips meets."""
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
        ("zone", "Near", ("a",), False),
    ],
)
def test_operators_of_node_affinity(*, key: str, operator: str, values: tuple[str, ...], holds: bool) -> None:
    term = (Expression(key=key, operator=operator, values=values),)
    assert (misfit(asks(affinity_terms=(term,)), view()) == "") is holds


def test_any_term_suffices_and_all_expressions_of_it_must_hold() -> None:
    """Terms are alternatives, expressions are not."""
    yes, no = Expression(key="zone", operator="Exists"), Expression(key="none", operator="Exists")
    assert misfit(asks(affinity_terms=((yes, no), (yes,))), view()) == ""
    assert "affinity" in misfit(asks(affinity_terms=((yes, no), (no,))), view())


def test_a_field_expression_looks_at_the_name() -> None:
    term = (Expression(key="metadata.name", operator="In", values=("node-1",), on_field=True),)
    assert misfit(asks(affinity_terms=(term,)), view()) == ""
    assert misfit(asks(affinity_terms=(term,)), view(name="node-2")) != ""


@pytest.mark.parametrize(
    ("taint", "toleration", "fits"),
    [
        pytest.param(Taint(key="k", value="v"), None, False, id="a taint without toleration keeps pods off"),
        pytest.param(Taint(key="k", effect="PreferNoSchedule"), None, True, id="a soft taint keeps nobody off"),
        pytest.param(Taint(key="k", effect="NoExecute"), None, False, id="NoExecute keeps pods off too"),
        pytest.param(Taint(key="k", value="v"), Toleration(key="k", value="v"), True, id="Equal needs the value"),
        pytest.param(Taint(key="k", value="v"), Toleration(key="k", value="w"), False, id="Equal minds the value"),
        pytest.param(Taint(key="k", value="v"), Toleration(key="k", operator="Exists"), True, id="Exists does not"),
        pytest.param(Taint(key="k"), Toleration(key="j", operator="Exists"), False, id="another key is another key"),
        pytest.param(Taint(key="k"), Toleration(operator="Exists"), True, id="Exists without key tolerates all"),
        pytest.param(Taint(key="k"), Toleration(), False, id="Equal without key tolerates nothing"),
        pytest.param(
            Taint(key="k", effect="NoExecute"),
            Toleration(key="k", operator="Exists", effect="NoSchedule"),
            False,
            id="a toleration of one effect is none of the other",
        ),
    ],
)
def test_taints_and_tolerations(*, taint: Taint, toleration: Toleration | None, fits: bool) -> None:
    found = misfit(asks(tolerations=(toleration,) if toleration else ()), view(taints=(taint,)))
    assert (found == "") is fits
    assert fits or f"{taint.key}={taint.value}:{taint.effect}" in found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chips": 5}, "requests 5 chips, the node has 4"),
        ({"cpu_millicores": 2001}, "2001 millicores of CPU"),
        ({"memory_bytes": 2**31 + 1}, "bytes of memory"),
        ({"node_selector": {"zone": "b"}}, "selects zone=b, the node has zone=a"),
        ({"node_selector": {"rack": "1"}}, "selects rack=1, the node has no label rack"),
    ],
)
def test_the_reason_names_what_is_asked_and_what_is_there(changes: dict[str, Any], words: str) -> None:
    assert words in misfit(asks(**changes), view())
