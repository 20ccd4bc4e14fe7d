"""Answers are logged, problems are logged once, Events follow their status, and metrics have few labels."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from provisioner.model.capacity import Failure, FailureKind, Operation, OperationName
from provisioner.model.waits import Backoff
from provisioner.model.workloads import ObjectRef
from provisioner.model.writes import AnsweredCall, AnsweredWrite, WriteFailure
from provisioner.nodegroups.act import would
from provisioner.nodegroups.api.specs import TpuNodeGroupSpec
from provisioner.nodegroups.api.statuses import Condition, ConditionStatus, OperationType, TpuNodeGroupStatus
from provisioner.nodegroups.api.types import Kind, TpuNodeGroup
from provisioner.nodegroups.compute.records import Manager
from provisioner.nodegroups.metrics import Metrics
from provisioner.nodegroups.planning.actions import (
    Call,
    CallAnswer,
    Delete,
    DeleteNode,
    Event,
    EvictPod,
    Insert,
    ListMachines,
    PatchNode,
    PatchStatus,
    Poll,
    Read,
    ReadMachines,
    SetMetadata,
    Write,
    WriteAnswer,
)
from provisioner.nodegroups.planning.decide import Crashed, Plan
from provisioner.nodegroups.planning.memory import Memory, ResourceMemory
from provisioner.nodegroups.planning.round import Cluster, Snapshot
from provisioner.nodegroups.report import Reporter
from tests.support.clock import NOW
from tests.support.controller import FakeRecorder
from tests.support.nodegroup_world import a_child, a_machine, meta, target

POLICY, TEMPLATE, MIG = Kind.WORKLOAD_POLICY, Kind.INSTANCE_TEMPLATE, Kind.MANAGED_INSTANCE_GROUP
SECRET = "abcdef.0123456789abcdef"
INSERT = Insert(target=target(TEMPLATE), child=a_child(TEMPLATE), mark="", attempt=1, request_id="r")
DELETE = Delete(target=target(MIG), attempt=1, request_id="d")
POLL = Poll(target=target(MIG), operation=OperationName("operation-1"), type=OperationType.CREATE)
METADATA = SetMetadata(
    target=target(MIG), machine=a_machine(), items={"kubeadm-join-token": SECRET}, fingerprint="f", request_id="m"
)
READ = Read(target=target(POLICY))
EVENT = Event(
    object=ObjectRef(kind="TPUNodeGroup", api_version="v1", namespace="research", name="slice", uid="u1"),
    reason="Provisioned",
    message="4/4 nodes are ready",
)
STATUS = PatchStatus(
    record=TpuNodeGroup(meta=meta(), spec=TpuNodeGroupSpec(project="", node_location="")),
    new=TpuNodeGroupStatus(),
    events=(EVENT,),
)
REMOVE = DeleteNode(name="m-0", uid="u")


@pytest.fixture
def reporter() -> Reporter:
    return Reporter(recorder=FakeRecorder(), metrics=Metrics(version="test"))


def told(reporter: Reporter, answer: CallAnswer | WriteAnswer) -> list[tuple[str, str]]:
    with capture_logs() as logs:
        reporter.tell_answer(answer)
    assert SECRET not in str(logs)
    return [(line["log_level"], line["event"]) for line in logs]


def answered(call: Call, **parts: Any) -> CallAnswer:
    return AnsweredCall(call=call, asked_at=NOW, at=NOW, **parts)


def failed(call: Call, kind: FailureKind = FailureKind.PERMISSION, message: str = "no") -> CallAnswer:
    return answered(call, failure=Failure(kind=kind, message=message))


def operation(*, done: bool = False, failure: Failure | None = None) -> Operation:
    return Operation(name=OperationName("operation-1"), done=done, failure=failure)


def refused(write: Write, failure: WriteFailure, message: str = "no") -> WriteAnswer:
    return AnsweredWrite(write=write, at=NOW, failure=failure, message=message)


def test_managed_instance_group_without_an_object_is_reported_once(reporter: Reporter) -> None:
    """The metric has the number in the last list of each project, and no value before the first list."""
    stray = Manager(name="m", description="mark", url="https://compute/m", template="t", target_size=1)
    snapshot = Snapshot(cluster=Cluster(uid="c"))
    counts = []
    with capture_logs() as logs:
        for strays in ({}, {"a": (stray,)}, {"b": ()}, {"a": (stray,)}, {"a": ()}):
            reporter.tell(Plan(memory=Memory(), strays=strays), snapshot)
            lines = reporter.metrics.exposition().decode().splitlines()
            counts.append(
                [line.split("=")[1] for line in lines if line.startswith("tpu_provisioner_nodegroups_orphans{")]
            )
    assert [(line["event"], line["resource"]) for line in logs] == [("resource.orphaned", "https://compute/m")]
    one, none, other = '"a"} 1.0', '"a"} 0.0', '"b"} 0.0'
    assert counts == [[], [one], [one, other], [one, other], [none, other]]


_STOCKOUT = Failure(kind=FailureKind.STOCKOUT, message="none left")


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        pytest.param(answered(INSERT, result=operation()), ("info", "resource.create_accepted"), id="a create"),
        pytest.param(failed(INSERT), ("warning", "resource.create_failed"), id="a create that is refused"),
        pytest.param(
            failed(INSERT, FailureKind.ALREADY_EXISTS), ("info", "call.postponed"), id="a create of what is there"
        ),
        pytest.param(answered(DELETE, result=operation()), ("info", "resource.delete_accepted"), id="a delete"),
        pytest.param(answered(DELETE), ("info", "resource.gone"), id="a delete of what is gone"),
        pytest.param(failed(DELETE), ("warning", "resource.delete_failed"), id="a delete that is refused"),
        pytest.param(answered(DELETE, kept="work"), ("warning", "resource.delete_kept"), id="a delete that is kept"),
        pytest.param(answered(POLL, result=operation(done=True)), ("info", "operation.done"), id="an end"),
        pytest.param(
            answered(POLL, result=operation(done=True, failure=_STOCKOUT)),
            ("warning", "operation.failed"),
            id="a bad end",
        ),
        pytest.param(failed(POLL), ("warning", "compute.read_failed"), id="an operation that cannot be read"),
        pytest.param(answered(METADATA, result=operation()), ("info", "machine.metadata_set"), id="metadata"),
        pytest.param(failed(METADATA), ("warning", "machine.metadata_failed"), id="metadata that is refused"),
        pytest.param(
            failed(METADATA, FailureKind.OPERATION_IN_THE_WAY), ("info", "call.postponed"), id="metadata of another"
        ),
        pytest.param(failed(READ), ("warning", "compute.read_failed"), id="a read"),
        pytest.param(AnsweredWrite(write=REMOVE, at=NOW), ("info", "object.written"), id="a write"),
        pytest.param(
            AnsweredWrite(write=replace(STATUS, events=()), at=NOW), ("debug", "object.written"), id="a status"
        ),
        pytest.param(refused(REMOVE, WriteFailure.CONFLICT), ("info", "write.postponed"), id="an object that changed"),
        pytest.param(refused(REMOVE, WriteFailure.NOT_NOW), ("info", "write.postponed"), id="a disruption budget"),
        pytest.param(refused(REMOVE, WriteFailure.REFUSED), ("warning", "write.refused"), id="a right that lacks"),
        pytest.param(refused(REMOVE, WriteFailure.UNAVAILABLE), ("warning", "write.failed"), id="no answer"),
    ],
)
def test_answer_is_logged_in_one_line(
    reporter: Reporter, answer: CallAnswer | WriteAnswer, want: tuple[str, str]
) -> None:
    """A line never contains the token that a call writes into a machine's metadata."""
    assert told(reporter, answer) == [want]


