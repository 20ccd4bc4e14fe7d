"""Facts about the cluster that machines need to join: hash of the CA, address and version of the API server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.nodegroups.bootstrap.metadata import api_server
from provisioner.nodegroups.observe import api_server_of, ca_hash_of, kubernetes_version_of
from tests.support.any_json import ANY_JSON, spoilt
from tests.support.nodegroup_world import certificate

#: Certificate of a CA. HASH is its hash, computed with the openssl command in kubeadm's documentation.
PEM = """\
-----BEGIN CERTIFICATE-----
MIIBgTCCASegAwIBAgIUTP3m+cInvj5issegNoLrF7/u1mQwCgYIKoZIzj0EAwIw
FTETMBEGA1UEAwwKa3ViZXJuZXRlczAgFw0yNjExMjMwMjM2MjJaGA8yMTI2MTAz
MDAyMzYyMlowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqG
SM49AwEHA0IABAgk5Gy+HHpU7koQvP4/DbyYkpM4+JRjmknF+QKiscvJcuBACxtw
8MnR7a0N6eKYFDYrZYFqDT3EqI+hPwo/DuqjUzBRMB0GA1UdDgQWBBRF6FKEy6ZD
qEPuyBeghRYy2VvITDAfBgNVHSMEGDAWgBRF6FKEy6ZDqEPuyBeghRYy2VvITDAP
BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIQCdvq+Kq59BGbpXWHd6
LTy/d/9gTyHgwaaWx2z3Ctwn1wIgKHjOC/JCFiGs4WQza6Y5PzOYgGvvtA9iqGKF
iKDuvhU=
-----END CERTIFICATE-----
"""
HASH = "sha256:41c13bd1f40ba28e07edc7efe3836bc625ec5542ef70d13efd4cbe0baa513e7a"


def root_ca(text: object) -> dict[str, object]:
    return {"kind": "ConfigMap", "data": {"ca.crt": text}}


def test_hash_of_the_ca_is_that_of_kubeadms_documentation_also_during_a_rotation() -> None:
    other = certificate()
    assert ca_hash_of(root_ca(PEM)) == HASH
    assert ca_hash_of(root_ca(PEM + other + PEM)) == f"{HASH},{ca_hash_of(root_ca(other))}"


@pytest.mark.parametrize("text", ["", "no PEM", None, 7, PEM.replace("M", "N"), "ü"])
def test_hash_is_empty_without_a_valid_certificate(text: object) -> None:
    assert ca_hash_of(root_ca(text)) == ""


def info(server: object) -> dict[str, object]:
    return {"data": {"kubeconfig": f"apiVersion: v1\nclusters:\n- cluster:\n    server: {server}\n  name: ''\n"}}


@pytest.mark.parametrize(
    ("server", "want"),
    [
        ("https://10.0.0.2:6443", "10.0.0.2:6443"),
        ("https://api.example.com", "api.example.com:443"),
        ("https://[fd00::2]:8443", ""),
        ("http://10.0.0.2:6443", ""),
        ("https://10.0.0.2:99999", ""),
        ("https://[fd00", ""),
        ("https://", ""),
        ("[1, 2]", ""),
        ("", ""),
    ],
)
def test_address_of_cluster_info_is_used_if_machines_can_reach_it(server: str, want: str) -> None:
    assert api_server_of(info(server)) == want


@pytest.mark.parametrize(
    "text", ["", "a: [", "- 1", "clusters: 7", "clusters: [7]", "clusters:\n- cluster: 7", "[" * 9999]
)
def test_address_is_empty_without_a_valid_kubeconfig(text: str) -> None:
    assert api_server_of({"data": {"kubeconfig": text}}) == ""


@pytest.mark.parametrize(
    ("host", "port", "want"),
    [
        ("10.0.0.2", None, "10.0.0.2:6443"),
        ("10.0.0.2", 443, "10.0.0.2:443"),
        ("api.example.com", 8443, "api.example.com:8443"),
        ("fd00::2", None, ""),
        ("[fd00::2]", 443, ""),
        ("", None, ""),
        ("a b", None, ""),
        ('10.0.0.2"; reboot', None, ""),
        ("10.0.0.2:443", None, ""),
    ],
)
def test_address_set_by_a_user_is_used_if_it_is_a_name_or_ipv4(host: str, port: int | None, want: str) -> None:
    assert api_server(host, port) == want


@pytest.mark.parametrize(
    ("version", "want"),
    [
        ({"major": "1", "minor": "31", "gitVersion": "v1.31.4"}, "1.31"),
        ({"major": "1", "minor": "34+", "gitVersion": "v1.34.1-gke.1829000"}, "1.34"),
        ({"major": "2", "minor": "0", "gitVersion": "v2.0.0"}, ""),
        ({"gitVersion": 7}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_version_is_the_api_servers_minor_version(version: object, want: str) -> None:
    assert kubernetes_version_of(version) == want


@given(st.data())
def test_any_json_is_read_without_an_exception(data: st.DataObject) -> None:
    raw = data.draw(st.sampled_from([root_ca(PEM), info("https://10.0.0.2"), {"gitVersion": "v1.31.4"}]))
    for changed in (spoilt(data, raw), data.draw(ANY_JSON)):
        for read in (ca_hash_of, api_server_of, kubernetes_version_of):
            assert isinstance(read(changed), str)
        assert api_server_of({"data": {"kubeconfig": str(changed)}}) == ""


@given(st.text(alphabet="htps:/[]0123456789abc.@?#%", max_size=30))
def test_any_address_is_read_without_an_exception(server: str) -> None:
    assert isinstance(api_server_of(info(repr(server))), str)
