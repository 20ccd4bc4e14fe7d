"""The manifests of the controller of partitions: what meets what."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy.kit import DEPLOY, container_of, only, sources_of_scrapes

_FOLDER = DEPLOY / "partitions"
_NAME = "tpu-provisioner-partitions"


def _read(folder: str, *files: str) -> list[dict[str, Any]]:
    texts = ((DEPLOY / folder / file).read_text(encoding="utf-8") for file in files)
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


@pytest.fixture(name="written", scope="module")
def _written() -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((_FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
    files = {path.name for path in _FOLDER.iterdir()} - {"kustomization.yaml"}
    assert files == set(kustomization["resources"])
    return _read("partitions", *sorted(files))


def test_selectors_meet(written: list[dict[str, Any]]) -> None:
    """Service, PodDisruptionBudget and NetworkPolicy select the Deployment's pods."""
    deployment = only(written, "Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert only(written, "Service")["spec"]["selector"] == labels
    assert only(written, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert only(written, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels


@pytest.mark.parametrize(
    ("component", "endpoints"), [("pod-monitor", "podMetricsEndpoints"), ("pod-monitoring", "endpoints")]
)
def test_its_metrics_are_scraped(component: str, endpoints: str, written: list[dict[str, Any]]) -> None:
    """The components that scrape the others scrape it, and the network lets them."""
    labels = only(written, "Deployment")["spec"]["template"]["metadata"]["labels"]
    (monitor,) = _read(f"components/{component}", f"{component}.yaml")
    chosen = monitor["spec"]["selector"]
    assert chosen["matchLabels"].items() <= labels.items()
    (expression,) = chosen["matchExpressions"]
    assert labels[expression["key"]] in expression["values"]
    ports = {each["name"] for each in container_of(written, _NAME)["ports"]}
    assert {each["port"] for each in monitor["spec"][endpoints]} <= ports
    assert sources_of_scrapes(written, _NAME) == [{"metrics": "enabled"}, ["gmp-system", "gke-gmp-system"]]
