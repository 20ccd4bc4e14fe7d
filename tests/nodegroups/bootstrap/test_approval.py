"""A certificate is approved only if a machine requested it for its own node with its own valid token."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ssl import DER_cert_to_PEM_cert
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model import bounds
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.bootstrap.tokens import Request, Token, parse_request
from rehearsal.simulators.compute.guests.joining import new_key
from tests.support.nodegroup_world import raw_request

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REQUEST = Request(name="csr-1", uid="uid-of-csr-1", resource_version="7", token="bootstrap-token-abcdef", node="m-0")
TOKEN = Token(
    name="bootstrap-token-abcdef",
    uid="u",
    group_namespace="research",
    group_name="slice",
    machine="m-0",
    machine_id="17",
    value="abcdef.0123456789abcdef",
    expires_at=NOW + timedelta(seconds=1),
)


def test_request_of_a_kubelet_is_read() -> None:
    assert parse_request(raw_request("m-0")) == REQUEST


def _der(
    *names: tuple[x509.ObjectIdentifier, str],
    extensions: Iterable[x509.ExtensionType] = (),
    key: rsa.RSAPrivateKey | None = None,
) -> bytes:
    subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    signed = builder.sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.DER)


def _pem(der: bytes) -> bytes:
    return DER_cert_to_PEM_cert(der).replace("CERTIFICATE", "CERTIFICATE REQUEST").encode()


def _csr(*names: tuple[x509.ObjectIdentifier, str], extension: x509.ExtensionType | None = None) -> bytes:
    return _pem(_der(*names, extensions=[extension] if extension is not None else []))


_O, _CN = NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME
_OTHERS = x509.SubjectAlternativeName([x509.DNSName("kubernetes.default.svc")])
_NODE = (_CN, "system:node:m-0")
_UNSUPPORTED = x509.UnrecognizedExtension(x509.ObjectIdentifier("2.5.29.17"), b"\x30\x02\xa3\x00")
_TWO = x509.UnrecognizedExtension(x509.ObjectIdentifier("2.5.29.18"), b"\x30\x00")


def _changed(old: bytes, new: bytes, *extensions: x509.ExtensionType) -> bytes:
    """Return a signed request with changed bytes, because the library creates only valid requests."""
    return _pem(_der((_O, "system:nodes"), _NODE, extensions=extensions).replace(old, new, 1))


@pytest.mark.parametrize(
    "pem",
    [
        pytest.param(_csr((_O, "system:masters"), _NODE), id="administrators"),
        pytest.param(_csr((_O, "system:nodes"), (_O, "system:masters"), _NODE), id="administrators beside nodes"),
        pytest.param(_csr((_O, "system:nodes"), _NODE, (_CN, "system:node:other")), id="two names"),
        pytest.param(_csr((_O, "system:nodes"), (_CN, "system:kube-scheduler")), id="no node"),
        pytest.param(_csr((_O, "system:nodes"), (_CN, "system:node:")), id="a node without a name"),
        pytest.param(_csr(_NODE), id="no organization"),
        pytest.param(_csr((_O, "system:nodes"), _NODE, (NameOID.LOCALITY_NAME, "x")), id="more in the subject"),
        pytest.param(_csr((_O, "system:nodes"), _NODE, extension=_OTHERS), id="other names"),
        pytest.param(new_key("m-0").request_pem + new_key("other").request_pem, id="a second request"),
        pytest.param(
            new_key("m-0").request_pem.replace(b"REQUEST-----\n", b"REQUEST-----\na: b\n\n", 1), id="PEM with headers"
        ),
        pytest.param(_changed(b"\x02\x01\x00", b"\x02\x01\x03"), id="a version that does not exist"),
        pytest.param(_csr((_O, "system:nodes"), _NODE, extension=_UNSUPPORTED), id="a name of an unknown form"),
        pytest.param(_changed(b"\x55\x1d\x12", b"\x55\x1d\x11", _OTHERS, _TWO), id="an extension twice"),
        pytest.param(b"no request", id="no request"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_request_with_other_content_than_a_kubelets_is_never_approved(pem: bytes) -> None:
    assert parse_request(raw_request("m-0", spec={"request": base64.b64encode(pem).decode()})) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"status": {"conditions": [{"type": "Denied", "status": "True"}]}},
        {"status": {"certificate": "eA=="}},
        {"spec": {"signerName": "kubernetes.io/kube-apiserver-client"}},
        {"spec": {"signerName": "kubernetes.io/kubelet-serving"}},
        {"spec": {"usages": ["digital signature", "client auth", "server auth"]}},
        {"spec": {"usages": None}},
        {"spec": {"username": "system:node:m-0"}},
        {"spec": {"groups": ["system:bootstrappers:kubeadm:default-node-token"]}},
        {"spec": {"groups": None}},
        {"metadata": {"uid": ""}},
    ],
    ids=str,
)
def test_request_of_another_kind_is_ignored(changes: dict[str, Any]) -> None:
    assert parse_request(raw_request("m-0", **changes)) is None


def test_request_is_read_only_within_its_bound() -> None:
    """In an earlier version, a machine could send requests of 1 MB, and parsing each of them took half a second."""
    pem = new_key("m-0").request_pem
    longest = pem + b"\n" * (bounds.CERTIFICATE_REQUEST // 4 * 3 - len(pem))
    for text, read in ((longest, REQUEST), (longest + b"\n", None)):
        assert parse_request(raw_request("m-0", spec={"request": base64.b64encode(text).decode()})) == read


def test_request_with_the_largest_key_leaves_room_for_the_longest_node_name() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=4096)
    request = base64.b64encode(_pem(_der((_O, "system:nodes"), _NODE, key=key))).decode()
    # The name is encoded in base64 twice, so each byte of it adds 16/9 characters: less than 2.
    assert len(request) + 2 * bounds.OBJECT_NAME <= bounds.CERTIFICATE_REQUEST
    assert parse_request(raw_request("m-0", spec={"request": request})) == REQUEST


@given(raw=st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner)))
def test_any_other_json_is_read_as_no_request(raw: object) -> None:
    assert parse_request(raw) is None
    assert parse_request({**raw_request("m-0"), "spec": raw}) is None
    assert parse_request(raw_request("m-0", spec={"request": raw})) is None


@pytest.mark.parametrize(
    "changes",
    [{"machine": "m-1"}, {"name": "bootstrap-token-ghijkl"}, {"value": ""}, {"expires_at": NOW}, {"expires_at": None}],
    ids=["of another machine", "another token", "cannot be used", "expired", "never counts"],
)
def test_request_is_approved_only_with_the_valid_token_of_its_machine(changes: dict[str, Any]) -> None:
    assert tokens.is_own(REQUEST, TOKEN, NOW)
    assert not tokens.is_own(REQUEST, replace(TOKEN, **changes), NOW)
