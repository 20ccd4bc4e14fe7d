"""Tests of the API over a socket, the simulator's own API, and service accounts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rehearsal.simulators.compute import ComputeSettings, ComputeSimulator, Loss
from tests.support.compute import GROUPS, POLICIES, TEMPLATES, Compute, group, policy, template
from tests.support.simulator import Client
from tests.support.waiting import wait_for


@pytest.fixture
def compute() -> Iterator[ComputeSimulator]:
    settings = ComputeSettings(
        operation_seconds=0.05, provisioning_seconds=0.05, staging_seconds=0.05, stopping_seconds=0.05
    )
    with ComputeSimulator(settings) as simulator:
        yield simulator


@pytest.fixture
def call(compute: ComputeSimulator) -> Iterator[Client]:
    client = Client(compute.port)
    yield client
    client.close()


def make(call: Client, path: str, body: Any) -> None:
    status, operation = call("POST", path, body)
    assert status == 200, operation
    link = operation["selfLink"].removeprefix("https://www.googleapis.com")
    wait_for(lambda: call("GET", link)[1]["status"] == "DONE")


def make_slice(call: Client) -> None:
    make(call, POLICIES, policy())
    make(call, TEMPLATES, template())
    make(call, GROUPS, group())


def test_errors_have_the_format_of_compute_engine(call: Client) -> None:
    status, body = call("GET", f"{TEMPLATES}/x")
    text = "The resource 'projects/proj/global/instanceTemplates/x' was not found"
    entry = {"message": text, "domain": "global", "reason": "notFound"}
    assert (status, body) == (404, {"error": {"code": 404, "message": text, "errors": [entry]}})
    status, body = call("POST", TEMPLATES, b"{")
    assert (status, body["error"]["errors"][0]["reason"]) == (400, "badRequest")


def test_own_api_shows_the_state_and_takes_losses_settings_and_faults(compute: ComputeSimulator, call: Client) -> None:
    make_slice(call)
    wait_for(lambda: call("GET", f"{GROUPS}/group")[1]["status"]["isStable"])
    state = call("GET", "/simulator/v1/state")[1]
    assert (len(state["resources"]), len(state["operations"])) == (7, 7)
    name = compute.machines[0].name
    assert call("POST", f"/simulator/v1/instances/{name}:lose", {"loss": "deleted"}) == (200, {})
    wait_for(lambda: len(compute.machines) == 3)
    assert call("POST", f"/simulator/v1/instances/{name}:lose", {"loss": "deleted"})[0] == 404
    assert call("POST", f"/simulator/v1/instances/{name}:lose", {"loss": "odd"})[0] == 400
    assert not compute.lose(name, Loss.PREEMPTED)
    assert call("POST", "/simulator/v1/faults", {"kind": "stockout", "model": "CHEAP"})[0] == 400
    assert call("POST", "/simulator/v1/faults", {"kind": "stockout", "name": "("})[0] == 400
    assert call("PUT", "/simulator/v1/settings", {"retry_seconds": 1.5})[1]["retry_seconds"] == 1.5


@pytest.mark.parametrize(
    ("account", "code", "text"),
    [
        pytest.param("forbidden@x", 400, "does not have access to service account", id="one that is not ours"),
        pytest.param("default", 400, "does not have access to service account", id="the default one"),
        pytest.param("fine@x", 200, "", id="one that can be used"),
    ],
)
def test_group_is_rejected_only_with_an_unusable_service_account(
    make_compute: Callable[..., Compute], account: str, code: int, text: str
) -> None:
    default = "349152590288-compute@developer.gserviceaccount.com"
    compute = make_compute(service_accounts={"forbidden@x": "forbidden", "missing@x": "missing", default: "forbidden"})
    compute.do("POST", POLICIES, policy())
    compute.do("POST", TEMPLATES, template(serviceAccounts=[{"email": account, "scopes": ["s"]}]))
    status, answer = compute("POST", GROUPS, group())
    assert status == code
    assert text in str(answer)
