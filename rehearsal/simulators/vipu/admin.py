"""What the simulated V-IPU server's own API has beside what every simulator's has (`http/admin.py`).

GET     /simulator/v1/state                     all allocations and partitions
POST    /simulator/v1/restart                   {"keeps_partitions": true, "down_seconds": 0}
POST    /simulator/v1/partitions/ID:mark        {"state": WORD, "phase": P}: active, broken ...
DELETE  /simulator/v1/partitions/ID             it vanishes, as if it had never been
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from rehearsal.simulators.http.admin import BaseAdmin
from rehearsal.simulators.vipu import errors
from rehearsal.simulators.vipu.faults import Fault
from rehearsal.simulators.vipu.model import World
from rehearsal.simulators.vipu.records import Phase

_MARK = re.compile(r"partitions/([^/:]+):mark")
_PARTITION = re.compile(r"partitions/([^/:]+)")


class Admin(BaseAdmin[World]):
    """Answers the simulator's own API."""

    fault_type = Fault

    def invalid(self, message: str) -> errors.VipuRefusalError:
        """Return the refusal of a mistake."""
        return errors.invalid(message)

    def not_found(self, message: str) -> errors.VipuRefusalError:
        """Return the refusal of what is not there."""
        return errors.VipuRefusalError("NotFound", message)

    def act(self, http_method: str, path: str, body: object) -> dict[str, Any] | None:
        """Answer what is about partitions."""
        mark, one = _MARK.fullmatch(path), _PARTITION.fullmatch(path)
        if mark is not None and http_method == "POST":
            return self._mark(mark[1], self.object_of(body))
        if one is not None and http_method == "DELETE":
            return self._found(one[1], there=self._world.vanish(one[1]))
        match http_method, path:
            case "GET", "state":
                return self._state()
            case "POST", "restart":
                return self._restart(self.object_of(body))
        return None

    def _state(self) -> dict[str, Any]:
        partitions = [
            {**dataclasses.asdict(item), "phase": item.phase.value, "created_at": item.created_at.isoformat()}
            for item in self._world.all_partitions()
        ]
        allocations = [dataclasses.asdict(item) for item in self._world.all_allocations()]
        return {"allocations": allocations, "partitions": partitions}

    def _restart(self, body: dict[str, Any]) -> dict[str, Any]:
        keeps, seconds = body.get("keeps_partitions", True), body.get("down_seconds", 0.0)
        if not isinstance(keeps, bool) or isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise self.invalid("restart takes keeps_partitions (true, false) and down_seconds (a number)")
        self._world.restart(keeps_partitions=keeps, down_seconds=seconds)
        return {}

    def _mark(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        phases = [phase.value for phase in Phase]
        phase, word = body.get("phase"), body.get("state", "")
        if phase is not None and phase not in phases:
            raise self.invalid(f"phase: {phase!r} is not one of {', '.join(phases)}")
        if not isinstance(word, str):
            raise self.invalid(f"state: {word!r} is not a word")
        there = self._world.mark(name, state=word, phase=None if phase is None else Phase(phase))
        return self._found(name, there=there)

    def _found(self, name: str, *, there: bool) -> dict[str, Any]:
        if not there:
            raise self.not_found(f"no partition {name!r}; GET /simulator/v1/state lists all")
        return {}
