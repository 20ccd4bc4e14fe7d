"""Serving the REST API on every replica: in plain HTTP, over TLS with a certificate that is in files, or both."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from provisioner.admission.files import CertificateFiles, CertificateLoop, Files, server_context
from provisioner.kube.protocol import Api
from provisioner.partitions.rest.api import PartitionsApi, Sources
from provisioner.runtime.http import Address, HttpServer, Limits, parse_address
from provisioner.runtime.resources import ResourceApp

_log = structlog.get_logger(__name__)

#: A body has some 300 bytes, a token 1,500. What a V-IPU server takes long for is answered 503 in time.
LIMITS = Limits(connections=256, request_seconds=30.0, idle_seconds=60, body_bytes=4096, answers_per_second=200.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The REST API, at each of its addresses with bounds of its own."""

    servers: tuple[HttpServer, ...]
    #: None: it is not served over TLS.
    certificate: CertificateLoop | None

    def start(self) -> None:
        """Serve; raise ServerError where an address is not free."""
        if self.certificate is not None:
            self.certificate.start()
        for each in self.servers:
            each.start()

    def stop(self) -> None:
        """Serve no more."""
        for each in self.servers:
            each.stop()
        if self.certificate is not None:
            self.certificate.stop()

    def problems(self) -> Sequence[str]:
        """Return what keeps it from being served."""
        return () if self.certificate is None else self.certificate.problems()


def make_rest(plain: str, encrypted: str, files: Files | None, api: Api, sources: Sources) -> Rest:
    """Return the REST API at two addresses in Go's form; `files` are a certificate and its key, None: no TLS.

    Raises ServerError where an address cannot be read.
    """
    address, tls_address = parse_address(plain), parse_address(encrypted)
    servers = [make_rest_server(address, api, sources)] if address is not None else []
    certificate = None
    if tls_address is not None and files is not None:
        context = server_context()
        certificate = CertificateLoop(CertificateFiles(files, context), _tell)
        servers.append(make_rest_server(tls_address, api, sources, tls=context))
    return Rest(servers=tuple(servers), certificate=certificate)


def _tell(problem: str) -> None:
    if problem:
        _log.warning("api_certificate.problem", problem=problem)


def make_rest_server(
    address: Address, api: Api, sources: Sources, *, limits: Limits = LIMITS, tls: ssl.SSLContext | None = None
) -> HttpServer:
    """Return the server of one address; without `tls` it speaks plain HTTP."""
    served = PartitionsApi(api, sources)
    return HttpServer(
        {address: ResourceApp(served.resources())},
        name="tpu-provisioner-partitions",
        limits=limits,
        tls=tls,
        at_end=served.close,
    )
