"""Describes the controllers of custom resources ("operators"), and installs their CRDs and webhooks.

Webhooks are called by URL, not through a Service, because no program of the local cluster runs in a pod.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rehearsal.localcluster import recipes
from rehearsal.localcluster.api import ApiClient
from rehearsal.localcluster.ports import HOST

_NAMESPACE = "kube-system"
_CERTIFICATES = "kueue-certificates"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOK_PATHS = {
    kind: f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s"
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A controller with its own CRDs, which is configured by a file or by flags."""

    #: Name of the operator's recipe, log and user.
    name: str
    title: str
    #: apiVersion of the configuration file; empty if the operator is configured by flags and has no webhooks.
    configuration: str = ""
    #: Flags of the command line; {health} is replaced by the address of the health checks.
    flags: tuple[str, ...] = ()
    #: Fields of the configuration file that extend or replace the fields common to all operators.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Kinds whose CRD is replaced by one that allows any fields: version and kind by resource.group.
    schemaless: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: Name of an empty Secret in kube-system that the operator fills with certificates; empty if it needs none.
    secret: str = ""


JOBSET = Operator(
    name=recipes.JOBSET,
    title="JobSet",
    configuration="config.jobset.x-k8s.io/v1alpha1",
)
LWS = Operator(
    name=recipes.LWS,
    title="LeaderWorkerSet",
    configuration="config.lws.x-k8s.io/v1alpha1",
    # The controller watches this kind, which no test uses. The real schema costs the API server seconds and 70 MB.
    schemaless={"disaggregatedsets.disaggregatedset.x-k8s.io": ("v1", "DisaggregatedSet")},
)
KUEUE = Operator(
    name=recipes.KUEUE,
    title="Kueue",
    configuration="config.kueue.x-k8s.io/v1beta2",
    settings={
        "namespace": _NAMESPACE,
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]},
        # Kueue would exit without internalCertManagement, because /etc has no certificate for its metrics. The Service
        # name "none" matches no webhook, so the webhooks keep the certificate of the cluster.
        "internalCertManagement": {"webhookServiceName": "none", "webhookSecretName": _CERTIFICATES},
        "featureGates": {"VisibilityOnDemand": False, "MultiKueue": False},
    },
    # The provisioner reads CapacityBuffers, but no module with their CRD can be built here, so it has no schema.
    schemaless={"capacitybuffers.autoscaling.x-k8s.io": ("v1beta1", "CapacityBuffer")},
    secret=_CERTIFICATES,
)

KUBERAY = Operator(
    name=recipes.KUBERAY,
    title="KubeRay",
    flags=(
        "--health-probe-bind-address={health}",
        "--metrics-addr=0",
        "--enable-leader-election=false",
        "--reconcile-concurrency=4",
        "--qps=1000",
        "--burst=2000",
    ),
    # The controller watches these kinds, which no test uses. The real schemas have 30,000 lines.
    schemaless={"rayservices.ray.io": ("v1", "RayService"), "raycronjobs.ray.io": ("v1", "RayCronJob")},
)


def install_crds(api: ApiClient, operator: Operator, manifests: Path) -> bool:
    """Install the CRDs; return False if the API server does not accept one of them yet."""
    wanted = {}
    if operator.secret:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": operator.secret}}
        path = f"/api/v1/namespaces/{_NAMESPACE}/secrets/{operator.secret}"
        wanted[path] = json.dumps(secret).encode()
    for name, file in _crds(manifests).items():
        # The file is sent unparsed, because parsing its 9,000 or more lines would take a second.
        wanted[f"{_CRDS}/{name}"] = file.read_bytes() + _conversion(manifests, name)
    for name, (version, kind) in operator.schemaless.items():
        wanted[f"{_CRDS}/{name}"] = json.dumps(_schemaless(name, version, kind)).encode()
    return all(api.try_apply(path, manifest).status < 300 for path, manifest in wanted.items())


def _crds(manifests: Path) -> dict[str, Path]:
    """Return the files of the operator's CRDs by resource.group. Their names have the form group_resource.yaml."""
    files = sorted((manifests / "crd" / "bases").glob("*_*.yaml"))
    return {".".join(reversed(file.stem.split("_"))): file for file in files}


def _conversion(manifests: Path, name: str) -> bytes:
    """Return the lines that a CRD's patch adds to its spec for the conversion webhook; empty if it has no such patch.

    The webhook's Service does not exist, and is not needed, because objects are read only in the stored version.
    """
    patch = manifests / "crd" / "patches" / f"webhook_in_{name.partition('.')[0]}.yaml"
    return patch.read_bytes().partition(b"\nspec:\n")[2] if patch.exists() else b""


def established(api: ApiClient, operator: Operator, manifests: Path) -> bool:
    """Return whether the API server serves the operator's kinds."""
    for name in (*_crds(manifests), *operator.schemaless):
        conditions = api.must("GET", f"{_CRDS}/{name}").get("status", {}).get("conditions") or []
        if not any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
            return False
    return True


def install_webhooks(api: ApiClient, operator: Operator, manifests: Path, *, port: int, authority_pem: bytes) -> None:
    """Install the webhooks, to be called on this port of this machine."""
    if not operator.configuration:
        return
    for configuration in webhook_configurations(operator, manifests, port=port, authority_pem=authority_pem):
        path = f"{_WEBHOOK_PATHS[configuration['kind']]}/{configuration['metadata']['name']}"
        api.apply(path, json.dumps(configuration).encode())


def webhook_configurations(
    operator: Operator, manifests: Path, *, port: int, authority_pem: bytes
) -> Iterator[dict[str, Any]]:
    """Yield the operator's webhook configurations with URLs instead of Services."""
    folder = manifests / "webhook"
    for document in _documents(folder):
        if document.get("kind") not in _WEBHOOK_PATHS:
            continue
        prefix = document["kind"].removesuffix("WebhookConfiguration").lower()
        # The operator's patches replace webhooks: without them, its pod webhooks would be called for every pod.
        for patch in _patches(folder, f"{prefix}-patch.yaml"):
            document["webhooks"][int(patch["path"].removeprefix("/webhooks/"))] = patch["value"]
        for webhook in document["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {
                "url": f"https://{HOST}:{port}{path}",
                "caBundle": base64.b64encode(authority_pem).decode("ascii"),
            }
        document["metadata"]["name"] = f"{operator.name}-{document['metadata']['name']}"
        yield document


def _schemaless(name: str, version: str, kind: str) -> dict[str, Any]:
    resource, _, group = name.partition(".")
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": resource},
            "scope": "Namespaced",
            "versions": [served],
        },
    }


def _documents(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if isinstance(document, dict):
                yield document


def _patches(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    for path in folder.rglob(name):
        yield from yaml.safe_load(path.read_text(encoding="utf-8"))