@pytest.mark.parametrize(
    "call", [READ, ListMachines(target=target(MIG)), POLL, ReadMachines(target=target(MIG), machines=(a_machine(),))]
)
def test_successful_read_is_not_logged(reporter: Reporter, call: Call) -> None:
    """Lines for successful reads would hide other lines."""
    assert told(reporter, answered(call)) == []


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        pytest.param(failed(READ), answered(READ), id="a read"),
        pytest.param(failed(INSERT), answered(INSERT, result=operation()), id="a create"),
        pytest.param(answered(DELETE, kept="work"), answered(DELETE), id="a delete that is kept"),
        pytest.param(refused(REMOVE, WriteFailure.REFUSED), AnsweredWrite(write=REMOVE, at=NOW), id="a write"),
    ],
)
def test_problem_that_lasts_is_logged_once(
    reporter: Reporter, bad: CallAnswer | WriteAnswer, good: CallAnswer | WriteAnswer
) -> None:
    assert len(told(reporter, bad)) == 1
    assert told(reporter, bad) == []
    if isinstance(bad, AnsweredWrite):
        other: CallAnswer | WriteAnswer = replace(bad, message="other words")
    elif bad.kept:
        other = replace(bad, kept="other work")
    else:
        other = failed(bad.call, message="other words")
    assert len(told(reporter, other)) == 1
    told(reporter, good)
    assert len(told(reporter, bad)) == 1


def reasons(reporter: Reporter) -> list[str]:
    recorder = reporter.recorder
    assert isinstance(recorder, FakeRecorder)
    return [event.reason for event in recorder.told]


