"""One attempt of a VM to join its cluster, like `kubeadm join`: trust, a check of the node's name, a certificate.

Trust: the ConfigMap cluster-info is read from a server that is not verified. Its kubeconfig is signed with each token:
JWS (RFC 7515) with a detached payload and HMAC-SHA256. The certificate authority in it must be one of those whose
public key hashes are in the VM's metadata.

Certificate: the kubelet requests one with the bootstrap token, and controllers of the cluster approve and sign it.

kubeadm's own settings (kubeadm-config, kubelet-config) are not read, and nothing is installed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from rehearsal.simulators.compute.guests.client import Access, Client, JoinError, ServerError
from rehearsal.simulators.compute.guests.kubelet import NODES
from rehearsal.simulators.compute.guests.startup import Invitation, read_invitation
from rehearsal.simulators.compute.records import MachineView

#: Time in seconds that kubeadm waits for the kubelet's certificate.
CERTIFICATE_SECONDS = 300.0
_NOT_FOUND = 404

Connect = Callable[[Access], Client]


PATH = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
_KUBECONFIG = "kubeconfig"
_SIGNATURE_PREFIX = "jws-kubeconfig-"
_HTTPS_PORT = 443


REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A private key, and its certificate signing request, as PEM."""

    key_pem: bytes = field(repr=False)
    request_pem: bytes


def new_key(node_name: str) -> NewKey:
    """Create a key for the kubelet of a node."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node_name}"),
        ]
    )
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return NewKey(
        key_pem=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        request_pem=request.public_bytes(serialization.Encoding.PEM),
    )


def request_body(request_pem: bytes) -> dict[str, Any]:
    """Return the CertificateSigningRequest that a kubelet creates."""
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "node-csr-"},
        "spec": {
            "request": base64.b64encode(request_pem).decode(),
            "signerName": SIGNER,
            "usages": ["digital signature", "client auth"],
        },
    }


def certificate_of(request: Mapping[str, Any]) -> bytes | None:
    """Return the issued certificate as PEM, None before it is issued. Raises JoinError if the request failed."""
    status = request.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition["type"] in ("Denied", "Failed"):
            raise JoinError(f"the certificate signing request is {condition['type']}: {condition.get('message', '')}")
    issued = status.get("certificate")
    return base64.b64decode(issued) if issued else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster that a VM trusts: address and certificate authorities of its API server."""

    host: str
    port: int
    authority_pem: str
    #: Text of cluster-info that the signatures sign.
    kubeconfig: str


def trusted_cluster(cluster_info: Mapping[str, Any], invitation: Invitation) -> Cluster:
    """Return the cluster in a ConfigMap cluster-info. Raises JoinError if it cannot be trusted."""
    data = cluster_info.get("data") or {}
    kubeconfig = data.get(_KUBECONFIG, "")
    if not kubeconfig:
        raise JoinError("there is no kubeconfig in the ConfigMap cluster-info")
    signature = data.get(f"{_SIGNATURE_PREFIX}{invitation.token_id}", "")
    if not signature:
        raise JoinError(
            f"could not find a JWS signature in the cluster-info ConfigMap for token ID {invitation.token_id!r}"
        )
    if not is_signed(kubeconfig, signature, invitation):
        raise JoinError("failed to verify JWS signature of the cluster-info ConfigMap: the token is another one")
    host, port, authority = _read_kubeconfig(kubeconfig)
    if not set(invitation.ca_hashes) & set(key_hashes(authority)):
        raise JoinError("cluster CA found in cluster-info ConfigMap is invalid: none of the public keys is pinned")
    return Cluster(host=host, port=port, authority_pem=authority, kubeconfig=kubeconfig)


def sign(content: str, token_id: str, token_secret: str) -> str:
    """Return the detached signature of a text."""
    header = _encoded(json.dumps({"alg": "HS256", "kid": token_id}, separators=(",", ":")).encode())
    return f"{header}..{_encoded(_digest(header, content, token_secret))}"


def is_signed(content: str, signature: str, invitation: Invitation) -> bool:
    """Return whether a text was signed with the token of an invitation."""
    header, _, rest = signature.partition(".")
    payload, _, told = rest.partition(".")
    try:
        fields = json.loads(_decoded(header))
        digest = _decoded(told)
    except ValueError:
        return False
    if payload or fields != {"alg": "HS256", "kid": invitation.token_id}:
        return False
    return hmac.compare_digest(digest, _digest(header, content, invitation.token_secret))


