"""Keep what only memory would know in one small ConfigMap, so that a restart does not begin from nothing.

Hints, not truth: losing them is safe, so nothing here ever raises for a failed exchange, and the last writer wins.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from provisioner import constants
from provisioner.cluster import errors
from provisioner.cluster.protocol import Api, JsonObject, collection_path, object_path

_log = structlog.get_logger(__name__)


class HintsStore:
    """The ConfigMap `tpu-provisioner-hints` in the provisioner's own namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._path = object_path("configmaps", constants.HINTS_CONFIGMAP_NAME, namespace=namespace)
        self._last_cause = ""

    def load(self) -> dict[str, str]:
        """Return the stored hints; empty where there are none or they can't be read."""
        try:
            data = self._api.get(self._path).get("data")
        except errors.NotFound:
            _log.info("hints.not_found", namespace=self._namespace, config_map=constants.HINTS_CONFIGMAP_NAME)
            return {}
        except errors.ClusterError as error:
            _log.warning("hints.load_failed", namespace=self._namespace, error=str(error))
            return {}
        if data is None:
            return {}
        if not isinstance(data, dict):
            _log.warning("hints.load_failed", namespace=self._namespace, error="data is no map")
            return {}
        return {key: value for key, value in data.items() if isinstance(key, str) and isinstance(value, str)}

    def save(self, data: Mapping[str, str]) -> bool:
        """Create or replace the hints; False when that failed, which is logged once per cause."""
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": constants.HINTS_CONFIGMAP_NAME,
                "namespace": self._namespace,
                "labels": {"app.kubernetes.io/managed-by": constants.MANAGER},
            },
            "data": dict(data),
        }
        try:
            try:
                self._api.put(self._path, body)
            except errors.NotFound:
                self._api.post(collection_path("configmaps", namespace=self._namespace), body)
        except errors.ClusterError as error:
            cause = f"{type(error).__name__} {error.status} {error.reason}"
            if cause != self._last_cause:
                self._last_cause = cause
                _log.warning("hints.save_failed", namespace=self._namespace, error=str(error))
            return False
        self._last_cause = ""
        return True
