"""Request bodies for a simulated Compute Engine, and clients that call it in memory."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import requests

from rehearsal.simulators.compute.api import Api, route
from rehearsal.simulators.compute.model import World
from rehearsal.simulators.compute.names import GLOBAL, REGIONS, ZONES, Scope
from rehearsal.simulators.compute.records import Group, MachineStatus
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http.exchange import RefusalError, Request
from tests.support.clock import FakeClock

PROJECT = "/compute/v1/projects/proj"
POLICIES = f"{PROJECT}/regions/us-east5/resourcePolicies"
TEMPLATES = f"{PROJECT}/global/instanceTemplates"
GROUPS = f"{PROJECT}/zones/us-east5-a/instanceGroupManagers"
INSTANCES = f"{PROJECT}/zones/us-east5-a/instances"
OPERATIONS = f"{PROJECT}/zones/us-east5-a/operations"
ZONE = Scope("proj", ZONES, "us-east5-a")
REGION = Scope("proj", REGIONS, "us-east5")
EVERYWHERE = Scope("proj", GLOBAL)
MARK = "made by the tests"


def policy(name: str = "policy", topology: str | None = "4x4", **changes: Any) -> dict[str, Any]:
    shape = {"acceleratorTopology": topology} if topology else {}
    workload = {"type": "HIGH_THROUGHPUT", **shape, **changes}
    return {"name": name, "description": MARK, "workloadPolicy": workload}


def template(
    name: str = "template", machine_type: str = "ct6e-standard-4t", model: str = "STANDARD", **changes: Any
) -> dict[str, Any]:
    """Return an instance template. `changes` replace properties; only `scheduling` is merged with the default."""
    scheduling: dict[str, Any] = {"onHostMaintenance": "TERMINATE", "provisioningModel": model}
    properties: dict[str, Any] = {
        "machineType": machine_type,
        "metadata": {"items": [{"key": "startup-script", "value": "#!/bin/sh"}]},
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": "global/images/image"}}],
        "networkInterfaces": [{"subnetwork": "regions/us-east5/subnetworks/default"}],
    }
    if model == "SPOT":
        scheduling["instanceTerminationAction"] = "STOP"
    if model == "RESERVATION_BOUND":
        scheduling["instanceTerminationAction"] = "DELETE"
        properties["reservationAffinity"] = affinity("res")
    if model == "FLEX_START":
        scheduling |= {"instanceTerminationAction": "DELETE", "maxRunDuration": {"seconds": "3600"}}
    scheduling |= changes.pop("scheduling", {})
    return {"name": name, "description": MARK, "properties": {**properties, "scheduling": scheduling, **changes}}


def affinity(reservation: str) -> dict[str, Any]:
    key = "compute.googleapis.com/reservation-name"
    return {"consumeReservationType": "SPECIFIC_RESERVATION", "key": key, "values": [reservation]}


def group(name: str = "group", size: int = 4, mode: str = "BULK", policy: str | None = "policy", **changes: Any) -> Any:
    body: dict[str, Any] = {
        "name": name,
        "description": MARK,
        "instanceTemplate": "projects/proj/global/instanceTemplates/template",
        "targetSize": size,
        "targetSizePolicy": {"mode": mode},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
    }
    if policy is not None:
        body["resourcePolicies"] = {"workloadPolicy": f"projects/proj/regions/us-east5/resourcePolicies/{policy}"}
    return {**body, **changes}


#: Settings with which machines become nodes about a second after the request.
QUICK_JOINS = ComputeSettings(
    provisioning_seconds=0.2,
    staging_seconds=0.2,
    operation_seconds=0.2,
    stopping_seconds=0.5,
    machines_join=True,
    boot_seconds=0.2,
    join_retry_seconds=0.2,
    longest_join_retry_seconds=1,
    heartbeat_seconds=2,
    graceful_shutdown=True,
)


class Compute:
    """A simulated Compute Engine with its API, and a clock that only tests advance."""

    def __init__(self, world: World, clock: FakeClock) -> None:
        self.world = world
        self.clock = clock
        self.api = Api(world)

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        address = urlsplit(path)
        try:
            request = Request(
                http_method=method, path=address.path, query=dict(parse_qsl(address.query)), headers={}, body=body
            )
            answer = self.api.handle(route(method, address.path), request)
        except RefusalError as error:
            return error.code, error.body(request_id="1")
        return 200, json.loads(json.dumps(answer))

    def get(self, path: str) -> Any:
        status, body = self("GET", path)
        assert status == 200, body
        return body

    def do(self, method: str, path: str, body: Any = None) -> Any:
        """Send a valid change, and advance the clock by 1 s to complete it. Return the operation as first reported."""
        status, operation = self(method, path, body)
        assert status == 200, operation
        self.pass_seconds(1)
        return operation

    def pass_seconds(self, seconds: float) -> None:
        """Advance the clock by this time, in steps from event to event, so that each event happens on time."""
        end = self.clock.seconds + seconds
        while (due := self.world.advance()) is not None and (wait := (due - self.clock.now()).total_seconds()) >= 0:
            if self.clock.seconds + wait > end:
                break
            self.clock.advance(wait + 1e-6)
        self.clock.advance(max(end - self.clock.seconds, 0))
        self.world.advance()

    def slice(self, *, model: str = "STANDARD", **changes: Any) -> None:
        self.do("POST", POLICIES, policy())
        self.do("POST", TEMPLATES, template(model=model))
        self.do("POST", GROUPS, group(**changes))

    def status(self, name: str = "group") -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"{GROUPS}/{name}")["status"]
        return found


class Wire:
    """Transport in memory to a simulated Compute Engine's API, in place of the client's HTTP session, which is slow."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self.sent: list[tuple[str, str]] = []

    def request(
        self, method: str, url: str, *, data: bytes | None, params: dict[str, str], **_: object
    ) -> requests.Response:
        path = urlsplit(url).path
        body = json.loads(data) if data else None
        response = requests.Response()
        response.status_code, response.url = 200, url
        with self._lock:
            self.sent.append((method, path))
            try:
                request = Request(http_method=method, path=path, query=params, headers={}, body=body)
                answer: dict[str, Any] = self._api.handle(route(method, path), request)
            except RefusalError as error:
                response.status_code, answer = error.code, error.body(request_id="0x1")
        response._content = json.dumps(answer).encode()
        if response.status_code >= 300:
            response.headers["Content-Type"] = "application/json"
            raise requests.HTTPError(response=response)
        return response


def broken_invariants(world: World) -> list[str]:
    """Return a text for each violated invariant, which is a mistake of the simulator, not of its clients."""
    with world.moment():
        resources = world.resources()
        kept = {id(resource) for resource in resources}
        problems = []
        for group in resources:
            if not isinstance(group, Group):
                continue
            problems += [
                f"{group.path} uses {used.path}, which is gone"
                for used in (group.template, group.policy)
                if used is not None and id(used) not in kept
            ]
            problems += _broken_group(group)
        return problems


def _broken_group(group: Group) -> list[str]:
    counts = Counter(member.name for member in group.members)
    problems = [f"{group.path} has {name} twice" for name, number in counts.items() if number > 1]
    coming = [machine for machine in group.machines if machine.status is MachineStatus.PROVISIONING]
    if group.is_bulk and coming and any(member.wants_machine for member in group.members):
        problems.append(f"{group.path} makes some of its VMs while others wait")
    return problems
