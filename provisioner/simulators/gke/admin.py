"""The simulator's own API under /simulator/v1/: look at it, set it, break it.

    GET    /simulator/v1/state                      pools, nodes and operations
    GET    /simulator/v1/settings                   PUT changes those that the body names
    GET    /simulator/v1/faults                     POST adds one, DELETE clears all; DELETE .../faults/ID one
    GET    /simulator/v1/log?limit=N                the newest calls
    GET    /simulator/v1/counters                   calls by method and status
    POST   /simulator/v1/counters:reset             forgets log and counts
    POST   /simulator/v1/pools/NAME:preempt         {"hosts": N}; without, all
    POST   /simulator/v1/pools/NAME:setStatus       {"status": S, "message": M}

It has no access control: whoever reaches the port may use it.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from provisioner.simulators.gke import names
from provisioner.simulators.gke.api import Request
from provisioner.simulators.gke.calls import CallLog
from provisioner.simulators.gke.errors import ApiError
from provisioner.simulators.gke.faults import Fault, FaultError
from provisioner.simulators.gke.model import World
from provisioner.simulators.gke.records import PoolStatus, PoolView
from provisioner.simulators.gke.settings import SettingsError
from provisioner.simulators.gke.wire import operation_body

PREFIX = "/simulator/v1/"
_POOL_ACTION = re.compile(r"pools/([^/:]+):(preempt|setStatus)")
_DEFAULT_LIMIT = 200


class Admin:
    """Answers the simulator's own API."""

    def __init__(self, world: World, calls: CallLog) -> None:
        self._world = world
        self._calls = calls

    def handle(self, request: Request) -> dict[str, Any]:
        """Return the body of the answer."""
        path = request.path.removeprefix(PREFIX)
        action = _POOL_ACTION.fullmatch(path)
        if action is not None and request.http_method == "POST":
            return self._act(action[1], action[2], _object(request.body))
        match request.http_method, path.split("/"):
            case "GET", ["state"]:
                return self._state()
            case "GET", ["settings"]:
                return self._world.settings.as_json()
            case (("PUT" | "PATCH"), ["settings"]):
                return self._change_settings(_object(request.body))
            case "GET", ["faults"]:
                return {"faults": [fault.as_json() for fault in self._world.faults.all()]}
            case "POST", ["faults"]:
                return self._add_fault(_object(request.body))
            case "DELETE", ["faults", *rest]:
                return self._remove_faults(rest)
            case "GET", ["log"]:
                return self._log(request.query.get("limit", str(_DEFAULT_LIMIT)))
            case "GET", ["counters"]:
                return {"calls": self._calls.counts()}
            case "POST", ["counters:reset"]:
                self._calls.reset()
                return {}
        raise ApiError("NOT_FOUND", f"{request.http_method} {request.path} is not part of the simulator's own API.")

    def _state(self) -> dict[str, Any]:
        with self._world.frozen():
            return {
                "pools": [_view_json(view) for view in self._world.views()],
                "operations": [operation_body(item) for item in self._world.all_operations()],
            }

    def _change_settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._world.change_settings(changes).as_json()
        except SettingsError as error:
            raise ApiError("INVALID_ARGUMENT", str(error)) from error

    def _add_fault(self, raw: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._world.faults.add(Fault.from_json(raw)).as_json()
        except FaultError as error:
            raise ApiError("INVALID_ARGUMENT", str(error)) from error

    def _remove_faults(self, path: list[str]) -> dict[str, Any]:
        if not path:
            self._world.faults.clear()
        elif not self._world.faults.remove("/".join(path)):
            raise ApiError("NOT_FOUND", f"no fault {'/'.join(path)!r}; GET {PREFIX}faults lists the active ones")
        self._world.release()
        return {}

    def _log(self, limit: str) -> dict[str, Any]:
        if not limit.isdecimal() or int(limit) == 0:
            raise ApiError("INVALID_ARGUMENT", f"limit: {limit!r} is not a number from 1")
        return {"calls": [call.as_json() for call in self._calls.all()[-int(limit) :]]}

    def _act(self, pool: str, action: str, body: dict[str, Any]) -> dict[str, Any]:
        if action == "preempt":
            hosts = body.get("hosts")
            if hosts is not None and (isinstance(hosts, bool) or not isinstance(hosts, int) or hosts < 0):
                raise ApiError("INVALID_ARGUMENT", f"hosts: {hosts!r} is not a number from 0")
            return {"nodes": list(self._world.preempt(pool, hosts=hosts))}
        status, message = body.get("status"), body.get("message", "")
        known = [item.value for item in PoolStatus]
        if status not in known:
            raise ApiError("INVALID_ARGUMENT", f"status: {status!r} is not one of {', '.join(known)}")
        if not isinstance(message, str):
            raise ApiError("INVALID_ARGUMENT", f"message: {message!r} is not a text")
        self._world.set_status(pool, PoolStatus(status), message=message)
        return {}


def _object(body: object) -> dict[str, Any]:
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise ApiError("INVALID_ARGUMENT", f"the body must be a JSON object, got {type(body).__name__}")
    return body


def _view_json(view: PoolView) -> dict[str, Any]:
    raw = dataclasses.asdict(view)
    return {**raw, "cluster": view.cluster.path, "created": names.timestamp(view.created)}
