"""The simulated GKE as a server serves it: which faults its calls meet, what it says to what is no request.

What the simulated GKE's own API has beside what every simulator's has (`http/service.py`).

GET    /simulator/v1/state                      pools, nodes and operations
POST   /simulator/v1/pools/NAME:preempt         {"hosts": N}; without, all
POST   /simulator/v1/pools/NAME:setStatus       {"status": S, "message": M}
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from rehearsal.simulators.gke import api, names, schema
from rehearsal.simulators.gke.capacity import capacity_of, reservation_names, reservation_of
from rehearsal.simulators.gke.errors import ApiError, of_http_code
from rehearsal.simulators.gke.faults import Fault, Target
from rehearsal.simulators.gke.model import World
from rehearsal.simulators.gke.records import PoolStatus, PoolView
from rehearsal.simulators.gke.wire import operation_body
from rehearsal.simulators.http.calls import CallLog
from rehearsal.simulators.http.exchange import Request, Route
from rehearsal.simulators.http.faults import BaseFault
from rehearsal.simulators.http.service import BaseService

_POOL_ACTION = re.compile(r"pools/([^/:]+):(preempt|setStatus)")


class GkeService(BaseService[World]):
    """Serves a world."""

    fault_type = Fault

    def __init__(self, world: World, calls: CallLog, own_api: api.Api) -> None:
        super().__init__(world, calls)
        self._api = own_api

    def route(self, http_method: str, path: str) -> Route:
        """Return the call that a request means."""
        return api.route(http_method, path)

    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the answer."""
        return self._api.handle(found, request)

    def broken(self, fault: BaseFault) -> ApiError:
        """Return the refusal that a fault answers with."""
        told = fault.status if isinstance(fault, Fault) and fault.status != "INTERNAL" else None
        return of_http_code(fault.code, fault.message or "The service is currently unavailable.", status=told)

    def target_of(self, found: Route, request: Request) -> Target:
        """Return the call, and the pool that it is about, as far as it shows."""
        if found.method == "nodePools.create":
            return self._target_of_create(found, request)
        name = found.parts.get("pool")
        pool = self._world.peek(api.cluster_of(found), name) if name else None
        if pool is None:
            return Target(method=found.method, pool=name)
        return dataclasses.replace(pool.target, method=found.method)

    def _target_of_create(self, found: Route, request: Request) -> Target:
        try:
            sent = schema.read(schema.message("CreateNodePoolRequest"), request.body).get("nodePool", {})
        except ApiError:
            return Target(method=found.method)
        return Target(
            method=found.method,
            pool=sent.get("name"),
            zone=sent.get("locations") or names.zones_of(found.parts["location"]),
            machine_type=sent.get("config", {}).get("machineType"),
            topology=self._world.asked_topology(api.cluster_of(found), sent),
            capacity=capacity_of(sent),
            reservation=reservation_names(reservation_of(sent)),
        )

    def invalid(self, message: str) -> ApiError:
        """Return the refusal of a mistake."""
        return ApiError("INVALID_ARGUMENT", message)

    def not_found(self, message: str) -> ApiError:
        """Return the refusal of what is not there."""
        return ApiError("NOT_FOUND", message)

    def act(self, http_method: str, path: str, body: object) -> dict[str, Any] | None:
        """Answer what is about pools."""
        action = _POOL_ACTION.fullmatch(path)
        if action is not None and http_method == "POST":
            return self._act(action[1], action[2], self.object_of(body))
        return self._state() if (http_method, path) == ("GET", "state") else None

    def _state(self) -> dict[str, Any]:
        with self._world.moment():
            return {
                "pools": [_view_json(view) for view in self._world.views()],
                "operations": [operation_body(item) for item in self._world.all_operations()],
            }

    def _act(self, pool: str, action: str, body: dict[str, Any]) -> dict[str, Any]:
        if action == "preempt":
            hosts = body.get("hosts")
            if hosts is not None and (isinstance(hosts, bool) or not isinstance(hosts, int) or hosts < 0):
                raise self.invalid(f"hosts: {hosts!r} is not a number from 0")
            return {"nodes": list(self._world.preempt(pool, hosts=hosts))}
        status, message = body.get("status"), body.get("message", "")
        known = [item.value for item in PoolStatus]
        if status not in known:
            raise self.invalid(f"status: {status!r} is not one of {', '.join(known)}")
        if not isinstance(message, str):
            raise self.invalid(f"message: {message!r} is not a text")
        self._world.set_status(pool, PoolStatus(status), message=message)
        return {}


def _view_json(view: PoolView) -> dict[str, Any]:
    raw = dataclasses.asdict(view)
    return {**raw, "cluster": view.cluster.path, "created": names.timestamp(view.created)}
