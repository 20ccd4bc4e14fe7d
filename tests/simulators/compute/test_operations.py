"""Tests of operations: scopes, ends, request IDs, faults."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.simulators.compute.faults import Fault, FaultKind
from tests.support.compute import GROUPS, INSTANCES, OPERATIONS, TEMPLATES, Compute, template

MakeCompute = Callable[..., Compute]
ID = str(uuid.UUID(int=7))


def path_of(operation: dict[str, Any]) -> str:
    return str(operation["selfLink"].removeprefix("https://www.googleapis.com"))


def test_operation_passes_through_its_statuses_with_times(make_compute: MakeCompute) -> None:
    """In memory no server waits, so the call of the wait method returns at once."""
    compute = make_compute(pending_seconds=0.4, operation_seconds=1)
    _, operation = compute("POST", TEMPLATES, template())
    assert (operation["status"], operation["progress"], "startTime" in operation) == ("PENDING", 0, False)
    compute.pass_seconds(0.5)
    running = compute.get(path_of(operation))
    assert (running["status"], "endTime" in running) == ("RUNNING", False)
    assert compute("POST", f"{path_of(operation)}/wait")[1] == running
    compute.pass_seconds(1)
    done = compute.get(path_of(operation))
    assert (done["status"], done["progress"], "error" in done) == ("DONE", 100, False)
    assert done["insertTime"] < done["startTime"] < done["endTime"]
    assert done["targetId"] == compute.get(f"{TEMPLATES}/template")["id"]
    assert done["insertTime"].endswith("-07:00")


def test_repeated_request_returns_the_same_operation(compute: Compute) -> None:
    """The insert is done once, even if the repetition comes after its end or after the delete of its target."""
    _, first = compute("POST", f"{TEMPLATES}?requestId={ID}", template())
    _, second = compute("POST", f"{TEMPLATES}?requestId={ID}", template())
    assert (first["name"], first["clientOperationId"]) == (second["name"], ID)
    compute.pass_seconds(2)
    assert compute("POST", f"{TEMPLATES}?requestId={ID}", template())[1]["status"] == "DONE"
    compute.do("DELETE", f"{TEMPLATES}/template")
    assert compute("POST", f"{TEMPLATES}?requestId={ID}", template())[1]["name"] == first["name"]
    assert compute("GET", f"{TEMPLATES}/template")[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        pytest.param("POST", TEMPLATES, template("other"), id="another body"),
        pytest.param("DELETE", f"{TEMPLATES}/template", None, id="another method"),
    ],
)
def test_request_id_of_another_request_is_rejected(compute: Compute, method: str, path: str, body: Any) -> None:
    """The rejected request has no effect."""
    compute.do("POST", f"{TEMPLATES}?requestId={ID}", template())
    status, answer = compute(method, f"{path}?requestId={ID}", body)
    assert (status, answer["error"]["errors"][0]["reason"]) == (400, "invalid")
    assert "was used by another request" in answer["error"]["message"]
    assert [item["name"] for item in compute.get(TEMPLATES)["items"]] == ["template"]


@pytest.mark.parametrize("method", ["instanceGroupManagers.insert", "instanceGroupManagers.delete"])
def test_hanging_operation_takes_effect_when_its_fault_is_cleared(compute: Compute, method: str) -> None:
    """Until then the operation has no effect, even long after its usual time."""
    compute.world.faults.add(Fault(kind=FaultKind.OPERATION_NEVER_ENDS, method=method))
    compute.slice()
    if method.endswith("delete"):
        compute.pass_seconds(10)
        compute.do("DELETE", f"{GROUPS}/group")
    compute.pass_seconds(10_000)
    [operation] = [item for item in compute.get(OPERATIONS)["items"] if item["status"] == "RUNNING"]
    assert compute.statuses() == ([] if method.endswith("insert") else ["RUNNING"] * 4)
    compute.world.faults.clear()
    compute.world.release()
    compute.pass_seconds(20)
    assert compute.get(path_of(operation))["status"] == "DONE"
    if method.endswith("insert"):
        assert compute.statuses() == ["RUNNING"] * 4
    else:
        assert compute("GET", f"{GROUPS}/group")[0] == 404


def test_second_metadata_change_with_the_same_fingerprint_fails_in_its_operation(compute: Compute) -> None:
    """Both calls are accepted, because the first change takes effect only later."""
    compute.slice()
    name = compute.members()[0]["name"]
    found = compute.get(f"{INSTANCES}/{name}")["metadata"]
    _, first = compute("POST", f"{INSTANCES}/{name}/setMetadata", found)
    _, second = compute("POST", f"{INSTANCES}/{name}/setMetadata", found)
    compute.pass_seconds(1)
    assert "error" not in compute.get(path_of(first))
    failed = compute.get(path_of(second))
    assert (failed["error"]["errors"][0]["code"], failed["httpErrorStatusCode"]) == ("CONDITION_NOT_MET", 412)
    assert compute.get(f"{INSTANCES}/{name}")["metadata"]["fingerprint"] != found["fingerprint"]
