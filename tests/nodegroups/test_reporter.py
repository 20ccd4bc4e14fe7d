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
from provisioner.nodegroups.planning import actions
from provisioner.nodegroups.planning.decide import Crashed, Plan
from provisioner.nodegroups.planning.memory import Memory, ResourceMemory
from provisioner.nodegroups.planning.round import Cluster, Snapshot
from provisioner.nodegroups.report import Reporter
from tests.support.clock import NOW
from tests.support.controller import FakeRecorder
from tests.support.nodegroup_world import a_child, a_machine, meta, target

POLICY, TEMPLATE, MIG = Kind.WORKLOAD_POLICY, Kind.INSTANCE_TEMPLATE, Kind.MANAGED_INSTANCE_GROUP
SECRET = "abcdef.0123456789abcdef"
INSERT = actions.Insert(target=target(TEMPLATE), child=a_child(TEMPLATE), mark="", attempt=1, request_id="r")
DELETE = actions.Delete(target=target(MIG), attempt=1, request_id="d")
POLL = actions.Poll(target=target(MIG), operation=OperationName("operation-1"), type=OperationType.CREATE)
METADATA = actions.SetMetadata(
    target=target(MIG), machine=a_machine(), items={"kubeadm-join-token": SECRET}, fingerprint="f", request_id="m"
)
READ = actions.Read(target=target(POLICY))
EVENT = actions.Event(
    object=ObjectRef(kind="TPUNodeGroup", api_version="v1", namespace="research", name="slice", uid="u1"),
    reason="Provisioned",
    message="4/4 nodes are ready",
)
STATUS = actions.PatchStatus(
    record=TpuNodeGroup(meta=meta(), spec=TpuNodeGroupSpec(project="", node_location="")),
    new=TpuNodeGroupStatus(),
    events=(EVENT,),
)
REMOVE = actions.DeleteNode(name="m-0", uid="u")


@pytest.fixture
def reporter() -> Reporter:
    return Reporter(recorder=FakeRecorder(), metrics=Metrics(version="test"))


def told(reporter: Reporter, answer: actions.CallAnswer | actions.WriteAnswer) -> list[tuple[str, str]]:
    with capture_logs() as logs:
        reporter.tell_answer(answer)
    assert SECRET not in str(logs)
    return [(line["log_level"], line["event"]) for line in logs]


def answered(call: actions.Call, **parts: Any) -> actions.CallAnswer:
    return AnsweredCall(call=call, asked_at=NOW, at=NOW, **parts)


def failed(call: actions.Call, kind: FailureKind = FailureKind.PERMISSION, message: str = "no") -> actions.CallAnswer:
    return answered(call, failure=Failure(kind=kind, message=message))


def operation(*, done: bool = False, failure: Failure | None = None) -> Operation:
    return Operation(name=OperationName("operation-1"), done=done, failure=failure)


def refused(write: actions.Write, failure: WriteFailure, message: str = "no") -> actions.WriteAnswer:
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


_LISTS = (actions.ListMachines(target=target(MIG)), actions.ReadMachines(target=target(MIG), machines=(a_machine(),)))
_ENDED, _FAILED = operation(done=True), operation(done=True, failure=_STOCKOUT)
#: Answer, and level and event of its log line, by case. Successful reads have no line: it would hide other lines.
_LINES: dict[str, tuple[actions.CallAnswer | actions.WriteAnswer, str]] = {
    "create": (answered(INSERT, result=operation()), "info resource.create_accepted"),
    "create that is refused": (failed(INSERT), "warning resource.create_failed"),
    "create of an existing resource": (failed(INSERT, FailureKind.ALREADY_EXISTS), "info call.postponed"),
    "delete": (answered(DELETE, result=operation()), "info resource.delete_accepted"),
    "delete of a missing resource": (answered(DELETE), "info resource.gone"),
    "delete that is refused": (failed(DELETE), "warning resource.delete_failed"),
    "delete that is kept": (answered(DELETE, kept="work"), "warning resource.delete_kept"),
    "operation that has ended": (answered(POLL, result=_ENDED), "info operation.done"),
    "operation that has failed": (answered(POLL, result=_FAILED), "warning operation.failed"),
    "operation that cannot be read": (failed(POLL), "warning compute.read_failed"),
    "operation that is read": (answered(POLL), ""),
    "metadata": (answered(METADATA, result=operation()), "info machine.metadata_set"),
    "metadata that is refused": (failed(METADATA), "warning machine.metadata_failed"),
    "metadata that was changed": (failed(METADATA, FailureKind.OPERATION_IN_THE_WAY), "info call.postponed"),
    "read": (answered(READ), ""),
    "read that is refused": (failed(READ), "warning compute.read_failed"),
    **{type(call).__name__: (answered(call), "") for call in _LISTS},
    "write": (AnsweredWrite(write=REMOVE, at=NOW), "info object.written"),
    "status": (AnsweredWrite(write=replace(STATUS, events=()), at=NOW), "debug object.written"),
    "object that was changed": (refused(REMOVE, WriteFailure.CONFLICT), "info write.postponed"),
    "disruption budget": (refused(REMOVE, WriteFailure.NOT_NOW), "info write.postponed"),
    "missing right": (refused(REMOVE, WriteFailure.REFUSED), "warning write.refused"),
    "no response": (refused(REMOVE, WriteFailure.UNAVAILABLE), "warning write.failed"),
}


@pytest.mark.parametrize(("answer", "want"), _LINES.values(), ids=_LINES)
def test_answer_is_logged_in_at_most_one_line(
    reporter: Reporter, answer: actions.CallAnswer | actions.WriteAnswer, want: str
) -> None:
    """A line never contains the token that a call writes into a machine's metadata."""
    assert [" ".join(line) for line in told(reporter, answer)] == ([want] if want else [])


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
    reporter: Reporter, bad: actions.CallAnswer | actions.WriteAnswer, good: actions.CallAnswer | actions.WriteAnswer
) -> None:
    assert len(told(reporter, bad)) == 1
    assert told(reporter, bad) == []
    if isinstance(bad, AnsweredWrite):
        other: actions.CallAnswer | actions.WriteAnswer = replace(bad, message="other words")
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


def test_event_of_a_status_is_recorded_only_when_the_status_is_written(reporter: Reporter) -> None:
    """After a rejection, the next decision proposes the Event again, together with its status write."""
    reporter.tell(Plan(memory=Memory(), writes=(STATUS,)), Snapshot(cluster=Cluster(uid="c")))
    reporter.tell_answer(refused(STATUS, WriteFailure.CONFLICT))
    assert reasons(reporter) == []
    reporter.tell_answer(AnsweredWrite(write=STATUS, at=NOW))
    assert reasons(reporter) == ["Provisioned"]


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
    node = actions.PatchNode(name="m-0", uid="u", resource_version="7", labels={})
    assert would(node) == "label or taint: Node m-0"
    assert would(replace(node, cordon=True)) == "cordon: Node m-0"
    assert would(actions.EvictPod(namespace="n", name="p", uid="u")) == "evict pod: Pod n/p u"
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
