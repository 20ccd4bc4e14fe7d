"""What the simulated Compute Engine's own API has beside what every simulator's has (`http/admin.py`).

GET    /simulator/v1/state                      everything that there is, and operations
GET    /simulator/v1/marks                      how many resources of each collection each description has
POST   /simulator/v1/instances/NAME:lose        {"loss": L}: preempted, host_error, maintenance, deleted, run_time_over
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from rehearsal.simulators.compute import accounting, errors
from rehearsal.simulators.compute.faults import Fault
from rehearsal.simulators.compute.model import World
from rehearsal.simulators.compute.records import Loss
from rehearsal.simulators.compute.wire import operation_body
from rehearsal.simulators.http.admin import BaseAdmin

_LOSE = re.compile(r"instances/([^/:]+):lose")


class Admin(BaseAdmin[World]):
    """Answers the simulator's own API."""

    fault_type = Fault

    def invalid(self, message: str) -> errors.ApiError:
        """Return the refusal of a mistake."""
        return errors.malformed(message)

    def not_found(self, message: str) -> errors.ApiError:
        """Return the refusal of what is not there."""
        return errors.of_http_code(404, message)

    def act(self, http_method: str, path: str, body: object) -> dict[str, Any] | None:
        """Answer what is about Compute Engine's resources."""
        lose = _LOSE.fullmatch(path)
        if lose is not None and http_method == "POST":
            return self._lose(lose[1], self.object_of(body))
        match http_method, path:
            case "GET", "state":
                return self._state()
            case "GET", "marks":
                return {"marks": {mark: dict(count) for mark, count in accounting.counts_by_mark(self._world).items()}}
        return None

    def _state(self) -> dict[str, Any]:
        with self._world.frozen():
            return {
                "resources": [dataclasses.asdict(item) for item in accounting.inventory(self._world)],
                "operations": [operation_body(item) for item in self._world.all_operations()],
            }

    def _lose(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        known = [loss.value for loss in Loss]
        if body.get("loss") not in known:
            raise self.invalid(f"loss: {body.get('loss')!r} is not one of {', '.join(known)}")
        if not self._world.lose(name, Loss(body["loss"])):
            raise self.not_found(f"no VM {name!r} that could go; GET /simulator/v1/state lists all")
        return {}
