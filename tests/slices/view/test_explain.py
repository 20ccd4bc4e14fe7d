"""Which names stand for what, and durations in words."""

from __future__ import annotations

import pytest

from provisioner.model.wording import first_of
from provisioner.model.workloads import WorkloadKind
from provisioner.slices.view.explain import explain
from tests.support.board import view_of
from tests.support.models import make_jobset, make_pool
from tests.support.world import World, running


@pytest.mark.parametrize(("names", "words"), [("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c and 1 more")])
def test_three_of_many_are_named(names: str, words: str) -> None:
    assert first_of(list(names)) == words


def test_the_facts_of_a_pool_do_not_repeat_its_headline() -> None:
    world = running(workload := make_jobset("train"))
    view = view_of(world)
    (pool,) = view.pools
    (found,) = explain(view, view.at, (), (), pool.name)
    assert {"capacity", "hosts", "machines"} <= dict(found.facts).keys()
    assert "node pool" not in dict(found.facts)
    assert WorkloadKind.JOBSET.value in dict(found.facts)["workload"]
    spare = world.put_pool(make_pool(workload, attempt=1))
    world.put_pool(make_pool(make_jobset("gone")))
    (found,) = explain(view_of(world), view.at, (), (), "train")
    assert [name for name, _ in found.facts if "node pool" in name] == [f"node pool {spare.name}"]


def test_the_headline_of_a_workload_is_about_its_first_slice_and_the_facts_about_the_others() -> None:
    view = view_of(World(make_jobset("both", replicas=2)))
    (found,) = explain(view, view.at, (), (), "both")
    assert "Slice both-slice-0 " in found.headline
    assert [name for name, _ in found.facts if name.startswith("slice")] == ["slice both-slice-1"]
