"""Tests that GitOps controllers can use overlays and charts: valid, repeatable, and without drift after a sync.

Like Flux, and like Argo CD with server-side diff, `_drift` sends the manifest as a server-side apply with dry run, and
compares the result with the live object.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from generators import overlay
from provisioner import constants
from provisioner.kube.protocol import object_path
from rehearsal.demos import Rehearsal
from tests.deploy import schemas, tools
from tests.deploy.kit import DEPLOY, NAMESPACE, VALUES, copy_of_deploy, enable_component, example, key_of

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
_IMAGE = {"image": {"repository": "registry.example/controller"}}
_MONITORING = {"podMonitor": {"enabled": True}, "podMonitoring": {"enabled": True}, "prometheusRule": {"enabled": True}}
_EXAMPLES = ("self-managed-cluster", "ipu-cluster", "webhook-cluster")
_CHARTS: dict[str, tuple[str, Json]] = {
    "the chart": ("tpu-provisioner", _IMAGE),
    "the chart with all products": (
        "tpu-provisioner",
        {
            **_IMAGE,
            **_MONITORING,
            "replicas": 2,
            "nodegroups": {"enabled": True, "credentialsSecret": "credentials"},
            "webhook": {"enabled": True, "partitions": {"enabled": True}},
            "dashboards": {"enabled": True},
        },
    ),
    "the chart with cert-manager": (
        "tpu-provisioner", {**_IMAGE, "webhook": {"enabled": True, "certManager": {"enabled": True}}},
    ),
    "the chart for PROVIDER=gce": (
        "tpu-provisioner",
        {**_IMAGE, "settings": {"PROVIDER": "gce", "NODE_GROUP_IMAGES": "*=projects/p/global/images/i"}},
    ),
    "the chart without the provisioner": ("tpu-provisioner", {**_IMAGE, "nodegroups": {"only": True}}),
    "the chart with the webhook only": ("tpu-provisioner", {**_IMAGE, "webhook": {"only": True}}),
    "the chart of partitions": (
        "ipu-partitions", {**_IMAGE, **_MONITORING, "vipuServerAddr": "vipu.example", "dashboards": {"enabled": True}},
    ),
    "the chart of partitions with TLS": (
        "ipu-partitions", {**_IMAGE, "vipuServers": "a:1,b:2", "tls": {"secretName": "tls", "plainHttp": False}},
    ),
}  # fmt: skip
_OVERLAYS = ("the overlay", "the overlay with all components", *_EXAMPLES, "the definitions")
#: Renderings that together contain every object; at night, the tests also read the renderings with fewer objects.
_COMPLETE = (
    "the overlay with all components",
    "ipu-cluster",
    "the definitions",
    "the chart with all products",
    "the chart with cert-manager",
    "the chart of partitions",
)


def _dumped(documents: list[Json]) -> str:
    # The dumper in C takes a tenth of the time.
    return str(yaml.dump_all(documents, Dumper=yaml.CSafeDumper))


def _render(name: str, folder: Path) -> list[Json]:
    if name in _CHARTS:
        chart, values = _CHARTS[name]
        (folder / "values.json").write_text(json.dumps(values), encoding="utf-8")
        cluster = ("--kube-version=1.30.0", f"--api-versions={tools.MUTATING_POLICIES}")
        flags = (*cluster, f"--namespace={NAMESPACE}", f"--values={folder / 'values.json'}")
        return tools.documents(tools.run("helm", "template", "test", str(DEPLOY / "charts" / chart), *flags))
    if name in _EXAMPLES:
        built = example(folder, name)
    elif name == "the definitions":
        built = DEPLOY / "nodegroups" / "crds"
    else:
        built = overlay.make_overlay(copy_of_deploy(folder), VALUES)
        if name == "the overlay with all components":
            for component in (DEPLOY / "components").iterdir():
                # The template already enables placement, and partitions-tls is for the example with partitions.
                if not component.name.startswith("workload-identity") and component.name not in (
                    "partitions-tls",
                    "placement",
                ):
                    enable_component(built, component.name)
    return tools.documents(tools.run("kustomize", "build", str(built)))


@pytest.fixture(
    name="rendered",
    scope="module",
    params=[
        pytest.param(name, marks=() if name in _COMPLETE else pytest.mark.nightly) for name in (*_OVERLAYS, *_CHARTS)
    ],
)
def _rendered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Json], list[Json]]:
    first, second = (_render(request.param, tmp_path_factory.mktemp("rendered")) for _ in range(2))
    return first, second


def test_rendering_is_repeatable_and_each_object_is_unique(rendered: tuple[list[Json], list[Json]]) -> None:
    """A random value, such as a certificate or a password, would change the objects with each sync."""
    first, second = rendered
    assert first == second
    keys = Counter((*key_of(document), document["metadata"].get("namespace")) for document in first)
    assert [key for key, count in keys.items() if count > 1] == []


def _without_value(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of null fields and of empty labels or annotations, which the API server drops."""
    if value is None:
        yield path
    elif isinstance(value, Mapping):
        if not value and path.endswith(("annotations", "labels")):
            yield path
        for key, part in value.items():
            yield from _without_value(part, f"{path}.{key}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _without_value(part, f"{path}[{number}]")


def test_no_field_is_without_a_value(rendered: tuple[list[Json], list[Json]]) -> None:
    assert [(key_of(document), path) for document in rendered[0] for path in _without_value(document)] == []


def test_no_text_has_a_variable_of_flux(rendered: tuple[list[Json], list[Json]]) -> None:
    """In a Kustomization with postBuild, Flux would replace ${A} by its value, or by an empty text if A is unknown."""
    assert [key_of(document) for document in rendered[0] if "${" in json.dumps(document)] == []


@pytest.fixture(name="locations", scope="module")
def _locations(rehearsal: Rehearsal, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("schemas")
    schemas.write_schemas(rehearsal.api.get("/openapi/v2"), folder)
    return f"{folder}/{schemas.LOCATION}"


def test_kubeconform_accepts_each_object(
    rendered: tuple[list[Json], list[Json]], locations: str, tmp_path: Path
) -> None:
    """Fields of operators' kinds are not checked, because their CRDs in the tests allow any fields."""
    path = tmp_path / "objects.yaml"
    path.write_text(_dumped(rendered[0]), encoding="utf-8")
    printed = tools.run(
        "kubeconform", "-strict", "-summary", "-output=json", f"-schema-location={locations}", str(path)
    )
    summary = json.loads(printed)["summary"]
    assert summary == {"valid": len(rendered[0]), "invalid": 0, "errors": 0, "skipped": 0}


def test_kubeconform_rejects_an_unknown_field(locations: str, tmp_path: Path) -> None:
    """If kubeconform did not use the schemas, the test of accepted objects would prove nothing."""
    path = tmp_path / "object.yaml"
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "a"}, "rulez": []}
    path.write_text(yaml.safe_dump(role), encoding="utf-8")
    with pytest.raises(AssertionError, match="additional properties 'rulez' not allowed"):
        tools.run("kubeconform", "-strict", f"-schema-location={locations}", str(path))


