"""Plans bootstrap tokens, and checks the certificate requests that are made with them. Pure.

A token is a Secret in kube-system, for one machine, and valid for 30 minutes. 10 minutes before it expires, a machine
that has not joined also gets a new token, so that a running join is not interrupted. The tokens have a separate user
group, for which this controller approves only certificates of the token's machine. With kubeadm's user group,
Kubernetes would approve every node certificate, so a user's startup script could act as any node.
"""

import base64
import re
from collections.abc import Callable, Collection, Mapping, Sequence
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
#: Minimum remaining validity of a token. A machine that has not joined gets a new token when less is left.
LEAST_LEFT = timedelta(minutes=10)

#: Maximum number of tokens of all groups. Each takes 106 bytes of the ConfigMap cluster-info: in total 434 KB of 1 MiB.
MOST = 4096

SECRET_TYPE = "bootstrap.kubernetes.io/token"  # noqa: S105 - a type
NAME_PREFIX = "bootstrap-token-"
#: User group of clients with these tokens. This controller approves certificates for the group (`is_own`).
GROUP = "system:bootstrappers:tpu-provisioner:node-groups"
#: Label of the Secret with the name of the machine. Other labels are the machine's group and number.
MACHINE = "tpu-provisioner.cloud.google.com/machine"

_TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bootstrap token, which is a Secret in kube-system, for one machine."""

    name: str
    uid: str
    group_namespace: str
    group_name: str
    #: Name of the machine that the token was created for. The next field is that machine's `ManagedInstance.id`.
    machine: str
    machine_id: str
    #: Token such as abcdef.0123456789abcdef; empty if the Secret does not contain a valid token.
    value: str = field(default="", repr=False)
    #: Time at which the token expires. None if the Secret has no valid time; such a token is not used.
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlan:
    """Tokens of one group to use, create and delete."""

    #: Tokens for the metadata of machines that have not joined, by name of the machine.
    current: Mapping[str, Token] = field(default_factory=dict)
    #: Names and numbers of machines that need a new token.
    create: tuple[tuple[str, str], ...] = ()
    delete: tuple[Token, ...] = ()


def plan_tokens(tokens: Sequence[Token], joining: Collection[tuple[str, str]], now: datetime) -> TokenPlan:
    """Plan the tokens of `joining` machines (name, number). Invalid, expired and other machines' tokens are deleted."""
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
    """Return the Secret of a token (`writing.draw_token`) for one machine; `group` has the labels of the group."""
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
    """Read a Secret. Return None if it is not a bootstrap token of this controller. Never raises."""
    body = fields.mapping(raw)
    metadata = fields.mapping(body.get("metadata"))
    labels = fields.mapping(metadata.get("labels"))
    name, uid = fields.name(metadata.get("name")), fields.name(metadata.get("uid"))
    group_namespace, group_name = (fields.name(labels.get(key)) for key in (names.GROUP_NAMESPACE, names.GROUP_NAME))
    ours = group_namespace and group_name and body.get("type") == SECRET_TYPE
    if not (ours and name.startswith(NAME_PREFIX) and uid and metadata.get("namespace") == NAMESPACE):
        return None
    data = fields.mapping(body.get("data"))
    value = f"{fields.base64_text(data.get('token-id'))}.{fields.base64_text(data.get('token-secret'))}"
    return Token(
        name=name,
        uid=uid,
        group_namespace=group_namespace,
        group_name=group_name,
        machine=fields.name(labels.get(MACHINE)),
        machine_id=fields.name(labels.get(names.MACHINE_ID)),
        value=value if _TOKEN.fullmatch(value) else "",
        expires_at=fields.parse_timestamp(fields.base64_text(data.get("expiration"))),
    )


SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
CERTIFICATES_ROOT = "/apis/certificates.k8s.io/v1"
_BOOTSTRAP_USER = "system:bootstrap:"
_NODE_USER = "system:node:"
_NODES = "system:nodes"
_NAME, _ORGANIZATION = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME
#: Key usages that the signer accepts for kubelets. Only RSA keys have "key encipherment".
_USAGES = ({"digital signature", "client auth"}, {"digital signature", "client auth", "key encipherment"})
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
    """A kubelet's CertificateSigningRequest, sent with a token of this controller and not decided yet."""

    name: str
    uid: str
    resource_version: str = ""
    token: str
    node: str


@dataclass(frozen=True, slots=True)
class Room:
    """Limit on the certificate requests that are read for each token. A client with a token can send any number."""

    #: Names of the requests by token, including requests that have been decided or deleted.
    _names: dict[str, set[str]] = field(default_factory=dict)

    def has(self, token: str, name: str) -> bool:
        """Return whether a request of a token may be read. If so, count it."""
        if len(self._names) > MOST:
            # There are more tokens than can be valid at the same time, so some have expired. All counts start again.
            self._names.clear()
        known = self._names.setdefault(token, set())
        if len(known) < bounds.CERTIFICATE_REQUESTS:
            known.add(name)
        return name in known


def parse_request(raw: object, has_room: Callable[[str, str], bool] = lambda *_: True) -> Request | None:
    """Read a CertificateSigningRequest; None if it is decided, not to be approved, or over a limit. Never raises."""
    metadata, spec, status = (fields.at(raw, part) for part in ("metadata", "spec", "status"))
    name, uid, user = (fields.name(part) for part in (metadata.get("name"), metadata.get("uid"), spec.get("username")))
    groups, usages, request = spec.get("groups"), spec.get("usages"), fields.text(spec.get("request"))
    if not (name and uid and isinstance(groups, list) and isinstance(usages, list)) or GROUP not in groups:
        return None
    is_open = not status.get("conditions") and not status.get("certificate")
    kubelets = spec.get("signerName") == SIGNER and set(map(str, usages[: len(_USAGES[1]) + 1])) in _USAGES
    if not (is_open and kubelets and user.startswith(_BOOTSTRAP_USER) and len(request) <= bounds.CERTIFICATE_REQUEST):
        return None
    token = f"{NAME_PREFIX}{user.removeprefix(_BOOTSTRAP_USER)}"
    # Parsing X.509 takes longer than the other checks, so it is done last, and limited for each token.
    node = _node_of(request) if has_room(token, name) else ""
    if not node:
        return None
    return Request(
        name=name,
        uid=uid,
        resource_version=fields.name(metadata.get("resourceVersion")),
        token=token,
        node=node,
    )


def is_own(request: Request, token: Token, now: datetime) -> bool:
    """Return whether a token is valid, and a request was sent with this token for the node of the token's machine."""
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
    """Return the name of the node in a base64 certificate request; empty if the request is not as kubelets write it."""
    try:
        pem = base64.b64decode(request, validate=True)
        asked = x509.load_pem_x509_csr(pem)
        subject = {attribute.oid: attribute.value for attribute in asked.subject}
        whole = len(subject) == len(asked.subject) and subject.keys() == {_NAME, _ORGANIZATION}
        # The text must contain only this request, because the signer could read and sign another request in it.
        plain = whole and asked.public_bytes(Encoding.PEM).strip() == pem.strip() and not list(asked.extensions)
    except _UNREADABLE:
        return ""
    name = fields.name(subject.get(_NAME))
    is_nodes = plain and subject.get(_ORGANIZATION) == _NODES and name.startswith(_NODE_USER)
    return name.removeprefix(_NODE_USER) if is_nodes else ""
