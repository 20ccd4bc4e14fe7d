"""The simulated GKE as a server serves it: which faults its calls meet, what it says to what is no request."""

from __future__ import annotations

import dataclasses
from typing import Any

from rehearsal.simulators.gke import api, names, schema
from rehearsal.simulators.gke.admin import Admin
from rehearsal.simulators.gke.capacity import capacity_of, reservation_of
from rehearsal.simulators.gke.errors import ApiError, of_http_code
from rehearsal.simulators.gke.faults import Fault, Target
from rehearsal.simulators.gke.model import World
from rehearsal.simulators.http.calls import CallLog
from rehearsal.simulators.http.exchange import Request, Route
from rehearsal.simulators.http.faults import CALL_FAULTS, BaseFault


class GkeService:
    """Serves a world."""

    def __init__(self, world: World, calls: CallLog, own_api: api.Api) -> None:
        self._world = world
        self._api = own_api
        self._admin = Admin(world, calls)

    @property
    def request_seconds(self) -> float:
        """How much later every call is answered."""
        return self._world.settings.request_seconds

    def route(self, http_method: str, path: str) -> api.Route:
        """Return the call that a request means."""
        return api.route(http_method, path)

    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the answer."""
        return self._api.handle(_own(found), request)

    def newer(self, found: Route, body: dict[str, Any], waited_seconds: float) -> None:
        """Answer at once: GKE has no call that waits."""

    def admin(self, request: Request) -> dict[str, Any]:
        """Answer the simulator's own API."""
        return self._admin.handle(request)

    def malformed(self, message: str) -> ApiError:
        """Return the refusal of what is no request."""
        return ApiError("INVALID_ARGUMENT", message)

    def broken(self, fault: BaseFault) -> ApiError:
        """Return the refusal that a fault answers with."""
        told = fault.status if isinstance(fault, Fault) and fault.status != "INTERNAL" else None
        return of_http_code(fault.code, fault.message or "The service is currently unavailable.", status=told)

    def fault_of(self, found: Route, request: Request) -> Fault | None:
        """Return what is to happen to a call, and count it."""
        return self._world.faults.take(CALL_FAULTS, self._target(_own(found), request))

    def _target(self, found: api.Route, request: Request) -> Target:
        """Return the call, and the pool that it is about, as far as it shows."""
        if found.method == "nodePools.create":
            return self._target_of_create(found, request)
        pool = self._world.peek(found.cluster, found.pool) if found.pool else None
        if pool is None:
            return Target(method=found.method, pool=found.pool)
        return dataclasses.replace(pool.target, method=found.method)

    def _target_of_create(self, found: api.Route, request: Request) -> Target:
        try:
            sent = schema.read(schema.message("CreateNodePoolRequest"), request.body).get("nodePool", {})
        except ApiError:
            return Target(method=found.method)
        return Target(
            method=found.method,
            pool=sent.get("name"),
            zones=sent.get("locations") or names.zones_of(found.parts["location"]),
            machine_type=sent.get("config", {}).get("machineType"),
            topology=self._world.asked_topology(found.cluster, sent),
            capacity=capacity_of(sent),
            reservation=reservation_of(sent),
        )


def _own(found: Route) -> api.Route:
    return api.Route(method=found.method, parts=found.parts)
