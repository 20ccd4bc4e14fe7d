"""Reads JSON documents of controllers, by address or through the API server. Raises KubeconfigError or RemoteError."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from provisioner import constants
from provisioner.cli.frame import NotInstalledError, NotPermittedError, Remote, RemoteError, UnreachableError
from provisioner.cli.output import plain
from provisioner.kube.api import connect
from provisioner.kube.errors import ClusterError, Forbidden, NotFound, Unavailable
from provisioner.kube.lease import holder_of, pod_of
from provisioner.kube.protocol import Api, Request, collection_path, object_path
from provisioner.partitions import board as partitions_board
from provisioner.partitions import names
from provisioner.slices.board import Document
from provisioner.slices.view.explain import for_how_long, moment
from provisioner.slices.view.types import View

_T = TypeVar("_T")
_BOARD = "/api/v1/board"
_SETTINGS = "/api/v1/settings"
_SECONDS = 15.0
_MAX_BYTES = 64 * 1024 * 1024
_DEPLOYMENT = "deployment/tpu-provisioner"
_SELECTOR = "app.kubernetes.io/name=tpu-provisioner,app.kubernetes.io/component=controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Documents of running controllers. At least one of `slices` and `partitions` is not None."""

    #: Document about slices; None if it could not be read.
    slices: Document | None
    #: Document about IPU partitions; None if it was not found or could not be read.
    partitions: partitions_board.Document | None = None
    #: Failure to read an installed controller; empty if none. A missing right to read partitions is no failure.
    problem: str = ""


def documents(remote: Remote) -> Documents:
    """Return the documents of the controllers of slices and partitions. Raises RemoteError if neither is read."""
    try:
        slices = board(remote)
    except UnreachableError:
        raise
    except RemoteError as error:
        return _without_slices(remote, error)
    try:
        return Documents(slices=slices, partitions=partitions(remote))
    except NotPermittedError:
        # Users of TPUs do not need the right to read partitions, so they get no message about it.
        return Documents(slices=slices)
    except RemoteError as error:
        return Documents(slices=slices, problem=str(error))


def _without_slices(remote: Remote, failure: RemoteError) -> Documents:
    installed = not isinstance(failure, NotInstalledError)
    if installed and remote.server:
        # With --server, partitions would be read from the same address, which has just failed.
        raise failure
    try:
        document = partitions(remote)
    except RemoteError as error:
        raise (failure if installed else error) from None
    if document is None:
        raise failure
    return Documents(slices=None, partitions=document, problem=str(failure) if installed else "")


def board(remote: Remote) -> Document:
    """Return the document of the controller of slices. Raises RemoteError."""
    return _converted(_ask(remote, _BOARD), Document, "the controller's answer")


def settings(remote: Remote) -> dict[str, str]:
    """Return the settings of the controller of slices as texts by environment variable. Raises RemoteError."""
    raw = _ask(remote, _SETTINGS)
    values = raw.get("settings") if isinstance(raw, dict) else None
    if not isinstance(values, dict) or not values:
        raise RemoteError(
            "the controller has no settings to show yet: it has not decided anything, or it does not lead"
        )
    return {str(name): str(value) for name, value in values.items()}


def partitions(remote: Remote) -> partitions_board.Document | None:
    """Return the document of the controller of IPU partitions; None if it is not found. Raises RemoteError."""
    raw = _ask_partitions(remote)
    source = "what the controller of partitions answers"
    return None if raw is None else _converted(raw, partitions_board.Document, source)


def view_of(document: Document) -> View:
    """Return the view of a document. Raises RemoteError if the document has no view."""
    if document.view is None:
        raise RemoteError(view_problem(document))
    return document.view


def view_problem(document: Document) -> str:
    """Return the reason why a document has no view."""
    if document.problems:
        return "nothing has been decided yet: " + "; ".join(document.problems)
    if not document.leading:
        leader = document.leader
        whom = f"pod {leader}" if leader else f"the process that holds the Lease {constants.LEASE_NAME}"
        return f"{document.about.identity} does not lead; ask {whom}"
    return "nothing has been decided yet: the controller has just started"


def attention(document: Document, *, dated: bool = False) -> Iterator[str]:
    """Yield problems that prevent decisions and, if `dated` or if decisions stopped, the time of the last decision."""
    yield from (plain(f"ATTENTION: {problem}") for problem in document.problems)
    view = document.view
    if view is not None and (dated or document.problems or document.stalled):
        ago = f", {for_how_long(view.at, document.served_at)} ago" if document.stalled else ""
        yield f"as of {moment(view.at)}{ago}"


