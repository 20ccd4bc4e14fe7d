"""Creates the certificates and keys of a local cluster, as files in its directory.

Each cluster has its own certificates, valid for a year, without rotation and revocation. One authority signs for
servers and clients. Another authority, whose key the controller manager has, signs for kubelets of joining machines.
Tests also use `Authority` for simulated clusters.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from provisioner.runtime import authority
from provisioner.runtime.authority import KeyPair, new_key, private_pem
from rehearsal.localcluster.ports import HOST

_VALID = dt.timedelta(days=365)
SERVICE_NETWORK = "10.0.0.0/16"
_SERVICE_ADDRESS = "10.0.0.1"  # the first address of the network belongs to the API server's Service
_SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)

ADMIN = "admin"
# The group system:masters has all rights without bindings.
_CLIENTS = {
    ADMIN: ("kubernetes-admin", ("system:masters",)),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
    "kwok": ("kwok", ("system:masters",)),
    "jobset": ("jobset-controller", ("system:masters",)),
    "lws": ("lws-controller", ("system:masters",)),
    "kueue": ("kueue-controller", ("system:masters",)),
    "kuberay": ("kuberay-operator", ("system:masters",)),
}


class Authority(authority.Authority):
    """Certificate authority that also signs for clients and returns its own key."""

    def pair(self) -> KeyPair:
        """Return the authority's own certificate and key, with which a program can sign in its name."""
        return KeyPair(certificate_pem=self.certificate_pem, key_pem=authority.private_pem(self.key))

    def server_at(
        self, common_name: str, *, names: Sequence[str], addresses: Sequence[str], also_client: bool = False
    ) -> KeyPair:
        """Return a serving certificate for DNS names and IP addresses."""
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if also_client else [])]
        return self.issue(_name(common_name), usages, x509.SubjectAlternativeName(alternatives))

    def client(self, user: str, *, groups: Sequence[str] = ()) -> KeyPair:
        """Return a client certificate for this user and these groups of the API server."""
        return self.issue(_name(user, groups=groups), [ExtendedKeyUsageOID.CLIENT_AUTH])


def write(pair: KeyPair, directory: Path, name: str) -> None:
    """Write name.crt and name.key (readable only by the owner)."""
    (directory / f"{name}.crt").write_bytes(pair.certificate_pem)
    write_private(directory / f"{name}.key", pair.key_pem)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read at any time."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)


def _name(common_name: str, *, groups: Sequence[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Key pairs of the clients, and the directory into which create() wrote the other files.

    - ca.crt: the authority of servers and clients; clients.crt: the authorities of all clients, also of kubelets.
    - server, etcd, admin and kubelets, each with .crt and .key: the API server, etcd, the administrator, and the
      authority of the kubelets of machines that join. The folder webhooks has the certificate of the operators.
    - service-accounts.key and service-accounts.pub: sign and verify the tokens of ServiceAccounts.
    """

    directory: Path
    authority_pem: bytes
    clients: dict[str, KeyPair]

    @classmethod
    def create(cls, directory: Path) -> Credentials:
        """Create and write the certificates and keys of a new cluster."""
        directory.mkdir(mode=0o700)
        authority = Authority("tpu-provisioner local cluster", now=dt.datetime.now(dt.UTC), valid=_VALID)
        (directory / "ca.crt").write_bytes(authority.certificate_pem)
        kubelets = Authority("tpu-provisioner local kubelets", now=dt.datetime.now(dt.UTC), valid=_VALID).pair()
        write(kubelets, directory, "kubelets")
        (directory / "clients.crt").write_bytes(authority.certificate_pem + kubelets.certificate_pem)
        addresses = (HOST, "::1", _SERVICE_ADDRESS)
        write(authority.server_at("kube-apiserver", names=_SERVER_NAMES, addresses=addresses), directory, "server")
        # etcd and its clients use the same key pair to authenticate to each other.
        of_etcd = authority.server_at("etcd", names=("localhost",), addresses=(HOST,), also_client=True)
        write(of_etcd, directory, "etcd")
        webhooks = directory / "webhooks"
        webhooks.mkdir()
        write(authority.server_at("webhooks", names=("localhost",), addresses=(HOST,)), webhooks, "tls")
        private, public = _service_account_keys()
        write_private(directory / "service-accounts.key", private)
        (directory / "service-accounts.pub").write_bytes(public)
        clients = {name: authority.client(user, groups=groups) for name, (user, groups) in _CLIENTS.items()}
        write(clients[ADMIN], directory, ADMIN)
        return cls(directory=directory, authority_pem=authority.certificate_pem, clients=clients)

    def write_kubeconfig(self, path: Path, *, client: str, server_url: str) -> None:
        """Write a kubeconfig that needs no other file."""
        pair = self.clients[client]
        name = "local"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": name,
                    "cluster": {"server": server_url, "certificate-authority-data": _base64(self.authority_pem)},
                }
            ],
            "users": [
                {
                    "name": client,
                    "user": {
                        "client-certificate-data": _base64(pair.certificate_pem),
                        "client-key-data": _base64(pair.key_pem),
                    },
                }
            ],
            "contexts": [{"name": name, "context": {"cluster": name, "user": client}}],
            "current-context": name,
        }
        write_private(path, yaml.safe_dump(content, sort_keys=False).encode())

    def tls_context(self) -> ssl.SSLContext:
        """Return a TLS context without a client certificate that trusts the cluster's servers."""
        return ssl.create_default_context(cafile=str(self.directory / "ca.crt"))

    def etcd_context(self) -> ssl.SSLContext:
        """Return the TLS context of a client of etcd."""
        context = self.tls_context()
        context.load_cert_chain(self.directory / "etcd.crt", self.directory / "etcd.key")
        return context


def _service_account_keys() -> tuple[bytes, bytes]:
    key = new_key()
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private_pem(key), public


def _base64(pem: bytes) -> str:
    return base64.b64encode(pem).decode("ascii")
