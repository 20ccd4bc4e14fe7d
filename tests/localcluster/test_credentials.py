"""Certificates that strict verifiers accept, in files that only their owner can read."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from rehearsal.localcluster.credentials import Credentials


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    """Give the credentials of a new cluster."""
    return Credentials.create(tmp_path / "credentials")


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "kubernetes.default.svc"])
def test_servers_are_trusted_under_each_of_their_names(credentials: Credentials, name: str) -> None:
    """A handshake with every strictness that Python has."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(credentials.server_certificate, credentials.server_key)
    client = credentials.tls_context()
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    client.load_cert_chain(credentials.admin_certificate, credentials.admin_key)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=lambda: server.wrap_socket(theirs, server_side=True).close())
        thread.start()
        with client.wrap_socket(ours, server_hostname=name) as connection:
            assert connection.version() == "TLSv1.3"
        thread.join()


def test_clients_carry_their_user_and_groups(credentials: Credentials) -> None:
    """The API server reads the user from the common name and groups from the organizations."""
    found = {}
    for name, pair in credentials.clients.items():
        certificate = x509.load_pem_x509_certificate(pair.certificate_pem)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(credentials.authority_pem))
        found[name] = tuple(
            [one.value for one in certificate.subject.get_attributes_for_oid(oid)]
            for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)
        )
    assert found["admin"] == (["kubernetes-admin"], ["system:masters"])
    assert found["kube-scheduler"] == (["system:kube-scheduler"], [])


def test_kubelets_have_an_authority_of_their_own_which_no_server_is_known_by(credentials: Credentials) -> None:
    """Its key is on the disk; that of the other authority is nowhere."""
    kubelets = x509.load_pem_x509_certificate(credentials.kubelet_authority.read_bytes())
    key = serialization.load_pem_private_key(credentials.kubelet_authority_key.read_bytes(), password=None)
    assert kubelets.public_key() == key.public_key()
    trusted = x509.load_pem_x509_certificates(credentials.client_authorities.read_bytes())
    assert trusted == [x509.load_pem_x509_certificate(credentials.authority_pem), kubelets]
    assert kubelets not in x509.load_pem_x509_certificates(credentials.authority.read_bytes())
    for pair in credentials.directory.rglob("*.crt"):
        if pair != credentials.kubelet_authority:
            server = x509.load_pem_x509_certificate(pair.read_bytes())
            assert server.issuer != kubelets.subject


def test_private_files_are_private(credentials: Credentials, tmp_path: Path) -> None:
    """Keys and kubeconfigs have mode 0600, in a folder of mode 0700."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("of an earlier cluster")
    kubeconfig.chmod(0o644)
    credentials.write_kubeconfig(kubeconfig, client="admin", server_url="https://127.0.0.1:1")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [kubeconfig, *credentials.directory.rglob("*.key")]}
    assert modes == {0o600}
    assert stat.S_IMODE(credentials.directory.stat().st_mode) == 0o700