def _converted(raw: Any, kind: type[_T], title: str) -> _T:
    try:
        return msgspec.convert(raw, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteError(f"{title} is not in the format of this release: {error}") from error


def _ask(remote: Remote, path: str) -> Any:
    if remote.server:
        return _by_address(remote, path)
    api, pod = connect(remote.kubeconfig), ""
    try:
        pod = _holder(remote, api, constants.LEASE_NAME) or _any_pod(remote, api)
        return _by_proxy(remote, api, pod, path)
    except ClusterError as error:
        raise _no_answer(remote, error, pod, "the controller") from error


def _ask_partitions(remote: Remote) -> Any:
    path = partitions_board.PATH
    if remote.server:
        return _by_address(remote, path, absent_ok=True)
    api, pod = connect(remote.kubeconfig), ""
    try:
        pod = _holder(remote, api, names.LEASE_NAME)
        return _by_proxy(remote, api, pod, path) if pod else None
    except NotFound:
        # The pod that is named in the Lease has probably been deleted.
        return None
    except ClusterError as error:
        raise _no_answer(remote, error, pod, "the controller of partitions") from error


def _no_answer(remote: Remote, error: ClusterError, pod: str, controller: str) -> RemoteError:
    forward = _port_forward(remote, target=f"pod/{pod}" if pod else _DEPLOYMENT)
    if isinstance(error, Forbidden):
        return NotPermittedError(
            f"{error}. To ask {controller} you need the right to get leases, to list pods and to get pods/proxy "
            f"in namespace {remote.namespace}; or use {forward}."
        )
    return RemoteError(
        f"{controller} in namespace {remote.namespace} does not answer: {error}. Is it running? See "
        f"`kubectl --namespace {remote.namespace} get pods`. If only the API server's proxy does not reach it, "
        f"use {forward}."
    )


def _by_proxy(remote: Remote, api: Api, pod: str, path: str) -> Any:
    return api.get(f"{object_path('pods', pod, namespace=remote.namespace)}:{remote.port}/proxy{path}")


def _holder(remote: Remote, api: Api, lease: str) -> str:
    try:
        return pod_of(holder_of(api, lease, namespace=remote.namespace)[0])
    except Unavailable as error:
        if error.status:
            raise
        raise UnreachableError(
            f"the API server does not respond: {error}. Check the network, and the context of the kubeconfig: "
            "`kubectl config current-context`"
        ) from error


def _any_pod(remote: Remote, api: Api) -> str:
    path = collection_path("pods", namespace=remote.namespace)
    pods = api.list_page(Request("GET", path, query={"labelSelector": _SELECTOR})).items
    running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
    if not running:
        raise NotInstalledError(
            f"no controller runs in namespace {remote.namespace}: no running pod has the labels {_SELECTOR}. Name "
            "another namespace with --controller-namespace, or give its address with --server."
        )
    return str(running[0]["metadata"]["name"])


def _port_forward(remote: Remote, port: int | None = None, target: str = _DEPLOYMENT) -> str:
    port = port or remote.port
    return (
        f"`kubectl --namespace {remote.namespace} port-forward {target} {port}:{remote.port}` and "
        f"--server http://127.0.0.1:{port}"
    )


def _by_address(remote: Remote, path: str, *, absent_ok: bool = False) -> Any:
    server = remote.server
    address = server if "://" in server else f"http://{server}"
    if not _is_address(address):
        raise RemoteError(f"--server {server!r} is not an address such as http://127.0.0.1:8081")
    url = f"{address.rstrip('/')}{quote(path)}"
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            body = answer.read(_MAX_BYTES)
        return json.loads(body)
    except urllib.error.HTTPError as error:
        # Close the connection, which the error raised below would otherwise keep open through its cause.
        error.close()
        if absent_ok and error.code == HTTPStatus.NOT_FOUND:
            return None
        kind = NotInstalledError if error.code == HTTPStatus.NOT_FOUND else RemoteError
        raise kind(f"{url} cannot be read: {error}") from error
    except urllib.error.URLError as error:
        forward = _port_forward(remote, urlsplit(address).port)
        raise UnreachableError(
            f"{url} cannot be read: {error.reason}. To reach the controller, use {forward}."
        ) from error
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        # The server may be another program, whose response is not HTTP or not JSON.
        raise RemoteError(f"{url} cannot be read: {error}") from error


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
