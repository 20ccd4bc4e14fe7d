"""How a kubelet gets its certificate: it asks for one with the bootstrap token, and somebody approves and signs it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rehearsal.simulators.compute.guests.errors import JoinError

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A private key, and the request for a certificate of it, as PEM."""

    key_pem: bytes = field(repr=False)
    request_pem: bytes


def new_key(node_name: str) -> NewKey:
    """Make a key for the kubelet of a node."""
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
    """Return the CertificateSigningRequest that a kubelet makes."""
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
    """Return the certificate that was issued, as PEM; None where nobody has yet.

    Raises JoinError where the request was denied or could not be signed.
    """
    status = request.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition["type"] in ("Denied", "Failed"):
            raise JoinError(f"the certificate signing request is {condition['type']}: {condition.get('message', '')}")
    issued = status.get("certificate")
    return base64.b64decode(issued) if issued else None
