"""Tests of policies and templates: rejected inserts, responses, use by groups."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.compute import GROUPS, POLICIES, TEMPLATES, Compute, affinity, policy, template


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(policy("p" * 64), "Must be a match of regex", id="a long name"),
        pytest.param(policy(type="FAST"), "Must be one of HIGH_AVAILABILITY", id="no such type"),
        pytest.param(policy(topology="big"), "Must be a topology such as 4x4x4", id="no topology"),
        pytest.param(policy(type="HIGH_AVAILABILITY"), "only with type HIGH_THROUGHPUT", id="a topology spread out"),
        pytest.param({**policy(), "colour": "red"}, 'Unknown name "colour": Cannot find field', id="an unknown field"),
    ],
)
def test_invalid_policy_is_rejected_and_not_created(compute: Compute, body: Any, text: str) -> None:
    status, answer = compute("POST", POLICIES, body)

    assert status == 400
    assert text in answer["error"]["message"]
    assert "items" not in compute.get(POLICIES)


def test_template_shows_defaults_and_cannot_be_changed(compute: Compute) -> None:
    compute.do("POST", TEMPLATES, template(model="FLEX_START"))
    found = compute.get(f"{TEMPLATES}/template")
    assert found["properties"]["scheduling"] == {
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
        "preemptible": False,
        "provisioningModel": "FLEX_START",
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "3600"},
    }
    assert found["properties"]["metadata"]["items"] == [{"key": "startup-script", "value": "#!/bin/sh"}]
    assert "zone" not in found
    assert "region" not in found
    for method in ("PATCH", "PUT"):
        assert compute(method, f"{TEMPLATES}/template", template())[0] == 501


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param(
            {"networkInterfaces": [{"subnetwork": "default"}]},
            "networkInterfaces[0].subnetwork': 'default'. The URL is malformed",
            id="a bare subnetwork",
        ),
        pytest.param({"metadata": {"items": [{"key": "a b"}]}}, "[a-zA-Z0-9-_]{1,127}", id="a bad key"),
        pytest.param({"metadata": {"items": [{"key": "a"}, {"key": "a"}]}}, "duplicate keys", id="a key twice"),
        pytest.param(
            {"metadata": {"items": [{"key": "a", "value": "x" * 262_145}]}}, "At most 262144 bytes", id="a long value"
        ),
        pytest.param(
            {"metadata": {"items": [{"key": key, "value": "x" * 262_144} for key in "ab"]}},
            "must be less than 524288",
            id="much metadata",
        ),
        pytest.param({"scheduling": {"onHostMaintenance": "MIGRATE"}}, "Must be TERMINATE", id="chips that migrate"),
        pytest.param({"model": "SPOT", "scheduling": {"automaticRestart": True}}, "Must be false", id="spot restarts"),
        pytest.param({"model": "SPOT", "reservationAffinity": affinity("r")}, "Can't consume", id="spot reserved"),
        pytest.param(
            {"model": "RESERVATION_BOUND", "scheduling": {"instanceTerminationAction": "STOP"}},
            "Must be DELETE",
            id="a stopped reservation",
        ),
        pytest.param(
            {"model": "FLEX_START", "scheduling": {"maxRunDuration": {"seconds": 599}}}, "from 600 to", id="a short run"
        ),
        pytest.param(
            {"model": "FLEX_START", "scheduling": {"maxRunDuration": {"seconds": 604_801}}},
            "to 604800",
            id="a long run",
        ),
        pytest.param({"model": "FLEX_START", "scheduling": {"maxRunDuration": None}}, "Required", id="an endless run"),
    ],
)
def test_invalid_template_is_rejected_and_not_created(compute: Compute, changes: dict[str, Any], text: str) -> None:
    status, answer = compute("POST", TEMPLATES, template(**changes))

    assert status == 400
    assert text in answer["error"]["message"]
    assert "items" not in compute.get(TEMPLATES)


@pytest.mark.parametrize("path", [f"{POLICIES}/policy", f"{TEMPLATES}/template"])
def test_policy_or_template_used_by_a_group_is_not_deleted(compute: Compute, path: str) -> None:
    """A group uses its policy and template until the delete of the group has ended."""
    compute.slice()
    status, answer = compute("DELETE", path)
    assert (status, answer["error"]["errors"][0]["reason"]) == (400, "resourceInUseByAnotherResource")
    assert "is already being used by 'projects/proj/zones/us-east5-a/instanceGroupManagers/group'" in str(answer)
    compute("DELETE", f"{GROUPS}/group")
    assert compute("DELETE", path)[0] == 400
    compute.pass_seconds(10)
    assert compute("DELETE", path)[0] == 200


def test_name_is_taken_from_insert_to_the_end_of_its_delete(compute: Compute) -> None:
    compute("POST", TEMPLATES, template())
    for _ in range(2):
        status, answer = compute("POST", TEMPLATES, template())
        assert (status, answer["error"]["errors"][0]["reason"]) == (409, "alreadyExists")
        compute.pass_seconds(1)
    before = compute.get(f"{TEMPLATES}/template")["id"]
    compute("DELETE", f"{TEMPLATES}/template")
    assert compute("POST", TEMPLATES, template())[0] == 409
    compute.pass_seconds(1)
    compute.do("POST", TEMPLATES, template())
    assert compute.get(f"{TEMPLATES}/template")["id"] != before
