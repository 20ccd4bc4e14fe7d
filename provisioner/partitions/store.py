"""The ledger's ConfigMap: read as a whole, written by what changes, and only onto what was read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from provisioner import constants, kube
from provisioner.kube import fields
from provisioner.kube.protocol import Api, Timeouts, collection_path, object_path
from provisioner.partitions import names
from provisioner.partitions.planning.ledger import Entry, Ledger, encode, ledger_of

#: A write takes no longer than this, and is not begun with less of the lease left.
WRITE_SECONDS = 10.0
_TIMEOUTS = Timeouts(connect_seconds=3.0, read_seconds=WRITE_SECONDS - 3.0)
#: The loop waits for this one.
_READ_TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStore:
    """The ledger of one cluster; raises ClusterError and nothing else."""

    api: Api
    #: The controller's own.
    namespace: str

    def read(self) -> Ledger:
        """Read the ledger; one that is not there is empty."""
        try:
            raw = self.api.get(self._path, timeouts=_READ_TIMEOUTS)
        except kube.NotFound:
            return Ledger()
        return ledger_of(raw.get("data"), resource_version=_version_of(raw))

    def save(self, before: Ledger, entries: tuple[Entry, ...]) -> Ledger:
        """Write what differs from the ledger that was read; Conflict where somebody else has written since.

        Entries that could not be read stay.
        """
        old, new = (encode(each) for each in (before.entries, entries))
        if not before.resource_version:
            written = self.api.post(
                collection_path("configmaps", namespace=self.namespace), self._config_map(new), timeouts=_TIMEOUTS
            )
        else:
            changed: dict[str, str | None] = {key: text for key, text in new.items() if old.get(key) != text}
            changed |= dict.fromkeys(old.keys() - new.keys())
            patch: dict[str, Any] = {"metadata": {"resourceVersion": before.resource_version}, "data": changed}
            written = self.api.patch(self._path, patch, timeouts=_TIMEOUTS)
        return Ledger(entries=entries, resource_version=_version_of(written), unreadable=before.unreadable)

    @property
    def _path(self) -> str:
        return object_path("configmaps", names.LEDGER_CONFIGMAP_NAME, namespace=self.namespace)

    def _config_map(self, data: dict[str, str]) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": names.LEDGER_CONFIGMAP_NAME,
                "namespace": self.namespace,
                "labels": {"app.kubernetes.io/managed-by": constants.MANAGER},
            },
            "data": data,
        }


def _version_of(raw: dict[str, Any]) -> str:
    version = fields.text(fields.mapping(raw.get("metadata")).get("resourceVersion"))
    if not version:
        raise kube.Malformed(f"ConfigMap {names.LEDGER_CONFIGMAP_NAME} has no resourceVersion")
    return version
