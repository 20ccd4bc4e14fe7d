"""The manifests of the controller of partitions: what meets what."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import provisioner
from deploy import release
from provisioner.settings import SettingsError
from provisioner.settings import read as read_options
from provisioner.settings.partitions import OPTIONS as OF_PARTITIONS
from provisioner.settings.partitions import PartitionSettings
from provisioner.settings.webhook import OPTIONS as OF_WEBHOOK
from provisioner.settings.webhook import read_webhook_settings
from rehearsal.demos import Rehearsal
from tests.deploy import tools
from tests.deploy.kit import DEPLOY, NAMESPACE, container_of, only, sources_of_scrapes

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


# --- a cluster with IPUs alone


def _copied(tmp_path: Path, *, options: bool = False) -> Path:
    """Return a copy of the example, with all its options that go together enabled."""
    deploy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, deploy, ignore=shutil.ignore_patterns("__pycache__"))
    path = deploy / "example-project" / "ipu-cluster" / "kustomization.yaml"
    if options:
        text = path.read_text(encoding="utf-8")
        # Certificates are either the server's own or those of cert-manager.
        optional = r"(?m)^# (patches:|- path: |- \.\./\.\./components/(?!webhook-cert-manager))"
        path.write_text(re.sub(optional, r"\1", text), encoding="utf-8")
    return path.parent


def _example(tmp_path: Path, *, options: bool = False) -> list[dict[str, Any]]:
    built = tools.run("kustomize", "build", str(_copied(tmp_path, options=options)))
    return [each for each in yaml.safe_load_all(built) if each]


def _variables(documents: list[dict[str, Any]], name: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container_of(documents, name)["env"] if "value" in each}


def test_the_example_of_a_cluster_with_ipus(tmp_path: Path, written: list[dict[str, Any]]) -> None:
    """Controller and webhook server alone, with one file of settings that both take."""
    documents = _example(tmp_path)
    deployments = {each["metadata"]["name"] for each in documents if each["kind"] == "Deployment"}
    assert deployments == {_NAME, "tpu-provisioner-webhook"}
    settings = only(documents, "ConfigMap")
    image = "us-docker.pkg.dev/example-project/tpu-provisioner/ipu-partitions:latest"
    for name in deployments:
        container = container_of(documents, name)
        assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
        assert container["image"] == image
    given = settings["data"]
    assert given.keys() <= {option.variable for option in (*OF_PARTITIONS, *OF_WEBHOOK)}
    read = read_options(PartitionSettings, given)
    assert [(each.host, each.port) for each in read.servers] == [("vipu.example.com", 8090)]
    assert (read.own_namespace, read.largest_size) == (NAMESPACE, 64)
    told = read_webhook_settings(given | _variables(documents, "tpu-provisioner-webhook"))
    assert (told.ipu_injection, told.ipu_init_image) == ("least-privilege", image)
    assert only(documents, "ClusterRole", _NAME)["rules"] == only(written, "ClusterRole")["rules"]


@pytest.mark.e2e
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("options", [False, True], ids=["as it is", "with its options"])
def test_an_api_server_takes_the_example(rehearsal: Rehearsal, tmp_path: Path, *, options: bool) -> None:
    """Fields that it does not know would be an error; names, references and expressions are checked as well."""
    folder = _copied(tmp_path, options=options)
    said = rehearsal.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-k", str(folder))
    taken = {line.split()[0] for line in said.splitlines()}
    assert {f"deployment.apps/{_NAME}", f"networkpolicy.networking.k8s.io/{_NAME}"} <= taken
    assert "mutatingwebhookconfiguration.admissionregistration.k8s.io/tpu-provisioner-webhook" in taken
    assert ("podmonitor.monitoring.coreos.com/tpu-provisioner" in taken) is options


def test_the_example_has_all_that_its_pods_name(tmp_path: Path) -> None:
    """Without its PriorityClass or its ServiceAccount a pod is not created."""
    documents = _example(tmp_path)
    for name in (_NAME, "tpu-provisioner-webhook"):
        pods = only(documents, "Deployment", name)["spec"]["template"]["spec"]
        assert only(documents, "ServiceAccount", pods["serviceAccountName"])
        if "priorityClassName" in pods:
            assert only(documents, "PriorityClass", pods["priorityClassName"])
    assert only(documents, "Namespace") == only(_read("base", "namespace.yaml"), "Namespace")


def test_pods_with_ipus_are_sent_to_the_webhook_server(tmp_path: Path) -> None:
    """Those of the example; and nobody but its controller may open their gates."""
    documents = _example(tmp_path)
    hooks = {each["name"]: each for each in only(documents, "MutatingWebhookConfiguration")["webhooks"]}
    hook = hooks["partitions.tpu-provisioner.cloud.google.com"]
    service = hook["clientConfig"]["service"]
    assert only(documents, "Service", service["name"])["metadata"]["namespace"] == service["namespace"]
    account = only(documents, "Deployment", _NAME)["spec"]["template"]["spec"]["serviceAccountName"]
    conditions = {each["name"]: each["expression"] for each in hook["matchConditions"]}
    assert f'"system:serviceaccount:{NAMESPACE}:{account}"' in conditions["is-not-by-the-controller"]


def test_the_options_of_the_example(tmp_path: Path) -> None:
    """Scraping, alerts, and the credentials of V-IPU servers, which the controller alone mounts."""
    documents = _example(tmp_path, options=True)
    assert {"PodMonitor", "PodMonitoring", "PrometheusRule"} <= {each["kind"] for each in documents}
    container = container_of(documents, _NAME)
    (folder,) = [each["value"] for each in container["env"] if each["name"] == "VIPU_CREDENTIALS"]
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    assert mounts["credentials"] == {"name": "credentials", "mountPath": folder, "readOnly": True}
    assert mounts.keys() == {"credentials", "tls", "tmp"}
    pods = only(documents, "Deployment", _NAME)["spec"]["template"]["spec"]
    volumes = {each["name"]: each for each in pods["volumes"]}
    assert volumes["credentials"]["secret"] == {"secretName": "vipu-credentials", "defaultMode": 0o440}
    assert "vipu-credentials" not in str(only(documents, "Deployment", "tpu-provisioner-webhook"))


def test_with_tls_init_containers_ask_where_the_certificate_is_served(tmp_path: Path) -> None:
    """And pods that wait already find the port that they know."""
    documents = _example(tmp_path, options=True)
    container = container_of(documents, _NAME)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert [each for each in container["args"] if "bind" in each] == [
        f"--api-bind-address=:{ports['api']}",
        "--health-probe-bind-address=:8081",
        "--metrics-bind-address=:8082",
        f"--tls-bind-address=:{ports['api-tls']}",
    ]
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}["tls"]
    assert {f"--tls-cert-file={mounted}/tls.crt", f"--tls-key-file={mounted}/tls.key"} <= set(container["args"])
    volumes = only(documents, "Deployment", _NAME)["spec"]["template"]["spec"]["volumes"]
    (secret,) = [each["secret"] for each in volumes if each["name"] == "tls"]
    assert secret == {"secretName": "tpu-provisioner-partitions-tls", "defaultMode": 0o440}
    service = only(documents, "Service", _NAME)
    assert {each["port"]: each["targetPort"] for each in service["spec"]["ports"]} == {80: "api", 443: "api-tls"}
    ingress = only(documents, "NetworkPolicy", _NAME)["spec"]["ingress"][0]
    assert [each["port"] for each in ingress["ports"]] == ["api", "api-tls"]
    given = _variables(documents, "tpu-provisioner-webhook")
    read = read_webhook_settings({**only(documents, "ConfigMap")["data"], **given})
    assert read.ipu_api_url == f"https://{_NAME}.{NAMESPACE}.svc"
    assert read.ipu_api_ca_config_map == "tpu-provisioner-partitions-ca"


# --- a release


@pytest.mark.e2e
def test_the_manifest_of_a_release(tmp_path: Path) -> None:
    """Two values are left to whoever applies it: the V-IPU servers, and the image with the vipu command line in it."""
    deploy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, deploy, ignore=shutil.ignore_patterns("__pycache__"))
    image = f"ghcr.io/owner/tpu-provisioner:v{provisioner.__version__}@sha256:{'0' * 64}"
    assert release.main(["partitions", image, str(deploy / "release" / "partitions")]) == 0
    documents = [*yaml.safe_load_all(tools.run("kustomize", "build", str(deploy / "release" / "partitions")))]
    made = yaml.safe_load(tools.run("kustomize", "build", str(deploy / "release" / "partitions" / "settings")))
    settings = made["data"]
    with pytest.raises(SettingsError, match="1 setting is missing or invalid:\n  - VIPU_SERVERS is not set"):
        read_options(PartitionSettings, settings)
    read_options(PartitionSettings, {**settings, "VIPU_SERVERS": "10.0.0.5"})
    assert _variables(documents, "tpu-provisioner-webhook")["IPU_INIT_IMAGE"] == image
    for name in (_NAME, "tpu-provisioner-webhook"):
        assert container_of(documents, name)["envFrom"] == [{"configMapRef": {"name": made["metadata"]["name"]}}]
        assert container_of(documents, name)["image"] == f"ghcr.io/owner/tpu-provisioner@sha256:{'0' * 64}"
    assert "example" not in str(documents)


def test_the_image_that_people_build_is_where_the_command_is_looked_for() -> None:
    """By the name in VIPU_COMMAND, in the PATH of the image that it is built on."""
    text = (DEPLOY / "images" / "ipu-partitions.Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines[:2] == ["ARG IMAGE", "FROM ${IMAGE}"]
    (copied,) = [Path(line.split()[-1]) for line in lines if line.startswith("COPY")]
    (path,) = re.findall(r"^ENV PATH=(\S+)", (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert copied.name == PartitionSettings(servers=()).command
    assert str(copied.parent) in path.split(":")
