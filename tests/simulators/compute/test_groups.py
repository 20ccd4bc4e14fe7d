"""Tests of managed instance groups: rejected inserts, bulk mode, single VMs, reservations and quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.simulators.compute.faults import Fault, FaultKind
from tests.support.compute import GROUPS, INSTANCES, POLICIES, PROJECT, TEMPLATES, Compute, group, policy, template

MakeCompute = Callable[..., Compute]
RESERVED = {"us-east5-a/res": {"machine_type": "ct6e-standard-4t", "count": 4}}


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        pytest.param(group(instanceTemplate="x"), 400, "URL is malformed", id="no link"),
        pytest.param(group(instanceTemplate="global/instanceTemplates/x"), 404, "was not found", id="a missing one"),
        pytest.param(group(size=3), 400, "in the gang mode of size '4'. Should be equal", id="half a slice"),
        pytest.param(group(policy="odd"), 400, "Accelerator topology 3x3 is not supported", id="no such slice"),
        pytest.param(group(policy="far"), 400, "Is of another region", id="a policy of another region"),
        pytest.param(group(baseInstanceName="b" * 59), 400, "at most 58 characters", id="a long base name"),
        pytest.param(group(autoHealingPolicies=[]), 400, 'Unknown name "autoHealingPolicies"', id="health checks"),
        pytest.param(
            group(instanceTemplate="global/instanceTemplates/plain", policy=None), 400, "machine type e2", id="no chips"
        ),
        pytest.param(
            group(instanceTemplate="global/instanceTemplates/flex", instanceLifecyclePolicy={}),
            400,
            "Must be DO_NOTHING",
            id="flex-start that repairs",
        ),
    ],
)
def test_invalid_group_is_rejected_and_not_created(compute: Compute, body: Any, code: int, text: str) -> None:
    """The error is in the response to the insert, not in its operation."""
    compute.do("POST", POLICIES, policy())
    compute.do("POST", POLICIES, policy("odd", "3x3"))
    compute.do("POST", TEMPLATES, template())
    compute.do("POST", TEMPLATES, template("plain", "e2-medium"))
    compute.do("POST", TEMPLATES, template("flex", model="FLEX_START"))
    compute.do("POST", f"{PROJECT}/regions/europe-west4/instanceTemplates", template("far"))
    compute.do("POST", f"{PROJECT}/regions/europe-west4/resourcePolicies", policy("far"))
    if body.get("resourcePolicies", {}).get("workloadPolicy", "").endswith("/far"):
        body["resourcePolicies"]["workloadPolicy"] = "regions/europe-west4/resourcePolicies/far"
    status, answer = compute("POST", GROUPS, body)
    assert status == code
    assert text in answer["error"]["message"]
    assert "items" not in compute.get(GROUPS)


def test_slice_runs_after_its_insert_is_done(compute: Compute) -> None:
    """Once all VMs run, the group is stable and its topology is active."""
    compute.slice()
    assert compute.statuses() == ["PROVISIONING"] * 4
    status = compute.status()
    assert (status["isStable"], status["bulkInstanceOperation"]["inProgress"]) == (False, True)
    compute.pass_seconds(2)
    assert compute.statuses() == ["STAGING"] * 4
    compute.pass_seconds(3)
    assert compute.statuses() == ["RUNNING"] * 4
    status = compute.status()
    assert (status["isStable"], status["bulkInstanceOperation"]) == (True, {"inProgress": False})
    assert status["appliedAcceleratorTopologies"] == [{"acceleratorTopology": "4x4", "state": "ACTIVE"}]
    assert status["currentInstanceStatuses"] == {"running": 4}
    assert {member["currentAction"] for member in compute.members()} == {"NONE"}
    assert status["versionTarget"] == {"isReached": True}
    given = [member["name"] for member in compute.members()]
    assert len({*given}) == 4
    assert all(name.startswith("group-") and len(name) == 10 for name in given)
    assert compute.get(f"{GROUPS}/group")["currentActions"]["none"] == 4


@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        (FaultKind.STOCKOUT, {"ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"}),
        (FaultKind.QUOTA_EXCEEDED, {"QUOTA_EXCEEDED"}),
    ],
)
def test_group_in_bulk_mode_without_capacity_has_instances_without_vms(
    compute: Compute, fault: FaultKind, codes: set[str]
) -> None:
    """The group shows the time and the error of its last attempt."""
    compute.world.faults.add(Fault(kind=fault))
    compute.slice()
    compute.pass_seconds(600)
    members = compute.members()
    assert [(member["currentAction"], "id" in member, "instanceStatus" in member) for member in members] == [
        ("CREATING", False, False)
    ] * 4
    assert all(member["instance"].endswith(f"/instances/{member['name']}") for member in members)
    assert compute("GET", f"{INSTANCES}/{members[0]['name']}")[0] == 404
    status = compute.status()
    check = status["bulkInstanceOperation"]["lastProgressCheck"]
    assert (status["isStable"], status["bulkInstanceOperation"]["inProgress"]) == (False, True)
    assert check["error"]["errors"][0]["code"] in codes
    assert status["appliedAcceleratorTopologies"][0]["state"] == "INCOMPLETE"
    assert status["versionTarget"] == {"isReached": False}
    compute.pass_seconds(5)
    later = compute.status()["bulkInstanceOperation"]["lastProgressCheck"]["timestamp"]
    assert later > check["timestamp"]
    compute.world.faults.clear()
    compute.pass_seconds(5)
    assert compute.statuses() == ["PROVISIONING"] * 4
    assert "error" not in compute.status()["bulkInstanceOperation"]["lastProgressCheck"]
    compute.pass_seconds(10)
    assert compute.status()["isStable"]
    assert [member["name"] for member in compute.members()] == [member["name"] for member in members]


def test_bulk_mode_creates_all_vms_or_none(make_compute: MakeCompute) -> None:
    """With room for three of four VMs, a group with single VMs creates three."""
    compute = make_compute(capacity={"us-east5-a/ct6e-standard-4t": 3})
    compute.slice()
    compute.pass_seconds(20)
    assert compute.statuses() == [""] * 4
    compute.do("POST", GROUPS, group("single", mode="INDIVIDUAL", policy=None))
    compute.pass_seconds(20)
    assert sorted(compute.statuses("single")) == ["", "RUNNING", "RUNNING", "RUNNING"]
    [waiting] = [member for member in compute.members("single") if "instanceStatus" not in member]
    [error] = waiting["lastAttempt"]["errors"]["errors"]
    assert error["code"].startswith("ZONE_RESOURCE_POOL_EXHAUSTED")
    assert error["errorDetails"][1]["errorInfo"]["domain"] == "compute.googleapis.com"
    assert not compute.status("single")["isStable"]
    assert "bulkInstanceOperation" not in compute.status("single")
    compute.world.change_settings({"capacity": {"us-east5-a/ct6e-standard-4t": 8}})
    compute.pass_seconds(20)
    assert compute.statuses() == ["RUNNING"] * 4
    assert compute.statuses("single") == ["RUNNING"] * 4
    assert all("lastAttempt" not in member for member in compute.members("single"))


@pytest.mark.parametrize(
    ("reservations", "code", "text"),
    [
        pytest.param({}, "RESOURCE_NOT_FOUND", "reservations/res' was not found", id="a missing one"),
        pytest.param(
            {"us-east5-a/res": {"machine_type": "ct6e-standard-4t", "count": 3}},
            "ZONE_",
            "not have",
            id="full",
        ),
        pytest.param(
            {"us-east5-a/res": {"machine_type": "ct6e-standard-8t", "count": 9}},
            "INVALID_USAGE",
            "match",
            id="other VMs",
        ),
    ],
)
def test_unusable_reservation_is_the_error_of_a_waiting_slice(
    make_compute: MakeCompute, reservations: Any, code: str, text: str
) -> None:
    """A reservation-bound slice waits until the reservation can be used."""
    compute = make_compute(reservations=reservations)
    compute.slice(model="RESERVATION_BOUND")
    compute.pass_seconds(20)
    [error] = compute.status()["bulkInstanceOperation"]["lastProgressCheck"]["error"]["errors"]
    assert error["code"].startswith(code)
    assert text in error["message"]
