"""Certificates of local clusters and of simulated ones: for servers with addresses, for clients, and as files."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from provisioner.runtime import authority
from provisioner.runtime.authority import KeyPair


class Authority(authority.Authority):
    """A certificate authority that signs for clients as well, and whose key can be had."""

    def pair(self) -> KeyPair:
        """Return the authority's own certificate and key, for a program that signs in its place."""
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
        """Return a client certificate: the API server takes the user and the groups from it."""
        return self.issue(_name(user, groups=groups), [ExtendedKeyUsageOID.CLIENT_AUTH])


def write(pair: KeyPair, directory: Path, name: str) -> tuple[Path, Path]:
    """Write name.crt and name.key (readable by the owner alone); return their paths."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    certificate.write_bytes(pair.certificate_pem)
    write_private(key, pair.key_pem)
    return certificate, key


def write_private(path: Path, content: bytes) -> None:
    """Write a file that nobody but its owner could ever read."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)


def _name(common_name: str, *, groups: Sequence[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
