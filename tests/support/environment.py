"""The variables of containers as Kubernetes starts them."""

from __future__ import annotations

import re
from typing import Any

_FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def started(pod: dict[str, Any]) -> list[dict[str, str]]:
    """Return the variables of each container of a pod, with the downward API and references resolved."""
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    return [_variables(pod, each) for each in containers]


def _variables(pod: dict[str, Any], container: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            field = _FIELD.fullmatch(entry["valueFrom"]["fieldRef"]["fieldPath"])
            assert field is not None
            found[entry["name"]] = pod["metadata"][field[1]][field[2]]
        else:
            # What is not there stays as it is written.
            value = entry.get("value", "")
            found[entry["name"]] = _REFERENCE.sub(lambda name: found.get(name[1], name[0]), value)
    return found
