"""The API over a socket: faults of calls, waits, and the simulator's own API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rehearsal.simulators.compute import ComputeSettings, ComputeSimulator, Loss
from tests.support.compute import GROUPS, POLICIES, TEMPLATES, group, policy, template
from tests.support.simulator import Client
from tests.support.waiting import wait_for


@pytest.fixture
def compute() -> Iterator[ComputeSimulator]:
    """A fast simulator."""
    settings = ComputeSettings(
        operation_seconds=0.05, provisioning_seconds=0.05, staging_seconds=0.05, stopping_seconds=0.05
    )
    with ComputeSimulator(settings) as simulator:
        yield simulator


@pytest.fixture
def call(compute: ComputeSimulator) -> Iterator[Client]:
    """A client of it."""
    client = Client(compute.port)
    yield client
    client.close()


def make(call: Client, path: str, body: Any) -> None:
    """Make a resource and wait for it."""
    status, operation = call("POST", path, body)
    assert status == 200, operation
    link = operation["selfLink"].removeprefix("https://www.googleapis.com")
    assert call("POST", f"{link}/wait")[1]["status"] == "DONE"


def make_slice(call: Client) -> None:
    """Make a slice and all that it needs."""
    make(call, POLICIES, policy())
    make(call, TEMPLATES, template())
    make(call, GROUPS, group())


def test_errors_in_computes_form(call: Client) -> None:
    """A refusal has code, message, and reasons; what is no JSON, too."""
    status, body = call("GET", f"{TEMPLATES}/x")
    text = "The resource 'projects/proj/global/instanceTemplates/x' was not found"
    entry = {"message": text, "domain": "global", "reason": "notFound"}
    assert (status, body) == (404, {"error": {"code": 404, "message": text, "errors": [entry]}})
    status, body = call("POST", TEMPLATES, b"{")
    assert (status, body["error"]["errors"][0]["reason"]) == (400, "badRequest")


def test_the_simulators_own_api(compute: ComputeSimulator, call: Client) -> None:
    """State, losses, settings, and the faults that only this one has."""
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
