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
from cryptography.hazmat.primitives import serialization

from provisioner.admission.rotation import Keys, KeysError
from provisioner.runtime.authority import Authority


def make_keys(names: Sequence[str], *, now: dt.datetime, valid: dt.timedelta) -> Keys:
    """Make a new authority and a serving certificate for DNS names; the authority signs nothing else, ever."""
    authority = Authority("tpu-provisioner webhook", now=now, valid=valid)
    # A common name has at most 64 characters; verifiers read the alternative names.
    serving = authority.server(names[0][:64], names=names)
    return Keys(
        certificate_pem=serving.certificate_pem.decode(),
        key_pem=serving.key_pem.decode(),
        authority_pem=authority.certificate_pem.decode(),
    )


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
