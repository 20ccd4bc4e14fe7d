"""Converts the OpenAPI document of an API server to JSON schemas of its kinds, for kubeconform."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]

#: kubeconform's template for the file of a kind's schema, relative to the folder of the schemas.
LOCATION = "{{.ResourceKind}}-{{.Group}}-{{.ResourceAPIVersion}}.json"
_REFERENCE = "#/definitions/"
#: Definitions of values that are numbers or texts in JSON.
_NUMBERS = ("io.k8s.apimachinery.pkg.util.intstr.IntOrString", "io.k8s.apimachinery.pkg.api.resource.Quantity")


def write_schemas(openapi: Json, folder: Path) -> None:
    """Write a schema of each kind into a folder. Unknown fields are errors."""
    definitions: dict[str, Json] = {name: _strict(made) for name, made in openapi["definitions"].items()}
    for name in _NUMBERS:
        definitions[name] = {"type": ["string", "number"]}
    for name, definition in openapi["definitions"].items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            schema = {"$ref": f"{_REFERENCE}{name}", "definitions": _used(name, definitions)}
            # If an apiVersion has no group, kubeconform uses its version instead of the group.
            file = f"{kind['kind'].lower()}-{kind['group'] or kind['version']}-{kind['version']}.json"
            (folder / file).write_text(json.dumps(schema), encoding="utf-8")


def _strict(definition: Json) -> Json:
    return {"additionalProperties": False, **definition} if "properties" in definition else definition


def _used(name: str, definitions: dict[str, Json]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found[current] = definitions[current]
            waiting += _references(found[current])
    return found


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for item in value for name in _references(item)]
    if not isinstance(value, dict):
        return []
    reference = value.get("$ref")
    own = [reference.removeprefix(_REFERENCE)] if isinstance(reference, str) else []
    return own + [name for part in value.values() for name in _references(part)]
