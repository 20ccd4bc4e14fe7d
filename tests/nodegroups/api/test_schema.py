"""The CustomResourceDefinitions of node groups, their copies in the chart, and the example objects."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml

from generators import crds
from generators.crds import crd, schema_of
from provisioner.constants import TPU_RESOURCE
from provisioner.model import bounds
from provisioner.nodegroups.api import codec, names, shape
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.specs import SizePolicyMode
from provisioner.nodegroups.api.types import HINTS, Kind, TpuNodeGroup
from provisioner.nodegroups.planning import nodes
from tests.support.nodegroups import UID, UNREAD


def _schema(kind: Kind) -> dict[str, Any]:
    schema: dict[str, Any] = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _parts(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from _parts(part, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from _parts(schema[key], f"{path}[]")


def test_files_of_the_crds_are_current() -> None:
    assert {*crds.FOLDER.glob("tpu*"), *crds.CHART_FOLDER.iterdir()} == set(crds.files())
    for path, content in crds.files().items():
        assert path.read_text(encoding="utf-8") == content, f"{path.name} is not current: make crds"


def test_kustomization_lists_the_crds_of_all_kinds() -> None:
    listed = yaml.safe_load((crds.FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert listed == [f"tpu.google.com_{kind.plural}.yaml" for kind in Kind]


@pytest.mark.parametrize("kind", Kind)
def test_every_field_is_described_by_a_sentence(kind: Kind) -> None:
    for path, part in _parts(_schema(kind)):
        if path != ".metadata":
            assert re.fullmatch(r"[A-Z'].*\.", part["description"].partition("\n")[0]), path


@pytest.mark.parametrize("kind", Kind)
def test_every_field_has_a_bound(kind: Kind) -> None:
    wanted = {"string": {"maxLength"}, "integer": {"minimum", "maximum"}, "array": {"maxItems"}}
    for path, part in _parts(_schema(kind)):
        if path in (".apiVersion", ".kind", ".metadata") or "enum" in part or part.get("format") == "date-time":
            continue
        bounds = {"maxProperties"} if "additionalProperties" in part else wanted.get(part["type"], set())
        assert bounds <= part.keys(), path
        # The API server reads bounds as floating-point numbers, and rejects a bound that they cannot represent.
        assert part.get("maximum", 0) < 2**53, path


def _parts_of(cls: Any) -> Iterator[tuple[codec.Part, Any]]:
    """Yield each field and its default in the schema; None if the schema must have no default."""
    for part in codec.parts_of(cls):
        default = cls.__dataclass_fields__[part.attribute].default
        yield from (
            _parts_of(part.kind) if part.inlined else [(part, default if part.always and not part.required else None)]
        )


def _assert_equal(cls: Any, schema: dict[str, Any]) -> None:
    parts = {part.name: (part, default) for part, default in _parts_of(cls)}
    assert parts.keys() == schema["properties"].keys() - {*UNREAD}
    missing = {name for name, (part, _) in parts.items() if part.required} ^ {*schema.get("required", ())}
    # Dataclass and schema require the same fields. `lastTransitionTime` may differ, as the controller always sets it.
    assert missing <= {"lastTransitionTime"}
    for name, (part, default) in parts.items():
        part_schema = schema["properties"][name]
        entry = part.kind.__args__[0] if part_schema["type"] == "array" else part.kind
        if dataclasses.is_dataclass(entry):
            _assert_equal(entry, part_schema.get("items", part_schema))
            continue
        assert part_schema.get("default") == default, name
        if isinstance(part.kind, type) and issubclass(part.kind, Enum):
            assert part_schema["enum"] == [*part.kind]


@pytest.mark.parametrize("kind", Kind)
def test_dataclass_has_the_fields_and_defaults_of_the_schema(kind: Kind) -> None:
    _assert_equal(HINTS[kind]["spec"], schema_of(kind, "spec"))
    _assert_equal(HINTS[kind]["status"], schema_of(kind, "status"))


@pytest.mark.parametrize(
    ("kind", "path", "key", "bound"),
    [
        (Kind.TPU_NODE_GROUP, "spec.nodeCount", "maximum", bounds.GROUP_NODES),
        (Kind.MANAGED_INSTANCE_GROUP, "spec.targetSize", "maximum", bounds.GROUP_NODES),
        (Kind.TPU_NODE_GROUP, "status.machines", "maxItems", bounds.GROUP_NODES),
        (Kind.TPU_NODE_GROUP, "status.recreations", "maxItems", bounds.RECREATIONS),
        (Kind.TPU_NODE_GROUP, "status.conditions", "maxItems", bounds.CONDITIONS),
        (Kind.INSTANCE_TEMPLATE, "spec.networkTags", "maxItems", bounds.NETWORK_TAGS),
    ],
)
def test_bound_of_the_schema_is_that_of_the_code(kind: Kind, path: str, key: str, bound: int) -> None:
    part, _, name = path.partition(".")
    assert schema_of(kind, part)["properties"][name][key] == bound


def test_instance_template_has_the_fields_of_an_instance_config() -> None:
    template = schema_of(Kind.INSTANCE_TEMPLATE, "spec")["properties"]
    config = schema_of(Kind.TPU_NODE_GROUP, "spec")["properties"]["instanceConfig"]["properties"]
    assert {name: template[name] for name in config} == config


EXAMPLES = Path(__file__).parents[3] / "examples" / "nodegroups"


#: Number of machines and mode of each example.
_SHAPES = {
    "slice": (2, SizePolicyMode.BULK),
    "single-hosts-spot": (4, SizePolicyMode.INDIVIDUAL),
    "slice-flex-start": (4, SizePolicyMode.BULK),
    "own-template": (4, SizePolicyMode.BULK),
}


@pytest.mark.parametrize(("name", "want"), _SHAPES.items())
def test_example_has_the_machines_and_mode_that_its_comment_says(name: str, want: tuple[int, SizePolicyMode]) -> None:
    raw = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    raw["metadata"]["uid"] = UID
    group = parse(TpuNodeGroup, raw)
    assert group.meta.name == name
    config = group.spec.instance_config
    found = shape.resolve(group.spec, config.machine_type if config is not None else "tpu7x-standard-4t")
    assert (found.node_count, found.mode) == want


def test_all_examples_are_tested() -> None:
    assert {path.stem for path in EXAMPLES.iterdir()} == {*_SHAPES, "jobset-on-slice"}


def test_pods_of_the_example_jobset_fill_the_slice_and_select_only_its_nodes() -> None:
    raw = yaml.safe_load((EXAMPLES / "slice.yaml").read_text(encoding="utf-8"))
    group = parse(TpuNodeGroup, {**raw, "metadata": {**raw["metadata"], "uid": UID}})
    found = shape.resolve(group.spec, "tpu7x-standard-4t")
    jobset = yaml.safe_load((EXAMPLES / "jobset-on-slice.yaml").read_text(encoding="utf-8"))
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    labels = nodes.labels_of(group, found)
    assert jobset["metadata"]["namespace"] == group.meta.namespace
    assert (replicated["replicas"], job["parallelism"], job["completions"]) == (1, found.node_count, found.node_count)
    assert {**labels, **pod["nodeSelector"]} == labels
    assert set(names.group_labels(group.meta)) <= set(pod["nodeSelector"])
    assert pod["containers"][0]["resources"]["limits"] == {TPU_RESOURCE: found.chips_per_machine}
    assert {"key": TPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
