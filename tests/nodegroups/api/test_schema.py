"""The definitions are those of the files, and every field has its sentence and its bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from deploy import crds
from provisioner.nodegroups.api.checking import Checker
from provisioner.nodegroups.api.crds import crd
from provisioner.nodegroups.api.schema import SPECS
from provisioner.nodegroups.api.types import Kind
from tests.support.nodegroups import SPECS as EXAMPLES
from tests.support.nodegroups import without

GROUP = EXAMPLES[Kind.TPU_NODE_GROUP]
CONFIG = GROUP["instanceConfig"]


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


@pytest.mark.parametrize("kind", Kind)
def test_what_people_and_programs_use(kind: Kind) -> None:
    definition = crd(kind)
    (version,) = definition["spec"]["versions"]
    assert definition["metadata"]["name"] == f"{kind.plural}.tpu.google.com"
    assert definition["spec"]["scope"] == "Namespaced"
    assert version["name"] == "v1alpha1"
    assert version["subresources"] == {"status": {}}
    shown = [column["name"] for column in version["additionalPrinterColumns"] if "priority" not in column]
    assert shown[-3:] == ["Ready", "Reason", "Age"]
    assert definition["spec"]["names"]["categories"] == ["tpu"]


def test_short_names_are_different() -> None:
    short = [name for kind in Kind for name in crd(kind)["spec"]["names"]["shortNames"]]
    assert short == ["tng", "tpol", "ttmpl", "tmig"]


def test_the_columns_of_a_group() -> None:
    columns = crd(Kind.TPU_NODE_GROUP)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [column["name"] for column in columns if "priority" not in column] == [
        "Topology",
        "Nodes",
        "Ready",
        "Reason",
        "Age",
    ]


@pytest.mark.parametrize(
    ("kind", "required"),
    [
        (Kind.TPU_NODE_GROUP, ("project", "nodeLocation")),
        (Kind.WORKLOAD_POLICY, ("project", "region", "acceleratorTopology")),
        (Kind.INSTANCE_TEMPLATE, ("project", "machineType")),
        (Kind.MANAGED_INSTANCE_GROUP, ("project", "location", "instanceTemplate", "targetSize")),
    ],
)
def test_what_must_be_given(kind: Kind, required: tuple[str, ...]) -> None:
    assert SPECS[kind].required == required
    for name in required:
        assert _problem(kind, without(EXAMPLES[kind], name)) == f"spec.{name} is missing"


def _problem(kind: Kind, spec: dict[str, Any]) -> str:
    checker = Checker()
    checker.checked(SPECS[kind], spec, "spec")
    return checker.problem


@pytest.mark.parametrize("kind", Kind)
def test_manifests_for_the_operator_of_before_are_taken(kind: Kind) -> None:
    assert _problem(kind, dict(EXAMPLES[kind])) == ""


OWN_TEMPLATE = "projects/research-project/global/instanceTemplates/mine"


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param(
            without(GROUP, nodeCount=1),
            "targetSizePolicyMode must be INDIVIDUAL when nodeCount is 1 or less",
            id="one machine in bulk",
        ),
        pytest.param(
            without(GROUP, "instanceConfig"),
            "Either InstanceConfig or InstanceTemplateURI must be specified",
            id="neither configuration nor template",
        ),
        pytest.param(
            without(GROUP, "bootstrapKubernetes", instanceTemplateURI=OWN_TEMPLATE),
            "InstanceConfig and InstanceTemplateURI cannot be specified together",
            id="both of them",
        ),
        pytest.param(
            without(GROUP, "instanceConfig", instanceTemplateURI=OWN_TEMPLATE),
            "Bootstrapping is not supported when bringing your own instance template",
            id="a template of one's own that is to be changed",
        ),
        pytest.param(
            without(
                GROUP, "instanceConfig", "bootstrapKubernetes", instanceTemplateURI=OWN_TEMPLATE.replace("search", "s")
            ),
            "InstanceTemplateURI must belong to the same project as specified in spec.project",
            id="a template of another project",
        ),
        pytest.param(
            without(GROUP, bootstrapKubernetes={"controlPlanePort": 443}),
            "controlPlanePort must be given with controlPlaneIP only",
            id="a port without an address",
        ),
        pytest.param(
            without(GROUP, instanceConfig=without(CONFIG, machineType="ct5p-hightpu-4t")),
            "Only v6 and v7 TPU machine types are supported",
            id="an older generation",
        ),
        pytest.param(
            without(GROUP, instanceConfig=without(CONFIG, "reservation")),
            "Reservation is required when provisioningModel is RESERVATION_BOUND",
            id="no reservation to take machines from",
        ),
        pytest.param(
            without(GROUP, instanceConfig=without(CONFIG, provisioningModel="SPOT")),
            "ProvisioningModel must be RESERVATION_BOUND when reservation is specified",
            id="a reservation and no use for it",
        ),
        pytest.param(
            without(GROUP, instanceConfig=without(CONFIG, "reservation", provisioningModel="FLEX_START")),
            "maxRunDurationSeconds must be given with provisioningModel FLEX_START, and only then",
            id="flex-start without an end",
        ),
        pytest.param(
            without(GROUP, instanceConfig=without(CONFIG, maxRunDurationSeconds=3600)),
            "maxRunDurationSeconds must be given with provisioningModel FLEX_START, and only then",
            id="an end without flex-start",
        ),
        pytest.param(
            without(GROUP, instanceConfig=without(CONFIG, metadata={"a key": "x"})),
            "keys of metadata have 1 to 128 letters, digits, hyphens and underscores",
            id="a blank in a key",
        ),
    ],
)
def test_rules_of_a_group(spec: dict[str, Any], want: str) -> None:
    assert _problem(Kind.TPU_NODE_GROUP, spec).endswith(f": {want}")


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(
            without(GROUP, "nodeCount", "targetSizePolicyMode", "minNodeCount", "acceleratorConnectionMode"),
            id="what can be derived is left out",
        ),
        pytest.param(without(GROUP, "topology", nodeCount=1, targetSizePolicyMode="INDIVIDUAL"), id="no topology"),
        pytest.param(without(GROUP, topology="", targetSizePolicyMode="INDIVIDUAL"), id="an empty topology"),
        pytest.param(without(GROUP, acceleratorConnectionMode="static"), id="the spelling of older releases"),
        pytest.param(without(GROUP, bootstrapKubernetes={}), id="everything is taken from the cluster"),
        pytest.param(
            without(GROUP, bootstrapKubernetes={"controlPlaneIP": "10.0.0.1", "controlPlanePort": 443}),
            id="another port than kubeadm's",
        ),
        pytest.param(
            without(GROUP, "instanceConfig", "bootstrapKubernetes", instanceTemplateURI=OWN_TEMPLATE),
            id="a template of one's own",
        ),
        pytest.param(
            without(
                GROUP,
                instanceConfig=without(
                    CONFIG, "reservation", provisioningModel="FLEX_START", maxRunDurationSeconds=3600
                ),
            ),
            id="flex-start",
        ),
        pytest.param(
            without(GROUP, instanceConfig=without(CONFIG, "provisioningModel")), id="a reservation tells its model"
        ),
        pytest.param(
            without(GROUP, instanceConfig=without(CONFIG, provisioningModel="SPOT", reservation="")),
            id="an empty reservation is none",
        ),
    ],
)
def test_what_a_group_may_be(spec: dict[str, Any]) -> None:
    assert _problem(Kind.TPU_NODE_GROUP, spec) == ""
