"""The controllers of custom resources, with their CRDs and webhooks in the API server.

Webhooks are called by address. No Service can lead to them: no program of the local cluster runs in a pod.
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

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOK_PATHS = {
    kind: f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s"
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A controller with CRDs and webhooks of its own, configured by a file as controller-runtime's examples are."""

    name: str
    """That of its recipe, its log and its user."""

    title: str
    """What messages call it."""

    crd: str
    """The resource that it serves, as resource.group."""

    configuration: str
    """The apiVersion of its configuration file."""

    watched: Mapping[str, str] = field(default_factory=dict)
    """Kinds by resource.group that it watches and ends without, but that nobody here makes; all are of version v1."""


JOBSET = Operator(
    name=recipes.JOBSET,
    title="JobSet",
    crd="jobsets.jobset.x-k8s.io",
    configuration="config.jobset.x-k8s.io/v1alpha1",
)
LWS = Operator(
    name=recipes.LWS,
    title="LeaderWorkerSet",
    crd="leaderworkersets.leaderworkerset.x-k8s.io",
    configuration="config.lws.x-k8s.io/v1alpha1",
    watched={"disaggregatedsets.disaggregatedset.x-k8s.io": "DisaggregatedSet"},
)


def install_crds(api: ApiClient, operator: Operator, manifests: Path) -> bool:
    """Install the CRDs; False where the API server does not take one yet."""
    resource, _, group = operator.crd.partition(".")
    # Sent as it is: to parse its 9,000 lines and more here would take a second.
    wanted = {operator.crd: (manifests / "crd" / "bases" / f"{group}_{resource}.yaml").read_bytes()}
    wanted |= {name: json.dumps(_schemaless(name, kind)).encode() for name, kind in operator.watched.items()}
    return all(api.try_apply(f"{_CRDS}/{name}", manifest).status < 300 for name, manifest in wanted.items())


def established(api: ApiClient, operator: Operator) -> bool:
    """Tell whether the API server serves the operator's kinds."""
    for name in (operator.crd, *operator.watched):
        conditions = api.must("GET", f"{_CRDS}/{name}").get("status", {}).get("conditions") or []
        if not any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
            return False
    return True


def install_webhooks(api: ApiClient, operator: Operator, manifests: Path, *, port: int, authority_pem: bytes) -> None:
    """Install the webhooks, to be called on this port of this machine."""
    for configuration in webhook_configurations(operator, manifests, port=port, authority_pem=authority_pem):
        path = f"{_WEBHOOK_PATHS[configuration['kind']]}/{configuration['metadata']['name']}"
        api.apply(path, json.dumps(configuration).encode())


def webhook_configurations(
    operator: Operator, manifests: Path, *, port: int, authority_pem: bytes
) -> Iterator[dict[str, Any]]:
    """Yield the operator's webhook configurations with addresses in place of Services."""
    folder = manifests / "webhook"
    for document in _documents(folder):
        if document.get("kind") not in _WEBHOOK_PATHS:
            continue
        prefix = document["kind"].removesuffix("WebhookConfiguration").lower()
        # Without these patches, which are the operator's own, its pod webhooks would see every pod of the cluster.
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


def _schemaless(name: str, kind: str) -> dict[str, Any]:
    """Return a CRD that takes anything: the API server spends seconds and 70 MB on a schema of a megabyte."""
    resource, _, group = name.partition(".")
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": resource},
            "scope": "Namespaced",
            "versions": [version],
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
