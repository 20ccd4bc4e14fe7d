"""Which certificates of kubelets are approved here: each machine's own, while its token counts. Pure.

The tokens of machines carry a group of their own, whose requests nothing else approves. With kubeadm's group, whoever
writes a machine's startup script could become any node.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from provisioner.kube import fields
from provisioner.nodegroups.bootstrap.tokens import GROUP, NAME_PREFIX, Token

SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
#: Where requests live.
API_ROOT = "/apis/certificates.k8s.io/v1"
_BOOTSTRAP_USER = "system:bootstrap:"
_NODE_USER = "system:node:"
_NODES = "system:nodes"
_NAME, _ORGANIZATION = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME
#: What the signer lets the key of a kubelet be used for; the third is for RSA alone.
_USAGES = ({"digital signature", "client auth"}, {"digital signature", "client auth", "key encipherment"})
#: What is raised where a request is not what it should be.
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
    x509.DuplicateExtension,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A CertificateSigningRequest of a kubelet that came with one of our tokens, and that nobody has decided on."""

    name: str
    uid: str
    resource_version: str = ""
    #: Name of the token's Secret.
    token: str
    #: The node whose kubelet it is to be.
    node: str


def parse_request(raw: object) -> Request | None:
    """Read a CertificateSigningRequest; None for one that is never approved here, or not any more. Never raises."""
    body = fields.mapping(raw)
    metadata, spec, status = (fields.mapping(body.get(part)) for part in ("metadata", "spec", "status"))
    name, uid, user = (fields.name(each) for each in (metadata.get("name"), metadata.get("uid"), spec.get("username")))
    groups, usages = spec.get("groups"), spec.get("usages")
    if not (name and uid and isinstance(groups, list) and isinstance(usages, list)) or GROUP not in groups:
        return None
    is_open = not status.get("conditions") and not status.get("certificate")
    kubelets = spec.get("signerName") == SIGNER and set(map(str, usages)) in _USAGES
    node = _node_of(spec.get("request"))
    if not (is_open and kubelets and node and user.startswith(_BOOTSTRAP_USER)):
        return None
    return Request(
        name=name,
        uid=uid,
        resource_version=fields.name(metadata.get("resourceVersion")),
        token=f"{NAME_PREFIX}{user.removeprefix(_BOOTSTRAP_USER)}",
        node=node,
    )


def is_own(request: Request, token: Token, now: datetime) -> bool:
    """Whether a request is for the node of the machine whose token it came with, and the token still counts."""
    counts = token.value and token.expires_at is not None and token.expires_at > now
    return bool(counts) and (request.token, request.node) == (token.name, token.machine)


def approval_patch(uid: str, resource_version: str) -> dict[str, Any]:
    """Return the patch that approves a request, with UID and resource version as preconditions."""
    condition = {
        "type": "Approved",
        "status": "True",
        "reason": "MachineOfTPUNodeGroup",
        "message": "A machine of a TPUNodeGroup asks for the certificate of its own node with its own token.",
    }
    return {"metadata": {"uid": uid, "resourceVersion": resource_version}, "status": {"conditions": [condition]}}


def _node_of(request: object) -> str:
    """Return the node that a request in base64 names; empty where it is not just what a kubelet asks for."""
    try:
        pem = base64.b64decode(fields.text(request), validate=True)
        asked = x509.load_pem_x509_csr(pem)
        subject = {each.oid: each.value for each in asked.subject}
        whole = len(subject) == len(asked.subject) and subject.keys() == {_NAME, _ORGANIZATION}
        # The signer must not read another request in the same text.
        plain = whole and asked.public_bytes(Encoding.PEM).strip() == pem.strip() and not list(asked.extensions)
    except _UNREADABLE:
        return ""
    name = fields.name(subject.get(_NAME))
    is_nodes = plain and subject.get(_ORGANIZATION) == _NODES and name.startswith(_NODE_USER)
    return name.removeprefix(_NODE_USER) if is_nodes else ""
