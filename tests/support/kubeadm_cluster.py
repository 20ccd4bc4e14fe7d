"""Cluster as created by kubeadm, in memory: authenticates callers, signs certificates, stores nodes and Leases."""

from __future__ import annotations

import base64
import copy
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from rehearsal.localcluster.credentials import Authority
from rehearsal.simulators.compute.guests import joining
from rehearsal.simulators.compute.guests.client import JSON, Access, ServerError
from rehearsal.simulators.compute.guests.joining import SIGNER

Json = dict[str, Any]

HOST, PORT = "10.0.0.2", 6443
TOKEN = "abcdef.0123456789abcdef"
#: A startup script that contains the keys it would read; the simulation checks only the keys.
SCRIPT = (
    "#!/bin/bash\n# kubeadm-join-token kubeadm-control-plane-ip kubeadm-control-plane-port kubeadm-ca-hash "
    "kubeadm-kubernetes-version kube-labels kube-taints\n"
)
_BOOTSTRAP_USER = "system:bootstrap:"
_NODE_USER = "system:node:"


class KubeadmCluster:
    """A cluster for simulated guests. Tests use the attributes to make calls fail."""

    def __init__(self) -> None:
        self.authority = Authority("kubernetes", now=datetime.now(UTC), valid=timedelta(days=1))
        self._key = serialization.load_pem_private_key(self.authority.pair().key_pem, password=None)
        #: Valid tokens, which also sign cluster-info.
        self.tokens: set[str] = {TOKEN}
        self.approves = True
        self.denies = False
        #: Whether cluster-info differs between callers that verify the server's certificate and others.
        self.is_intercepted = False
        #: A method, and a part of the paths for which it is forbidden.
        self.forbidden = ("", "")
        self.away = False
        self.device_plugin = True
        authority = base64.b64encode(self.authority.certificate_pem).decode()
        cluster = {"server": f"https://{HOST}:{PORT}", "certificate-authority-data": authority}
        self.kubeconfig = yaml.safe_dump({"clusters": [{"name": "", "cluster": cluster}]})
        self.objects: dict[str, Json] = {}
        #: User, method and path of each call.
        self.calls: list[tuple[str, str, str]] = []
        self.open_clients = 0
        self._lock = threading.Lock()

    def metadata(self, **changes: str) -> dict[str, str]:
        """Return the metadata of a machine that may join; an empty value removes a key."""
        items = {
            "startup-script": SCRIPT,
            "kubeadm-join-token": TOKEN,
            "kubeadm-control-plane-ip": HOST,
            "kubeadm-ca-hash": joining.key_hashes(self.authority.certificate_pem.decode())[0],
            "kubeadm-kubernetes-version": "1.34",
            "kube-labels": "cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice",
            **{key.replace("_", "-"): value for key, value in changes.items()},
        }
        return {key: value for key, value in items.items() if value}

    def connect(self, access: Access) -> _Client:
        """Return a connection."""
        with self._lock:
            self.open_clients += 1
        return _Client(self, access)

    def node(self, name: str) -> Json:
        """Return a node; empty if it does not exist."""
        return self.objects.get(f"/api/v1/nodes/{name}", {})

    def nodes(self) -> list[Json]:
        return [raw for path, raw in self.objects.items() if path.startswith("/api/v1/nodes/")]

    def lease(self, name: str) -> Json:
        """Return the Lease of a node; empty if it does not exist."""
        return self.objects.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}", {})

    def ready(self, name: str) -> str:
        """Return the status of a node's condition Ready."""
        conditions = self.node(name).get("status", {}).get("conditions", [])
        return str(next((each["status"] for each in conditions if each["type"] == "Ready"), ""))

    def answer(self, access: Access, method: str, path: str, body: Any, content_type: str) -> Json:
        """Process one call."""
        with self._lock:
            if self.away or (access.host, access.port) != (HOST, PORT):
                raise ServerError(0, "ConnectionRefusedError: nobody answers")
            if access.authority_pem and access.authority_pem != self.authority.certificate_pem.decode():
                raise ServerError(0, "SSLCertVerificationError: unable to get local issuer certificate")
            user = self._user(access)
            self.calls.append((user, method, path))
            if self.forbidden[0] == method and self.forbidden[1] in path:
                raise ServerError(403, f"{user} may not {method} {path}")
            if path == joining.PATH and self.is_intercepted and access.authority_pem:
                return {"data": {"kubeconfig": "another"}}
            return copy.deepcopy(self._answer(user, method, urlsplit(path), body, content_type))

    def _user(self, access: Access) -> str:
        if access.token:
            if access.token not in self.tokens:
                raise ServerError(401, "Unauthorized")
            return f"{_BOOTSTRAP_USER}{access.token[:6]}"
        if access.certificate_pem:
            certificate = x509.load_pem_x509_certificate(access.certificate_pem)
            certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(self.authority.certificate_pem))
            return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        return "system:anonymous"

    def _answer(self, user: str, method: str, address: Any, body: Any, content_type: str) -> Json:
        path = address.path
        if path == joining.PATH:
            return self._cluster_info()
        if user == "system:anonymous":
            raise ServerError(403, "forbidden")
        if path.startswith("/apis/certificates.k8s.io/"):
            return self._certificates(user, method, path, body)
        if path == "/api/v1/pods":
            return self._pods(user, parse_qs(address.query))
        if not user.startswith(_NODE_USER) and method != "GET":
            raise ServerError(403, f"{user} may not {method} {path}")
        if user.startswith(_NODE_USER) and method == "POST" and body["metadata"]["name"] != user[len(_NODE_USER) :]:
            raise ServerError(403, "a node writes what is its own")
        return self._keep(method, path, body, content_type)

    def _cluster_info(self) -> Json:
        kubeconfig = self.kubeconfig
        signatures = {
            f"jws-kubeconfig-{token[:6]}": joining.sign(kubeconfig, token[:6], token[7:]) for token in self.tokens
        }
        return {"data": {"kubeconfig": kubeconfig, **signatures}}

    def _certificates(self, user: str, method: str, path: str, body: Any) -> Json:
        if method == "POST":
            name = f"{body['metadata']['generateName']}{len(self.calls)}"
            made: Json = {**body, "metadata": {"name": name}, "status": {}}
            made["spec"] = {**body["spec"], "username": user}
            self.objects[f"{path}/{name}"] = made
            return made
        request = self.objects[path]
        if self.denies:
            request["status"] = {"conditions": [{"type": "Denied", "message": "no"}]}
        if self.approves and not request["status"]:
            assert request["spec"]["signerName"] == SIGNER
            assert sorted(request["spec"]["usages"]) == ["client auth", "digital signature"]
            request["status"] = {"certificate": base64.b64encode(self._sign(request["spec"]["request"])).decode()}
        return request

    def _sign(self, request: str) -> bytes:
        asked = x509.load_pem_x509_csr(base64.b64decode(request))
        groups = [each.value for each in asked.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
        assert asked.is_signature_valid
        assert groups == ["system:nodes"]
        authority, now = x509.load_pem_x509_certificate(self.authority.certificate_pem), datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(asked.subject)
            .issuer_name(authority.subject)
            .public_key(asked.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + timedelta(days=1))
            .sign(self._key, hashes.SHA256())  # type: ignore[arg-type]
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _pods(self, user: str, query: Mapping[str, list[str]]) -> Json:
        assert query["fieldSelector"] == [f"spec.nodeName={user[len(_NODE_USER) :]}"]
        assert query["labelSelector"] == ["k8s-app=tpu-device-plugin"]
        return {"items": [{"status": {"phase": "Running" if self.device_plugin else "Pending"}}]}

    def _keep(self, method: str, path: str, body: Any, content_type: str) -> Json:
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                raise ServerError(409, "exists")
            self.objects[path] = {**body, "metadata": {**body["metadata"], "uid": f"uid-{len(self.calls)}"}}
            return self.objects[path]
        found = self.objects.get(path.removesuffix("/status"))
        if found is None:
            raise ServerError(404, "not found")
        if method == "PATCH":
            assert content_type != JSON
            for part, change in body.items():
                found[part] = {**found.get(part, {}), **change}
        return found


class _Client:
    """One connection to the cluster."""

    def __init__(self, cluster: KubeadmCluster, access: Access) -> None:
        self._cluster, self._access, self._open = cluster, access, True

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, content_type: str = JSON
    ) -> dict[str, Any]:
        assert self._open
        return self._cluster.answer(self._access, method, path, body, content_type)

    def close(self) -> None:
        """Close the connection."""
        if self._open:
            self._cluster.open_clients -= 1
        self._open = False
