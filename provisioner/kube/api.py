"""Exchanges raw JSON with a Kubernetes API server. No other module imports the package `kubernetes`.

This module uses only the package's credentials and connections, because the package's models need far more memory than
JSON, and its watch loses ERROR events. Not handled: a client certificate that an exec plugin renews.
"""

import http.client
import io
import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import incluster_config, kube_config
from kubernetes.config.config_exception import ConfigException
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import NewConnectionError, ProtocolError
from urllib3.exceptions import TimeoutError as Urllib3TimeoutError

from provisioner import __version__
from provisioner.kube import errors, wire
from provisioner.kube.protocol import (
    ANSWER_BYTES,
    DEFAULT_TIMEOUTS,
    PAGE_BYTES,
    PAGE_SIZE,
    Api,
    JsonObject,
    Page,
    Request,
    Timeouts,
)

_JSON = "application/json"
_IN_CLUSTER = "in-cluster"
#: Accept headers that request only metadata. A server that cannot convert the kind sends whole objects, which suffice.
_LIST_OF_METADATA = f"{_JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{_JSON}"
_METADATA = f"{_JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{_JSON}"
USER_AGENT = f"tpu-provisioner/{__version__}"
#: Maximum number of connections that are kept open for watches, worker threads, the lease, Events and live reads.
POOL_SIZE = 64
#: Deadline (`time.monotonic`) of the current thread's call. None between calls, and while lines of a stream are read.
_DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)


def _remaining_seconds() -> float:
    deadline = _DEADLINE.get()
    return inf if deadline is None else deadline - time.monotonic()


