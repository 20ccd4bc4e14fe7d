"""Applies JSON patches as an API server does."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from provisioner.admission.review import Operation


def apply_patch(raw: Any, patch: Iterable[Operation]) -> Any:
    """Return a patched copy of an object. Raises LookupError or ValueError if the patch is not applicable."""
    found = copy.deepcopy(raw)
    for operation in patch:
        *steps, last = (step.replace("~1", "/").replace("~0", "~") for step in operation.path.split("/")[1:])
        parent = found
        for step in steps:
            parent = parent[int(step)] if isinstance(parent, list) else parent[step]
        key: Any = (len(parent) if last == "-" else int(last)) if isinstance(parent, list) else last
        value = copy.deepcopy(operation.value)
        if operation.op == "remove":
            del parent[key]
        elif operation.op == "add" and isinstance(parent, list):
            if not 0 <= key <= len(parent):
                raise IndexError(operation.path)
            parent.insert(key, value)
        else:
            if operation.op == "replace":
                # This read raises KeyError if the field does not exist.
                parent[key]
            parent[key] = value
    return found