def key_hashes(authority_pem: str) -> list[str]:
    """Return the hash of each certificate's SubjectPublicKeyInfo, as sha256:HEX."""
    keys = [certificate.public_key() for certificate in x509.load_pem_x509_certificates(authority_pem.encode())]
    encoded = [key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for key in keys]
    return [f"sha256:{hashlib.sha256(key).hexdigest()}" for key in encoded]


def _read_kubeconfig(kubeconfig: str) -> tuple[str, int, str]:
    try:
        cluster = yaml.safe_load(kubeconfig)["clusters"][0]["cluster"]
        address = urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        x509.load_pem_x509_certificates(authority.encode())
        host, port = address.hostname or "", address.port or _HTTPS_PORT
    except (yaml.YAMLError, LookupError, TypeError, ValueError) as error:
        raise JoinError(f"the kubeconfig of the cluster-info ConfigMap cannot be read: {error}") from error
    return host, port, authority


def _digest(header: str, content: str, token_secret: str) -> bytes:
    signed = f"{header}.{_encoded(content.encode())}".encode()
    return hmac.new(token_secret.encode(), signed, hashlib.sha256).digest()


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Data that a VM keeps on its disk after it has joined."""

    invitation: Invitation
    access: Access


@dataclass(slots=True, kw_only=True)
class _Request:
    invitation: Invitation
    key: NewKey
    access: Access
    client: Client
    name: str
    until: datetime


@dataclass(slots=True, kw_only=True)
class Join:
    """The current attempt of a VM to join. After a failure, the next step begins a new attempt."""

    connect: Connect
    _request: _Request | None = field(default=None)

    def step(self, machine: MachineView, now: datetime) -> Membership | None:
        """Continue; return None if there is no certificate yet. Raises GuestError if the attempt has failed."""
        try:
            if self._request is None:
                self._request = self._begin(machine, now)
            return self._collect(self._request, now)
        except (JoinError, ServerError):
            self.abandon()
            raise

    def abandon(self) -> None:
        """End the attempt, so that the next step begins a new one."""
        if self._request is not None:
            self._request.client.close()
            self._request = None

    def _begin(self, machine: MachineView, now: datetime) -> _Request:
        invitation = read_invitation(machine)
        cluster = self._discover(invitation)
        access = Access(host=cluster.host, port=cluster.port, authority_pem=cluster.authority_pem)
        client = self.connect(replace(access, token=invitation.token))
        try:
            _check_name(client, machine.name)
            key = new_key(machine.name)
            made = client.call("POST", REQUESTS, request_body(key.request_pem))
        except (JoinError, ServerError):
            client.close()
            raise
        return _Request(
            invitation=invitation,
            key=key,
            access=access,
            client=client,
            name=made["metadata"]["name"],
            until=now + timedelta(seconds=CERTIFICATE_SECONDS),
        )

    def _discover(self, invitation: Invitation) -> Cluster:
        """Read cluster-info without verifying the server, and again with the certificate authority that it contains."""
        access = Access(host=invitation.host, port=invitation.port)
        cluster = trusted_cluster(self._read_info(access), invitation)
        again = self._read_info(replace(access, authority_pem=cluster.authority_pem))
        if (again.get("data") or {}).get("kubeconfig") != cluster.kubeconfig:
            raise JoinError("the second kubeconfig from the cluster-info ConfigMap is different from the first")
        return cluster

    def _read_info(self, access: Access) -> dict[str, Any]:
        client = self.connect(access)
        try:
            return client.call("GET", PATH)
        finally:
            client.close()

    def _collect(self, request: _Request, now: datetime) -> Membership | None:
        certificate = certificate_of(request.client.call("GET", f"{REQUESTS}/{request.name}"))
        if certificate is None:
            if now > request.until:
                raise JoinError("timed out waiting for the TLS bootstrap: nobody approves or signs the certificate")
            return None
        self.abandon()
        access = replace(request.access, certificate_pem=certificate, key_pem=request.key.key_pem)
        return Membership(invitation=request.invitation, access=access)


def _check_name(client: Client, name: str) -> None:
    """Raise JoinError if a Node with that name exists and is ready."""
    try:
        node = client.call("GET", f"{NODES}/{name}")
    except ServerError as error:
        if error.status == _NOT_FOUND:
            return
        raise
    conditions = (node.get("status") or {}).get("conditions") or []
    if any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions):
        raise JoinError(f"a Node with name {name!r} and status 'Ready' already exists in the cluster")
