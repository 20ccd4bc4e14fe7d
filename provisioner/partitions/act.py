"""Sends the calls and writes of a plan, and passes outcomes to the loop. Each V-IPU server has its own threads."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from provisioner import constants
from provisioner.controller.actor import WRITE_TIMEOUTS, Exchange, PlanActor
from provisioner.kube import fields
from provisioner.kube.errors import Conflict, NotFound
from provisioner.kube.live import DeletionBlockedError, list_all
from provisioner.kube.protocol import Api, Timeouts, collection_path, object_path
from provisioner.partitions import names
from provisioner.partitions.demand import Pod, parse_pod
from provisioner.partitions.planning import actions
from provisioner.partitions.planning.ledger import Ledger, encode
from provisioner.partitions.vipu.cli import VipuCommand
from provisioner.partitions.vipu.records import Reading

_READ_TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=5.0)
#: Time-outs of each request of a pod's write. Those of the two requests of `open_gate` add up to WRITE_SECONDS.
_POD_TIMEOUTS = Timeouts(connect_seconds=1.5, read_seconds=3.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A V-IPU server, and the threads for its calls."""

    vipu: VipuCommand
    #: Threads for creates and removes: a create may take minutes, and must not delay reads.
    changes: Executor
    reads: Executor


@dataclass(slots=True, kw_only=True)
class Actor(PlanActor[actions.Call, actions.Write]):
    """Sends the calls to V-IPU servers and the writes to Kubernetes that a plan contains."""

    #: V-IPU servers by HOST:PORT.
    servers: Mapping[str, Line]
    api: Api
    namespace: str
    #: Returns the UID of the namespace kube-system; empty while it is unknown.
    cluster_uid: Callable[[], str]

    def exchange(self, call: actions.Call) -> Exchange:
        """Return how to send a call. Right before a remove, live reads check that no pod may use the partition."""
        line = self.servers[call.server]
        match call:
            case actions.ReadServer():
                return Exchange(call.name, partial(self._read, line.vipu), line.reads)
            case actions.CreatePartition():
                send = partial(line.vipu.create_partition, call.request)
                return Exchange(call.name, send, line.changes, lease_seconds=0.0)
            case actions.RemovePartition():
                check = partial(check_unused, self.api, self.cluster_uid(), call)
                send = partial(line.vipu.remove_partition, call.id)
                return Exchange(call.name, send, line.changes, lease_seconds=0.0, check=check)

    def _read(self, vipu: VipuCommand) -> Reading:
        asked_at = self.clock()
        allocations, partitions = vipu.list_allocations(), vipu.list_partitions()
        return Reading(asked_at=asked_at, at=self.clock(), allocations=allocations, partitions=partitions)

    def write(self, write: actions.Write) -> Ledger | None:
        """Make a write. Return the new ledger if the write is SaveLedger, otherwise None."""
        match write:
            case actions.SaveLedger():
                return save_ledger(self.api, self.namespace, write)
            case actions.OpenGate():
                open_gate(self.api, write)
            case actions.TakeBack():
                take_back(self.api, write)
        return None


def check_unused(api: Api, cluster_uid: str, call: actions.RemovePartition) -> None:
    """Raise DeletionBlockedError if a pod may use the partition or its id is not of this cluster. Also ClusterError."""
    if not call.id.startswith(names.id_prefix(cluster_uid)):
        raise DeletionBlockedError("it is not a partition of this cluster")
    if call.pod is None:
        query = {"labelSelector": names.POD_LABEL}
        for pod in list_all(api, collection_path("pods"), query, parse_pod):
            if names.owner_id(cluster_uid, pod.uid) == names.owner_of(call.id):
                _refuse_if_used(pod, call)
        return
    namespace, name, uid = call.pod
    try:
        raw = api.get(object_path("pods", name, namespace=namespace), timeouts=_READ_TIMEOUTS)
    except NotFound:
        return
    pod = parse_pod(raw)
    if pod.uid == uid:
        _refuse_if_used(pod, call)


