"""Tests of the actor: each create and delete ends in an answer, and no change is sent if the Lease ends too soon."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import structlog

from provisioner import constants
from provisioner.controller.actor import WRITE_SECONDS
from provisioner.kube.errors import Forbidden, Unavailable
from provisioner.kube.live import cordon
from provisioner.kube.protocol import JsonObject, Request, object_path
from provisioner.model.capacity import FailureKind, NodePool, NodePoolRequest, OperationName, PoolName, PoolStatus, Zone
from provisioner.model.workloads import GroupKey, ObjectRef, WorkloadName, WorkloadUid
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.memory.answers import Answer, CreateAnswer, DeleteAnswer, DeleteResult, LookUpAnswer
from provisioner.slices.planning.memory.state import LookUp, Memory
from provisioner.slices.planning.plan import Assignment, Create, Plan, PodCost, StatusWrite
from provisioner.workloads import PROVISIONING_REQUEST
from tests.support.controller import World, a_delete, jobset_of, jobset_path, node_of
from tests.support.objects import raw_foreign_pod, raw_request

POOL = PoolName("train-pool")
NODE = "gke-test-train-pool-0"
REF = ObjectRef(kind="Pod", api_version="v1", namespace="research", name="p", uid="u")
CREATE = Create(
    slice_id=SliceId(workload_uid=WorkloadUid("u"), group_key=GroupKey("k")),
    request=NodePoolRequest(
        name=POOL, zone=Zone("us-central2-b"), machine_type="ct4p-hightpu-4t", hosts=1, topology="1x1"
    ),
    pod=REF,
    workload=REF,
)

LABEL_CHANGE = Assignment(node=NODE, labels={"a": "b"})


@pytest.fixture
def world() -> World:
    return World()


def put_pool(world: World) -> None:
    pool = NodePool(name=POOL, status=PoolStatus.RUNNING)
    world.gke.set_pool(pool)
    world.kube.put_object(object_path("nodes", NODE), node_of(pool, NODE, world.clock))


def put_stray(world: World) -> None:
    world.kube.put_object(object_path("pods", "stray", namespace="other"), raw_foreign_pod("stray", NODE))


def carry_out(world: World, **plan: Any) -> list[Answer]:
    world.actor.carry_out(Plan(**{"memory": Memory()} | plan))
    world.settle()
    answers = []
    while (answer := world.actor.take_answer()) is not None:
        answers.append(answer)
    return answers


def created(world: World) -> CreateAnswer:
    (answer,) = carry_out(world, creates=(CREATE,))
    assert isinstance(answer, CreateAnswer)
    return answer


def deleted(world: World) -> DeleteAnswer:
    (answer,) = carry_out(world, deletes=(a_delete(),))
    assert isinstance(answer, DeleteAnswer)
    return answer


def looked_up(world: World, look_up: LookUp) -> LookUpAnswer:
    (answer,) = carry_out(world, look_ups=(look_up,))
    assert isinstance(answer, LookUpAnswer)
    return answer


def test_accepted_create_is_answered_with_its_operation(world: World) -> None:
    assert created(world) == CreateAnswer(name=POOL, at=world.clock.now(), operation=OperationName("operation-1"))
    assert world.wake.is_set()


def test_gate_forgets_pools_without_open_delete(world: World) -> None:
    """The memory of the plan contains every open delete, so the gate needs no record of any other pool."""
    put_pool(world)
    put_stray(world)
    deleted(world)
    assert world.gate._kept_on == {POOL: NODE}
    carry_out(world)
    assert world.gate._kept_on == {}


@pytest.mark.parametrize("kind", list(FailureKind))
def test_rejected_create_is_answered_with_its_failure(world: World, kind: FailureKind) -> None:
    world.gke.fail_next("create_node_pool", kind)
    failure = created(world).failure
    assert failure is not None
    assert failure.kind is kind


def test_crashed_call_is_answered_with_unknown_outcome(world: World) -> None:
    """If a defect of the provisioner ends a call, GKE may have received the request, so the outcome is unknown."""
    put_pool(world)
    world.actor.supplier = Broken()  # type: ignore[assignment]
    for answer in (created(world), deleted(world)):
        assert answer.failure is not None
        assert answer.failure.kind is FailureKind.UNKNOWN_OUTCOME


def test_accepted_delete_is_answered_with_its_operation(world: World) -> None:
    put_pool(world)
    answer = deleted(world)
    assert (answer.result, answer.operation) == (DeleteResult.ACCEPTED, "operation-1")


def test_delete_of_a_missing_pool_is_answered_gone(world: World) -> None:
    assert deleted(world).result is DeleteResult.GONE


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind is not FailureKind.NOT_FOUND])
def test_rejected_delete_is_answered_with_its_failure(world: World, kind: FailureKind) -> None:
    put_pool(world)
    world.gke.fail_next("delete_node_pool", kind, message="not now")
    answer = deleted(world)
    assert answer.failure is not None
    assert (answer.result, answer.failure.kind, answer.reason) == (DeleteResult.FAILED, kind, "not now")


def test_delete_rejected_by_the_gate_is_answered_kept(world: World) -> None:
    put_pool(world)
    put_stray(world)
    answer = deleted(world)
    assert answer.result is DeleteResult.KEPT
    assert "other/stray" in answer.reason
    assert answer.public == "unfinished pods of others are on it"
    assert world.gke.names_of("delete_node_pool") == []


def test_delete_for_a_living_jobset_is_answered_needed(world: World) -> None:
    put_pool(world)
    world.kube.put_object(jobset_path("train"), jobset_of("train", uid="uid-of-train"))
    assert deleted(world).result is DeleteResult.NEEDED


def test_delete_while_the_api_server_fails_is_not_sent(world: World) -> None:
    put_pool(world)
    world.kube.fail("GET", "/jobsets/", Unavailable("no answer"))
    assert deleted(world).result is DeleteResult.FAILED
    assert world.gke.names_of("delete_node_pool") == []


def test_delete_is_not_sent_if_the_lease_ends_during_the_gate(world: World) -> None:
    """The remaining time of the Lease is checked again after the gate, which may take long."""
    put_pool(world)
    left = iter([30.0, 5.0])
    world.actor.lease_seconds = lambda: next(left)
    assert deleted(world).result is DeleteResult.FAILED
    assert world.gke.names_of("delete_node_pool") == []


LOOK_UP = LookUp(name=POOL)


def test_look_up_of_a_pool_returns_whether_it_exists(world: World) -> None:
    answers = [looked_up(world, LOOK_UP)]
    put_pool(world)
    answers.append(looked_up(world, LOOK_UP))
    world.gke.fail_next("get_node_pool", FailureKind.UNAVAILABLE)
    answers.append(looked_up(world, LOOK_UP))
    assert [(answer.exists, answer.failure is None) for answer in answers] == [
        (False, True),
        (True, True),
        (False, False),
    ]


def test_look_up_of_an_operation_returns_its_failure(world: World) -> None:
    world.gke.create_node_pool(CREATE.request)
    world.gke.fail_pool(POOL, FailureKind.STOCKOUT)
    operation = looked_up(world, LookUp(name=POOL, operation=OperationName("operation-1"))).operation
    assert operation is not None
    assert operation.failure is not None
    assert operation.failure.kind is FailureKind.STOCKOUT


def test_look_up_of_an_expired_operation_returns_none(world: World) -> None:
    answer = looked_up(world, LookUp(name=POOL, operation=OperationName("operation-9")))
    assert (answer.operation, answer.failure) == (None, None)


def test_crashed_look_up_gives_no_answer(world: World) -> None:
    """The crash does not end the thread pool, and the call no longer counts as in flight."""
    world.actor.supplier = Broken()  # type: ignore[assignment]
    assert carry_out(world, look_ups=(LOOK_UP,)) == []
    assert world.actor.drain(timeout_seconds=1.0)


def test_failed_uncordon_is_repeated_by_a_later_round(world: World) -> None:
    put_pool(world)
    cordon(world.kube, NODE)
    world.kube.fail("PATCH", NODE, Unavailable("no answer"))
    assert carry_out(world, uncordons=(NODE,)) == []
    world.clock.advance(1.0)
    assert carry_out(world, uncordons=(NODE,)) == []
    raw = world.kube.object(object_path("nodes", NODE))
    assert raw is not None
    assert raw["spec"].get("unschedulable") is None


def test_release_of_a_node_removes_only_the_hold_taint(world: World) -> None:
    put_pool(world)
    raw = world.kube.object(object_path("nodes", NODE))
    assert raw is not None
    others = raw["spec"].get("taints", [])
    held = {"key": constants.HELD_LATE, "value": "true", "effect": "NoSchedule"}
    world.kube.put_object(object_path("nodes", NODE), {**raw, "spec": {**raw["spec"], "taints": [*others, held]}})
    assert carry_out(world, releases=(NODE,)) == []
    raw = world.kube.object(object_path("nodes", NODE))
    assert raw is not None
    assert (raw["spec"].get("taints") or []) == others


def test_node_change_in_flight_is_not_sent_again(world: World) -> None:
    """Several rounds may decide the same change before the first call has ended; only one call is made."""
    put_pool(world)
    cordon(world.kube, NODE)
    before = len(world.calls("PATCH"))
    entered, release = threading.Event(), threading.Event()
    world.actor.supplier = Slow(entered, release)  # type: ignore[assignment]
    world.actor.carry_out(Plan(memory=Memory(), creates=(CREATE,)))
    assert entered.wait(10)
    for _ in range(3):
        world.actor.carry_out(Plan(memory=Memory(), uncordons=(NODE,), releases=(NODE,)))
    release.set()
    world.settle()
    assert len(world.calls("PATCH")) == before + 1
    cordon(world.kube, NODE)
    carry_out(world, uncordons=(NODE,))
    assert len(world.calls("PATCH")) == before + 3


def test_rejected_node_change_is_repeated_with_growing_gaps(world: World) -> None:
    """The gap between attempts grows from 1 s to 60 s. Only the first failure and the recovery are logged."""
    put_pool(world)
    cordon(world.kube, NODE)
    world.kube.fail("PATCH", "/nodes/", Forbidden("nodes is forbidden"), times=10**6)
    tries: list[float] = []
    with structlog.testing.capture_logs() as logs:
        for _ in range(900):
            before = len(world.calls("PATCH"))
            carry_out(world, uncordons=(NODE,))
            tries += [world.clock.seconds] * (len(world.calls("PATCH")) - before)
            world.clock.advance(1.0)
        gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert gaps[0] <= 2
        assert 45 <= gaps[-1] <= 61
        world.kube.clear_faults()
        world.clock.advance(60.0)
        carry_out(world, uncordons=(NODE,))
    assert [line["event"] for line in logs] == ["node.change_failed", "node.change_recovered"]
    assert world.actor.alerts() == ()


def test_back_off_of_a_node_change_ends_when_the_change_is_no_longer_decided(world: World) -> None:
    put_pool(world)
    cordon(world.kube, NODE)
    world.kube.fail("PATCH", "/nodes/", Forbidden("nodes is forbidden"), times=1)
    carry_out(world, uncordons=(NODE,))
    carry_out(world)
    before = len(world.calls("PATCH"))
    carry_out(world, uncordons=(NODE,))
    assert len(world.calls("PATCH")) == before + 1


def test_status_is_written_only_if_the_object_is_unchanged(world: World) -> None:
    path = object_path("provisioningrequests", "req", namespace="default", root=PROVISIONING_REQUEST.root)
    version = world.kube.put_object(path, raw_request())["metadata"]["resourceVersion"]

    def written(message: str, version: str) -> str:
        status = {"conditions": [{"message": message}]}
        name = WorkloadName(PROVISIONING_REQUEST.kind, "default", "req")
        write = StatusWrite(workload=name, resource_version=version, status=status)
        assert carry_out(world, statuses=(write,)) == []
        raw = world.kube.object(path)
        assert raw is not None
        return str(raw.get("status", {}).get("conditions", [{}])[0].get("message"))

    assert written("stale", "0") == "None"
    assert written("first", version) == "first"
    assert written("stale again", version) == "first"
    assert world.actor.alerts() == ()


def test_label_change_waits_for_at_most_64_status_writes_of_earlier_rounds(world: World) -> None:
    """The ProvisioningRequests of one tenant must not delay the assignment of node pools to other tenants."""
    put_pool(world)
    plan = Plan(memory=Memory(), statuses=tuple(status_of(number) for number in range(300)))
    busy = threading.Event()
    world.actor.change_executor.submit(busy.wait)
    for _ in range(2):
        world.actor.carry_out(plan)
    world.actor.carry_out(Plan(memory=Memory(), assignments=(LABEL_CHANGE,)))
    busy.set()
    world.settle()
    assert len(world.calls("PATCH")) == 64 + 1
    assert world.calls("PATCH")[-1] == object_path("nodes", NODE)


@pytest.mark.parametrize("wanted", [False, True])
def test_delayed_label_change_is_dropped_if_the_last_plan_does_not_want_it(world: World, *, wanted: bool) -> None:
    """In the past, a slice got the nodes of two pools, because the labels for its earlier pool were written late."""
    put_pool(world)
    busy = threading.Event()
    world.actor.change_executor.submit(busy.wait)
    later = (LABEL_CHANGE, Assignment(node=NODE, labels={"c": "d"})) if wanted else ()
    for assignments in ((LABEL_CHANGE,), later):
        world.actor.carry_out(Plan(memory=Memory(), assignments=assignments))
    busy.set()
    world.settle()
    assert world.calls("PATCH") == [object_path("nodes", NODE)] * wanted


@pytest.mark.parametrize("left", [[5.0], [30.0, 5.0]], ids=["before the checks", "after the checks"])
def test_labels_are_not_written_if_the_lease_ends_soon(world: World, left: list[float]) -> None:
    """A process that was paused must not write the labels of an old plan."""
    put_pool(world)
    remaining = iter(left)
    world.actor.lease_seconds = lambda: next(remaining)
    carry_out(world, assignments=(LABEL_CHANGE._replace(verify=(NODE,)),))
    assert world.calls("PATCH") == []


def test_writes_to_kubernetes_end_before_another_process_may_lead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_pool(world)
    sent, exchange = list[Request](), world.kube.exchange

    def record(request: Request) -> JsonObject:
        sent.append(request)
        return exchange(request)

    monkeypatch.setattr(world.kube, "exchange", record)
    cost = PodCost(namespace="default", name="web", uid="web", cost=5)
    carry_out(world, assignments=(LABEL_CHANGE,), costs=(cost,), statuses=(status_of(1),))
    writes = [request.timeouts for request in sent if request.method == "PATCH"]
    assert len(writes) == 3
    assert all(limits.connect_seconds + limits.read_seconds <= WRITE_SECONDS for limits in writes)


def test_change_that_is_not_sent_for_lack_of_lease_does_not_end_an_alert(world: World) -> None:
    put_pool(world)
    world.kube.fail("PATCH", NODE, Forbidden("nodes are forbidden"), times=1000)
    carry_out(world, assignments=(LABEL_CHANGE,))
    world.clock.advance(3600.0)
    assert world.actor.alerts() != ()
    world.actor.lease_seconds = lambda: 5.0
    carry_out(world, assignments=(LABEL_CHANGE,))
    assert world.actor.alerts() != ()


def test_label_change_does_not_wait_for_deletes(world: World) -> None:
    """In the past, the checks before 32 deletes of one tenant delayed the label changes of other tenants by 50 s."""
    put_pool(world)
    busy = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as world.actor.delete_executor:
        world.actor.delete_executor.submit(busy.wait)
        world.actor.carry_out(Plan(memory=Memory(), deletes=(a_delete(),), assignments=(LABEL_CHANGE,)))
        world.actor.change_executor.submit(str).result()
        assert world.calls("PATCH") == [object_path("nodes", NODE)]
        busy.set()
    assert world.gke.names_of("delete_node_pool") == [POOL]


def test_rejected_statuses_do_not_prevent_writes_of_other_statuses(world: World) -> None:
    world.kube.fail("PATCH", "/rejected", Forbidden("requests are forbidden"), times=1000)
    rejected = [status_of(number, "rejected") for number in range(100)]
    others = [status_of(number) for number in range(100)]
    for _ in range(5):
        carry_out(world, statuses=(*rejected, *others))
        written = {path.split("/")[-2] for path in world.calls("PATCH")}
        others = [other for other in others if other.workload.name not in written]
    assert others == []
    assert len(world.calls("PATCH")) == 200


def status_of(number: int, prefix: str = "n") -> StatusWrite:
    name = WorkloadName(PROVISIONING_REQUEST.kind, "default", f"{prefix}{number}")
    return StatusWrite(workload=name, resource_version="1", status={})


def test_deletes_are_sent_before_creates(world: World) -> None:
    put_pool(world)
    other = PoolName("other-pool")
    request = NodePoolRequest(
        name=other, zone=Zone("us-central2-b"), machine_type="ct4p-hightpu-4t", hosts=1, topology="1x1"
    )
    create = Create(slice_id=CREATE.slice_id, request=request, pod=REF, workload=REF)
    carry_out(world, creates=(create,), deletes=(a_delete(),))
    assert [call.method for call in world.gke.calls] == ["delete_node_pool", "create_node_pool"]


def test_drain_waits_for_calls_in_flight_and_drops_queued_ones(world: World) -> None:
    entered, release = threading.Event(), threading.Event()
    world.actor.supplier = Slow(entered, release)  # type: ignore[assignment]
    world.actor.carry_out(Plan(memory=Memory(), creates=(CREATE, CREATE)))
    assert entered.wait(10)
    assert not world.actor.drain(timeout_seconds=0.05)
    release.set()
    assert world.actor.drain(timeout_seconds=10)
    assert world.actor.supplier.created == 1  # type: ignore[attr-defined]


class Broken:
    """Supplier whose methods all raise TypeError."""

    def __getattr__(self, method: str) -> Any:
        def crash(*_: Any) -> Any:
            raise TypeError(method)

        return crash


class Slow:
    """Supplier whose creates set `entered` and then wait for `release`."""

    def __init__(self, entered: threading.Event, release: threading.Event) -> None:
        self._entered, self._release = entered, release
        self.created = 0

    def create_pool(self, request: NodePoolRequest, blocked: object) -> OperationName:
        self._entered.set()
        assert self._release.wait(10)
        self.created += 1
        return OperationName("operation-1")


class Exhausted:
    """Executor that cannot start a thread."""

    def submit(self, *_: object) -> None:
        raise RuntimeError("can't start new thread")


def test_delete_that_cannot_be_submitted_is_answered_and_creates_are_sent() -> None:
    """The executor of deletes cannot start a thread; creates have their own executor."""
    world = World()
    put_pool(world)
    world.actor.delete_executor = Exhausted()  # type: ignore[assignment]
    answers = carry_out(world, deletes=(a_delete("first-pool"), a_delete("second-pool")), creates=(CREATE,))
    by_name = {answer.name: answer for answer in answers if not isinstance(answer, LookUpAnswer)}
    assert sorted(by_name) == ["first-pool", "second-pool", "train-pool"]
    failure = by_name[PoolName("first-pool")].failure
    assert failure is not None
    assert (failure.kind, "could not start a thread" in failure.message) == (FailureKind.UNAVAILABLE, True)
    assert world.gke.names_of("create_node_pool") == [CREATE.request.name]
