"""Serve a certificate, and what takes its place later: from files that somebody else replaces, or as it is kept."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog

_log = structlog.get_logger(__name__)
#: Certificates are looked at so often.
_LOOK_SECONDS = 10.0
_DATED = "the certificate may no longer be trusted: it was not checked for long, or it expired"


class _Context(ssl.SSLContext):
    """Serves, whole, what was loaded last: one of OpenSSL's would keep halves, and a pair for each kind of key."""

    _loaded: ssl.SSLContext | None = None

    def load_cert_chain(self, certfile: Any, keyfile: Any = None, password: Any = "") -> None:
        # Without a password OpenSSL asks the terminal for that of a key that has one, and waits.
        fresh = ssl.SSLContext(self.protocol)
        fresh.minimum_version = self.minimum_version
        fresh.load_cert_chain(certfile, keyfile, password)
        self._loaded = fresh

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        return self._loaded.wrap_bio(*given, **named) if self._loaded else super().wrap_bio(*given, **named)


def server_context() -> ssl.SSLContext:
    """Return what connections over TLS are served with, without a certificate yet."""
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class Certificates(Protocol):
    """Certificates of a context; used by one thread."""

    #: Why they are not as they should be; empty where they are.
    problem: str

    @property
    def serving(self) -> bool:
        """Whether there is one that clients trust, as far as can be known."""

    def step(self) -> None:
        """Do what is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A certificate and its key, as PEM, that somebody else keeps."""

    certificate: Path
    key: Path


@dataclass(slots=True)
class CertificateFiles:
    """Reads the files again and again, as cert-manager or the administrator replaces them."""

    files: Files
    context: ssl.SSLContext
    problem: str = "no certificate is served yet"
    _served: tuple[bytes, bytes] | None = field(default=None, init=False)

    @property
    def serving(self) -> bool:
        """Whether there is any certificate."""
        return self._served is not None

    def step(self) -> None:
        """Serve what the files hold, where that has changed and can be used."""
        try:
            found = self._read()
            if found != self._served:
                # A half that is new does not fit; whatever else is there meanwhile is not what is found next.
                self.context.load_cert_chain(self.files.certificate, self.files.key)
                _log.info("certificate.served", file=str(self.files.certificate))
                self._served = found
        except (OSError, ValueError) as error:
            # ssl.SSLError is an OSError.
            self.problem = f"{self.files.certificate} and {self.files.key} cannot be served: {error}"
        else:
            self.problem = ""

    def _read(self) -> tuple[bytes, bytes]:
        return self.files.certificate.read_bytes(), self.files.key.read_bytes()


@dataclass(slots=True)
class CertificateLoop:
    """Looks at certificates every few seconds, in a thread of its own."""

    certificates: Certificates
    #: Called with each problem that is another than before; empty: there is none any more.
    tell: Callable[[str], None]
    stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _told: str | None = field(default=None, init=False)

    def start(self) -> None:
        """Look at once, and go on doing so."""
        self._look()
        self._thread = threading.Thread(target=self._keep_looking, name="certificates", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self.stopping.set()

    def alive(self) -> bool:
        """Whether they are still looked at, as long as they are to be."""
        return self._thread is None or self._thread.is_alive() or self.stopping.is_set()

    def problems(self) -> Sequence[str]:
        """Return why nobody can be served."""
        return () if self.certificates.serving else (self.certificates.problem or _DATED,)

    def _look(self) -> None:
        self.certificates.step()
        problem = self.certificates.problem
        if problem != self._told:
            self._told = problem
            self.tell(problem)

    def _keep_looking(self) -> None:
        while not self.stopping.wait(_LOOK_SECONDS):
            self._look()
