"""How a VM comes to trust a cluster, as `kubeadm join` does with a bootstrap token. Pure.

The ConfigMap cluster-info is read from a server that nobody has vouched for. Its kubeconfig is signed with each token:
JWS (RFC 7515) with a detached payload and HMAC-SHA256. The authority in it has to be one of those whose public keys
the VM was told.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from rehearsal.simulators.compute.guests.errors import JoinError
from rehearsal.simulators.compute.guests.startup import Invitation

PATH = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
_KUBECONFIG = "kubeconfig"
_SIGNATURE_PREFIX = "jws-kubeconfig-"
_HTTPS_PORT = 443


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster that a VM trusts: where its API server is, and by which authorities it is known."""

    host: str
    port: int
    authority_pem: str
    kubeconfig: str
    """What was signed."""


def trusted_cluster(cluster_info: Mapping[str, Any], invitation: Invitation) -> Cluster:
    """Return the cluster of a ConfigMap cluster-info. Raises JoinError where it cannot be trusted."""
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
    """Return the detached signature of a content."""
    header = _encoded(json.dumps({"alg": "HS256", "kid": token_id}, separators=(",", ":")).encode())
    return f"{header}..{_encoded(_digest(header, content, token_secret))}"


def is_signed(content: str, signature: str, invitation: Invitation) -> bool:
    """Tell whether a content was signed with the token of an invitation."""
    header, _, rest = signature.partition(".")
    payload, _, told = rest.partition(".")
    try:
        fields = json.loads(_decoded(header))
        digest = _decoded(told)
    except (binascii.Error, ValueError):
        return False
    if payload or fields != {"alg": "HS256", "kid": invitation.token_id}:
        return False
    return hmac.compare_digest(digest, _digest(header, content, invitation.token_secret))


def key_hashes(authority_pem: str) -> list[str]:
    """Return the hash of each certificate's SubjectPublicKeyInfo, as sha256:HEX."""
    certificates = x509.load_pem_x509_certificates(authority_pem.encode())
    keys = [each.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for each in certificates]
    return [f"sha256:{hashlib.sha256(key).hexdigest()}" for key in keys]


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
