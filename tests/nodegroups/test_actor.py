"""The actor answers every call and every write once, and changes nothing without a sufficient lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from provisioner.kube.errors import Conflict, Forbidden, TooManyRequests, Unavailable
from provisioner.model.capacity import Failure, FailureKind, Operation, OperationName
from provisioner.model.writes import AnsweredCall, AnsweredWrite, WriteFailure
from provisioner.nodegroups.act import CALL_SECONDS, Actor
from provisioner.nodegroups.api.statuses import OperationType
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute.records import ComputeError
from provisioner.nodegroups.gate import Gate
from provisioner.nodegroups.metrics import Metrics
from provisioner.nodegroups.planning import actions
from provisioner.nodegroups.planning.decide import Plan
from provisioner.nodegroups.planning.memory import Memory
from provisioner.nodegroups.writing import WRITE_SECONDS, Writer
from tests.support.clock import FakeClock
from tests.support.nodegroup_world import (
    MANAGER,
    NAMESPACE,
    GroupKube,
    a_child,
    a_machine,
    a_proof,
    target,
)

POLICY, TEMPLATE, MIG = Kind.WORKLOAD_POLICY, Kind.INSTANCE_TEMPLATE, Kind.MANAGED_INSTANCE_GROUP
KINDS = [POLICY, TEMPLATE, MIG]
OPERATION = Operation(name=OperationName("operation-1"), done=False)


@dataclass(slots=True)
class AnsweringCompute:
    """A Compute Engine that answers each call of any method with an operation, or raises the next fault."""

    calls: list[str] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    on_call: Callable[[str], object] = lambda _: None

    def __getattr__(self, method: str) -> Callable[..., Operation]:
        def call(*_arguments: object, **_options: object) -> Operation:
            self.on_call(method)
            self.calls.append(method)
            if self.faults:
                raise self.faults.pop(0)
            return OPERATION

        return call

    def fail(self, kind: FailureKind, **parts: Any) -> None:
        self.faults.append(ComputeError(Failure(kind=kind, message="not now"), "a call", **parts))


class World:
    """An actor between a Compute Engine in memory and an API server in memory."""

    def __init__(self) -> None:
        self.clock, self.kube, self.compute = FakeClock(), GroupKube(), AnsweringCompute()
        self.kube.put_manager()
        self.kube.put_node()
        self.lease_seconds = float("inf")
        self.woken = threading.Event()
        self.metrics = Metrics(version="test")
        self.threads = [ThreadPoolExecutor(max_workers=1) for _ in range(3)]
        self.actor = Actor(
            compute=self.compute,  # type: ignore[arg-type]
            writer=Writer(api=self.kube),
            gate=Gate(api=self.kube, clock=self.clock.now, monotonic=self.clock),
            clock=self.clock.now,
            lease_seconds=lambda: self.lease_seconds,
            on_answer=self.woken.set,
            executor=self.threads[0],
            gate_executor=self.threads[1],
            write_executor=self.threads[2],
            metrics=self.metrics,
            monotonic=self.clock,
        )

    def answers(self, *calls: actions.Call, writes: tuple[actions.Write, ...] = ()) -> list[actions.Answer]:
        self.actor.carry_out(Plan(memory=Memory(), calls=calls, writes=writes))
        assert self.actor.wait_until_idle(timeout_seconds=10)
        taken = []
        while (answer := self.actor.take_answer()) is not None:
            taken.append(answer)
        return taken

    def answer(self, call: actions.Call) -> actions.CallAnswer:
        (answer,) = self.answers(call)
        assert isinstance(answer, AnsweredCall)
        return answer

    def written(self, write: actions.Write) -> actions.WriteAnswer:
        (answer,) = self.answers(writes=(write,))
        assert isinstance(answer, AnsweredWrite)
        return answer


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    for threads in world.threads:
        threads.shutdown()


def insert(kind: Kind) -> actions.Insert:
    return actions.Insert(target=target(kind), child=a_child(kind), mark="", attempt=1, request_id="r")


def delete(kind: Kind, **changes: Any) -> actions.Delete:
    return actions.Delete(**{"target": target(kind), "attempt": 1, "request_id": "d", **changes})


GATED = delete(MIG, target=target(MIG, MANAGER), proof=a_proof(["m-0"]))
POLL = actions.Poll(target=target(MIG), operation=OperationName("operation-1"), type=OperationType.CREATE)
READ_MACHINES = actions.ReadMachines(target=target(MIG), machines=(a_machine(), a_machine("m-1")))
SET_METADATA = actions.SetMetadata(
    target=target(MIG), machine=a_machine(), items={"a": "b"}, fingerprint="f", request_id="m"
)
ALL_CALLS = [
    *(actions.Read(target=target(kind)) for kind in KINDS),
    *(insert(kind) for kind in KINDS),
    *(delete(kind) for kind in KINDS),
    actions.ListMachines(target=target(MIG)),
    POLL,
    READ_MACHINES,
    SET_METADATA,
]
CALL_IDS = [f"{type(call).__name__} {call.target.kind.value}" for call in ALL_CALLS]


@pytest.mark.parametrize("call", ALL_CALLS, ids=CALL_IDS)
@pytest.mark.parametrize("kind", FailureKind)
def test_failure_of_a_call_is_in_its_answer(world: World, call: actions.Call, kind: FailureKind) -> None:
    """NOT_FOUND is a failure only for a create: it means that the request refers to a missing resource."""
    world.compute.fail(kind, retry_after_seconds=7.0, code=503)
    answer = world.answer(call)
    assert answer.result is None
    if kind is FailureKind.NOT_FOUND and not isinstance(call, actions.Insert):
        assert answer.failure is None
    else:
        assert answer.failure is not None
        assert (answer.failure.kind, answer.failure.message, answer.retry_after_seconds) == (kind, "not now", 7.0)


@pytest.mark.parametrize("call", ALL_CALLS, ids=CALL_IDS)
def test_outcome_is_unknown_if_a_call_raises_another_exception(world: World, call: actions.Call) -> None:
    """The exception may have been raised after the request was sent."""
    world.compute.faults.append(TypeError("a mistake"))
    answer = world.answer(call)
    assert answer.failure is not None
    assert answer.failure.kind is FailureKind.UNKNOWN_OUTCOME


def test_answer_has_the_times_of_request_and_response_and_wakes_the_loop(world: World) -> None:
    """Both times are needed, because the resource may have any state during the call."""
    world.compute.on_call = lambda _: world.clock.advance(3)
    before = world.clock.now()
    answer = world.answer(actions.Read(target=target(MIG)))
    assert (answer.asked_at, answer.at) == (before, world.clock.now())
    assert world.woken.is_set()


def test_delete_is_sent_if_its_proof_holds(world: World) -> None:
    assert isinstance(world.answer(GATED).result, Operation)
    assert world.compute.calls == ["delete"]


def test_delete_is_not_sent_if_its_proof_does_not_hold(world: World) -> None:
    world.kube.put_pod()
    answer = world.answer(GATED)
    assert "research/train-0 on m-0" in answer.kept
    assert (answer.result, answer.failure, world.compute.calls) == (None, None, [])


@pytest.mark.parametrize(
    "error",
    [Unavailable("no answer"), Forbidden("no"), TypeError("a mistake")],
    ids=lambda error: type(error).__name__,
)
def test_delete_is_not_sent_if_its_proof_cannot_be_checked(world: World, error: Exception) -> None:
    world.kube.fail("GET", "/pods", error)
    answer = world.answer(GATED)
    assert str(error) in answer.kept
    assert world.compute.calls == []


def test_delete_without_a_proof_reads_nothing_from_kubernetes(world: World) -> None:
    """A forced delete has no proof."""
    world.answer(delete(MIG))
    assert world.kube.calls == []


@pytest.mark.parametrize(
    "call", [insert(MIG), delete(POLICY), SET_METADATA, GATED], ids=["insert", "delete", "metadata", "gated"]
)
def test_change_is_not_sent_without_a_sufficient_lease(world: World, call: actions.Call) -> None:
    """Otherwise the lease could end during the call, and another replica could act at the same time."""
    world.lease_seconds = CALL_SECONDS
    answer = world.answer(call)
    assert answer.failure is not None
    assert answer.failure.kind is FailureKind.UNAVAILABLE
    assert world.compute.calls == []
    assert world.kube.calls == []
    assert world.answer(actions.Read(target=target(MIG))).failure is None


def test_delete_is_not_sent_if_the_lease_runs_out_at_the_gate(world: World) -> None:
    """The lease is checked again after the gate, because the gate may take long."""
    left = iter([30.0, 5.0])
    world.actor.lease_seconds = lambda: next(left)
    answer = world.answer(GATED)
    assert answer.failure is not None
    assert (answer.kept, world.compute.calls) == ("", [])


def test_write_is_not_sent_without_a_sufficient_lease(world: World) -> None:
    """Without a valid lease, another leader may have made another decision."""
    world.lease_seconds = WRITE_SECONDS
    answer = world.written(actions.DeleteNode(name="m-0", uid="u"))
    assert (answer.failure, world.kube.calls) == (WriteFailure.UNAVAILABLE, [])


EVICT = actions.EvictPod(namespace=NAMESPACE, name="p", uid="u")
REMOVE = actions.DeleteNode(name="m-0", uid="uid-of-m-0")


@pytest.mark.parametrize(
    ("write", "error", "want"),
    [
        pytest.param(REMOVE, Conflict("changed"), WriteFailure.CONFLICT, id="an object that has changed"),
        pytest.param(REMOVE, Forbidden("RBAC"), WriteFailure.REFUSED, id="a right that lacks"),
        pytest.param(REMOVE, Unavailable("no answer"), WriteFailure.UNAVAILABLE, id="no answer"),
        pytest.param(REMOVE, TooManyRequests("slowly"), WriteFailure.UNAVAILABLE, id="too many requests"),
        pytest.param(REMOVE, TypeError("a mistake"), WriteFailure.UNAVAILABLE, id="a mistake of ours"),
        pytest.param(EVICT, TooManyRequests("budget"), WriteFailure.NOT_NOW, id="a disruption budget"),
    ],
)
def test_failed_write_has_the_kind_of_failure_and_the_message(
    world: World, write: actions.Write, error: Exception, want: WriteFailure
) -> None:
    world.kube.fail("*", ".", error)
    answer = world.written(write)
    assert answer.failure is want
    assert str(error) in answer.message


def test_successful_write_has_an_answer_without_a_failure(world: World) -> None:
    assert world.written(REMOVE) == AnsweredWrite(write=REMOVE, at=world.clock.now())


class Exhausted:
    """An executor that cannot start a thread."""

    def submit(self, *_: object) -> None:
        raise RuntimeError("can't start new thread")


def test_call_that_cannot_be_submitted_is_answered_and_others_are_sent(world: World) -> None:
    world.actor.write_executor = Exhausted()  # type: ignore[assignment]
    written, read = world.answers(POLL, writes=(REMOVE,))
    assert isinstance(written, AnsweredWrite)
    assert written.failure is WriteFailure.UNAVAILABLE
    assert isinstance(read, AnsweredCall)
    assert read.failure is None
    world.actor.executor = Exhausted()  # type: ignore[assignment]
    failure = world.answer(POLL).failure
    assert failure is not None
    assert (failure.kind, "could not start a thread" in failure.message) == (FailureKind.UNAVAILABLE, True)


def test_slow_compute_engine_does_not_delay_writes(world: World) -> None:
    """The delete that must pass the gate does not wait for the slow call either."""
    entered, release = threading.Event(), threading.Event()

    def wait(method: str) -> None:
        if method == "get_operation":
            entered.set()
            assert release.wait(10)

    world.compute.on_call = wait
    world.actor.carry_out(Plan(memory=Memory(), calls=(POLL, GATED), writes=(REMOVE,)))
    assert entered.wait(10)
    for threads in world.threads[1:]:
        threads.submit(lambda: None).result(timeout=10)
    first, second = world.actor.take_answer(), world.actor.take_answer()
    assert {type(first), type(second)} == {AnsweredWrite, AnsweredCall}
    assert not world.actor.drain(timeout_seconds=0.01)
    release.set()
    assert world.actor.drain(timeout_seconds=10)


def test_calls_are_counted_by_method_and_status(world: World) -> None:
    """Unknown statuses share the label "other", so that the number of labels is bounded."""
    for code in (503, 999):
        world.compute.fail(FailureKind.UNAVAILABLE, code=code)
    world.compute.faults.append(TypeError("a mistake"))
    world.compute.fail(FailureKind.NOT_FOUND, code=404)
    for _ in range(4):
        world.answers(POLL)
    text = world.metrics.exposition().decode()
    for code in ("503", "other", "none", "404"):
        assert f'compute_requests_total{{code="{code}",method="get_operation"}} 1.0' in text
    assert 'compute_request_errors_total{kind="unavailable",method="get_operation"} 2.0' in text
