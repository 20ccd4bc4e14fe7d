"""Letting a pod be scheduled to nodes that reach its IPUs, and taking them back from one that no node was found for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provisioner import kube
from provisioner.kube import fields
from provisioner.kube.protocol import Api, Timeouts, object_path
from provisioner.partitions import names
from provisioner.partitions.planning.calls import OpenGate, TakeBack

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