def test_event_of_a_status_is_recorded_after_the_status_is_written(reporter: Reporter) -> None:
    reporter.tell(Plan(memory=Memory(), writes=(STATUS,)), Snapshot(cluster=Cluster(uid="c")))
    assert reasons(reporter) == []
    reporter.tell_answer(AnsweredWrite(write=STATUS, at=NOW))
    assert reasons(reporter) == ["Provisioned"]


def test_event_of_a_rejected_status_is_dropped(reporter: Reporter) -> None:
    """The next decision proposes the Event again, together with its status write."""
    reporter.tell_answer(refused(STATUS, WriteFailure.CONFLICT))
    assert reasons(reporter) == []


def a_group(reason: str, **parts: Any) -> TpuNodeGroup:
    conditions = (Condition(type="Ready", status=ConditionStatus.FALSE, reason=reason, message=""),) if reason else ()
    status = TpuNodeGroupStatus(conditions=conditions, node_count=4)
    spec = TpuNodeGroupSpec(project="p", node_location="us-east5-a")
    return TpuNodeGroup(meta=meta(**parts), spec=spec, status=status)


def test_metric_labels_are_bounded_for_any_reason(reporter: Reporter) -> None:
    """A reason that this controller does not know, because tpu-operator or a user wrote it, is not a label."""
    groups = (a_group("Ready"), a_group("Whatever"), a_group("Else"), a_group(""), a_group("Ready", deleted_at=NOW))
    wait = Backoff(failure=Failure(kind=FailureKind.INVALID, message="no"), failures=1, at=NOW, until=NOW)
    memory = Memory(resources={"u": ResourceMemory(backoffs={"read": wait, "create": wait})})
    reporter.tell(Plan(memory=memory), Snapshot(cluster=Cluster(uid="c"), groups=groups))
    text = reporter.metrics.exposition().decode()
    for line in (
        'groups{reason="Ready"} 2.0',
        'groups{reason="Unknown"} 3.0',
        "nodes_wanted 16.0",
        "cluster_known 0.0",
        'failing{kind="invalid"} 1.0',
    ):
        assert f"tpu_provisioner_nodegroups_{line}" in text
    assert "Whatever" not in text


def test_age_of_a_reason_is_that_of_the_group_that_has_had_it_longest() -> None:
    """The ages of groups that have the reason one after the other must not add up."""
    ages = []
    reporter = Reporter(
        recorder=FakeRecorder(), metrics=Metrics(version="test"), clock=lambda: NOW + timedelta(minutes=len(ages))
    )
    ready, joins = "Ready", "AwaitingNodeJoin"
    for reasons_now in ((joins, ready), (joins, joins), (ready, joins), (ready, ready)):
        groups = tuple(a_group(reason, uid=uid) for uid, reason in zip("ab", reasons_now, strict=True))
        reporter.tell(Plan(memory=Memory()), Snapshot(cluster=Cluster(uid="c"), groups=groups))
        text = reporter.metrics.exposition().decode()
        ages.append(re.findall(rf'reason_oldest_seconds{{reason="{joins}"}} (.+)', text))
    assert ages == [["0.0"], ["60.0"], ["60.0"], ["0.0"]]


def test_dry_run_reports_only_reads() -> None:
    """In a dry run, the actor logs the omitted changes."""
    reporter = Reporter(recorder=FakeRecorder(), metrics=Metrics(version="test"), dry_run=True)
    for answer in (failed(INSERT), failed(METADATA), refused(REMOVE, WriteFailure.REFUSED)):
        assert told(reporter, answer) == []
    assert told(reporter, failed(READ)) == [("warning", "compute.read_failed")]


def test_dry_run_names_omitted_changes_without_tokens() -> None:
    node = PatchNode(name="m-0", uid="u", resource_version="7", labels={})
    assert would(node) == "label or taint: Node m-0"
    assert would(replace(node, cordon=True)) == "cordon: Node m-0"
    assert would(EvictPod(namespace="n", name="p", uid="u")) == "evict pod: Pod n/p u"
    assert would(INSERT) == f"insert {INSERT.target.name} in {INSERT.target.scope.path}"
    assert would(METADATA) == "set metadata gce://research-project/us-central1-c/m-0"


def test_exception_in_a_decision_is_logged_once_a_minute(reporter: Reporter) -> None:
    error = ValueError("no zone")
    crashed = (Crashed(object=EVENT.object, error=error),) * 3
    plan = Plan(memory=Memory(), crashed=crashed)
    with capture_logs() as logs:
        reporter.tell(plan, Snapshot(cluster=Cluster(uid="u")))
    [line] = [entry for entry in logs if entry["event"] == "node_group.decide_crashed"]
    assert (line["namespace"], line["name"]) == ("research", "slice")
    assert line["exc_info"] is error
    assert b"decisions_crashed_total 3.0" in reporter.metrics.exposition()
