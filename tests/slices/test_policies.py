"""Tests of the workload policies of pools: created if missing, checked if present, and their failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from provisioner import constants
from provisioner.model.capacity import (
    Failure,
    FailureKind,
    NodePoolRequest,
    OperationName,
    PoolName,
    WorkloadPolicy,
    Zone,
)
from provisioner.model.workloads import GroupKey, ObjectRef, WorkloadUid
from provisioner.slices.act import CALL_TIMEOUT_SECONDS
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.memory.answers import CreateAnswer
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.plan import Create, Plan
from tests.support.controller import World

OWN, MINE = "tpu-provisioner-2x2x2", "my-policy"
RIGHT = WorkloadPolicy(name=OWN, topology="2x2x2")
REQUEST = NodePoolRequest(
    name=PoolName("train-pool"),
    zone=Zone("us-central1-c"),
    machine_type="tpu7x-standard-4t",
    hosts=2,
    topology="2x2x2",
    policy_name=OWN,
)
#: Request for a pod whose selector names the policy. Only pools of such pods have a label with the topology.
NAMED = replace(REQUEST, policy_name=MINE, labels={constants.POOL_TOPOLOGY: "2x2x2"})
COMMAND = (
    "create it by hand: gcloud compute resource-policies create workload-policy {} --type=HIGH_THROUGHPUT "
    "--accelerator-topology=2x2x2 --region=us-central1"
)
REF = ObjectRef(kind="Pod", api_version="v1", namespace="research", name="p", uid="u")


@pytest.fixture
def world() -> World:
    return World()


def send(world: World, request: NodePoolRequest = REQUEST, **changes: Any) -> CreateAnswer:
    create = Create(
        slice_id=SliceId(workload_uid=WorkloadUid("u"), group_key=GroupKey("k")),
        request=replace(request, **changes),
        pod=REF,
        workload=REF,
    )
    world.actor.carry_out(Plan(memory=Memory(), creates=(create,)))
    world.settle()
    answer = world.actor.take_answer()
    assert isinstance(answer, CreateAnswer)
    return answer


def refusal(world: World, request: NodePoolRequest = REQUEST) -> Failure:
    before = world.gke.counts()["create_node_pool"]
    failure = send(world, request).failure
    assert failure is not None
    assert world.gke.counts()["create_node_pool"] == before
    return failure


def methods(world: World) -> list[str]:
    return [call.method for call in world.gke.calls]


def test_pool_without_policy_reads_no_policy(world: World) -> None:
    assert send(world, policy_name="").operation == OperationName("operation-1")
    assert methods(world) == ["create_node_pool"]


def test_missing_policy_of_the_provisioner_is_created(world: World) -> None:
    assert send(world).failure is None
    assert world.gke.policies == {OWN: RIGHT}
    assert methods(world) == [
        "get_workload_policy",
        "create_workload_policy",
        "get_workload_policy",
        "create_node_pool",
    ]


@pytest.mark.parametrize(
    ("policy", "request_"),
    [
        pytest.param(RIGHT, REQUEST, id="provisioner's policy"),
        pytest.param(replace(RIGHT, name=MINE), NAMED, id="policy named by the pod"),
    ],
)
def test_valid_policy_is_read_only_once(world: World, policy: WorkloadPolicy, request_: NodePoolRequest) -> None:
    world.gke.set_policy(policy)
    assert send(world, request_).failure is None
    assert send(world, request_, name=PoolName("second")).failure is None
    assert methods(world) == ["get_workload_policy", "create_node_pool", "create_node_pool"]


def test_missing_policy_named_by_the_pod_is_not_created(world: World) -> None:
    """Users create and delete the policies that pods name. The failure has the command to create the policy."""
    failure = refusal(world, NAMED)
    assert failure.kind is FailureKind.INVALID
    assert failure.message == f"Workload policy {MINE} in us-central1 does not exist; {COMMAND.format(MINE)}"
    assert world.gke.policies == {}


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        pytest.param(
            replace(RIGHT, topology="4x4x4"), "has type HIGH_THROUGHPUT and topology 4x4x4", id="another topology"
        ),
        pytest.param(
            replace(RIGHT, type="HIGH_AVAILABILITY", topology=""),
            "has type HIGH_AVAILABILITY and topology none",
            id="another type",
        ),
        pytest.param(
            replace(RIGHT, type="HIGH_AVAILABILITY"), "has type HIGH_AVAILABILITY", id="another type, right topology"
        ),
        pytest.param(replace(RIGHT, type="", topology=""), "is not a workload policy", id="another kind of policy"),
    ],
)
def test_create_with_an_unsuitable_policy_is_rejected(world: World, policy: WorkloadPolicy, words: str) -> None:
    world.gke.set_policy(policy)
    failure = refusal(world)
    assert failure.kind is FailureKind.INVALID
    assert failure.message.startswith(f"Workload policy {OWN} in us-central1 {words}")
    assert "but the pool needs type HIGH_THROUGHPUT and topology 2x2x2." in failure.message
    assert f"selector {constants.PLACEMENT_POLICY}, or delete this one and {COMMAND.format(OWN)}" in failure.message


def test_create_waits_until_its_policy_is_ready(world: World) -> None:
    """After a failure of the kind OPERATION_IN_THE_WAY, the create is repeated, and only a long wait has an Event."""
    world.gke.set_policy(replace(RIGHT, status="CREATING"))
    failure = refusal(world)
    assert failure.kind is FailureKind.OPERATION_IN_THE_WAY
    assert failure.message == f"Workload policy {OWN} is not ready yet: CREATING."
    world.gke.set_policy(RIGHT)
    assert send(world).failure is None


def test_policy_created_at_the_same_time_by_another_thread_is_used(world: World) -> None:
    world.gke.fail_next("create_workload_policy", FailureKind.ALREADY_EXISTS, after_effect=True)
    assert send(world).failure is None


@pytest.mark.parametrize("method", ["get_workload_policy", "create_workload_policy"])
@pytest.mark.parametrize(
    ("kind", "want"),
    [
        pytest.param(FailureKind.UNAVAILABLE, FailureKind.UNAVAILABLE, id="unavailable"),
        pytest.param(FailureKind.UNKNOWN_OUTCOME, FailureKind.UNAVAILABLE, id="a lost answer"),
        pytest.param(FailureKind.TOO_MANY_OPERATIONS, FailureKind.UNAVAILABLE, id="too many requests"),
        pytest.param(FailureKind.QUOTA, FailureKind.QUOTA, id="a quota"),
        pytest.param(FailureKind.INVALID, FailureKind.INVALID, id="a bad name"),
    ],
)
def test_failure_of_a_policy_call_is_not_taken_for_a_failure_of_the_pool(
    world: World, method: str, kind: FailureKind, want: FailureKind
) -> None:
    """No pool was requested, so the failure shows nothing about the pool or about GKE's limit on operations."""
    world.gke.fail_next(method, kind)
    assert refusal(world).kind is want
    assert send(world).failure is None