# --- No drift after a sync ---


@pytest.fixture(name="synced", scope="module")
def _synced(
    rendered: tuple[list[Json], list[Json]], rehearsal: Rehearsal, installed: list[Json]
) -> Iterator[list[Json]]:
    """Apply a rendering like a GitOps controller, write the fields that controllers write, and yield the objects."""
    documents = rendered[0]
    namespaces = [document for document in documents if document["kind"] == "Namespace"]
    kept = {key_of(document) for document in installed}
    for part in (namespaces, [document for document in documents if document not in namespaces]):
        if part:
            _apply(rehearsal, part)
    _write_as_controllers(rehearsal, documents, "eWVz")
    yield documents
    _write_as_controllers(rehearsal, documents, None)
    left = [raw for raw in documents if key_of(raw) not in kept and raw["kind"] != "CustomResourceDefinition"]
    if left:
        rehearsal.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=_dumped(left))
    rehearsal.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=_dumped(installed))


def _apply(rehearsal: Rehearsal, documents: list[Json], *flags: str, force: bool = True) -> list[Json]:
    """Send a server-side apply; return the objects of the response. Without `force`, a conflict is an error."""
    command = ("apply", "--server-side", "-f", "-", "-o", "json", *(("--force-conflicts",) if force else ()))
    answer = json.loads(rehearsal.kubectl(*command, *flags, stdin=_dumped(documents)))
    items: list[Json] = answer["items"] if answer["kind"] == "List" else [answer]
    return items


