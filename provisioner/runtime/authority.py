"""Certificate authority that stores nothing, and cannot renew or revoke certificates."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: Time before `now` at which validity starts, for clients whose clocks are slow.
_BACKDATED = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A private key and its certificate, as PEM."""

    certificate_pem: bytes
    key_pem: bytes


def new_key() -> ec.EllipticCurvePrivateKey:
    """Create a private key (EC, P-256)."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class Authority:
    """Certificate authority. Its own certificate and all others expire at `now` plus `valid`."""

    def __init__(self, name: str, *, now: dt.datetime, valid: dt.timedelta) -> None:
        self._from, self._until = now - _BACKDATED, now + valid
        self.key = new_key()
        self._name = _name(name)
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
        self._certificate = (
            self._builder(self._name, self.key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self.key, hashes.SHA256())
        )

    @property
    def certificate_pem(self) -> bytes:
        """Certificate of the authority itself."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def server(self, common_name: str, *, names: Sequence[str]) -> KeyPair:
        """Return a new key and its serving certificate for DNS names."""
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        return self.issue(_name(common_name), [ExtendedKeyUsageOID.SERVER_AUTH], alternatives)

    def issue(
        self,
        of: x509.Name,
        usages: Sequence[x509.ObjectIdentifier],
        alternatives: x509.SubjectAlternativeName | None = None,
    ) -> KeyPair:
        """Return a new key and its certificate for the subject `of`."""
        key = new_key()
        builder = (
            self._builder(of, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return KeyPair(certificate_pem=certificate.public_bytes(serialization.Encoding.PEM), key_pem=private_pem(key))

    def _builder(self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._from)
            .not_valid_after(self._until)
            # Strict verifiers, such as Python's since 3.13, require both identifiers.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
