"""JobSet's objects in the API server: its CRD, and webhooks that are called by address.

No Service can lead to them: no program of the local cluster runs in a pod.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from provisioner.localcluster.api import ApiClient
from provisioner.localcluster.ports import HOST

_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/jobsets.jobset.x-k8s.io"
_WEBHOOK_PATHS = {
    kind: f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s"
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
}


def install_crd(api: ApiClient, manifests: Path) -> bool:
    """Install the CRD; False where the API server does not take it yet."""
    # Sent as it is: to parse its 9,000 lines here would take a second.
    return api.try_apply(_CRD, (manifests / "crd" / "bases" / "jobset.x-k8s.io_jobsets.yaml").read_bytes()).status < 300


def established(api: ApiClient) -> bool:
    """Tell whether the API server serves JobSets."""
    conditions = api.must("GET", _CRD).get("status", {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def install_webhooks(api: ApiClient, manifests: Path, *, port: int, authority_pem: bytes) -> None:
    """Install the webhooks, to be called on this port of this machine."""
    for configuration in webhook_configurations(manifests, port=port, authority_pem=authority_pem):
        path = f"{_WEBHOOK_PATHS[configuration['kind']]}/{configuration['metadata']['name']}"
        api.apply(path, json.dumps(configuration).encode())


def webhook_configurations(manifests: Path, *, port: int, authority_pem: bytes) -> Iterator[dict[str, Any]]:
    """Yield JobSet's webhook configurations with addresses in place of Services."""
    folder = manifests / "webhook"
    for document in _documents(folder):
        if document.get("kind") not in _WEBHOOK_PATHS:
            continue
        prefix = document["kind"].removesuffix("WebhookConfiguration").lower()
        # Without JobSet's own patches its pod webhooks would see every pod of the cluster.
        for patch in _patches(folder / "patches" / f"{prefix}-patch.yaml"):
            document["webhooks"][int(patch["path"].removeprefix("/webhooks/"))] = patch["value"]
        for webhook in document["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {
                "url": f"https://{HOST}:{port}{path}",
                "caBundle": base64.b64encode(authority_pem).decode("ascii"),
            }
        document["metadata"]["name"] = f"jobset-{document['metadata']['name']}"
        yield document


def _documents(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.yaml")):
        yield from (document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document)


def _patches(path: Path) -> list[dict[str, Any]]:
    patches: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return patches
