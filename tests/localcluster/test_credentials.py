"""Tests of the certificate authorities of a local cluster, and of the modes of its files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from rehearsal.localcluster.credentials import Credentials


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return Credentials.create(tmp_path / "credentials")


def test_kubelets_have_a_separate_authority_that_signs_no_server(credentials: Credentials) -> None:
    """The kubelets' authority is the only one whose key is on the disk: the cluster signs certificates with it."""
    kubelets = x509.load_pem_x509_certificate((credentials.directory / "kubelets.crt").read_bytes())
    key = serialization.load_pem_private_key((credentials.directory / "kubelets.key").read_bytes(), password=None)
    assert kubelets.public_key() == key.public_key()
    trusted = x509.load_pem_x509_certificates((credentials.directory / "clients.crt").read_bytes())
    assert trusted == [x509.load_pem_x509_certificate(credentials.authority_pem), kubelets]
    assert kubelets not in x509.load_pem_x509_certificates((credentials.directory / "ca.crt").read_bytes())
    for pair in credentials.directory.rglob("*.crt"):
        if pair.name != "kubelets.crt":
            server = x509.load_pem_x509_certificate(pair.read_bytes())
            assert server.issuer != kubelets.subject


def test_keys_and_kubeconfigs_are_readable_only_by_their_owner(credentials: Credentials, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("of an earlier cluster")
    kubeconfig.chmod(0o644)
    credentials.write_kubeconfig(kubeconfig, client="admin", server_url="https://127.0.0.1:1")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [kubeconfig, *credentials.directory.rglob("*.key")]}
    assert modes == {0o600}
    assert stat.S_IMODE(credentials.directory.stat().st_mode) == 0o700
