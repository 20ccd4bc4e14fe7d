"""What every simulator's own API has: settings, faults, the log of calls, and counts of them.

    GET    /simulator/v1/settings                   PUT changes those that the body names
    GET    /simulator/v1/faults                     POST adds one, DELETE clears all; DELETE .../faults/ID one
    GET    /simulator/v1/log?limit=N                the newest calls
    GET    /simulator/v1/counters                   calls by method and status
    POST   /simulator/v1/counters:reset             forgets log and counts

It has no access control: whoever reaches the port may use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from rehearsal.simulators.http.calls import CallLog
from rehearsal.simulators.http.exchange import RefusalError, Request
from rehearsal.simulators.http.faults import BaseFault, FaultError
from rehearsal.simulators.http.server import ADMIN_PREFIX
from rehearsal.simulators.http.settings import BaseSettings, SettingsError
from rehearsal.simulators.http.world import BaseWorld

_DEFAULT_LIMIT = 200


World = TypeVar("World", bound=BaseWorld[Any, Any])


class BaseAdmin(ABC, Generic[World]):
    """Answers a simulator's own API, as far as all have the same."""

    fault_type: type[BaseFault]

    def __init__(self, world: World, calls: CallLog) -> None:
        self._world = world
        self._calls = calls

    @abstractmethod
    def invalid(self, message: str) -> RefusalError:
        """Return the refusal of a mistake, in the form of the service."""

    @abstractmethod
    def not_found(self, message: str) -> RefusalError:
        """Return the refusal of what is not there, in the form of the service."""

    @abstractmethod
    def act(self, http_method: str, path: str, body: object) -> dict[str, Any] | None:
        """Answer what only this simulator has; None for what it has not. The path is without the prefix."""

    def handle(self, request: Request) -> dict[str, Any]:
        """Return the body of the answer."""
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
        raise self.not_found(f"{request.http_method} {request.path} is not part of the simulator's own API.")

    def object_of(self, body: object) -> dict[str, Any]:
        """Return a body that must be an object; an empty one is one without fields."""
        if body is None:
            return {}
        if not isinstance(body, dict):
            raise self.invalid(f"the body must be a JSON object, got {type(body).__name__}")
        return body

    def _change_settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        try:
            changed: BaseSettings = self._world.change_settings(changes)
        except SettingsError as error:
            raise self.invalid(str(error)) from error
        return changed.as_json()

    def _add_fault(self, raw: dict[str, Any]) -> dict[str, Any]:
        try:
            added: BaseFault = self._world.faults.add(self.fault_type.from_json(raw))
        except FaultError as error:
            raise self.invalid(str(error)) from error
        return added.as_json()

    def _remove_faults(self, path: list[str]) -> dict[str, Any]:
        if not path:
            self._world.faults.clear()
        elif not self._world.faults.remove("/".join(path)):
            raise self.not_found(f"no fault {'/'.join(path)!r}; GET {ADMIN_PREFIX}faults lists the active ones")
        self._world.release()
        return {}

    def _log(self, limit: str) -> dict[str, Any]:
        if not limit.isdecimal() or int(limit) == 0:
            raise self.invalid(f"limit: {limit!r} is not a number from 1")
        return {"calls": [call.as_json() for call in self._calls.all()[-int(limit) :]]}
