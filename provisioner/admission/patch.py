"""JSON patches (RFC 6902): the operations that webhooks need."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
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


class PatchError(ValueError):
    """A patch does not fit the object; the text names the path."""


def pointer(*steps: str | int) -> str:
    """Return the JSON pointer of a path."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


def apply_patch(raw: Any, patch: Iterable[Operation]) -> Any:
    """Return an object with a patch applied, as the API server does; PatchError where it does not fit.

    What was given is not changed. Only what lies on the way to a change is copied, each time: a value that is in
    several places, as aliases of YAML are, changes in that place alone.
    """
    changed = raw
    for each in patch:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in each.path.split("/")[1:]]
        changed = _changed(changed, steps, each)
    return changed


def _changed(value: Any, steps: Sequence[str], operation: Operation) -> Any:
    """Return a copy of a value in which an operation is done at a path."""
    found = copy.copy(value)
    if len(steps) == 1:
        _change(found, steps[0], operation)
        return found
    step, *rest = steps
    if isinstance(found, dict) and step in found:
        found[step] = _changed(found[step], rest, operation)
    elif isinstance(found, list):
        place = _index(found, step, operation.path, end=len(found))
        found[place] = _changed(found[place], rest, operation)
    else:
        raise PatchError(f"{operation.path}: there is no {step!r}")
    return found


def _change(parent: Any, last: str, operation: Operation) -> None:
    value = copy.deepcopy(operation.value)
    if isinstance(parent, dict):
        if operation.op != "add" and last not in parent:
            raise PatchError(f"{operation.path}: there is nothing to {operation.op}")
        if operation.op == "remove":
            del parent[last]
        else:
            parent[last] = value
    elif isinstance(parent, list):
        if operation.op == "add":
            place = len(parent) if last == "-" else _index(parent, last, operation.path, end=len(parent) + 1)
            parent.insert(place, value)
            return
        place = _index(parent, last, operation.path, end=len(parent))
        if operation.op == "remove":
            del parent[place]
        else:
            parent[place] = value
    else:
        raise PatchError(f"{operation.path}: its parent is neither an object nor a list")


def _index(parent: list[Any], step: str, path: str, *, end: int) -> int:
    if not step.isascii() or not step.isdigit() or int(step) >= end:
        raise PatchError(f"{path}: there is no item {step!r} of {len(parent)}")
    return int(step)
