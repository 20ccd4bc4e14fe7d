"""Number and order of the calls that are sent in a round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from provisioner.model.capacity import Failure, FailureKind, OperationName
from provisioner.model.writes import AnsweredCall
from provisioner.nodegroups.api.statuses import OperationType
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute.records import ManagedInstance, Manager, Scope
from provisioner.nodegroups.planning.actions import (
    Call,
    Insert,
    ListMachines,
    Poll,
    Read,
    ReadMachines,
    SetMetadata,
    Target,
)
from provisioner.nodegroups.planning.decide import pace
from provisioner.nodegroups.planning.manager import SETTLED_SECONDS, _again_seconds
from provisioner.nodegroups.planning.memory import Memory, fold
from provisioner.nodegroups.planning.nodes import Fleet, Member
from provisioner.nodegroups.planning.round import PlanningSettings, Wanted
from tests.support.nodegroup_world import a_child

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)
SETTINGS = PlanningSettings(project_id="project-1", startup_script="#!", calls_per_second=2, burst_seconds=5.0)
ZONE = Scope(project="p", zone="us-central1-a")


def target(name: str, scope: Scope = ZONE) -> Target:
    """Return the target of a group whose namespace is the first three characters of its name."""
    return Target(uid=name, namespace=name[:3], kind=Kind.MANAGED_INSTANCE_GROUP, scope=scope, name=name)


def insert(name: str, scope: Scope = ZONE) -> Insert:
    child = a_child(Kind.MANAGED_INSTANCE_GROUP, name)
    return Insert(target=target(name, scope), child=child, mark="", attempt=1, request_id="r")


def set_metadata(name: str) -> SetMetadata:
    machine = ManagedInstance(name=name, scope=ZONE, status="RUNNING", id="7")
    return SetMetadata(target=target("g"), machine=machine, items={}, fingerprint="f", request_id="r")


def wanted(*calls: Call, due_at: datetime = LONG_AGO) -> list[Wanted]:
    return [Wanted(call=call, due_at=due_at) for call in calls]


def names(calls: Iterable[Call]) -> list[str]:
    return [call.machine.name if isinstance(call, SetMetadata) else call.target.name for call in calls]


def test_changes_of_groups_precede_changes_of_machines() -> None:
    """This applies even if they are due later, because a new group has more steps left than a machine that joins."""
    queue = [
        *wanted(set_metadata("joining")),
        *wanted(insert("late"), due_at=NOW),
        *wanted(insert("early"), due_at=LONG_AGO),
    ]
    assert names(pace(queue, Memory(), SETTINGS, NOW).calls) == ["early", "late", "joining"]


def test_number_of_calls_in_flight_is_limited() -> None:
    settings = replace(SETTINGS, max_calls=4)
    first = pace(wanted(*(insert(f"g{number}") for number in range(3))), Memory(), settings, NOW)
    second = pace(wanted(*(insert(f"h{number}") for number in range(3))), first.memory, settings, NOW)
    assert (len(first.calls), names(second.calls)) == (3, ["h0"])
    assert second.wake_at is not None


def test_each_region_and_global_resources_have_separate_limits() -> None:
    """Compute Engine counts calls by region, so all zones and groups of a region share one limit."""
    places = (
        ZONE,
        Scope(project="p", zone="us-central1-b"),
        Scope(project="p", region="us-central1"),
        Scope(project="p", zone="us-east5-a"),
        Scope(project="q", zone="us-central1-a"),
        Scope(project="p"),
    )
    queue = [
        call
        for index, scope in enumerate(places)
        for call in wanted(*(insert(f"{index}-{number}", scope) for number in range(10)))
    ]
    chosen = names(pace(queue, Memory(), SETTINGS, NOW).calls)
    count = {index: sum(name.startswith(f"{index}-") for name in chosen) for index in range(len(places))}
    assert sum(count[index] for index in (0, 1, 2)) == 10
    assert [count[index] for index in (3, 4, 5)] == [10, 10, 10]


def test_kinds_of_calls_have_separate_limits() -> None:
    poll = Poll(target=target("g"), operation=OperationName("o"), type=OperationType.CREATE)
    first = pace(wanted(*(insert(f"g{number}") for number in range(10))), Memory(), SETTINGS, NOW)
    others: list[Call] = [poll, Read(target=target("g")), ReadMachines(target=target("g"), machines=())]
    assert len(pace(wanted(insert("h"), *others), first.memory, SETTINGS, NOW).calls) == 3


def test_calls_beyond_the_burst_are_sent_at_the_pace() -> None:
    """The burst is 10 calls, and the pace is 2 calls per second."""
    queue = wanted(*(insert(f"g{number:02d}") for number in range(30)))
    plan = pace(queue, Memory(), SETTINGS, NOW)
    assert len(plan.calls) == 10
    assert plan.wake_at == NOW + timedelta(seconds=0.5)
    plan = pace(queue[10:], plan.memory, SETTINGS, NOW + timedelta(seconds=2))
    assert names(plan.calls) == ["g10", "g11", "g12", "g13"]
    plan = pace((), plan.memory, SETTINGS, NOW + timedelta(hours=1))
    assert plan.memory.pace == {}


def test_many_objects_of_one_namespace_do_not_delay_other_namespaces() -> None:
    many = wanted(*(insert(f"many{number:02d}") for number in range(50)))
    few = wanted(insert("few0"), insert("few1"), due_at=NOW)
    first = pace([*many, *few], Memory(), SETTINGS, NOW)
    assert names(first.calls)[:5] == ["many00", "few0", "many01", "few1", "many02"]
    late = wanted(insert("few2"), due_at=NOW + timedelta(seconds=1))
    second = pace([*many[10:], *late], first.memory, SETTINGS, NOW + timedelta(seconds=1))
    assert names(second.calls) == ["few2", "many10"]


def test_urgent_calls_of_one_namespace_do_not_delay_other_namespaces() -> None:
    """Otherwise a tenant that keeps creating and deleting groups would prevent other tenants' machines from joining."""
    settings = replace(SETTINGS, max_calls=6)
    flood = wanted(*(insert(f"evil{number}") for number in range(20)))
    flood += wanted(*(Read(target=target(f"evil{number}")) for number in range(20)))
    machines = ListMachines(target=target("list"))
    few = wanted(machines, set_metadata("joining"), due_at=NOW)
    first = pace(flood, Memory(), settings, NOW)
    mixed = pace([*flood, *few], Memory(), settings, NOW)
    assert {call.target.namespace for call in mixed.calls} == {"evi", "lis", "g"}
    memory, now = replace(first.memory, calls=dict(list(first.memory.calls.items())[2:])), NOW + timedelta(seconds=1)
    assert names(pace([*flood, *few], memory, settings, now).calls) == ["joining", "list"]