def _write_as_controllers(rehearsal: Rehearsal, documents: list[Json], value: str | None) -> None:
    """Set the fields that the provisioner and the webhook server write to a value; None removes the fields."""
    for document in documents:
        kind, name = key_of(document)
        if kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            path = object_path(f"{kind.lower()}s", name, root="/apis/admissionregistration.k8s.io/v1")
            live = rehearsal.api.get(path)
            for hook in live["webhooks"]:
                hook["clientConfig"]["caBundle"] = value
            rehearsal.api.patch(path, {"webhooks": live["webhooks"]})
        elif name in (constants.HINTS_CONFIGMAP_NAME, "tpu-provisioner-webhook-certificates"):
            plural = "configmaps" if kind == "ConfigMap" else "secrets"
            rehearsal.api.patch(object_path(plural, name, namespace=NAMESPACE), {"data": {"kept": value}})


_OF_SERVER = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp")


def _comparable(raw: Json) -> Json:
    metadata = {key: value for key, value in raw["metadata"].items() if key not in _OF_SERVER}
    return {**{key: value for key, value in raw.items() if key != "status"}, "metadata": metadata}


def _live(rehearsal: Rehearsal, documents: list[Json]) -> list[Json]:
    answer = json.loads(rehearsal.kubectl("get", "-o", "json", "-f", "-", stdin=_dumped(documents)))
    live: list[Json] = answer["items"] if answer["kind"] == "List" else [answer]
    return live


def _drift(rehearsal: Rehearsal, documents: list[Json]) -> list[tuple[Json, Json]]:
    """Return each live object that another sync would change, with the changed object."""
    live = _live(rehearsal, documents)
    planned = _apply(rehearsal, documents, "--dry-run=server")
    assert list(map(key_of, live)) == list(map(key_of, planned)) == list(map(key_of, documents))
    pairs = [(_comparable(before), _comparable(after)) for before, after in zip(live, planned, strict=True)]
    return [(before, after) for before, after in pairs if before != after]


def test_second_sync_changes_nothing(rehearsal: Rehearsal, synced: list[Json]) -> None:
    """The sync must also keep the fields that the controllers have written."""
    assert _drift(rehearsal, synced) == []


def test_second_sync_conflicts_with_no_other_manager(rehearsal: Rehearsal, synced: list[Json]) -> None:
    """A manifest must not contain fields that a controller writes: a sync would overwrite their values."""
    assert len(_apply(rehearsal, synced, "--dry-run=server", force=False)) == len(synced)


def test_argo_cd_and_flux_find_no_drift_and_no_unhealthy_object(rehearsal: Rehearsal, synced: list[Json]) -> None:
    """The test runs Argo CD's comparison with live objects, and Flux's substitution of variables such as ${A}."""
    program = tools.built_before("gitops")
    if program is None:
        pytest.skip("build the libraries of Argo CD and Flux first: python -m tests.deploy.tools gitops")
    pairs = [{"config": config, "live": live} for config, live in zip(synced, _live(rehearsal, synced), strict=True)]
    done = subprocess.run([program], input=json.dumps(pairs), capture_output=True, text=True, check=True, timeout=60)
    results = json.loads(done.stdout)
    assert [(result["live"], result["predicted"]) for result in results if result["modified"]] == []
    # Deployments may remain "Progressing", because no controller of Deployments runs here.
    assert [result["message"] for result in results if result["health"] not in ("", "Healthy", "Progressing")] == []
    assert [result["substituted"] for result in results] == synced


def test_a_change_by_hand_is_drift(rehearsal: Rehearsal, installed: list[Json]) -> None:
    """If `_drift` did not find this change, the test of the second sync would prove nothing."""
    _apply(rehearsal, installed)
    patch = {"spec": {"replicas": 3}}
    rehearsal.api.patch(object_path("deployments", "tpu-provisioner", namespace=NAMESPACE, root="/apis/apps/v1"), patch)
    (changed,) = _drift(rehearsal, installed)
    assert [document["spec"]["replicas"] for document in changed] == [3, 1]
    rehearsal.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=_dumped(installed))
