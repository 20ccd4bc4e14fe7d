"""Asking a controller that runs: by its address, or through the API server's proxy to the pod that leads."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

from provisioner import constants, kube
from provisioner.cli.remote import Remote, RemoteError
from provisioner.kube.protocol import LEASES_ROOT, Api, collection_path, object_path

_SECONDS = 15.0
_MOST_BYTES = 64 * 1024 * 1024
_SELECTOR = "app.kubernetes.io/name=tpu-provisioner,app.kubernetes.io/component=controller"
#: Of the controller of IPU partitions, which may be there or not.
_PARTITIONS_LEASE = "tpu-provisioner-partitions"


def ask(remote: Remote, path: str) -> Any:
    """Return what a controller answers, decoded; raise RemoteError."""
    return _by_address(remote.server, path) if remote.server else _by_kubeconfig(remote, path)


def ask_partitions(remote: Remote, path: str) -> Any:
    """Return what the controller of IPU partitions answers, decoded; None where there is none; raise RemoteError."""
    if remote.server:
        return _by_address(remote.server, path, absent_ok=True)
    try:
        api = kube.connect(remote.kubeconfig)
        pod = _holder(remote, api, _PARTITIONS_LEASE)
        if not pod:
            return None
        return api.get(f"{object_path('pods', pod, namespace=remote.namespace)}:{remote.port}/proxy{path}")
    except kube.KubeconfigError as error:
        raise RemoteError(str(error)) from error
    except (kube.Forbidden, kube.NotFound):
        # Who may not see it is told nothing of it; and a pod may have gone.
        return None
    except kube.ClusterError as error:
        raise RemoteError(
            f"the controller of partitions in namespace {remote.namespace} cannot be asked: {error}"
        ) from error


def _by_kubeconfig(remote: Remote, path: str) -> Any:
    try:
        api = kube.connect(remote.kubeconfig)
        pod = _holder(remote, api, constants.LEASE_NAME) or _any_pod(remote, api)
        pod_path = object_path("pods", pod, namespace=remote.namespace)
        return api.get(f"{pod_path}:{remote.port}/proxy{path}")
    except kube.KubeconfigError as error:
        raise RemoteError(str(error)) from error
    except kube.Forbidden as error:
        raise RemoteError(
            f"{error}. To ask the controller you need the right to get leases, to list pods and to get pods/proxy "
            f"in namespace {remote.namespace}; or use `kubectl port-forward` and --server."
        ) from error
    except kube.ClusterError as error:
        raise RemoteError(
            f"the controller in namespace {remote.namespace} cannot be asked: {error}. Is it running? See "
            f"`kubectl --namespace {remote.namespace} get pods`. If only the API server's proxy does not reach it, "
            f"use `kubectl --namespace {remote.namespace} port-forward deployment/tpu-provisioner {remote.port}` and "
            f"--server http://127.0.0.1:{remote.port}."
        ) from error


def _holder(remote: Remote, api: Api, lease: str) -> str:
    """Return the pod that leads; empty where no Lease names one."""
    path = object_path("leases", lease, namespace=remote.namespace, root=LEASES_ROOT)
    try:
        found = api.get(path)
    except kube.NotFound:
        return ""
    return kube.pod_of(str((found.get("spec") or {}).get("holderIdentity") or ""))


def _any_pod(remote: Remote, api: Api) -> str:
    path = collection_path("pods", namespace=remote.namespace)
    pods = api.list_page(path, {"labelSelector": _SELECTOR}).items
    running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
    if not running:
        raise RemoteError(
            f"no controller runs in namespace {remote.namespace}: no pod with the labels {_SELECTOR}. Name another "
            "namespace with --controller-namespace, or the address of its probes with --server."
        )
    return str(running[0]["metadata"]["name"])


def _by_address(server: str, path: str, *, absent_ok: bool = False) -> Any:
    address = server if "://" in server else f"http://{server}"
    if not _is_address(address):
        raise RemoteError(f"--server {server!r} is not an address such as http://127.0.0.1:8081")
    url = f"{address.rstrip('/')}{quote(path)}"
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            body = answer.read(_MOST_BYTES)
        return json.loads(body)
    except urllib.error.HTTPError as error:
        if absent_ok and error.code == HTTPStatus.NOT_FOUND:
            return None
        raise RemoteError(f"{url} cannot be read: {error}") from error
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        # Whatever answers there need not be a controller, nor speak HTTP.
        raise RemoteError(f"{url} cannot be read: {error}") from error


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
