"""Makes the writes of a plan to Kubernetes. Patches and deletes have preconditions. Raises ClusterError."""

import contextlib
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from provisioner import constants
from provisioner.controller.actor import WRITE_SECONDS, WRITE_TIMEOUTS
from provisioner.kube import fields
from provisioner.kube.errors import Conflict, Invalid, NotFound
from provisioner.kube.protocol import Api, Timeouts, collection_path, object_path
from provisioner.nodegroups import device_plugin
from provisioner.nodegroups.api import documents, names
from provisioner.nodegroups.api.types import Child, Record
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.planning import actions
from provisioner.nodegroups.reading import API_ROOT, APPS_ROOT, TPU_TAINT

#: Time-outs of each request of a write that may take two requests.
_SHORT_TIMEOUTS = Timeouts(connect_seconds=1.5, read_seconds=WRITE_SECONDS / 2 - 1.5)
_DEVICE_PLUGIN_PATH = object_path("daemonsets", device_plugin.NAME, namespace=device_plugin.NAMESPACE, root=APPS_ROOT)


def draw_token() -> str:
    """Return a random bootstrap token: a public id of 6 characters, a dot, and a secret of 16 characters (83 bits)."""
    return f"{_drawn(6)}.{_drawn(16)}"


def _drawn(length: int) -> str:
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Writes to one API server. Thread-safe."""

    api: Api
    device_plugin: Mapping[str, Any] = field(default_factory=dict)
    draw_token: Callable[[], str] = draw_token

    def write(self, write: actions.Write) -> None:
        """Make one write. It succeeds if the object to delete or evict is missing, or the child to create exists."""
        match write:
            case actions.CreateChild():
                self._create_child(write.record)
            case actions.DeleteChild():
                self._delete(_path(write.record), write.record.meta.uid)
            case actions.SetFinalizers():
                patch = documents.finalizers_patch(write.record.meta, write.finalizers)
                self.api.patch(_path(write.record), patch, timeouts=WRITE_TIMEOUTS)
            case actions.PatchStatus():
                differing = documents.status_patch(write.record, write.new)
                if differing is not None:
                    self.api.patch(f"{_path(write.record)}/status", differing, timeouts=WRITE_TIMEOUTS)
            case actions.PatchNode():
                self._patch_node(write)
            case actions.DeleteNode():
                self._delete(object_path("nodes", write.name), write.uid)
            case actions.EvictPod():
                self._evict(write)
            case actions.CreateToken():
                self._create_token(write)
            case actions.DeleteToken():
                self._delete(object_path("secrets", write.name, namespace=tokens.NAMESPACE), write.uid)
            case actions.ApproveRequest():
                path = object_path("certificatesigningrequests", write.name, root=tokens.CERTIFICATES_ROOT)
                patch = tokens.approval_patch(write.uid, write.resource_version)
                self.api.patch(f"{path}/approval", patch, timeouts=WRITE_TIMEOUTS)
            case actions.ApplyDevicePlugin():
                manifest = dict(self.device_plugin)
                self.api.apply(_DEVICE_PLUGIN_PATH, manifest, manager=constants.MANAGER, timeouts=WRITE_TIMEOUTS)
            case actions.DeleteDevicePlugin():
                self._delete(_DEVICE_PLUGIN_PATH, write.uid)

    def _create_child(self, child: Child) -> None:
        path = collection_path(child.kind.plural, namespace=child.meta.namespace, root=API_ROOT)
        try:
            self.api.post(path, documents.child(child), timeouts=WRITE_TIMEOUTS)
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise

    def _delete(self, path: str, uid: str) -> None:
        with contextlib.suppress(NotFound):
            self.api.delete(path, uid=uid, timeouts=WRITE_TIMEOUTS)

    def _patch_node(self, write: actions.PatchNode) -> None:
        path = object_path("nodes", write.name)
        # The patch fails if the node has changed or was recreated, because the resource version then differs.
        patch: dict[str, Any] = {"metadata": {"resourceVersion": write.resource_version}}
        if write.labels:
            patch["metadata"]["labels"] = dict(write.labels)
        spec: dict[str, Any] = {"unschedulable": True} if write.cordon else {}
        if write.taint:
            # The patch replaces the whole list of taints, and fails if another client adds a taint after this read.
            node = fields.mapping(self.api.get(path, timeouts=_SHORT_TIMEOUTS).get("spec"))
            spec["taints"] = [*fields.mappings(node.get("taints")), TPU_TAINT]
        if spec:
            patch["spec"] = spec
        self.api.patch(path, patch, timeouts=_SHORT_TIMEOUTS)

    def _evict(self, write: actions.EvictPod) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": write.name, "namespace": write.namespace},
            "deleteOptions": {"preconditions": {"uid": write.uid}},
        }
        path = object_path("pods", write.name, namespace=write.namespace)
        with contextlib.suppress(NotFound):
            self.api.post(f"{path}/eviction", body, timeouts=WRITE_TIMEOUTS)

    def _create_token(self, write: actions.CreateToken) -> None:
        path = collection_path("secrets", namespace=tokens.NAMESPACE)
        secret = tokens.secret_of(
            self.draw_token(),
            group={names.GROUP_NAMESPACE: write.namespace, names.GROUP_NAME: write.name},
            machine=write.machine,
            machine_id=write.machine_id,
            expires_at=write.expires_at,
        )
        # Raises Conflict if another token has the same id. The next attempt draws another id.
        made = self.api.post(path, secret, timeouts=_SHORT_TIMEOUTS)
        self._keep_if_clocks_agree(write, fields.mapping(made.get("metadata")))

    def _keep_if_clocks_agree(self, write: actions.CreateToken, made: Mapping[str, Any]) -> None:
        """Delete a token and raise Invalid if the API server's clock differs by more than half of the token's life."""
        now = fields.parse_timestamp(made.get("creationTimestamp"))
        behind = now - (write.expires_at - tokens.LIFE) if now is not None else timedelta()
        if abs(behind) <= tokens.LIFE / 2:
            return
        path = object_path("secrets", fields.name(made.get("name")), namespace=tokens.NAMESPACE)
        self.api.delete(path, uid=fields.name(made.get("uid")), timeouts=_SHORT_TIMEOUTS)
        minutes, order = abs(behind).total_seconds() / 60, "behind" if behind > timedelta() else "ahead of"
        raise Invalid(
            f"the token of machine {write.machine} was deleted: the clock of this controller is {minutes:.0f} minutes "
            f"{order} that of the API server; set the clock of its machine",
            status=0,
        )


def _path(record: Record) -> str:
    return object_path(record.kind.plural, record.meta.name, namespace=record.meta.namespace, root=API_ROOT)
