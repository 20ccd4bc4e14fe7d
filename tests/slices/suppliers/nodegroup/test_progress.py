"""Tests of the status and failure of a pool, derived from the conditions of its TPUNodeGroup."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from provisioner.kube.fields import format_time
from provisioner.model.capacity import Failure, FailureKind, NodePool, PoolStatus
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.types import TpuNodeGroup
from provisioner.slices.suppliers.nodegroup.translate import pool_of
from rehearsal.simulators.compute.records import Loss
from tests.nodegroups.simulation.world import ready_world
from tests.support.clock import NOW
from tests.support.nodegroup_controller import SPEC

WAIT_SECONDS = 600.0
FLEX_START = {
    **SPEC,
    "instanceConfig": {**SPEC["instanceConfig"], "provisioningModel": "FLEX_START", "maxRunDurationSeconds": 3600},
}
STOCKOUT = (
    "ManagedInstanceGroup slice-mig-1: waiting for capacity since 2026-11-23T05:00:00Z, Google says: "
    "ZONE_RESOURCE_POOL_EXHAUSTED: The zone does not have enough resources available to fulfill the request."
)
SUMMARY = (
    "waiting for capacity since 2026-11-23T05:00:00Z, Google says: "
    "VM_MIN_COUNT_NOT_REACHED: Requested minimum count of 4 VMs could not be created."
)


def condition(kind: str, reason: str, message: str = "", *, seconds_ago: float = 0.0) -> dict[str, Any]:
    """Return a condition, which is true for the reasons of a finished resource."""
    true = reason in ("Ready", "Created", "ExternalTemplate")
    since = format_time(NOW - timedelta(seconds=seconds_ago))
    return {
        "type": kind,
        "status": "True" if true else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }


def making(reason: str, message: str = "", *, seconds_ago: float = 0.0) -> list[dict[str, Any]]:
    """Return the conditions of a group whose resources exist, except for its machines."""
    return [
        condition("InstanceTemplateReady", "Ready", seconds_ago=seconds_ago),
        condition("WorkloadPolicyReady", "Ready", seconds_ago=seconds_ago),
        condition("ManagedInstanceGroupReady", "Provisioning", message, seconds_ago=seconds_ago),
        condition("Ready", reason, message, seconds_ago=seconds_ago),
    ]


def progress(
    conditions: list[dict[str, Any]],
    *,
    spec: dict[str, Any] = SPEC,
    age_seconds: float = 0.0,
    deleting: bool = False,
    state: str = "",
) -> NodePool:
    at = format_time(NOW - timedelta(seconds=age_seconds))
    metadata = {"namespace": "slices", "name": "slice", "uid": "1", "creationTimestamp": at}
    machines = [{"name": "m", "state": state, "ready": False, "since": format_time(NOW)}]
    status = {"conditions": conditions, "machines": machines}
    raw = {"metadata": metadata | ({"deletionTimestamp": at} if deleting else {}), "spec": spec, "status": status}
    return pool_of(parse(TpuNodeGroup, raw), NOW, capacity_wait_seconds=WAIT_SECONDS)


READY = [condition("ManagedInstanceGroupReady", "Ready"), condition("Ready", "Ready")]
UNREADABLE = condition("Ready", "RequestRejected", "the group cannot be read: Required 'x.get' permission") | {
    "status": "Unknown"
}
LOST = [condition("ManagedInstanceGroupReady", "Ready"), condition("Ready", "NodeLost")]
TOKENLESS = [LOST[0], condition("Ready", "RequestRejected", "no token for machine m: Required 'x.y' permission")]


@pytest.mark.parametrize(
    ("conditions", "parts", "want"),
    [
        pytest.param([], {}, PoolStatus.PROVISIONING, id="no controller has seen it yet"),
        pytest.param(READY, {}, PoolStatus.RUNNING, id="all nodes are ready"),
        pytest.param(READY, {"deleting": True}, PoolStatus.STOPPING, id="somebody deletes it"),
        pytest.param(LOST, {}, PoolStatus.RUNNING, id="a node is lost, which nodes tell"),
        pytest.param(TOKENLESS, {}, PoolStatus.ERROR, id="machines cost money and cannot join"),
        pytest.param([condition("Ready", "Recreating")], {}, PoolStatus.RECONCILING, id="the slice is recreated"),
        pytest.param(making("AwaitingNodeJoin"), {}, PoolStatus.PROVISIONING, id="machines are made"),
        pytest.param(
            making("AwaitingNodeJoin", seconds_ago=1e6), {"state": "STAGING"}, PoolStatus.PROVISIONING, id="or start"
        ),
        pytest.param(
            making("InstancesCreationFailed", STOCKOUT, seconds_ago=599), {}, PoolStatus.PROVISIONING, id="a short wait"
        ),
        pytest.param(
            [
                condition("WorkloadPolicyReady", "Ready"),
                *(
                    entry
                    for entry in making("InstancesCreationFailed", STOCKOUT, seconds_ago=1e6)
                    if "Policy" not in entry["type"]
                ),
            ],
            {"age_seconds": 1e6},
            PoolStatus.PROVISIONING,
            id="a wait begins when all else is there",
        ),
        pytest.param(
            [
                condition("WorkloadPolicyReady", "Provisioning"),
                condition("InstanceTemplateReady", "Ready", seconds_ago=700),
                condition("Ready", "AwaitingNodeJoin", "WorkloadPolicy is being created"),
            ],
            {"spec": FLEX_START},
            PoolStatus.PROVISIONING,
            id="flex-start, before its policy is there",
        ),
        pytest.param(
            making("RequestRejected", "HTTP 503: try later"), {}, PoolStatus.ERROR, id="rejected without known words"
        ),
        pytest.param(
            making("LimitReached", "4 machines are more than the setting leaves", seconds_ago=1e6),
            {},
            PoolStatus.PROVISIONING,
            id="machines of other groups have to end first",
        ),
        *(
            pytest.param([*making("")[:3], UNREADABLE], {"spec": spec}, PoolStatus.PROVISIONING, id=f"unseen {name}")
            for name, spec in (("standard", SPEC), ("flex-start", FLEX_START))
        ),
        pytest.param(
            making("OperationFailed", "INTERNAL_ERROR: later"), {}, PoolStatus.PROVISIONING, id="it may pass by itself"
        ),
        pytest.param(
            making("AwaitingNodeJoin", seconds_ago=1e6),
            {"spec": FLEX_START},
            PoolStatus.RUNNING,
            id="flex-start waits without end",
        ),
        pytest.param(
            making("InstancesCreationFailed", STOCKOUT, seconds_ago=1e6),
            {"spec": FLEX_START},
            PoolStatus.RUNNING,
            id="whatever Google says of it",
        ),
        pytest.param(
            [
                condition("InstanceTemplateReady", "Provisioning", seconds_ago=599),
                condition("Ready", "AwaitingNodeJoin"),
            ],
            {"age_seconds": 1e6},
            PoolStatus.PROVISIONING,
            id="an old slice is recreated from another template",
        ),
        pytest.param(
            [condition("Ready", "AwaitingNodeJoin")],
            {"spec": FLEX_START},
            PoolStatus.PROVISIONING,
            id="but not before it is asked for",
        ),
    ],
)
def test_status_of_a_pool_follows_from_the_conditions_of_its_group(
    conditions: list[dict[str, Any]], parts: dict[str, Any], want: PoolStatus
) -> None:
    found = progress(conditions, **parts)
    assert (found.status, found.made) == (want, conditions in (READY, LOST, TOKENLESS))


def test_group_that_waits_for_the_limit_on_machines_has_a_failure_with_the_limit() -> None:
    """Users learn of the limit from the message, which is in the Event SliceStuck after an hour."""
    limit = "4 machines are more than the setting MAX_MACHINES_PER_NAMESPACE leaves"
    found = progress(making("LimitReached", limit, seconds_ago=1e6))
    assert (found.status, found.failure) == (
        PoolStatus.PROVISIONING, Failure(kind=FailureKind.QUOTA, message=limit),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("conditions", "parts", "want"),
    [
        pytest.param([], {"age_seconds": 601}, FailureKind.UNAVAILABLE, id="no controller runs"),
        pytest.param(
            making("InstancesCreationFailed", STOCKOUT, seconds_ago=601), {}, FailureKind.STOCKOUT, id="a stockout"
        ),
        pytest.param(
            making("InstancesCreationFailed", f"{SUMMARY}; QUOTA_EXCEEDED: Quota 'TPUS' exceeded. Limit: 16.0"),
            {},
            FailureKind.QUOTA,
            id="what stands beside the summary counts",
        ),
        pytest.param(
            making("AwaitingNodeJoin", "Compute Engine is creating 4 machines", seconds_ago=601),
            {"state": "CREATING"},
            FailureKind.STOCKOUT,
            id="no machines, and no word why",
        ),
        pytest.param(
            making("InstancesCreationFailed", "SOMETHING_NEW: never seen", seconds_ago=601),
            {},
            FailureKind.UNAVAILABLE,
            id="words that nobody knows are no stockout",
        ),
        *(
            pytest.param(making(reason, f"it is not created: {code}: never seen"), {}, kind, id=f"code {code}")
            for reason, code, kind in (
                ("OperationFailed", "RESOURCE_NOT_FOUND", FailureKind.INVALID),
                ("InstancesCreationFailed", "PERMISSIONS_ERROR", FailureKind.PERMISSION),
                ("InstancesCreationFailed", "LIMIT_EXCEEDED", FailureKind.QUOTA),
            )
        ),
        pytest.param(
            [condition("Ready", "RequestRejected", "Required 'compute.instanceTemplates.create' permission for 'x'")],
            {},
            FailureKind.PERMISSION,
            id="a right that Compute Engine names",
        ),
        pytest.param([condition("Ready", "RequestRejected", "HTTP 400")], {}, FailureKind.INVALID, id="a refusal"),
        pytest.param(
            [condition("Ready", "NotAllowed", "the project is not on the list")],
            {},
            FailureKind.PERMISSION,
            id="the project or the namespace is not served",
        ),
        pytest.param([condition("Ready", "InvalidSpec", "no")], {}, FailureKind.INVALID, id="no such machines"),
        pytest.param(
            making("InstancesCreationFailed", "QUOTA_EXCEEDED: no"),
            {"spec": FLEX_START},
            FailureKind.QUOTA,
            id="flex-start too",
        ),
        pytest.param(
            [condition("Ready", "AwaitingNodeJoin", "WorkloadPolicy is being created")],
            {"age_seconds": 601},
            FailureKind.UNAVAILABLE,
            id="something else than machines is missing for too long",
        ),
    ],
)
def test_pool_fails_with_the_kind_of_its_conditions(
    conditions: list[dict[str, Any]], parts: dict[str, Any], want: FailureKind
) -> None:
    found = progress(conditions, **parts)
    assert found.status is PoolStatus.ERROR
    assert found.failure is not None
    assert found.failure.kind is want
    assert found.failure.message


def test_names_of_users_do_not_determine_the_failure() -> None:
    raw = {
        "metadata": {"namespace": "slices", "name": "insufficient-quota-0123456789", "uid": "1"},
        "spec": SPEC,
        "status": {
            "conditions": making(
                "OperationFailed", "InstanceTemplate insufficient-quota-0123456789-template-12345678: INTERNAL_ERROR"
            )
        },
    }
    found = pool_of(parse(TpuNodeGroup, raw), NOW, capacity_wait_seconds=WAIT_SECONDS)
    assert (found.status, found.failure) == (PoolStatus.PROVISIONING, None)


def test_wait_for_a_recreated_slice_starts_after_its_old_machines_are_deleted() -> None:
    """The time that pods take to end is not limited, and is no sign of missing capacity."""
    world = ready_world(topology="2x4")
    pods = world.run_pods("train")
    world.kube.protected.update(pods)
    world.cloud.lose(world.machines("train")[0], Loss.PREEMPTED)
    world.wait_until(lambda: world.reason("train") == "Recreating")
    world.wait(2 * WAIT_SECONDS)
    world.kube.protected.clear()
    seen = set()

    def is_up() -> bool:
        now = world.stage.wall()
        seen.add(pool_of(world.group("train"), now, capacity_wait_seconds=WAIT_SECONDS).status)
        return world.is_ready("train")

    world.wait_until(is_up)
    assert seen == {PoolStatus.RECONCILING, PoolStatus.PROVISIONING, PoolStatus.RUNNING}
