"""Bootstrap tokens: a Secret of kube-system for each machine that has not joined. Pure.

A token lives for 30 minutes and is replaced before. The old one expires on its own, so that no join is interrupted.
Certificates of their group are approved by this controller only, for the machine of the token: with the group of
kubeadm, a user who writes the startup script of a machine could become any node.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.nodegroups.api import names

NAMESPACE = "kube-system"
LIFE = timedelta(minutes=30)
#: A token with less than this left is not enough for a machine that has yet to join.
LEAST_LEFT = timedelta(minutes=10)

#: Tokens of all groups at once. Kubernetes signs the ConfigMap cluster-info for each: 106 bytes in it (a key of 21, a
#: signature of 85), so these take 434 KB of the 1 MiB that it may have, and leave the rest to tokens of others. While
#: as many machines have not joined, others wait for theirs.
MOST = 4096

SECRET_TYPE = "bootstrap.kubernetes.io/token"  # noqa: S105 - a type
NAME_PREFIX = "bootstrap-token-"
#: What tokens make their bearers: deploy/nodegroups/rbac/machines.yaml says what these may do. Kubernetes approves the
#: certificates of kubeadm's group, whatever node they name; those of this one are approved here (`is_own`).
GROUP = "system:bootstrappers:tpu-provisioner:node-groups"
#: A label of the Secret beside those of its group and the machine's number: its name.
MACHINE = "tpu-provisioner.cloud.google.com/machine"

_TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A Secret in kube-system with which one machine may join."""

    name: str
    uid: str
    group_namespace: str
    group_name: str
    #: Name and number (`ManagedInstance.id`) of the machine that it was made for.
    machine: str
    machine_id: str
    #: As "abcdef.0123456789abcdef", for the machine's metadata; empty where the Secret cannot be used.
    value: str = field(default="", repr=False)
    #: None: it says none, and so it is never used, only deleted.
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlan:
    """What is to be done about the tokens of one group."""

    #: The token for the metadata of each machine that has not joined, by the machine's name.
    current: Mapping[str, Token] = field(default_factory=dict)
    #: Names and numbers of machines that need a new one.
    create: tuple[tuple[str, str], ...] = ()
    delete: tuple[Token, ...] = ()


def plan_tokens(tokens: Sequence[Token], joining: Collection[tuple[str, str]], now: datetime) -> TokenPlan:
    """Decide on the tokens of one group; `joining` are its machines that have not joined, by name and number.

    One gets a new token when its best one has less than ten minutes left. A token goes when its machine has joined
    or is gone, or when it has expired.
    """
    best: dict[tuple[str, str], tuple[datetime, Token]] = {}
    delete = []
    for token in tokens:
        key = (token.machine, token.machine_id)
        if key not in joining or not token.value or token.expires_at is None or token.expires_at <= now:
            delete.append(token)
        elif key not in best or (token.expires_at, token.name) > (best[key][0], best[key][1].name):
            best[key] = (token.expires_at, token)
    return TokenPlan(
        current={name: token for (name, _), (_, token) in sorted(best.items())},
        create=tuple(sorted(key for key in joining if key not in best or best[key][0] - now < LEAST_LEFT)),
        delete=tuple(sorted(delete, key=lambda token: token.name)),
    )


def secret_of(
    token: str, *, group: Mapping[str, str], machine: str, machine_id: str, expires_at: datetime
) -> dict[str, Any]:
    """Return the Secret of a token (`writing.draw_token`) for one machine; `group` are `names.group_labels`."""
    token_id, _, token_secret = token.partition(".")
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": f"{NAME_PREFIX}{token_id}",
            "namespace": NAMESPACE,
            "labels": {**group, MACHINE: machine, names.MACHINE_ID: machine_id},
        },
        "type": SECRET_TYPE,
        "stringData": {
            "token-id": token_id,
            "token-secret": token_secret,
            "expiration": fields.format_time(expires_at.astimezone(UTC)),
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": GROUP,
            "description": f"Lets the machine {machine} join the cluster. Created by tpu-provisioner.",
        },
    }


def parse_secret(raw: object) -> Token | None:
    """Read a Secret with the labels of a group; None for any that is no bootstrap token of ours. Never raises."""
    body = fields.mapping(raw)
    metadata = fields.mapping(body.get("metadata"))
    labels = fields.mapping(metadata.get("labels"))
    name, uid = fields.name(metadata.get("name")), fields.name(metadata.get("uid"))
    group_namespace, group_name = (fields.name(labels.get(key)) for key in (names.GROUP_NAMESPACE, names.GROUP_NAME))
    ours = group_namespace and group_name and body.get("type") == SECRET_TYPE
    if not (ours and name.startswith(NAME_PREFIX) and uid and metadata.get("namespace") == NAMESPACE):
        return None
    data = fields.mapping(body.get("data"))
    value = f"{_decoded(data.get('token-id'))}.{_decoded(data.get('token-secret'))}"
    return Token(
        name=name,
        uid=uid,
        group_namespace=group_namespace,
        group_name=group_name,
        machine=fields.name(labels.get(MACHINE)),
        machine_id=fields.name(labels.get(names.MACHINE_ID)),
        value=value if _TOKEN.fullmatch(value) else "",
        expires_at=fields.parse_timestamp(_decoded(data.get("expiration"))),
    )


def _decoded(raw: object) -> str:
    if not isinstance(raw, str):
        return ""
    try:
        return base64.b64decode(raw, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
CERTIFICATES_ROOT = "/apis/certificates.k8s.io/v1"
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
    token: str
    node: str


def parse_request(raw: object) -> Request | None:
    """Read a CertificateSigningRequest. Return None if this controller never approves it. Never raises.

    The certificate request itself is parsed last and only if it is short, because any bootstrap token can send others.
    """
    body = fields.mapping(raw)
    metadata, spec, status = (fields.mapping(body.get(part)) for part in ("metadata", "spec", "status"))
    name, uid, user = (fields.name(each) for each in (metadata.get("name"), metadata.get("uid"), spec.get("username")))
    groups, usages, request = spec.get("groups"), spec.get("usages"), fields.text(spec.get("request"))
    if not (name and uid and isinstance(groups, list) and isinstance(usages, list)) or GROUP not in groups:
        return None
    is_open = not status.get("conditions") and not status.get("certificate")
    kubelets = spec.get("signerName") == SIGNER and set(map(str, usages[: len(_USAGES[1]) + 1])) in _USAGES
    if not (is_open and kubelets and user.startswith(_BOOTSTRAP_USER) and len(request) <= bounds.CERTIFICATE_REQUEST):
        return None
    node = _node_of(request)
    if not node:
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


def _node_of(request: str) -> str:
    """Return the node that a request in base64 names, empty if it contains more than a kubelet requests."""
    try:
        pem = base64.b64decode(request, validate=True)
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
