"""Tests of managed instance groups: rejected inserts, and reservations that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.compute import GROUPS, POLICIES, PROJECT, TEMPLATES, Compute, group, policy, template

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
    """A reservation-bound slice waits until its reservation can be used, and reports the error in the meantime."""
    compute = make_compute(reservations=reservations)
    compute.slice(model="RESERVATION_BOUND")
    compute.pass_seconds(20)
    [error] = compute.status()["bulkInstanceOperation"]["lastProgressCheck"]["error"]["errors"]
    assert error["code"].startswith(code)
    assert text in error["message"]
