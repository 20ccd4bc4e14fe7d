"""Fixtures of all tests of the installation: a local control plane, to which the manifests are applied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from generators import overlay
from rehearsal.demos import Rehearsal
from tests.deploy import mainjob
from tests.deploy.kit import FOREIGN_KINDS, OPTIONAL_KINDS, VALUES, copy_of_deploy, disable_component
from tests.e2e.kit import Ground, has_mutating_policies, simulator_settings

#: Time-out of a test in seconds: the first test that uses a tool, such as helm, builds the tool, which takes minutes.
_LIMIT_SECONDS = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the time-out to the tests of this folder that set none."""
    for item in items:
        if item.nodeid.startswith("tests/deploy/") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_LIMIT_SECONDS))


@pytest.fixture(scope="session")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """The local control plane with CRDs of Prometheus, cert-manager and the OPTIONAL_KINDS."""
    directory = tmp_path_factory.mktemp("deploy") / "cluster"
    with Rehearsal(directory=directory, settings=simulator_settings()) as rehearsal:
        for plural, kind, group in FOREIGN_KINDS:
            _define(rehearsal, plural, kind, group)
        for kind in OPTIONAL_KINDS:
            _define(rehearsal, kind.resource, str(kind.kind), kind.api_group)
        yield rehearsal


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of deploy/, to which overlays are added."""
    return copy_of_deploy(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="session")
def cluster_overlay(checkout: Path) -> Path:
    """The overlay of the rehearsed cluster, as `make cluster-overlay` creates it."""
    folder = overlay.make_overlay(checkout, VALUES)
    if not has_mutating_policies():
        # The component `placement` needs MutatingAdmissionPolicy, which this version of Kubernetes lacks.
        disable_component(folder, "placement")
    return folder


@pytest.fixture(scope="session")
def installed(rehearsal: Rehearsal, cluster_overlay: Path) -> list[dict[str, Any]]:
    mainjob.install(rehearsal, cluster_overlay)
    return list(yaml.safe_load_all(rehearsal.kubectl("kustomize", str(cluster_overlay))))


@pytest.fixture
def ground(rehearsal: Rehearsal) -> Iterator[Ground]:
    """A namespace for JobSets. Provisioners that a test starts are killed at the end of the test."""
    ground = Ground(rehearsal)
    yield ground
    for process in ground.provisioners:
        process.kill()


def _define(rehearsal: Rehearsal, plural: str, kind: str, group: str) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [version],
        },
    }
    rehearsal.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(body))