def test_several_namespaces_of_one_tenant_do_not_delay_others() -> None:
    """Otherwise the calls of three namespaces with new objects in each round would always be sent first."""
    settings = replace(SETTINGS, calls_per_second=20, burst_seconds=0.05)
    victim: list[Call] = [Read(target=target("victim")), set_metadata("joining")]
    memory, sent, now = Memory(), [], NOW
    for number in range(8):
        # Each round adds a read and a create for each of three new objects, and answers all calls but the last four.
        flood = [f"ev{index}-{number}" for index in range(3)]
        calls: list[Call] = [*(Read(target=target(name)) for name in flood), *map(insert, flood)]
        left = [call for call in victim if call.key not in sent]
        plan = pace([*wanted(*calls), *wanted(*left, due_at=NOW)], memory, settings, now)
        sent += [call.key for call in plan.calls]
        in_flight = dict(list(plan.memory.calls.items())[-4:])
        memory, now = replace(plan.memory, calls=in_flight), now + timedelta(seconds=0.05)
    assert {call.key for call in victim} <= set(sent)


def test_lists_of_many_namespaces_do_not_delay_changes() -> None:
    """Otherwise the change would wait for the lists, because their namespaces were served 30 s before its own."""
    lists = [ListMachines(target=target(f"{number:03d}")) for number in range(9)]
    memory = Memory()
    for calls, seconds in ((lists, 0), ([set_metadata("first")], 30)):
        memory = pace(wanted(*calls), memory, SETTINGS, NOW + timedelta(seconds=seconds)).memory
        memory = replace(memory, calls={})
    queue, now = wanted(*lists, set_metadata("second")), NOW + timedelta(seconds=31)
    assert names(pace(queue, memory, replace(SETTINGS, max_calls=1), now).calls) == ["second"]


def test_machines_of_a_large_group_do_not_delay_a_small_group() -> None:
    """Ten calls of the large group are in flight, and its other calls have been due longer than the small group's."""
    large = [Wanted(call=set_metadata(f"a{number}"), due_at=LONG_AGO) for number in range(30)]
    first = pace(large, Memory(), SETTINGS, NOW)
    assert len(first.calls) == 10
    small = replace(set_metadata("z"), target=target("small"))
    left = [entry for entry in large if entry.call not in first.calls]
    second = pace([*left, *wanted(small, due_at=NOW)], first.memory, SETTINGS, NOW + timedelta(seconds=0.5))
    assert names(second.calls) == ["z"]


def test_pause_that_google_asks_for_applies_to_its_project_only() -> None:
    """The pause lasts for the time in Google's response, but at most 10 minutes."""
    call = insert("a", Scope(project="p", zone="us-central1-a"))
    other = insert("b", Scope(project="q", zone="us-central1-a"))
    failure = Failure(kind=FailureKind.UNAVAILABLE, message="later")
    memory = Memory()
    for seconds in (60.0, 5.0):
        answer = AnsweredCall(call=call, asked_at=NOW, at=NOW, failure=failure, retry_after_seconds=seconds)
        memory = fold(memory, answer)
    plan = pace(wanted(call, other), memory, SETTINGS, NOW)
    assert (names(plan.calls), plan.wake_at) == (["b"], NOW + timedelta(seconds=60))
    later = NOW + timedelta(seconds=61)
    assert names(pace(wanted(call, other), memory, SETTINGS, later).calls) == ["a", "b"]
    endless = fold(memory, replace(answer, at=later, retry_after_seconds=1e9))
    assert endless.paused == {"p": later + timedelta(seconds=600)}


@pytest.mark.parametrize(("action", "is_settled"), [("NONE", True), ("RECREATING", False)])
def test_group_is_read_rarely_only_if_no_machine_is_changed(action: str, *, is_settled: bool) -> None:
    machine = ManagedInstance(name="m", scope=ZONE, status="RUNNING", action=action, id="7")
    fleet = Fleet(asked_at=NOW, members=(Member(machine=machine, ready=True),))
    resource = Manager(name="g", template="t", target_size=1, is_stable=True, created_at=NOW)
    assert (_again_seconds(resource, fleet, NOW) == SETTLED_SECONDS) is is_settled
