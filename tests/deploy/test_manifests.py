"""Tests of the manifests, rendered by kustomize and accepted by a real API server."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from generators import overlay
from provisioner import constants
from provisioner.slices.preflight.in_kubernetes import rights_used
from rehearsal.demos import Rehearsal
from tests.deploy import tools
from tests.deploy.kit import (
    DEPLOY,
    NAMESPACE,
    REPOSITORY,
    SERVICE_ACCOUNT,
    VALUES,
    copy_of_deploy,
    enable_component,
    key_of,
    rights,
    rule_of_component,
)
from tests.deploy.pages import read_blocks
from tests.support.settings import settings as make_settings

_IMAGE = "registry.example/controller:v1"
#: Components for clusters with TPUs. test_partition_manifests.py tests partitions-tls, which is for IPUs.
_ALL = sorted(path.name for path in (DEPLOY / "components").iterdir() if path.name != "partitions-tls")


@pytest.fixture(scope="module")
def base() -> list[dict[str, Any]]:
    return tools.documents(tools.run("kustomize", "build", str(DEPLOY / "base")))


def test_rights_of_manifests_equal_the_rights_of_the_check_command(base: list[dict[str, Any]]) -> None:
    assert set(rights_used(make_settings(own_namespace=NAMESPACE))) == rights(base)
    for component, changes, role in (
        ("opt-in-label", {"opt_in_label": ("key", "value")}, {"kind": "ClusterRole", "metadata": {}}),
        ("serve-jobs", {"serve_jobs": True}, {"kind": "ClusterRole", "metadata": {}}),
        ("provider-gce", {"provider": "gce"}, {"kind": "Role", "metadata": {"namespace": NAMESPACE}}),
    ):
        more = {**role, "rules": [rule_of_component(component)]}
        assert set(rights_used(make_settings(own_namespace=NAMESPACE, **changes))) == rights([*base, more])


def test_no_manifest_contains_the_configmap_that_pauses() -> None:
    """An apply, an upgrade or a prune must not change a pause of the administrator."""
    for path in (*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.tpl")):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert f"  name: {constants.PAUSE_CONFIGMAP_NAME}" not in lines, path


def _render(rehearsal: Rehearsal, folder: Path) -> list[dict[str, Any]]:
    return tools.documents(rehearsal.kubectl("kustomize", str(folder)))


@pytest.fixture(scope="module")
def full(
    rehearsal: Rehearsal, installed: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Yield an overlay with every component that can be combined with the others."""
    deploy = copy_of_deploy(tmp_path_factory.mktemp("full"))
    account = "tpu-provisioner@rehearsal-project.iam.gserviceaccount.com"
    folder = overlay.make_overlay(deploy, VALUES, overlay.Choices(google_service_account=account))
    tools.run("kustomize", "edit", "set", "image", f"controller={_IMAGE}", cwd=folder)
    for name in _ALL:
        # Placement is left out, because the template already enables it.
        if name != "placement" and not name.startswith("workload-identity"):
            enable_component(folder, name)
            # `kustomize edit set image` must also work if an image is already set and another component is enabled.
            tools.run("kustomize", "edit", "set", "image", f"controller={_IMAGE}", cwd=folder)
    yield folder
    # Other tests depend on the rights of the base, and count objects, so the extra objects are deleted.
    kept = {key_of(document) for document in installed}
    extra = [document for document in _render(rehearsal, folder) if key_of(document) not in kept]
    rehearsal.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(extra))
    rehearsal.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(installed))


@pytest.mark.e2e
def test_overlay_without_the_annotation_removes_it_from_the_service_account(
    rehearsal: Rehearsal, full: Path, installed: list[dict[str, Any]]
) -> None:
    """An administrator who changes from a Google service account to the direct principal applies such an overlay."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{SERVICE_ACCOUNT}"
    rehearsal.kubectl("apply", "--server-side", "-k", str(full))
    assert "iam.gke.io/gcp-service-account" in rehearsal.api.get(path)["metadata"]["annotations"]
    text = yaml.safe_dump_all(installed)
    rehearsal.kubectl("apply", "--server-side", "-f", "-", stdin=text)
    assert "iam.gke.io/gcp-service-account" not in rehearsal.api.get(path)["metadata"].get("annotations", {})


@pytest.mark.e2e
def test_command_for_a_disabled_component_deletes_only_its_objects(
    rehearsal: Rehearsal, full: Path, installed: list[dict[str, Any]]
) -> None:
    rehearsal.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(full))
    [block] = [block for block in read_blocks(REPOSITORY / "docs" / "install-variants.md") if block.where == "disabled"]

    def there(documents: list[dict[str, Any]]) -> list[str]:
        text = yaml.safe_dump_all(documents)
        return rehearsal.kubectl("get", "--ignore-not-found", "-o=name", "-f", "-", stdin=text).splitlines()

    for component, patterns in (
        ("webhook", ["components/webhook/*.yaml"]),
        ("nodegroups", [f"nodegroups/{folder}/*.yaml" for folder in ("rbac", "device-plugin", "controller")]),
    ):
        found = [path for pattern in patterns for path in DEPLOY.glob(pattern)]
        files = [path for path in found if path.name != "kustomization.yaml"]
        made = [document for path in files for document in tools.documents(path.read_text(encoding="utf-8"))]
        assert there(made)
        command = block.text.replace("\\\n", " ").replace("component=webhook", f"component={component}")
        rehearsal.kubectl(*shlex.split(command)[1:])
        assert there(made) == []
    assert len(there(installed)) == len(installed)
