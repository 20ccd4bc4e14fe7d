"""Serve a certificate from files, and what they hold later: cert-manager, or the administrator, replaces them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)
#: Otherwise OpenSSL asks the terminal for the password of a key that has one, and waits.
_NO_PASSWORD = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A certificate and its key, as PEM, that somebody else keeps."""

    certificate: Path
    key: Path


@dataclass(slots=True, kw_only=True)
class CertificateFiles:
    """Reads the files again and again; used by one thread."""

    certificate: Path
    key: Path
    context: ssl.SSLContext
    #: Why the files are not served as they are; empty where they are.
    problem: str = "no certificate is served yet"
    _served: tuple[bytes, bytes] | None = field(default=None, init=False)

    @property
    def serving(self) -> bool:
        """Whether there is any certificate."""
        return self._served is not None

    def step(self) -> None:
        """Serve what the files hold, where that has changed and can be used."""
        try:
            found = (self.certificate.read_bytes(), self.key.read_bytes())
            if found != self._served:
                self._try(found)
                self.context.load_cert_chain(self.certificate, self.key, password=_NO_PASSWORD)
                _log.info("certificate.served", file=str(self.certificate))
                self._served = found
        except (OSError, ValueError) as error:
            # ssl.SSLError is an OSError.
            self.problem = f"{self.certificate} and {self.key} cannot be served: {error}"
        else:
            self.problem = ""

    def _try(self, found: tuple[bytes, bytes]) -> None:
        """Fail for a pair that does not fit, as while files are replaced; the context would keep half of it."""
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trial.load_cert_chain(self.certificate, self.key, password=_NO_PASSWORD)
        if found != (self.certificate.read_bytes(), self.key.read_bytes()):
            raise ValueError("they change at this moment")
