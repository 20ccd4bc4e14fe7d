"""Tests of names, and of references between objects, in the manifests of the controller of partitions."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from generators.overlay import make_overlay
from provisioner.settings import read as read_options
from provisioner.settings.partitions import OPTIONS as OF_PARTITIONS
from provisioner.settings.partitions import PartitionSettings
from provisioner.settings.webhook import OPTIONS as OF_WEBHOOK
from provisioner.settings.webhook import read_webhook_settings
from rehearsal.demos import Rehearsal
from tests.deploy import tools
from tests.deploy.kit import (
    DEPLOY,
    NAMESPACE,
    VALUES,
    container_of,
    copy_of_deploy,
    disable_component,
    enable_component,
    example,
    only,
)

_NAME = "tpu-provisioner-partitions"


# --- Example for a cluster with only IPUs ---


#: Lines of the example to enable, without cert-manager: the webhook server creates its own certificates.
_OPTIONS = r"patches:|- path: |- \.\./\.\./components/(?!webhook-cert-manager)"


def _built(folder: Path, options: str = "") -> list[dict[str, Any]]:
    return tools.documents(tools.run("kustomize", "build", str(example(folder, "ipu-cluster", options=options))))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return _built(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The objects of the example with all options that can be combined."""
    return _built(tmp_path_factory.mktemp("full"), _OPTIONS)


def _variables(documents: list[dict[str, Any]], name: str) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container_of(documents, name)["env"] if "value" in entry}


def test_example_for_ipus_contains_only_controller_and_webhook_server(plain: list[dict[str, Any]]) -> None:
    deployments = {document["metadata"]["name"] for document in plain if document["kind"] == "Deployment"}
    assert deployments == {_NAME, "tpu-provisioner-webhook"}
    settings = only(plain, "ConfigMap")
    image = "us-docker.pkg.dev/example-project/tpu-provisioner/ipu-partitions:latest"
    for name in deployments:
        container = container_of(plain, name)
        assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
        assert container["image"] == image
    given = settings["data"]
    assert given.keys() <= {option.variable for option in (*OF_PARTITIONS, *OF_WEBHOOK)}
    read = read_options(PartitionSettings, given)
    assert [(server.host, server.port) for server in read.servers] == [("vipu.example.com", 8090)]
    assert (read.own_namespace, read.largest_size) == (NAMESPACE, 64)
    told = read_webhook_settings(given | _variables(plain, "tpu-provisioner-webhook"))
    assert (told.ipu_injection, told.ipu_init_image) == ("least-privilege", image)


@pytest.mark.e2e
@pytest.mark.usefixtures("installed")
def test_example_for_ipus_is_accepted_by_a_real_api_server(rehearsal: Rehearsal, tmp_path: Path) -> None:
    folder = example(tmp_path, "ipu-cluster", options=_OPTIONS)
    said = rehearsal.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-k", str(folder))
    taken = {line.split()[0] for line in said.splitlines()}
    assert {f"deployment.apps/{_NAME}", f"networkpolicy.networking.k8s.io/{_NAME}"} <= taken
    assert "mutatingwebhookconfiguration.admissionregistration.k8s.io/tpu-provisioner-webhook" in taken
    assert "podmonitor.monitoring.coreos.com/tpu-provisioner" in taken


def test_pods_with_ipus_are_sent_to_the_webhook_server_of_the_example(plain: list[dict[str, Any]]) -> None:
    """Only the controller's own updates, which open the gates of pods, bypass the webhook."""
    hooks = {webhook["name"]: webhook for webhook in only(plain, "MutatingWebhookConfiguration")["webhooks"]}
    hook = hooks["partitions.tpu-provisioner.cloud.google.com"]
    service = hook["clientConfig"]["service"]
    assert only(plain, "Service", service["name"])["metadata"]["namespace"] == service["namespace"]
    account = only(plain, "Deployment", _NAME)["spec"]["template"]["spec"]["serviceAccountName"]
    conditions = {condition["name"]: condition["expression"] for condition in hook["matchConditions"]}
    assert f'"system:serviceaccount:{NAMESPACE}:{account}"' in conditions["is-not-by-the-controller"]


