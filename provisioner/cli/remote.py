"""Asking a controller that runs: by its address, or through the API server's proxy to the pod that leads."""

from __future__ import annotations

import functools
import http.client
import json
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import click

from provisioner import constants, kube
from provisioner.cli.exits import ExitCode
from provisioner.cli.frame import kubeconfig_option
from provisioner.kube.protocol import LEASES_ROOT, Api, collection_path, object_path

if TYPE_CHECKING:
    from provisioner.slices.board import Document

_Function = TypeVar("_Function", bound=Callable[..., Any])
_BOARD = "/api/v1/board"
_SETTINGS = "/api/v1/settings"
_SECONDS = 15.0
_MOST_BYTES = 64 * 1024 * 1024
_SELECTOR = "app.kubernetes.io/name=tpu-provisioner,app.kubernetes.io/component=controller"


class RemoteError(Exception):
    """The controller cannot be asked, in words for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where the controller is."""

    #: The address of its probes, such as http://127.0.0.1:8081; empty: it is found by the kubeconfig.
    server: str = ""
    kubeconfig: str | None = None
    namespace: str = constants.DEFAULT_NAMESPACE
    port: int = 8081

    def document(self) -> Document:
        """Return what the controller shows now; raise RemoteError."""
        # `plan` does without, and must start at once.
        import msgspec  # noqa: PLC0415

        from provisioner.slices.board import Document  # noqa: PLC0415

        raw = self._get(_BOARD)
        try:
            return msgspec.convert(raw, Document, strict=False)
        except msgspec.ValidationError as error:
            raise RemoteError(f"the controller's answer is not what this release understands: {error}") from error

    def settings(self) -> dict[str, str]:
        """Return the settings of the controller, by variable; raise RemoteError."""
        raw = self._get(_SETTINGS)
        found = raw.get("settings") if isinstance(raw, dict) else None
        if not isinstance(found, dict) or not found:
            raise RemoteError("the controller tells no settings yet: it has not decided anything, or it does not lead")
        return {str(name): str(value) for name, value in found.items()}

    def _get(self, path: str) -> Any:
        return _by_address(self.server, path) if self.server else self._by_kubeconfig(path)

    def _by_kubeconfig(self, what: str) -> Any:
        try:
            api = kube.connect(self.kubeconfig)
            pod = self._leader(api) or self._any_pod(api)
            path = object_path("pods", pod, namespace=self.namespace)
            return api.get(f"{path}:{self.port}/proxy{what}")
        except kube.KubeconfigError as error:
            raise RemoteError(str(error)) from error
        except kube.Forbidden as error:
            raise RemoteError(
                f"{error}. To ask the controller you need the right to get leases, to list pods and to get pods/proxy "
                f"in namespace {self.namespace}; or use `kubectl port-forward` and --server."
            ) from error
        except kube.ClusterError as error:
            raise RemoteError(
                f"the controller in namespace {self.namespace} cannot be asked: {error}. Is it running? See "
                f"`kubectl --namespace {self.namespace} get pods`. If only the API server's proxy does not reach it, "
                f"use `kubectl --namespace {self.namespace} port-forward deployment/tpu-provisioner {self.port}` and "
                f"--server http://127.0.0.1:{self.port}."
            ) from error

    def _leader(self, api: Api) -> str:
        """Return the pod that leads; empty where no Lease names one."""
        path = object_path("leases", constants.LEASE_NAME, namespace=self.namespace, root=LEASES_ROOT)
        try:
            found = api.get(path)
        except kube.NotFound:
            return ""
        return kube.pod_of(str((found.get("spec") or {}).get("holderIdentity") or ""))

    def _any_pod(self, api: Api) -> str:
        path = collection_path("pods", namespace=self.namespace)
        pods = api.list_page(path, {"labelSelector": _SELECTOR}).items
        running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
        if not running:
            raise RemoteError(
                f"no controller runs in namespace {self.namespace}: no pod with the labels {_SELECTOR}. Name another "
                "namespace with --controller-namespace, or the address of its probes with --server."
            )
        return str(running[0]["metadata"]["name"])


def _by_address(server: str, path: str) -> Any:
    address = server if "://" in server else f"http://{server}"
    if not _is_address(address):
        raise RemoteError(f"--server {server!r} is not an address such as http://127.0.0.1:8081")
    url = f"{address.rstrip('/')}{quote(path)}"
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            body = answer.read(_MOST_BYTES)
        return json.loads(body)
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        # Whatever answers there need not be a controller, nor speak HTTP.
        raise RemoteError(f"{url} cannot be read: {error}") from error


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def remote_options(command: _Function) -> _Function:
    """Add the options of commands that ask a controller; they get a `remote`."""

    @click.option(
        "--server",
        metavar="URL",
        default="",
        help="address of the controller's probes, such as http://127.0.0.1:8081 (default: of the leading pod, found by "
        "the kubeconfig)",
    )
    @click.option(
        "--controller-namespace",
        metavar="NAME",
        default=constants.DEFAULT_NAMESPACE,
        show_default=True,
        help="namespace in which the controller runs",
    )
    @click.option(
        "--controller-port", type=int, default=8081, show_default=True, help="port of the controller's probes"
    )
    @kubeconfig_option
    @functools.wraps(command)
    def wrapped(
        *arguments: Any,
        server: str,
        controller_namespace: str,
        controller_port: int,
        kubeconfig: str | None,
        **options: Any,
    ) -> Any:
        remote = Remote(server=server, kubeconfig=kubeconfig, namespace=controller_namespace, port=controller_port)
        try:
            return command(*arguments, remote=remote, **options)
        except RemoteError as error:
            sys.stderr.write(f"tpu-provisioner: {error}\n")
            return ExitCode.ERROR
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED

    return wrapped  # type: ignore[return-value]


def view_problem(document: Document) -> str:
    """Say why a document has no view; empty where it has one."""
    if document.view is not None:
        return ""
    if document.problems:
        return "nothing has been decided yet: " + "; ".join(document.problems)
    if not document.leading:
        whom = (
            f"pod {document.leader}" if document.leader else f"the process that holds the Lease {constants.LEASE_NAME}"
        )
        return f"{document.about.identity} does not lead; ask {whom}"
    return "nothing has been decided yet: the controller has just started"
