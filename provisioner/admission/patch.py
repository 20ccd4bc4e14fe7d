"""JSON patches (RFC 6902): the operations that webhooks need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step of a patch."""

    op: Literal["add", "replace", "remove"]
    #: A JSON pointer (RFC 6901).
    path: str
    #: Of "add" and "replace".
    value: Any = None

    def as_json(self) -> dict[str, Any]:
        """Return the operation as it is sent."""
        step: dict[str, Any] = {"op": self.op, "path": self.path}
        if self.op != "remove":
            step["value"] = self.value
        return step


def pointer(*steps: str | int) -> str:
    """Return the JSON pointer of a path."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)