def test_policy_whose_create_lost_its_answer_is_found_by_the_next_attempt(world: World) -> None:
    world.gke.fail_next("create_workload_policy", FailureKind.UNKNOWN_OUTCOME, after_effect=True)
    assert refusal(world).kind is FailureKind.UNAVAILABLE
    assert send(world).failure is None
    assert world.gke.counts()["create_workload_policy"] == 1


def test_policy_that_cannot_be_read_after_its_create_is_read_again(world: World) -> None:
    """Compute Engine may answer 404 for a policy that it has just created."""
    world.gke.fail_next("get_workload_policy", FailureKind.NOT_FOUND, times=2)
    assert refusal(world).kind is FailureKind.UNAVAILABLE
    assert send(world).failure is None


def test_missing_right_to_read_policies_is_logged_once_and_pools_are_created(world: World) -> None:
    """Users may have created the policies by hand, so the missing right causes one warning, and pools are requested."""
    world.gke.fail_always("get_workload_policy", FailureKind.PERMISSION)
    with capture_logs() as logs:
        for name in ("first", "second"):
            assert send(world, name=PoolName(name)).failure is None
            assert [log["event"] for log in logs if log["log_level"] == "warning"] == ["workload_policy.not_checked"]
    world.gke.fail_next("create_node_pool", FailureKind.INVALID, message=f'Resource policy "{OWN}" is not found.')
    failure = send(world, name=PoolName("third")).failure
    assert failure is not None
    assert (failure.kind, failure.message) == (
        FailureKind.INVALID,
        f'Resource policy "{OWN}" is not found; {COMMAND.format(OWN)}',
    )


