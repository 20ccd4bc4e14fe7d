"""The certificate of the REST API over TLS: files that somebody else keeps, looked at again and again."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from provisioner.admission.files import CertificateFiles, Files

_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 10.0


@dataclass(slots=True)
class ServedFiles:
    """What connections over TLS are served with; the files are read in a thread of its own."""

    files: Files
    context: ssl.SSLContext = field(init=False)
    _kept: CertificateFiles = field(init=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        """Serve nothing yet."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._kept = CertificateFiles(certificate=self.files.certificate, key=self.files.key, context=self.context)

    def start(self) -> None:
        """Read the files, and go on doing so."""
        self._look()
        threading.Thread(target=self._keep_looking, name="certificate", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()

    def problems(self) -> Sequence[str]:
        """Return why nobody can be served; files that became useless later leave what was read before."""
        return () if self._kept.serving else (self._kept.problem,)

    def _look(self) -> None:
        before = self._kept.problem
        self._kept.step()
        problem = self._kept.problem
        if problem and problem != before:
            _log.warning("api_certificate.problem", problem=problem)

    def _keep_looking(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            self._look()