def test_options_add_scraping_alerts_and_credentials_of_v_ipu_servers(full: list[dict[str, Any]]) -> None:
    assert {"PodMonitor", "PodMonitoring", "PrometheusRule"} <= {document["kind"] for document in full}
    container = container_of(full, _NAME)
    (folder,) = [variable["value"] for variable in container["env"] if variable["name"] == "VIPU_CREDENTIALS"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["credentials"] == {"name": "credentials", "mountPath": folder, "readOnly": True}
    assert mounts.keys() == {"credentials", "tls", "tmp"}
    pods = only(full, "Deployment", _NAME)["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pods["volumes"]}
    assert volumes["credentials"]["secret"] == {"secretName": "vipu-credentials", "defaultMode": 0o440}
    assert "vipu-credentials" not in str(only(full, "Deployment", "tpu-provisioner-webhook"))


def test_init_containers_with_tls_use_the_port_of_the_certificate(full: list[dict[str, Any]]) -> None:
    """Pods that already wait use the port without TLS, which remains."""
    container = container_of(full, _NAME)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert [argument for argument in container["args"] if "bind" in argument] == [
        f"--api-bind-address=:{ports['api']}",
        "--health-probe-bind-address=:8081",
        "--metrics-bind-address=:8082",
        f"--tls-bind-address=:{ports['api-tls']}",
    ]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}["tls"]
    assert {f"--tls-cert-file={mounted}/tls.crt", f"--tls-key-file={mounted}/tls.key"} <= set(container["args"])
    volumes = only(full, "Deployment", _NAME)["spec"]["template"]["spec"]["volumes"]
    (secret,) = [volume["secret"] for volume in volumes if volume["name"] == "tls"]
    assert secret == {"secretName": "tpu-provisioner-partitions-tls", "defaultMode": 0o440}
    service = only(full, "Service", _NAME)
    assert {port["port"]: port["targetPort"] for port in service["spec"]["ports"]} == {80: "api", 443: "api-tls"}
    ingress = only(full, "NetworkPolicy", _NAME)["spec"]["ingress"][0]
    assert [port["port"] for port in ingress["ports"]] == ["api", "api-tls"]
    given = _variables(full, "tpu-provisioner-webhook")
    read = read_webhook_settings({**only(full, "ConfigMap")["data"], **given})
    assert read.ipu_api_url == f"https://{_NAME}.{NAMESPACE}.svc"
    assert read.ipu_api_ca_config_map == "tpu-provisioner-partitions-ca"


# --- Overlay of a cluster with TPUs and IPUs ---


def test_overlay_with_partitions_keeps_the_webhooks_of_placement(tmp_path: Path) -> None:
    """The page does not add the example for IPUs, whose webhook configuration has the same name as the overlay's."""
    overlay = make_overlay(copy_of_deploy(tmp_path), VALUES)
    page = (DEPLOY.parent / "docs" / "partitions" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"(?ms)^  ```yaml\n(.*?)^  ```$", page)
    path = overlay / "kustomization.yaml"
    kustomization = yaml.safe_load(path.read_text(encoding="utf-8")) | yaml.safe_load(textwrap.dedent(block))
    path.write_text(yaml.safe_dump(kustomization), encoding="utf-8")
    shutil.copy(DEPLOY / "example-project" / "ipu-cluster" / "settings.env", overlay / "partitions.env")
    disable_component(overlay, "placement")
    for component in ("webhook", "webhook-placement", "webhook-partitions"):
        enable_component(overlay, component)
    documents = tools.documents(tools.run("kustomize", "build", str(overlay)))

    hooks = {webhook["name"].split(".")[0] for webhook in only(documents, "MutatingWebhookConfiguration")["webhooks"]}
    assert hooks >= {"environment", "placement", "partitions"}
    maps = {raw["metadata"]["name"]: raw.get("data", {}) for raw in documents if raw["kind"] == "ConfigMap"}
    read = {}
    for name in ("tpu-provisioner", "tpu-provisioner-webhook", _NAME):
        (source,) = container_of(documents, name)["envFrom"]
        read[name] = maps[source["configMapRef"]["name"]]
    assert read["tpu-provisioner"] == read["tpu-provisioner-webhook"]
    assert "GCP_CLUSTER" in read["tpu-provisioner"]
    assert "VIPU_SERVERS" in read[_NAME]


# --- Image with the V-IPU command ---


def test_image_with_vipu_has_the_command_in_its_path() -> None:
    """VIPU_COMMAND contains only the name of the program, which is searched in the PATH of the base image."""
    text = (DEPLOY / "images" / "ipu-partitions.Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines[:2] == ["ARG IMAGE", "FROM ${IMAGE}"]
    (copied,) = [Path(line.split()[-1]) for line in lines if line.startswith("COPY")]
    (path,) = re.findall(
        r"^(?:ENV|   ) PATH=(\S+)", (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert copied.name == PartitionSettings(servers=()).command
    assert str(copied.parent) in path.split(":")
