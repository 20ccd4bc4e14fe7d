"""The node pool of a node follows from GKE's record, the node's name and labels, and earlier lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants
from provisioner.model.capacity import Node, NodePool, PoolName, PoolStatus
from provisioner.model.membership import Membership, reported_pool
from tests.support.clock import NOW

A, B, GONE = PoolName("a"), PoolName("b"), PoolName("gone")
NONE = PoolName("")
POOLS = (
    NodePool(name=A, status=PoolStatus.RUNNING, node_prefixes=("gke-c-a-00000001", "gke-tpu-00000001")),
    NodePool(name=B, status=PoolStatus.RUNNING),
)


def node(name: str, told: PoolName) -> Node:
    return Node(name=name, pool_name=told, created_at=NOW)


@pytest.mark.parametrize(
    ("labels", "annotations", "want"),
    [
        ({}, {}, ""),
        ({constants.NODE_POOL: "a"}, {}, "a"),
        ({constants.NODE_POOL: "a"}, {constants.APPLIED_LABELS: ""}, "a"),
        ({constants.NODE_POOL: "a"}, {constants.APPLIED_LABELS: "x=y,=,z"}, "a"),
        ({constants.NODE_POOL: "x"}, {constants.APPLIED_LABELS: f"x=y,{constants.NODE_POOL}=a"}, "a"),
        ({}, {constants.APPLIED_LABELS: f"{constants.NODE_POOL}=a"}, "a"),
        ({constants.NODE_POOL: 1}, {constants.APPLIED_LABELS: 2}, ""),
    ],
)
def test_record_of_gke_takes_precedence_over_the_label(
    labels: dict[str, object], annotations: dict[str, object], want: str
) -> None:
    assert reported_pool(labels, annotations) == want


@pytest.mark.parametrize(
    ("name", "told", "want"),
    [
        pytest.param("gke-tpu-00000001-abcd", B, A, id="named as the machines of a pool"),
        pytest.param("gke-c-a-00000001-abcd", NONE, A, id="named as the machines of a pool, without label"),
        pytest.param("gke-tpu-00000002-abcd", B, B, id="named as those of no known group"),
        pytest.param("gke-tpu-00000001-x-abcd", B, B, id="a longer name"),
        pytest.param("n", NONE, NONE, id="unknown"),
        pytest.param("n", GONE, GONE, id="the pool is not listed"),
    ],
)
def test_name_of_a_node_takes_precedence_over_its_labels(name: str, told: PoolName, want: PoolName) -> None:
    assert Membership.of(POOLS).pool_of(name, told) == want


def test_node_that_was_seen_keeps_its_pool_if_its_label_names_none() -> None:
    first = Membership.of(POOLS, [node("n", B), node("m", B), node("o", NONE)])
    second = Membership.of(POOLS, [node("n", NONE), node("m", GONE), node("o", NONE)], first)
    assert second.seen == {"n": B, "m": B}
    assert second.correct([node("n", NONE), node("m", B), node("o", NONE)]) == (node("n", B), node("m", B))
    # A node that no longer exists is forgotten.
    assert Membership.of(POOLS, [], second).seen == {}


@given(st.lists(st.tuples(st.text(max_size=3), st.sampled_from([A, B, GONE, NONE])), max_size=6))
def test_membership_does_not_change_while_the_lists_are_equal(told: list[tuple[str, PoolName]]) -> None:
    nodes = [node(name, pool) for name, pool in dict(told).items()]
    once = Membership.of(POOLS, nodes)
    again = Membership.of(POOLS, once.correct(nodes), once)
    assert again.seen == once.seen