def _refuse_if_used(pod: Pod, call: actions.RemovePartition) -> None:
    is_unused = pod.partition_annotation not in ("", call.id) or (call.unused and not pod.begun)
    # If deletionTimestamp is not `past_deletion`, the loop has not waited for the grace period of this deletion.
    had_its_grace = pod.deletion_deadline is not None and pod.deletion_deadline == call.past_deletion
    if not (pod.finished or pod.released or is_unused or had_its_grace):
        raise DeletionBlockedError(f"pod {pod.namespace}/{pod.name} has not ended")


def save_ledger(api: Api, namespace: str, write: actions.SaveLedger) -> Ledger:
    """Write the changed entries; return the new ledger. Raises Conflict if the ledger was changed after the read."""
    before = write.before
    old, new = encode(before.entries), encode(write.entries)
    if not before.resource_version:
        labels = {"app.kubernetes.io/managed-by": constants.MANAGER}
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": names.LEDGER_CONFIGMAP_NAME, "namespace": namespace, "labels": labels},
            "data": new,
        }
        written = api.post(collection_path("configmaps", namespace=namespace), body, timeouts=WRITE_TIMEOUTS)
    else:
        changed: dict[str, str | None] = {key: text for key, text in new.items() if old.get(key) != text}
        changed |= dict.fromkeys(old.keys() - new.keys())
        patch: dict[str, Any] = {"metadata": {"resourceVersion": before.resource_version}, "data": changed}
        path = object_path("configmaps", names.LEDGER_CONFIGMAP_NAME, namespace=namespace)
        written = api.patch(path, patch, timeouts=WRITE_TIMEOUTS)
    version = fields.text(fields.mapping(written.get("metadata")).get("resourceVersion"))
    return Ledger(entries=write.entries, resource_version=version, unreadable=before.unreadable)


def open_gate(api: Api, write: actions.OpenGate) -> None:
    """Annotate a pod and remove its gate. Raises Conflict if it is another pod, has no gate, or selects other nodes."""
    pod = write.pod
    path = object_path("pods", pod.name, namespace=pod.namespace)
    raw = api.get(path, timeouts=_POD_TIMEOUTS)
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    if metadata.get("uid") != pod.uid:
        raise Conflict(f"pod {pod.namespace}/{pod.name} was replaced by another one", status=409)
    gates = fields.mappings(spec.get("schedulingGates"))
    left = [gate for gate in gates if gate.get("name") != names.SCHEDULING_GATE]
    if len(left) == len(gates):
        raise Conflict(f"pod {pod.namespace}/{pod.name} no longer has the scheduling gate", status=409)
    change: dict[str, Any] = {"schedulingGates": left or None}
    if write.server.node_selector is not None:
        key, value = write.server.node_selector
        if fields.mapping(spec.get("nodeSelector")).get(key, value) != value:
            # The API server would reject the whole patch, because a node selector can be extended, but not changed.
            raise Conflict(f"pod {pod.namespace}/{pod.name} selects other nodes by {key} than {value}", status=409)
        change["nodeSelector"] = {key: value}
    annotations = {
        names.PARTITION_ID: write.partition_id,
        names.PARTITION_HOST: write.server.host,
        names.PARTITION_PORT: str(write.server.port),
    }
    version = fields.text(metadata.get("resourceVersion"))
    metadata = {"uid": pod.uid, "resourceVersion": version, "annotations": annotations}
    api.patch(path, {"metadata": metadata, "spec": change}, timeouts=_POD_TIMEOUTS)


def take_back(api: Api, write: actions.TakeBack) -> None:
    """Annotate a pod with RELEASE. Raises Conflict if the pod has changed since the decision, for example was bound."""
    pod = write.pod
    released = {names.RELEASE: "true"}
    metadata = {"uid": pod.uid, "resourceVersion": pod.resource_version, "annotations": released}
    api.patch(object_path("pods", pod.name, namespace=pod.namespace), {"metadata": metadata}, timeouts=_POD_TIMEOUTS)
