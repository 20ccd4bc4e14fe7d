"""The simulated V-IPU server as a server serves it: which faults its calls meet, waits, its own API."""

from __future__ import annotations

from typing import Any

from rehearsal.simulators.http.calls import CallLog
from rehearsal.simulators.http.exchange import Request, Route
from rehearsal.simulators.http.faults import CALL_FAULTS, BaseFault
from rehearsal.simulators.vipu import api, errors
from rehearsal.simulators.vipu.admin import Admin
from rehearsal.simulators.vipu.faults import COMMAND_FAULTS, Fault
from rehearsal.simulators.vipu.model import World


class VipuService:
    """Serves a world."""

    def __init__(self, world: World, calls: CallLog, address: str) -> None:
        self._world = world
        self._api = api.Api(world, address)
        self._admin = Admin(world, calls)

    @property
    def request_seconds(self) -> float:
        """How much later every call is answered."""
        return self._world.settings.request_seconds

    def route(self, http_method: str, path: str) -> Route:
        """Return the call that a request means."""
        return api.route(http_method, path)

    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the answer, with what the command is to play."""
        body = self._api.handle(found, request)
        fault = self._world.faults.take(COMMAND_FAULTS, api.target_of(found, request))
        if fault is not None:
            body["command"] = fault.as_json()
        return body

    def newer(self, found: Route, body: dict[str, Any], waited_seconds: float) -> dict[str, Any] | None:  # noqa: ARG002
        """Return a create or remove as it is now while it goes on."""
        is_over = "change" not in body or body["done"]
        if is_over or waited_seconds >= self._world.settings.change_wait_seconds:
            return None
        return {**body, **self._api.change(body["change"])}

    def admin(self, request: Request) -> dict[str, Any]:
        """Answer the simulator's own API."""
        return self._admin.handle(request)

    def malformed(self, message: str) -> errors.VipuRefusalError:
        """Return the refusal of what is no request."""
        return errors.invalid(message)

    def broken(self, fault: BaseFault) -> errors.VipuRefusalError:
        """Return the refusal that a fault answers with."""
        return errors.VipuRefusalError("Unavailable", fault.message or "transport is closing")

    def fault_of(self, found: Route, request: Request) -> Fault | None:
        """Return what is to happen to a call, and count it."""
        return self._world.faults.take(CALL_FAULTS, api.target_of(found, request))
