"""Base of the services that a server runs: the calls of a service, and the own API that all simulators have.

    GET    /simulator/v1/settings                   PUT changes the settings in the body
    GET    /simulator/v1/faults                     POST adds a fault; DELETE removes all, or .../faults/ID
    GET    /simulator/v1/log?limit=N                the newest calls
    GET    /simulator/v1/counters                   calls by method and status
    POST   /simulator/v1/counters:reset             clears log and counts

The simulator's own API has no access control: every client that reaches the port may use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from rehearsal.simulators.http.exchange import CallLog, RefusalError, Request, Route
from rehearsal.simulators.http.faults import CALL_FAULTS, BaseFault, FaultError
from rehearsal.simulators.http.settings import BaseSettings, SettingsError
from rehearsal.simulators.http.world import BaseWorld

ADMIN_PREFIX = "/simulator/v1/"
_DEFAULT_LIMIT = 200


World = TypeVar("World", bound=BaseWorld[Any, Any])


class BaseService(ABC, Generic[World]):
    """Serves the API of a simulated service. Methods raise RefusalError to reject a request."""

    fault_type: type[BaseFault]

    def __init__(self, world: World, calls: CallLog) -> None:
        self._world = world
        self._calls = calls

    @property
    def request_seconds(self) -> float:
        """Additional latency of every call in seconds."""
        seconds: float = self._world.settings.request_seconds
        return seconds

    @abstractmethod
    def route(self, http_method: str, path: str) -> Route:
        """Return the call that a request makes. Raises RefusalError if the call does not exist."""

    @abstractmethod
    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the response."""

    def newer(self, found: Route, body: dict[str, Any], waited_seconds: float) -> dict[str, Any] | None:  # noqa: ARG002
        """Return a newer body for a call that waits for a change; None if `body` is final and has to be sent."""
        return None

    @abstractmethod
    def target_of(self, found: Route, request: Request) -> Any:
        """Return the attributes of a call that faults can match."""

    def fault_of(self, found: Route, request: Request) -> Any:
        """Return the fault that affects a call, and count it down; None if no fault does."""
        return self._world.faults.take(CALL_FAULTS, self.target_of(found, request))

    @abstractmethod
    def broken(self, fault: BaseFault) -> RefusalError:
        """Return the error that a fault causes."""

    @abstractmethod
    def refusal(self, code: int, message: str) -> RefusalError:
        """Return an error with an HTTP status, in the format of the service."""

    @abstractmethod
    def act(self, http_method: str, path: str, body: object) -> dict[str, Any] | None:
        """Handle a call of this simulator's own API; None if the call is unknown. `path` has no prefix."""

    def admin(self, request: Request) -> dict[str, Any]:
        """Handle a call of the simulator's own API, under ADMIN_PREFIX."""
        path = request.path.removeprefix(ADMIN_PREFIX)
        own = self.act(request.http_method, path, request.body)
        if own is not None:
            return own
        match request.http_method, path.split("/"):
            case "GET", ["settings"]:
                settings: BaseSettings = self._world.settings
                return settings.as_json()
            case (("PUT" | "PATCH"), ["settings"]):
                return self._change_settings(self.object_of(request.body))
            case "GET", ["faults"]:
                return {"faults": [fault.as_json() for fault in self._world.faults.all()]}
            case "POST", ["faults"]:
                return self._add_fault(self.object_of(request.body))
            case "DELETE", ["faults", *rest]:
                return self._remove_faults(rest)
            case "GET", ["log"]:
                return self._log(request.query.get("limit", str(_DEFAULT_LIMIT)))
            case "GET", ["counters"]:
                return {"calls": self._calls.counts()}
            case "POST", ["counters:reset"]:
                self._calls.reset()
                return {}
        raise self.refusal(404, f"{request.http_method} {request.path} is not part of the simulator's own API.")

    def object_of(self, body: object) -> dict[str, Any]:
        """Return a body that must be an object; {} if the request had no body."""
        if body is None:
            return {}
        if not isinstance(body, dict):
            raise self.refusal(400, f"the body must be a JSON object, got {type(body).__name__}")
        return body

    def _change_settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        try:
            changed: BaseSettings = self._world.change_settings(changes)
        except SettingsError as error:
            raise self.refusal(400, str(error)) from error
        return changed.as_json()

    def _add_fault(self, raw: dict[str, Any]) -> dict[str, Any]:
        try:
            added: BaseFault = self._world.faults.add(self.fault_type.from_json(raw))
        except FaultError as error:
            raise self.refusal(400, str(error)) from error
        return added.as_json()

    def _remove_faults(self, path: list[str]) -> dict[str, Any]:
        if not path:
            self._world.faults.clear()
        elif not self._world.faults.remove("/".join(path)):
            raise self.refusal(404, f"no fault {'/'.join(path)!r}; GET {ADMIN_PREFIX}faults lists the active ones")
        self._world.release()
        return {}

    def _log(self, limit: str) -> dict[str, Any]:
        if not limit.isdecimal() or int(limit) == 0:
            raise self.refusal(400, f"limit: {limit!r} is not a number from 1")
        return {"calls": [call.as_json() for call in self._calls.all()[-int(limit) :]]}
