"""The simulated V-IPU server, in a process (`with VipuSimulator() as vipu: ...`) and as a command.

The simulated server and command use REST; the real protocol is gRPC, and is not published:

    GET     /v1/allocations           GET     /v1/ipus
    GET     /v1/partitions            POST    /v1/partitions
    GET     /v1/partitions/ID         DELETE  /v1/partitions/ID

The headers x-user-id and x-access-key identify the caller. The real IPUoF configuration has a device for each IPU, and
attributes such as "GCD Id"; its other keys are not published. The simulator's own API has these calls in addition to
those in `http/service.py`:

    GET     /simulator/v1/state                     all allocations and partitions
    POST    /simulator/v1/restart                   {"keeps_partitions": true, "down_seconds": 0}
    DELETE  /simulator/v1/partitions/ID             deletes a partition without a trace
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import re
import sys
from collections.abc import Sequence
from typing import Any

from rehearsal.simulators.http.app import LocalSimulator
from rehearsal.simulators.http.exchange import CallLog, Request, Route
from rehearsal.simulators.http.faults import BaseFault
from rehearsal.simulators.http.service import BaseService
from rehearsal.simulators.http.settings import SettingsError
from rehearsal.simulators.http.world import Clock
from rehearsal.simulators.vipu import faults, records
from rehearsal.simulators.vipu.faults import Fault
from rehearsal.simulators.vipu.model import World
from rehearsal.simulators.vipu.records import Asked, Caller, PartitionView
from rehearsal.simulators.vipu.settings import VipuSettings

_PARTITION = re.compile(r"partitions/([^/:]+)")


_ONE = re.compile(r"/v1/partitions/([^/]+)")
_METHODS = {
    ("GET", "/v1/allocations"): faults.LIST_ALLOCATIONS,
    ("GET", "/v1/ipus"): faults.LIST_IPUS,
    ("GET", "/v1/partitions"): faults.LIST_PARTITIONS,
    ("POST", "/v1/partitions"): faults.CREATE,
}
_METHODS_OF_ONE = {"GET": faults.GET, "DELETE": faults.REMOVE}


def config_of(partition: PartitionView, server: str) -> dict[str, Any]:
    """Return the configuration of a partition; `server` is HOST:PORT."""
    return {
        "attributes": {
            "GCD Id": "0",
            "Partition": partition.id,
            "Reconfigurable": "1" if partition.reconfigurable else "0",
            "V-IPU server": server,
        },
        "devices": [
            {"id": number, "agent": agent, "ipu": index} for number, (agent, index) in enumerate(partition.ipus)
        ],
    }


def _asked_of(body: object) -> Asked:
    sent = body if isinstance(body, dict) else {}
    known = {item.name for item in dataclasses.fields(Asked)}
    if not set(sent) <= known or not isinstance(sent.get("id"), str) or not isinstance(sent.get("size"), int):
        raise records.invalid("malformed request")
    return Asked(**sent)


class VipuService(BaseService[World]):
    """Serves the API of a simulated V-IPU server."""

    fault_type = Fault

    def __init__(self, world: World, calls: CallLog, address: str) -> None:
        super().__init__(world, calls)
        self._address = address

    def route(self, http_method: str, path: str) -> Route:
        """Return the call that a request makes. Raises VipuRefusalError if the call does not exist."""
        method = _METHODS.get((http_method, path))
        if method is not None:
            return Route(method=method, parts={})
        one = _ONE.fullmatch(path)
        if one is not None and http_method in _METHODS_OF_ONE:
            return Route(method=_METHODS_OF_ONE[http_method], parts={"name": one[1]})
        raise records.VipuRefusalError("NotFound", f"{http_method} {path} is not served")

    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the response, which contains the number of the change for a create or remove."""
        caller = Caller(user=request.headers.get("x-user-id", ""), key=request.headers.get("x-access-key", ""))
        name = found.parts.get("name", "")
        match found.method:
            case faults.LIST_ALLOCATIONS:
                return {"allocations": [dataclasses.asdict(item) for item in self._world.allocations(caller)]}
            case faults.LIST_IPUS:
                return {"ipus": [list(ipu) for ipu in self._world.ipus(caller)]}
            case faults.LIST_PARTITIONS:
                return self._partitions(self._world.partitions(caller))
            case faults.GET:
                return {"config": config_of(self._world.partition(name, caller), self._address)}
            case faults.REMOVE:
                return {"change": self._world.remove(name, caller), "done": False}
        return {"change": self._world.create(_asked_of(request.body), caller), "done": False}

    def _partitions(self, found: tuple[PartitionView, ...]) -> dict[str, Any]:
        shown = [{"id": item.id, "cluster": item.cluster, "size": item.size, "state": item.state} for item in found]
        if self._world.settings.lists_allocations:
            shown = [{**row, "allocation": item.allocation} for row, item in zip(shown, found, strict=True)]
        return {"partitions": shown}

    def newer(self, found: Route, body: dict[str, Any], waited_seconds: float) -> dict[str, Any] | None:  # noqa: ARG002
        """Return the state of an unfinished create or remove; None if it has ended or the wait is over.

        Raises VipuRefusalError if the create or remove has failed.
        """
        is_over = "change" not in body or body["done"]
        if is_over or waited_seconds >= self._world.settings.change_wait_seconds:
            return None
        outcome = self._world.outcome(body["change"])
        if outcome.failure:
            raise records.VipuRefusalError("Internal", outcome.failure)
        return {**body, "done": outcome.done}

    def broken(self, fault: BaseFault) -> records.VipuRefusalError:
        """Return the error that a fault causes."""
        return records.VipuRefusalError("Unavailable", fault.message or "transport is closing")

    def target_of(self, found: Route, request: Request) -> faults.Target:
        """Return the attributes of a call that faults can match."""
        sent = request.body if isinstance(request.body, dict) else {}
        return faults.Target(method=found.method, name=found.parts.get("name") or sent.get("id"))

    def refusal(self, code: int, message: str) -> records.VipuRefusalError:
        """Return the error for an invalid request (400) or a missing object."""
        return records.VipuRefusalError("InvalidArgument" if code == 400 else "NotFound", message)

    def act(self, http_method: str, path: str, body: object) -> dict[str, Any] | None:
        """Handle the calls of this simulator's own API; None if the call is unknown."""
        one = _PARTITION.fullmatch(path)
        if one is not None and http_method == "DELETE":
            if not self._world.vanish(one[1]):
                raise self.refusal(404, f"no partition {one[1]!r}; GET /simulator/v1/state lists all")
            return {}
        match http_method, path:
            case "GET", "state":
                return self._state()
            case "POST", "restart":
                return self._restart(self.object_of(body))
        return None

    def _state(self) -> dict[str, Any]:
        partitions = [
            {**dataclasses.asdict(item), "phase": item.phase.value, "created_at": item.created_at.isoformat()}
            for item in self._world.all_partitions()
        ]
        allocations = [dataclasses.asdict(item) for item in self._world.all_allocations()]
        return {"allocations": allocations, "partitions": partitions}

    def _restart(self, body: dict[str, Any]) -> dict[str, Any]:
        keeps, seconds = body.get("keeps_partitions", True), body.get("down_seconds", 0.0)
        if not isinstance(keeps, bool) or isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise self.refusal(400, "restart takes keeps_partitions (true, false) and down_seconds (a number)")
        self._world.restart(keeps_partitions=keeps, down_seconds=seconds)
        return {}


