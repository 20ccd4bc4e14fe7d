"""The wire between a simulated V-IPU server and its `vipu` command; the real one is gRPC, and not published.

    GET     /v1/allocations           GET     /v1/ipus
    GET     /v1/partitions            POST    /v1/partitions
    GET     /v1/partitions/ID         DELETE  /v1/partitions/ID

The headers x-user-id and x-access-key say who asks. An answer may have a fault for the command to play, as `command`.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from rehearsal.simulators.http.exchange import Request, Route
from rehearsal.simulators.vipu import errors, faults, ipuof
from rehearsal.simulators.vipu.model import World
from rehearsal.simulators.vipu.records import Asked, Caller, PartitionView

_ONE = re.compile(r"/v1/partitions/([^/]+)")
_METHODS = {
    ("GET", "/v1/allocations"): faults.LIST_ALLOCATIONS,
    ("GET", "/v1/ipus"): faults.LIST_IPUS,
    ("GET", "/v1/partitions"): faults.LIST_PARTITIONS,
    ("POST", "/v1/partitions"): faults.CREATE,
}
_METHODS_OF_ONE = {"GET": faults.GET, "DELETE": faults.REMOVE}


def route(http_method: str, path: str) -> Route:
    """Return the call that a request means."""
    method = _METHODS.get((http_method, path))
    if method is not None:
        return Route(method=method, parts={})
    one = _ONE.fullmatch(path)
    if one is not None and http_method in _METHODS_OF_ONE:
        return Route(method=_METHODS_OF_ONE[http_method], parts={"name": one[1]})
    raise errors.VipuRefusalError("NotFound", f"{http_method} {path} is not served")


def target_of(found: Route, request: Request) -> faults.Target:
    """Return what faults see of a call."""
    sent = request.body if isinstance(request.body, dict) else {}
    return faults.Target(method=found.method, name=found.parts.get("name") or sent.get("id"))


class Api:
    """Answers the calls."""

    def __init__(self, world: World, address: str) -> None:
        self._world = world
        self._address = address

    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the answer. That of a create or remove has the number of its change."""
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
                config = ipuof.config_of(self._world.partition(name, caller), self._address)
                return {"config": config}
            case faults.REMOVE:
                return {"change": self._world.remove(name, caller), "done": False}
        return {"change": self._world.create(_asked_of(request.body), caller), "done": False}

    def change(self, number: int) -> dict[str, Any]:
        """Return what has become of a create or remove. Raises VipuRefusalError where it failed."""
        outcome = self._world.outcome(number)
        if outcome.failure:
            raise errors.VipuRefusalError("Internal", outcome.failure)
        return {"change": number, "done": outcome.done}

    def _partitions(self, found: tuple[PartitionView, ...]) -> dict[str, Any]:
        settings = self._world.settings
        shown = [{"id": item.id, "cluster": item.cluster, "size": item.size, "state": item.state} for item in found]
        if settings.lists_allocations:
            shown = [{**row, "allocation": item.allocation} for row, item in zip(shown, found, strict=True)]
        return {"partitions": shown, "columns": dict(settings.added_columns)}


def _asked_of(body: object) -> Asked:
    sent = body if isinstance(body, dict) else {}
    known = {item.name for item in dataclasses.fields(Asked)}
    if not set(sent) <= known or not isinstance(sent.get("id"), str) or not isinstance(sent.get("size"), int):
        raise errors.invalid("malformed request")
    return Asked(**sent)
