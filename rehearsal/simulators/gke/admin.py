"""What the simulated GKE's own API has beside what every simulator's has (`http/admin.py`).

GET    /simulator/v1/state                      pools, nodes and operations
POST   /simulator/v1/pools/NAME:preempt         {"hosts": N}; without, all
POST   /simulator/v1/pools/NAME:setStatus       {"status": S, "message": M}
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from rehearsal.simulators.gke import names
from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.gke.faults import Fault
from rehearsal.simulators.gke.model import World
from rehearsal.simulators.gke.records import PoolStatus, PoolView
from rehearsal.simulators.gke.wire import operation_body
from rehearsal.simulators.http.admin import BaseAdmin

_POOL_ACTION = re.compile(r"pools/([^/:]+):(preempt|setStatus)")


class Admin(BaseAdmin[World]):
    """Answers the simulator's own API."""

    fault_type = Fault

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
        with self._world.frozen():
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
