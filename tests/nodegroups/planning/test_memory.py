"""Effects of Compute Engine's answers on the memory, and problems of templates and policies."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from provisioner.model.capacity import Failure, FailureKind, Operation
from provisioner.model.writes import (
    AnsweredCall,
    AnsweredWrite,
    Proposed,
    WriteFailure,
    choose_writes,
    with_open,
    without_lost,
)
from provisioner.nodegroups.api.specs import WorkloadPolicySpec
from provisioner.nodegroups.api.statuses import OperationRef, OperationType
from provisioner.nodegroups.api.types import Kind, ObjectMeta, WorkloadPolicy
from provisioner.nodegroups.compute.records import Instance, ManagedInstance, ResourcePolicy, Scope, Template
from provisioner.nodegroups.planning import actions
from provisioner.nodegroups.planning.memory import LONG_AGO, Memory, Reading, ResourceMemory, fold
from provisioner.nodegroups.planning.resource import difference, external_problem
from tests.support.nodegroup_world import a_child

ASKED = datetime(2026, 1, 1, tzinfo=UTC)
NOW = ASKED + timedelta(seconds=5)
GONE = Reading(asked_at=ASKED, resource=None)
OF = {
    "target": actions.Target(uid="u", namespace="n", kind=Kind.WORKLOAD_POLICY, scope=Scope(project="p"), name="policy")
}
POLICY = ResourcePolicy(name="policy", type="HIGH_THROUGHPUT", topology="4x4")
MACHINE = ManagedInstance(name="m", scope=Scope(project="p", zone="z"), status="RUNNING", id="7")
INSERT = actions.Insert(**OF, child=a_child(Kind.WORKLOAD_POLICY), mark="", attempt=1, request_id="")
DELETE = actions.Delete(**OF, attempt=1, request_id="")


def answered(memory: Memory, call: actions.Call, kind: FailureKind | None = None, **answer: Any) -> Memory:
    failure = Failure(kind=kind, message="no") if kind is not None else None
    return fold(memory, AnsweredCall(call=call, asked_at=ASKED, at=NOW, failure=failure, **answer))


@pytest.mark.parametrize(
    ("call", "kind", "changed_at", "unsure_at", "reading"),
    [
        (INSERT, None, LONG_AGO, None, None),
        (INSERT, FailureKind.QUOTA, LONG_AGO, None, None),
        (INSERT, FailureKind.UNKNOWN_OUTCOME, NOW, NOW, None),
        (INSERT, FailureKind.ALREADY_EXISTS, NOW, None, None),
        (DELETE, None, ASKED, None, GONE),
        (DELETE, FailureKind.NOT_FOUND, ASKED, None, GONE),
        (DELETE, FailureKind.PERMISSION, LONG_AGO, None, None),
        (DELETE, FailureKind.UNKNOWN_OUTCOME, NOW, None, None),
    ],
)
def test_change_without_an_operation_is_read_again_if_uncertain(
    call: actions.Call,
    kind: FailureKind | None,
    changed_at: datetime,
    unsure_at: datetime | None,
    reading: Reading | None,
) -> None:
    known = answered(Memory(resources={"u": ResourceMemory()}), call, kind).resources["u"]
    assert (known.changed_at, known.unsure_at, known.reading) == (changed_at, unsure_at, reading)
    assert [wait.failures for wait in known.backoffs.values()] == ([1] if reading is None else [])
    assert answered(Memory(), call, kind) == Memory()
    write = AnsweredWrite(write=actions.DeleteNode(name="node", uid="u"), at=NOW)
    assert fold(Memory(), write) == Memory()


@pytest.mark.parametrize(
    ("failure", "first", "longest"),
    [("conflict", 0.5, 10.0), ("not_now", 5.0, 30.0), ("refused", 10.0, 300.0), ("unavailable", 1.0, 60.0)],
)
def test_failed_write_is_repeated_after_increasing_waits(failure: str, first: float, longest: float) -> None:
    write = actions.DeleteNode(name="node", uid="u")
    memory, waits = with_open(Memory(), NOW, writes=[Proposed(write=write, seen="1")]), []
    for _ in range(12):
        memory = fold(memory, AnsweredWrite(write=write, at=NOW, failure=WriteFailure(failure)))
        waits.append(((memory.writes[write.key].retry_at or NOW) - NOW).total_seconds())
    assert (waits[0], waits[-1]) == (pytest.approx(first, rel=0.2), pytest.approx(longest, rel=0.2))


def test_write_without_an_answer_is_forgotten_if_it_is_not_in_progress() -> None:
    write, late = actions.DeleteNode(name="node", uid="u"), NOW + timedelta(seconds=60)
    proposals = [Proposed(write=write, seen="1")]
    memory = with_open(Memory(), NOW, writes=proposals)
    left = [without_lost(memory, frozenset(), NOW + timedelta(seconds=age), fold).writes for age in (59, 60)]
    assert left == [memory.writes, {}]
    in_progress = without_lost(memory, frozenset(memory.writes), late, fold).writes
    assert choose_writes(proposals, in_progress, late)[0] == []


def test_delete_whose_proof_failed_waits() -> None:
    known = answered(Memory(resources={"u": ResourceMemory()}), DELETE, kept="a pod is there").resources["u"]
    assert known.kept is not None
    assert (known.kept.failure.message, known.kept.until > NOW, known.changed_at) == ("a pod is there", True, LONG_AGO)


def test_outdated_answer_changes_nothing() -> None:
    known = ResourceMemory(
        reading=replace(GONE, asked_at=NOW),
        operation=OperationRef(name="later", type=OperationType.CREATE, attempt=2),
    )
    memory = Memory(resources={"u": known})
    assert answered(memory, actions.Read(**OF), result=POLICY) == memory
    poll = actions.Poll(**OF, operation="earlier", type=OperationType.CREATE)
    assert answered(memory, poll, result=Operation(name="earlier", done=True)) == memory


@pytest.mark.parametrize(("is_open", "want"), [(True, ASKED), (False, LONG_AGO)], ids=["open call", "forgotten call"])
def test_reading_has_the_shifted_time_of_its_call_if_the_clock_is_set_back(*, is_open: bool, want: datetime) -> None:
    """A reading with a time in the future would count as newer than all later readings."""
    call = actions.Read(**OF)
    memory = with_open(Memory(resources={"u": ResourceMemory()}), ASKED, calls=[call] if is_open else [])
    answer = AnsweredCall(call=call, asked_at=NOW + timedelta(hours=2), at=NOW, result=POLICY)
    assert fold(memory, answer).resources["u"].reading == Reading(asked_at=want, resource=POLICY)


@pytest.mark.parametrize("found", [(), (Instance(name="m", id="8", items={"a": "b"}),)], ids=["gone", "another one"])
def test_metadata_of_another_machine_under_the_same_name_is_dropped(found: tuple[Instance, ...]) -> None:
    read = actions.ReadMachines(**OF, machines=(MACHINE,))
    memory = answered(Memory(), read, result=(Instance(name="m", id="7", items={"a": "b"}, fingerprint="f"),))
    (known,) = memory.machines.values()
    assert (known.read_at, known.items, known.fingerprint) == (NOW, {"a": "b"}, "f")
    (known,) = answered(memory, read, result=found).machines.values()
    assert (known.id, known.read_at, known.items, known.fingerprint) == ("7", NOW, None, None)
    call = actions.SetMetadata(**OF, machine=MACHINE, items={"c": "d"}, fingerprint="f", request_id="")
    (known,) = answered(memory, call, result=None).machines.values()
    assert (known.id, known.read_at, known.items) == ("7", None, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"provisioning_model": ""}, ""),
        ({"machine_type": "n1-standard-1"}, "its machine type 'n1-standard-1' is not supported"),
        ({"on_host_maintenance": ""}, "its onHostMaintenance is not set"),
        ({"on_host_maintenance": "MIGRATE"}, "its onHostMaintenance is MIGRATE"),
        ({"provisioning_model": "CHEAP"}, "its provisioningModel is 'CHEAP', but must be one of STANDARD, "),
        ({"provisioning_model": "SPOT"}, "its instanceTerminationAction is not set; with provisioningModel SPOT it"),
    ],
)
def test_template_that_cannot_create_tpu_nodes_is_reported(changes: dict[str, Any], words: str) -> None:
    template = Template(name="t", machine_type="ct6e-standard-4t", on_host_maintenance="TERMINATE")
    found = external_problem(replace(template, **changes))
    assert (found.startswith(words), bool(found)) == (True, bool(words))


def test_policy_that_differs_is_reported() -> None:
    spec = WorkloadPolicySpec(project="p", region="r", accelerator_topology="4x4")
    child = WorkloadPolicy(meta=ObjectMeta(namespace="n", name="policy", uid="u"), spec=spec)
    assert difference(child, replace(POLICY, type=spec.type)) == ""
    assert difference(child, replace(POLICY, topology="")).startswith(f"it has type {POLICY.type} and topology none")
