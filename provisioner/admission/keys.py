"""Keys and certificates of the webhook server, made by itself: an authority for each, whose key nobody keeps.

Only `cryptography` is asked, and only where the server makes its own certificates.
"""

from __future__ import annotations

import datetime as dt
import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from provisioner.admission.rotation import Keys, KeysError

# A clock that differs a little must not make a certificate not yet valid.
_BACKDATED = dt.timedelta(hours=1)


def make_keys(names: Sequence[str], *, now: dt.datetime, valid: dt.timedelta) -> Keys:
    """Make a new authority and a serving certificate for DNS names; the authority signs nothing else, ever."""
    until = now + valid
    signing, serving = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tpu-provisioner webhook")])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATED)
            .not_valid_after(until)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        )

    authority = (
        builder(issuer, signing.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(signing, hashes.SHA256())
    )
    # A common name has at most 64 characters; verifiers read the alternative names.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    certificate = (
        builder(subject, serving.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .sign(signing, hashes.SHA256())
    )
    key = serving.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Keys(certificate_pem=_pem(certificate), key_pem=key.decode(), authority_pem=_pem(authority))


def valid_until(keys: Keys, names: Sequence[str], *, now: dt.datetime) -> dt.datetime:
    """Return until when keys serve the names; KeysError where they do not now."""
    try:
        certificate = x509.load_pem_x509_certificate(keys.certificate_pem.encode())
        authority = x509.load_pem_x509_certificate(keys.authority_pem.encode())
        key = serialization.load_pem_private_key(keys.key_pem.encode(), password=None)
        certificate.verify_directly_issued_by(authority)
        served = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound) as error:
        raise KeysError(f"certificate or key cannot be read: {error!r}") from error
    if key.public_key() != certificate.public_key():
        raise KeysError("the key is not the certificate's")
    missing = set(names) - set(served.value.get_values_for_type(x509.DNSName))
    if missing:
        raise KeysError(f"the certificate is not for {', '.join(sorted(missing))}")
    until = min(certificate.not_valid_after_utc, authority.not_valid_after_utc)
    if not certificate.not_valid_before_utc <= now < until:
        raise KeysError(f"the certificate is valid from {certificate.not_valid_before_utc} to {until}")
    return until


def are_certificates(pem: str) -> bool:
    """Whether a text holds certificates that can be read."""
    try:
        return bool(x509.load_pem_x509_certificates(pem.encode()))
    except ValueError:
        return False


def load(context: ssl.SSLContext, keys: Keys) -> None:
    """Serve these keys from the next connection on; KeysError where they cannot be used."""
    # OpenSSL reads them from files alone. These are in memory: a key is never written to a disk.
    with _in_memory(keys.certificate_pem) as certificate, _in_memory(keys.key_pem) as key:
        try:
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise KeysError(f"certificate and key cannot be used: {error}") from error


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    descriptor = os.memfd_create("pem")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
