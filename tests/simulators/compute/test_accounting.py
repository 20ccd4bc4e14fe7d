"""What there is, with the mark of whoever made it."""

from __future__ import annotations

from collections import Counter

from rehearsal.simulators.compute.app import inventory
from rehearsal.simulators.compute.faults import Fault, FaultKind
from rehearsal.simulators.compute.model import World
from tests.support.compute import GROUPS, MARK, POLICIES, TEMPLATES, Compute, broken_invariants, template


def counts_by_mark(world: World) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for item in inventory(world):
        counts.setdefault(item.mark, Counter())[item.collection] += 1
    return counts


def test_what_there_is_by_mark(compute: Compute) -> None:
    """Policy, template, group and its instances count for their mark, until each is gone."""
    compute.slice()
    compute.do("POST", TEMPLATES, {**template("theirs"), "description": "somebody's"})
    assert counts_by_mark(compute.world) == {
        MARK: {"resourcePolicies": 1, "instanceTemplates": 1, "instanceGroupManagers": 1, "instances": 4},
        "somebody's": {"instanceTemplates": 1},
    }
    compute("DELETE", f"{GROUPS}/group")
    busy = [item for item in inventory(compute.world) if item.state in ("busy", "STOPPING")]
    assert [item.collection for item in busy] == ["instanceGroupManagers", *["instances"] * 4]
    compute.pass_seconds(10)
    compute.do("DELETE", f"{TEMPLATES}/template")
    compute.do("DELETE", f"{POLICIES}/policy")
    assert counts_by_mark(compute.world) == {"somebody's": {"instanceTemplates": 1}}


def test_placeholders_count(compute: Compute) -> None:
    """A managed instance without a VM is there all the same."""
    compute.world.faults.add(Fault(kind=FaultKind.STOCKOUT))
    compute.slice()
    assert [item.state for item in inventory(compute.world)] == ["ready"] * 3 + ["waiting"] * 4
    assert counts_by_mark(compute.world)[MARK]["instances"] == 4


def test_broken_invariants_are_told(compute: Compute) -> None:
    """A template that vanishes under its group, a name that is there twice, half a bulk."""
    compute.slice()
    world = compute.world
    [found] = world._store.groups.values()
    world._store.templates.clear()
    found.members[1].name = found.members[0].name
    found.members[2].machine = None
    problems = broken_invariants(world)
    assert [problem.partition("/group ")[2].partition(" ")[0] for problem in problems] == ["uses", "has", "makes"]
