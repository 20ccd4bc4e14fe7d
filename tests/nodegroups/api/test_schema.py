"""The definitions are those of the files, and every field has its sentence and its bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from generators import crds
from provisioner.nodegroups.api.crds import crd
from provisioner.nodegroups.api.types import Kind


def _schema(kind: Kind) -> dict[str, Any]:
    schema: dict[str, Any] = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _parts(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from _parts(each, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from _parts(schema[key], f"{path}[]")


def test_the_files_are_generated() -> None:
    """The files are what `make crds` would write now, and there are no others."""
    assert {*crds.FOLDER.iterdir(), *crds.CHART_FOLDER.iterdir()} == set(crds.files())
    for path, content in crds.files().items():
        assert path.read_text(encoding="utf-8") == content, f"{path.name} is not current: make crds"


def test_kustomize_lists_all_of_them() -> None:
    listed = yaml.safe_load((crds.FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert listed == [f"tpu.google.com_{kind.plural}.yaml" for kind in Kind]


@pytest.mark.parametrize("kind", Kind)
def test_every_field_has_a_sentence(kind: Kind) -> None:
    for path, part in _parts(_schema(kind)):
        if path != ".metadata":
            assert re.fullmatch(r"[A-Z'].*\.", part["description"].partition("\n")[0]), path


@pytest.mark.parametrize("kind", Kind)
def test_everything_has_a_bound(kind: Kind) -> None:
    wanted = {"string": {"maxLength"}, "integer": {"minimum", "maximum"}, "array": {"maxItems"}}
    for path, part in _parts(_schema(kind)):
        if path in (".apiVersion", ".kind", ".metadata") or "enum" in part or part.get("format") == "date-time":
            continue
        bounds = {"maxProperties"} if "additionalProperties" in part else wanted.get(part["type"], set())
        assert bounds <= part.keys(), path
        # The API server reads bounds as floating-point numbers, and refuses whole numbers that are none of them.
        assert part.get("maximum", 0) < 2**53, path