class _Incoming(io.RawIOBase):
    """Bytes from a server. Reads end at the call's deadline; a socket's time-out would restart with each byte."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock, self._raw = sock, raw
        # urllib3 sets the socket's time-out to the call's read time-out before it creates the response.
        self._silence_seconds = sock.gettimeout() or DEFAULT_TIMEOUTS.read_seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        seconds = min(self._silence_seconds, _remaining_seconds())
        if seconds <= 0:
            raise TimeoutError("the deadline of the call has passed")
        self._sock.settimeout(seconds)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp = io.BufferedReader(_Incoming(sock, self.fp.detach()))


def _bounded(pool: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
    """Return a subclass of urllib3's pool class `pool` whose connections stop reading at the call's deadline."""
    connection = type("BoundedConnection", (pool.ConnectionCls,), {"response_class": _Response})
    return type("BoundedPool", (pool,), {"ConnectionCls": connection})


class KubeApi(Api):
    """Client of one API server, for any thread. `client` provides the credentials and the connections."""

    def __init__(self, client: ApiClient, *, context_name: str = "", ca_pem: bytes | None = None) -> None:
        self._client = client
        self._configuration: Configuration = client.configuration
        self._pool = client.rest_client.pool_manager
        classes = self._pool.pool_classes_by_scheme
        self._pool.pool_classes_by_scheme = {scheme: _bounded(pool) for scheme, pool in classes.items()}
        self.context_name = context_name
        #: CA bundle that the client trusts; None if it trusts the public roots, verifies no certificate, or uses HTTP.
        self.ca_pem = ca_pem
        # The package `kubernetes` is not thread-safe when it refreshes credentials.
        self._auth_lock = threading.Lock()

    @property
    def server(self) -> str:
        """Address of the API server."""
        return str(self._configuration.host).rstrip("/")

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.clear()

    def exchange(self, request: Request) -> JsonObject:
        """Implement Api.exchange."""
        accept = _METADATA if request.metadata_only else _JSON
        return wire.decode_object(request.title, self._read(request, accept=accept))

    def list_page(self, request: Request, *, limit: int = PAGE_SIZE, continue_token: str = "") -> Page:
        """Implement Api.list_page."""
        query = {**request.query, "limit": str(limit)} | ({"continue": continue_token} if continue_token else {})
        # A page of one object may have up to ANSWER_BYTES, because no smaller page can be requested.
        request = replace(request, query=query, max_bytes=PAGE_BYTES if limit > 1 else ANSWER_BYTES)
        data = self._read(request, accept=_LIST_OF_METADATA if request.metadata_only else _JSON)
        return replace(wire.page_of(request.path, wire.decode_object(request.title, data)), size_bytes=len(data))

    def stream(self, path: str, query: Mapping[str, str], *, timeouts: Timeouts) -> wire.LineStream:
        """Implement Api.stream."""
        request = Request("GET", path, query=query, timeouts=timeouts)
        with self._transport(request):
            response = self._send(request, accept=_JSON)
            if response.status != 200:
                try:
                    data = response.read(wire.CHUNK_BYTES)
                except wire.TRANSPORT_ERRORS:
                    data = b""  # the status is enough for the error
                finally:
                    response.close()
                raise wire.error_of(request.title, response, data)
        return wire.LineStream(response, title=request.title, read_seconds=timeouts.read_seconds)

    def _read(self, request: Request, *, accept: str) -> bytes:
        with self._transport(request):
            response = self._send(request, accept=accept)
            data = wire.read_answer(request.title, response, max_bytes=request.max_bytes)
        if not 200 <= response.status < 300:
            raise wire.error_of(request.title, response, data)
        return data

    @contextmanager
    def _transport(self, request: Request) -> Iterator[None]:
        """Convert errors of the transport to Unavailable. At the end, remove the deadline that `_send` has set."""
        title, timeouts = request.title, request.timeouts
        try:
            yield
        except wire.TRANSPORT_ERRORS as error:
            # urllib3's errors are in reference cycles, so their tracebacks would keep callers' variables in memory.
            traceback.clear_frames(error.__traceback__)
            problem = f"can't be reached: {error}"
            if isinstance(error, NewConnectionError):
                # This check comes first, because urllib3's NewConnectionError is a subclass of its TimeoutError.
                problem = f"can't be reached: {_plain(error)}"
            elif isinstance(error, Urllib3TimeoutError):
                seconds = f"{timeouts.connect_seconds:g} s (connect) or {timeouts.read_seconds:g} s (read)"
                problem = f"did not answer within {seconds}"
            raise errors.Unavailable(f"{title}: {self.server} {problem}") from error
        finally:
            _DEADLINE.set(None)

    def _send(self, request: Request, *, accept: str) -> urllib3.BaseHTTPResponse:
        headers = {"accept": accept, "user-agent": USER_AGENT}
        parameters = list(request.query.items())
        self._authorize(request.method, request.path, headers=headers, parameters=parameters)
        data = None
        if request.body is not None:
            headers["content-type"] = request.content_type
            data = json.dumps(request.body, separators=(",", ":")).encode()
        url = self.server + request.path + (f"?{urlencode(parameters)}" if parameters else "")
        timeouts = request.timeouts
        # Both attempts of a GET share one deadline; otherwise a write after the GET could be sent after the lease ends.
        _DEADLINE.set(time.monotonic() + timeouts.connect_seconds + timeouts.read_seconds)

        def send() -> urllib3.BaseHTTPResponse:
            seconds_left = max(_remaining_seconds(), 0.001)
            return self._pool.request(
                request.method,
                url,
                body=data,
                headers=headers,
                timeout=urllib3.Timeout(seconds_left, connect=timeouts.connect_seconds, read=timeouts.read_seconds),
                retries=False,
                redirect=False,
                preload_content=False,
            )

        try:
            return send()
        except ProtocolError as error:
            if request.method != "GET":
                raise
            # If the API server was replaced, all idle connections are broken, so close them before the second attempt.
            traceback.clear_frames(error.__traceback__)
            self._pool.clear()
            return send()

    def _authorize(self, method: str, path: str, *, headers: dict[str, str], parameters: list[tuple[str, str]]) -> None:
        try:
            with self._auth_lock:
                self._client.update_params_for_auth(headers, parameters, ["BearerToken"], path, method, None)
        except Exception as error:  # credential plugins raise any exception
            raise errors.Unavailable(f"the credentials for {self.server} could not be refreshed: {error}") from error
        for name, value in headers.items():
            # A token file may end with a newline, which would make the header invalid.
            headers[name] = value.strip()


#: Errors of the package `kubernetes` for a file that is missing, unreadable, not YAML, or not a kubeconfig.
_LOAD_ERRORS = (ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)


def connect(kubeconfig: str | None = None, *, environ: Mapping[str, str] | None = None) -> KubeApi:
    """Connect by the first of `kubeconfig`, KUBECONFIG, service account and ~/.kube/config. Raises KubeconfigError."""
    environment = os.environ if environ is None else environ
    configuration = Configuration()
    configuration.retries = False
    configuration.connection_pool_maxsize = POOL_SIZE
    # Without TCP keep-alive, some proxies drop idle connections, such as the connection of a watch without events.
    configuration.keep_alive = True
    chosen = kubeconfig or environment.get("KUBECONFIG", "")
    if not chosen and environment.get("KUBERNETES_SERVICE_HOST"):
        return _connect_in_cluster(configuration, environment)
    return _connect_by_kubeconfig(configuration, chosen or "~/.kube/config")


def _connect_in_cluster(configuration: Configuration, environment: Mapping[str, str]) -> KubeApi:
    try:
        loader = incluster_config.InClusterConfigLoader(  # type: ignore[no-untyped-call]
            token_filename=incluster_config.SERVICE_TOKEN_FILENAME,
            cert_filename=incluster_config.SERVICE_CERT_FILENAME,
            environ=environment,
        )
        loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
        ca_pem = Path(incluster_config.SERVICE_CERT_FILENAME).read_bytes()
    except _LOAD_ERRORS as error:
        raise errors.KubeconfigError(
            f"the pod's service account can't be used: {_wrong_with(error)}. Mount the service account token in the "
            "pod, or specify a kubeconfig."
        ) from error
    return KubeApi(ApiClient(configuration), context_name=_IN_CLUSTER, ca_pem=ca_pem)


def _connect_by_kubeconfig(configuration: Configuration, kubeconfig: str) -> KubeApi:
    # KUBECONFIG may list several files, which the loader merges. Missing files are ignored, as by kubectl.
    paths = [Path(part).expanduser() for part in kubeconfig.split(os.pathsep) if part]
    existing = [str(path) for path in paths if path.exists()]
    if not existing:
        raise errors.KubeconfigError(
            f"there is no kubeconfig at {kubeconfig}: specify its path, set KUBECONFIG, or run "
            "`gcloud container clusters get-credentials CLUSTER --location LOCATION`"
        )
    try:
        _, active = kube_config.list_kube_config_contexts(os.pathsep.join(existing))  # type: ignore[no-untyped-call]
        kube_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=os.pathsep.join(existing), client_configuration=configuration, persist_config=False
        )
        ca_pem = _trusted_ca(configuration)
    except _LOAD_ERRORS as error:
        raise errors.KubeconfigError(
            f"kubeconfig {kubeconfig} can't be used: {_wrong_with(error)}. Fix it, or specify another file or context."
        ) from error
    return KubeApi(ApiClient(configuration), context_name=str(active["name"]), ca_pem=ca_pem)


def _wrong_with(error: Exception) -> str:
    if isinstance(error, ConfigException):
        return str(error).removeprefix("Invalid kube-config file. ").removeprefix("Invalid kube-config. ").rstrip(".")
    if isinstance(error, yaml.YAMLError):
        mark = getattr(error, "problem_mark", None)
        return f"line {mark.line + 1}, column {mark.column + 1} is not valid YAML" if mark else "it is not valid YAML"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    if isinstance(error, OSError):
        return _plain(error)
    return "it does not have clusters, contexts and users in the format of kubectl"


def _plain(error: BaseException) -> str:
    """Return the operating system's message about an error, with the file if known; otherwise the error's text."""
    while not isinstance(error, OSError) and error.__cause__ is not None:
        error = error.__cause__
    text = error.strerror if isinstance(error, OSError) else ""
    name = error.filename if isinstance(error, OSError) else ""
    return (f"{name}: {text}" if name else text) if text else str(error)


def _trusted_ca(configuration: Configuration) -> bytes | None:
    """Return the CA bundle, and keep it in `configuration`. None if unset, unused (HTTP), or if nothing is verified."""
    if not configuration.ssl_ca_cert or not str(configuration.host).startswith("https://"):
        return None
    pem = Path(configuration.ssl_ca_cert).read_bytes()
    # The loader writes an inline certificate to a temporary file, which may be deleted later.
    configuration.ca_cert_data = pem.decode("ascii", "ignore")
    configuration.ssl_ca_cert = None
    return pem if configuration.verify_ssl else None
