"""What machines have to know of the cluster, from what every cluster of kubeadm says of itself. Never raises.

Each function returns an empty text for what it cannot find out.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from urllib.parse import urlsplit

import yaml
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from provisioner.kube import fields
from provisioner.nodegroups.bootstrap.metadata import DEFAULT_PORT

#: ConfigMaps: (namespace, name).
ROOT_CA = ("kube-system", "kube-root-ca.crt")
CLUSTER_INFO = ("kube-public", "cluster-info")

#: While an authority is being replaced there are two.
_MOST_CERTIFICATES = 8
_HTTPS_PORT = 443
_GIT_VERSION = re.compile(r"v?(1\.[0-9]{1,3})\.")
_MINOR = re.compile(r"([0-9]{1,3})\+?")
_HOST = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]{0,252}[A-Za-z0-9])?")


def ca_hash_of(config_map: object) -> str:
    """Return the hashes of the authorities in kube-root-ca.crt as kubeadm wants them: sha256:HEX, by commas.

    kubeadm asks for the SubjectPublicKeyInfo, and takes any of several.
    """
    pem = fields.text(fields.mapping(fields.mapping(config_map).get("data")).get("ca.crt"))
    try:
        certificates = x509.load_pem_x509_certificates(pem.encode())[:_MOST_CERTIFICATES]
        keys = [
            each.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for each in certificates
        ]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return ""
    return ",".join(dict.fromkeys(f"sha256:{hashlib.sha256(key).hexdigest()}" for key in keys))


def api_server_of(config_map: object) -> str:
    """Return HOST:PORT that cluster-info tells everybody who wants to join."""
    text = fields.text(fields.mapping(fields.mapping(config_map).get("data")).get("kubeconfig"))
    try:
        kubeconfig = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return ""
    clusters = fields.mappings(fields.mapping(kubeconfig).get("clusters"))
    server = fields.text(fields.mapping(clusters[0].get("cluster")).get("server")) if clusters else ""
    try:
        parts = urlsplit(server)
        host, port = parts.hostname or "", parts.port or _HTTPS_PORT
    except ValueError:
        return ""
    return api_server(host, port) if parts.scheme == "https" else ""


def api_server(host: str, port: int | None = None) -> str:
    """Return HOST:PORT of an address that a user gives; an IPv6 address gets its brackets."""
    host = host.removeprefix("[").removesuffix("]")
    port = port or DEFAULT_PORT
    if _HOST.fullmatch(host):
        return f"{host}:{port}"
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return ""
    # One with a zone is of one machine alone.
    return "" if address.scope_id else f"[{address}]:{port}"


def kubernetes_version_of(version: object) -> str:
    """Return the API server's version as 1.31, from what it answers to /version."""
    body = fields.mapping(version)
    found = _GIT_VERSION.match(fields.text(body.get("gitVersion")))
    if found is not None:
        return found[1]
    minor = _MINOR.fullmatch(fields.text(body.get("minor")))
    return f"1.{minor[1]}" if minor is not None and body.get("major") == "1" else ""