def test_right_to_read_policies_that_is_granted_later_is_used_without_a_restart(world: World) -> None:
    world.gke.fail_next("get_workload_policy", FailureKind.PERMISSION)
    send(world)
    world.gke.set_policy(RIGHT)
    send(world, name=PoolName("second"))
    world.gke.fail_next("create_node_pool", FailureKind.INVALID, message=f'Resource policy "{OWN}" is not found.')
    failure = send(world, name=PoolName("third")).failure
    assert failure is not None
    assert failure.kind is FailureKind.OPERATION_IN_THE_WAY


def test_missing_right_to_create_policies_is_reported_with_the_command(world: World) -> None:
    world.gke.fail_next("create_workload_policy", FailureKind.PERMISSION, message="Required 'x'. Grant it.")
    failure = refusal(world)
    assert failure.kind is FailureKind.PERMISSION
    assert failure.message == f"Required 'x'. Grant it. Or {COMMAND.format(OWN)}"


def test_policy_reported_missing_by_gke_is_read_again_and_the_create_repeated(world: World) -> None:
    """A user may have deleted the policy after the provisioner read it."""
    world.gke.set_policy(RIGHT)
    send(world)
    world.gke.fail_next("create_node_pool", FailureKind.INVALID, message=f'Resource policy "{OWN}" is not found.')
    failure = send(world, name=PoolName("second")).failure
    assert failure is not None
    assert failure.kind is FailureKind.OPERATION_IN_THE_WAY
    assert COMMAND.format(OWN) in failure.message
    assert send(world, name=PoolName("second")).failure is None
    assert world.gke.counts()["get_workload_policy"] == 2


@pytest.mark.parametrize(
    "message",
    [
        pytest.param("disk type is wrong", id="unrelated error"),
        pytest.param(f"{OWN} is of another size", id="another error of the policy"),
        pytest.param("Network n is not found", id="another missing resource"),
    ],
)
def test_rejection_without_relation_to_the_policy_is_unchanged(world: World, message: str) -> None:
    world.gke.fail_next("create_node_pool", FailureKind.INVALID, message=message)
    assert send(world).failure == Failure(kind=FailureKind.INVALID, message=message)


@pytest.mark.parametrize(
    ("lease", "want"),
    [
        pytest.param([CALL_TIMEOUT_SECONDS], [], id="too short from the start"),
        pytest.param([30, CALL_TIMEOUT_SECONDS], ["get_workload_policy"], id="too short to create the policy"),
        pytest.param(
            [30, 30, CALL_TIMEOUT_SECONDS],
            ["get_workload_policy", "create_workload_policy", "get_workload_policy"],
            id="too short to create the pool",
        ),
    ],
)
def test_create_is_not_sent_if_the_lease_ends_too_soon(world: World, lease: list[float], want: list[str]) -> None:
    left = iter(lease)
    world.actor.lease_seconds = lambda: next(left)
    assert refusal(world).kind is FailureKind.UNAVAILABLE
    assert methods(world) == want
