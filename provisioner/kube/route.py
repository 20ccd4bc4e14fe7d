"""The way to an API server for who speaks HTTP alone: address, TLS and headers, as the kubernetes package has them."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import urllib3
from kubernetes.client import Configuration
from urllib3.util.ssl_ import create_urllib3_context


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where requests go."""

    #: For messages.
    server: str
    host: str
    port: int
    #: Host and port as the Host header has them; a path before each path, of a server behind another one.
    authority: str
    prefix: str
    #: None: without TLS. The name is that of the server's certificate.
    tls: ssl.SSLContext | None
    server_hostname: str
    #: Level, name and value of each, as for `setsockopt`.
    socket_options: Sequence[tuple[int, int, int | bytes]]
    #: Of a GET of a path, with credentials. Raises Unavailable where there are none.
    headers: Callable[[str], Mapping[str, str]]
    #: They may have to be waited for: to renew them a program is run.
    headers_take_time: bool


def find_route(
    configuration: Configuration,
    pool: urllib3.PoolManager,
    headers: Callable[[str], Mapping[str, str]],
    *,
    in_cluster: bool,
) -> Route | None:
    """Return the way to the server; None where it takes what only urllib3 knows, such as a proxy."""
    if type(pool) is not urllib3.PoolManager or configuration.assert_hostname is not None:
        return None
    address = urlsplit(str(configuration.host))
    if not address.hostname or address.scheme not in ("http", "https"):
        return None
    renews: object = configuration.refresh_api_key_hook
    encrypted = address.scheme == "https"
    return Route(
        server=str(configuration.host).rstrip("/"),
        host=address.hostname,
        port=address.port or (443 if encrypted else 80),
        authority=address.netloc.rpartition("@")[2],
        prefix=address.path.rstrip("/"),
        tls=_context(configuration) if encrypted else None,
        server_hostname=configuration.tls_server_name or address.hostname,
        socket_options=pool.connection_pool_kw.get("socket_options") or (),
        headers=headers,
        # A service account has them in a file.
        headers_take_time=renews is not None and not in_cluster,
    )


def _context(configuration: Configuration) -> ssl.SSLContext:
    """Return what urllib3 would make for the same configuration."""
    context = create_urllib3_context(cert_reqs=None if configuration.verify_ssl else ssl.CERT_NONE)
    if configuration.ca_cert_data or configuration.ssl_ca_cert:
        context.load_verify_locations(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    else:
        context.load_default_certs()
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
