"""Serves TLS certificates from files that another program replaces, and checks certificates periodically."""

import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog

_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 10.0
_DATED = "the certificate may no longer be trusted: it was not checked for long, or it expired"


class _Context(ssl.SSLContext):
    """TLS context of the last valid certificate and key. OpenSSL itself would keep half of an invalid pair."""

    _loaded: ssl.SSLContext | None = None

    def load_cert_chain(self, certfile: Any, keyfile: Any = None, password: Any = "") -> None:
        # Without `password`, OpenSSL would ask on the terminal for the password of an encrypted key, and block.
        fresh = ssl.SSLContext(self.protocol)
        fresh.minimum_version = self.minimum_version
        fresh.load_cert_chain(certfile, keyfile, password)
        self._loaded = fresh

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        return self._loaded.wrap_bio(*given, **named) if self._loaded else super().wrap_bio(*given, **named)


def server_context() -> ssl.SSLContext:
    """Return a context for TLS servers, without a certificate yet."""
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class Certificates(Protocol):
    """Certificates of a TLS context. One thread at a time calls `step`."""

    problem: str

    @property
    def serving(self) -> bool:
        """Whether a certificate is served, and this process knows no reason for clients to reject it."""

    def step(self) -> None:
        """Do the work that is due, and update `problem`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A certificate and its key, as PEM files that another program or the administrator replaces."""

    certificate: Path
    key: Path


@dataclass(slots=True)
class CertificateFiles:
    """Serves certificate files, which cert-manager or the administrator may replace at any time."""

    files: Files
    context: ssl.SSLContext
    problem: str = "no certificate is served yet"
    _served: tuple[bytes, bytes] | None = field(default=None, init=False)

    @property
    def serving(self) -> bool:
        """Whether a certificate has been loaded."""
        return self._served is not None

    def step(self) -> None:
        """Serve the certificate in the files if it has changed and can be used."""
        try:
            found = self.files.certificate.read_bytes(), self.files.key.read_bytes()
            if found != self._served:
                # Loading may fail while only one of the two files has been replaced. The next step tries again.
                self.context.load_cert_chain(self.files.certificate, self.files.key)
                _log.info("certificate.served", file=str(self.files.certificate))
                self._served = found
        except (OSError, ValueError) as error:
            self.problem = f"{self.files.certificate} and {self.files.key} cannot be served: {error}"
        else:
            self.problem = ""


@dataclass(slots=True)
class CertificateLoop:
    """Checks certificates every 10 s in its own thread."""

    certificates: Certificates
    #: Called after the first check and when the problem changes; the text is empty if there is no problem.
    tell: Callable[[str], None]
    stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _told: str | None = field(default=None, init=False)

    def start(self) -> None:
        """Check once, then start the thread."""
        self._look()
        self._thread = threading.Thread(target=self._keep_looking, name="certificates", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop checking; does not wait for the thread."""
        self.stopping.set()

    def failures(self) -> Sequence[str]:
        """Return the reason why the process must be restarted; empty without a failure."""
        works = self._thread is None or self._thread.is_alive() or self.stopping.is_set()
        return () if works else ("the thread that keeps the certificates has ended",)

    def problems(self) -> Sequence[str]:
        """Return the reason why no trusted certificate is served; empty if one is served."""
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
