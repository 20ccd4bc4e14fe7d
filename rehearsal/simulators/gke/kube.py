"""The few calls that the simulator makes to a Kubernetes API server: all about Nodes, all raw JSON.

The only module of the simulator that uses the kubernetes package. It neither retries nor caches.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes
import urllib3

from rehearsal.simulators.gke.errors import ClusterError

_TIMEOUT_SECONDS = (5.0, 15.0)
_PAGE = 500
_NODES = "/api/v1/nodes"


class KubeError(ClusterError):
    """The API server refused a call or could not be reached; `status` is 0 for the latter."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}" if status else text)
        self.status = status


class KubeNodes:
    """Creates, changes, lists and deletes Node objects."""

    def __init__(self, kubeconfig: Path) -> None:
        try:
            self._client: Any = kubernetes.config.new_client_from_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig), persist_config=False
            )
        except kubernetes.config.ConfigException as error:
            raise ClusterError(str(error)) from error

    @property
    def ca_certificate(self) -> str:
        """The base64 of the PEM that the kubeconfig trusts; empty where it names none."""
        path = self._client.configuration.ssl_ca_cert
        return base64.b64encode(Path(path).read_bytes()).decode() if path else ""

    @property
    def endpoint(self) -> str:
        """HOST:PORT of the API server."""
        return urlsplit(str(self._client.configuration.host)).netloc

    def create(self, node: dict[str, Any]) -> dict[str, Any]:
        """Create a Node and return it as stored."""
        return self._call("POST", _NODES, body=node)

    def patch_status(self, name: str, status: dict[str, Any]) -> None:
        """Merge a change into the status of a Node."""
        body = {"status": status}
        self._call("PATCH", f"{_NODES}/{name}/status", body=body, content_type="application/merge-patch+json")

    def delete(self, name: str) -> None:
        """Delete a Node; one that is gone already is no error."""
        try:
            self._call("DELETE", f"{_NODES}/{name}", query={"gracePeriodSeconds": "0"})
        except KubeError as error:
            if error.status != 404:
                raise

    def list(self, *, label: str) -> list[dict[str, Any]]:
        """Return all Nodes that have the label."""
        found: list[dict[str, Any]] = []
        query = {"labelSelector": label, "limit": str(_PAGE)}
        while True:
            page = self._call("GET", _NODES, query=query)
            found += page["items"]
            following = page.get("metadata", {}).get("continue")
            if not following:
                return found
            query["continue"] = following

    def close(self) -> None:
        """Close all connections."""
        self._client.rest_client.pool_manager.clear()

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        request = self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._client.call_api(*request, _request_timeout=_TIMEOUT_SECONDS)
            raw = response.read()
        except kubernetes.client.ApiException as error:
            raise KubeError(error.status or 0, str(error.reason)) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise KubeError(0, str(error)) from error
        if not 200 <= response.status < 300:
            raise KubeError(response.status, raw.decode(errors="replace")[:300])
        parsed: dict[str, Any] = json.loads(raw)
        return parsed
