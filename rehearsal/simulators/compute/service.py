"""The simulated Compute Engine as a server serves it: which faults its calls meet, waits, its own API."""

from __future__ import annotations

from typing import Any

from rehearsal.simulators.compute import api, errors
from rehearsal.simulators.compute.admin import Admin
from rehearsal.simulators.compute.faults import Fault, Target
from rehearsal.simulators.compute.model import World
from rehearsal.simulators.http.calls import CallLog
from rehearsal.simulators.http.exchange import Request, Route
from rehearsal.simulators.http.faults import CALL_FAULTS, BaseFault


class ComputeService:
    """Serves a world."""

    def __init__(self, world: World, calls: CallLog) -> None:
        self._world = world
        self._api = api.Api(world)
        self._admin = Admin(world, calls)

    @property
    def request_seconds(self) -> float:
        """How much later every call is answered."""
        return self._world.settings.request_seconds

    def route(self, http_method: str, path: str) -> Route:
        """Return the call that a request means."""
        return api.route(http_method, path)

    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the answer."""
        return self._api.handle(found, request)

    def newer(self, found: Route, body: dict[str, Any], waited_seconds: float) -> dict[str, Any] | None:
        """Return the operation as it is now while a wait for it goes on."""
        is_wait = found.method.endswith("Operations.wait")
        if not is_wait or body.get("status") == "DONE" or waited_seconds >= self._world.settings.wait_seconds:
            return None
        return self._api.operation(api.scope_of(found), found.parts["name"])

    def admin(self, request: Request) -> dict[str, Any]:
        """Answer the simulator's own API."""
        return self._admin.handle(request)

    def malformed(self, message: str) -> errors.ApiError:
        """Return the refusal of what is no request."""
        return errors.malformed(message)

    def broken(self, fault: BaseFault) -> errors.ApiError:
        """Return the refusal that a fault answers with."""
        return errors.of_http_code(fault.code, fault.message or "Backend Error")

    def fault_of(self, found: Route, request: Request) -> Fault | None:
        """Return what is to happen to a call, and count it."""
        sent = request.body if isinstance(request.body, dict) else {}
        name = found.parts.get("name") or sent.get("name")
        target = Target(method=found.method, name=name, location=api.scope_of(found).location)
        return self._world.faults.take(CALL_FAULTS, target)