class VipuSimulator(LocalSimulator[World, VipuSettings]):
    """A V-IPU server on a local port; use it as a context manager, or call `start` and `stop`."""

    def _make_world(self, settings: VipuSettings | None, clock: Clock, rng: random.Random | None) -> World:
        return World(settings or VipuSettings(), clock=clock, rng=rng)

    def start(self) -> None:
        """Open the port and serve. Raises OSError if the port is in use."""
        self._listen(lambda address: VipuService(self.world, self._calls, address))
        self._run()

    @property
    def host(self) -> str:
        """The address that the server listens on, without the port."""
        return self._address[0]

    @property
    def partitions(self) -> tuple[PartitionView, ...]:
        """All partitions in their current state."""
        return self.world.all_partitions()


def serve(arguments: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m rehearsal.simulators.vipu serve")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, as PUT to /simulator/v1/settings")
    options = parser.parse_args(arguments)
    try:
        vipu = VipuSimulator(_settings_of(options.settings), host=options.host, port=options.port)
    except SettingsError as error:
        sys.stderr.write(f"settings: {error}\n")
        return 2
    return vipu.serve(
        "V-IPU simulator", lambda _url: f"set VIPU_SERVERS={vipu.host}:{vipu.port} for the controller of partitions"
    )


def _settings_of(raw: object) -> VipuSettings:
    if not isinstance(raw, dict):
        raise SettingsError(f"{raw!r} is not a JSON object")
    # Settings that can be set only at startup go first, because `changed` rejects a change of them.
    fixed = {name: raw[name] for name in VipuSettings.fixed if name in raw}
    return VipuSettings(**fixed).changed(raw)
