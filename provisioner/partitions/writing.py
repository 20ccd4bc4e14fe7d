"""Writing to Kubernetes: the ledger, and pods that are let to the scheduler or that give their IPUs back.

The ledger's ConfigMap is read as a whole, and written by what changes, only onto what was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provisioner import constants, kube
from provisioner.kube import fields
from provisioner.kube.protocol import Api, Timeouts, collection_path, object_path
from provisioner.partitions import names
from provisioner.partitions.planning.calls import OpenGate, TakeBack
from provisioner.partitions.planning.ledger import Entry, Ledger, encode, ledger_of

#: A write takes no longer than this, and is not begun with less of the lease left.
WRITE_SECONDS = 10.0
_TIMEOUTS_STORE = Timeouts(connect_seconds=3.0, read_seconds=WRITE_SECONDS - 3.0)
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
                collection_path("configmaps", namespace=self.namespace), self._config_map(new), timeouts=_TIMEOUTS_STORE
            )
        else:
            changed: dict[str, str | None] = {key: text for key, text in new.items() if old.get(key) != text}
            changed |= dict.fromkeys(old.keys() - new.keys())
            patch: dict[str, Any] = {"metadata": {"resourceVersion": before.resource_version}, "data": changed}
            written = self.api.patch(self._path, patch, timeouts=_TIMEOUTS_STORE)
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


#: Of each of the two exchanges.
_TIMEOUTS = Timeouts(connect_seconds=1.5, read_seconds=3.5)


def open_gate(api: Api, what: OpenGate) -> None:
    """Open the gate of a pod; Conflict where it is not the pod any more that was decided on.

    Raises ClusterError and nothing else. Both exchanges take ten seconds at most.
    """
    path = object_path("pods", what.pod.name, namespace=what.pod.namespace)
    raw = api.get(path, timeouts=_TIMEOUTS)
    api.patch(path, _patch(raw, what), timeouts=_TIMEOUTS)


def take_back(api: Api, what: TakeBack) -> None:
    """Release a pod; Conflict where it has changed since it was decided on, as when it got a node.

    Raises ClusterError and nothing else.
    """
    pod = what.pod
    metadata = {
        "uid": pod.uid,
        "resourceVersion": pod.resource_version,
        "annotations": {names.RELEASE: "true"},
    }
    api.patch(object_path("pods", pod.name, namespace=pod.namespace), {"metadata": metadata}, timeouts=_TIMEOUTS)


def _patch(raw: Mapping[str, Any], what: OpenGate) -> dict[str, Any]:
    """Return the merge patch for the pod as it is now.

    Of a pod with scheduling gates, node selectors can be added and none changed.
    """
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    if metadata.get("uid") != what.pod.uid:
        raise kube.Conflict(f"pod {what.pod.namespace}/{what.pod.name} is another one by now", status=409)
    gates = fields.mappings(spec.get("schedulingGates"))
    left = [gate for gate in gates if gate.get("name") != names.SCHEDULING_GATE]
    if len(left) == len(gates):
        raise kube.Conflict(f"pod {what.pod.namespace}/{what.pod.name} has no gate of ours any more", status=409)
    change: dict[str, Any] = {"schedulingGates": left or None}
    if what.server.node_selector is not None:
        key, value = what.server.node_selector
        if fields.mapping(spec.get("nodeSelector")).get(key, value) != value:
            # The API server would reject the whole patch.
            raise kube.Conflict(
                f"pod {what.pod.namespace}/{what.pod.name} selects other nodes by {key} than {value}", status=409
            )
        change["nodeSelector"] = {key: value}
    return {
        "metadata": {
            "uid": what.pod.uid,
            "resourceVersion": fields.text(metadata.get("resourceVersion")),
            "annotations": {
                names.PARTITION_ID: what.partition_id,
                names.PARTITION_HOST: what.server.host,
                names.PARTITION_PORT: str(what.server.port),
            },
        },
        "spec": change,
    }
