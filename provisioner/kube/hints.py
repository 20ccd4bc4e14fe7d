"""Keep what only memory would know in one small ConfigMap, so that a restart does not begin from nothing.

Hints, not truth: losing them is safe, so nothing here ever raises for a failed exchange, and the last writer wins.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from provisioner import constants
from provisioner.kube import errors
from provisioner.kube.protocol import Api, JsonObject, collection_path, object_path

_log = structlog.get_logger(__name__)


class HintsStore:
    """The ConfigMap `tpu-provisioner-hints` in the provisioner's own namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._path = object_path("configmaps", constants.HINTS_CONFIGMAP_NAME, namespace=namespace)
        self._last_cause = ""
        #: The object as it was last read or written; None: read it before it is written.
        self._read: JsonObject | None = None

    def load(self) -> dict[str, str]:
        """Return the stored hints; empty where there are none or they can't be read."""
        try:
            self._read = self._api.get(self._path)
        except errors.NotFound:
            _log.info("hints.not_found", namespace=self._namespace, config_map=constants.HINTS_CONFIGMAP_NAME)
            return {}
        except errors.ClusterError as error:
            _log.warning("hints.load_failed", namespace=self._namespace, error=str(error))
            return {}
        return dict(self._read.get("data") or {})

    def save(self, data: Mapping[str, str]) -> bool:
        """Create or update the hints; False when that failed, which is logged once per cause.

        Keys that are stored and not given stay: another release may know them.
        """
        try:
            self._read = self._written(data)
        except errors.ClusterError as error:
            # What is there now is not known.
            self._read = None
            cause = f"{type(error).__name__} {error.status} {error.reason}"
            if cause != self._last_cause:
                self._last_cause = cause
                _log.warning("hints.save_failed", namespace=self._namespace, error=str(error))
            return False
        self._last_cause = ""
        return True

    def _written(self, data: Mapping[str, str]) -> JsonObject:
        """Update the data and nothing else: labels and annotations belong to whoever installed the object."""
        try:
            if self._read is not None:
                try:
                    return self._api.put(self._path, _updated(self._read, data))
                except errors.Conflict:
                    # Somebody else wrote: their metadata is kept.
                    _log.debug("hints.changed_meanwhile", namespace=self._namespace)
            return self._api.put(self._path, _updated(self._api.get(self._path), data))
        except errors.NotFound:
            return self._api.post(
                collection_path("configmaps", namespace=self._namespace),
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {
                        "name": constants.HINTS_CONFIGMAP_NAME,
                        "namespace": self._namespace,
                        "labels": {"app.kubernetes.io/managed-by": constants.MANAGER},
                    },
                    "data": dict(data),
                },
            )


def _updated(raw: JsonObject, data: Mapping[str, str]) -> JsonObject:
    return {**raw, "data": {**(raw.get("data") or {}), **data}}
