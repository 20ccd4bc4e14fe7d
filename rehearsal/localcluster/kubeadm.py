"""What `kubeadm init` leaves in a cluster for machines that join it: rights, and what they read before they trust it.

The controller manager adds a signature to cluster-info for each bootstrap token. kubeadm's own configuration, which
only kubeadm reads, is left out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from rehearsal.localcluster.api import ApiClient

_RBAC = "rbac.authorization.k8s.io"
_PUBLIC = "kube-public"
_INFO = "cluster-info"
#: What tokens for machines make their bearers.
_JOINING = "system:bootstrappers:kubeadm:default-node-token"
_REQUESTS = "system:certificates.k8s.io:certificatesigningrequests"


def install(api: ApiClient, *, server_url: str, authority_pem: bytes) -> bool:
    """Install all of it; False where the API server does not take something yet."""
    found = objects(server_url=server_url, authority_pem=authority_pem)
    return all(api.try_apply(path, json.dumps(raw).encode()).status < 300 for path, raw in found)


def objects(*, server_url: str, authority_pem: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each object with its address."""
    cluster = {"server": server_url, "certificate-authority-data": base64.b64encode(authority_pem).decode("ascii")}
    # Without a user: it is for everybody.
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}]}
    yield (
        f"/api/v1/namespaces/{_PUBLIC}/configmaps/{_INFO}",
        _named("v1", "ConfigMap", _INFO, data={"kubeconfig": yaml.safe_dump(kubeconfig)}),
    )
    reads_info = "kubeadm:bootstrap-signer-clusterinfo"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [_INFO], "verbs": ["get"]}
    yield _rbac("Role", reads_info, namespace=_PUBLIC, rules=[rule])
    yield _rbac(
        "RoleBinding",
        reads_info,
        namespace=_PUBLIC,
        roleRef=_reference("Role", reads_info),
        subjects=[{"apiGroup": _RBAC, "kind": "User", "name": "system:anonymous"}],
    )
    yield _rbac(
        "ClusterRole", "kubeadm:get-nodes", rules=[{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    )
    for name, role, group in (
        ("kubeadm:get-nodes", "kubeadm:get-nodes", _JOINING),
        ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", _JOINING),
        ("kubeadm:node-autoapprove-bootstrap", f"{_REQUESTS}:nodeclient", _JOINING),
        ("kubeadm:node-autoapprove-certificate-rotation", f"{_REQUESTS}:selfnodeclient", "system:nodes"),
    ):
        yield _rbac(
            "ClusterRoleBinding",
            name,
            roleRef=_reference("ClusterRole", role),
            subjects=[{"apiGroup": _RBAC, "kind": "Group", "name": group}],
        )


def _rbac(kind: str, name: str, *, namespace: str = "", **parts: Any) -> tuple[str, dict[str, Any]]:
    place = f"namespaces/{namespace}/" if namespace else ""
    path = f"/apis/{_RBAC}/v1/{place}{kind.lower()}s/{name}"
    return path, _named(f"{_RBAC}/v1", kind, name, **parts)


def _named(api_version: str, kind: str, name: str, **parts: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **parts}


def _reference(kind: str, name: str) -> dict[str, str]:
    return {"apiGroup": _RBAC, "kind": kind, "name": name}
