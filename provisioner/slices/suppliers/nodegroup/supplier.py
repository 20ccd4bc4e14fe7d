"""TPUNodeGroups of one namespace as the node pools of a cluster; implements `Supplier`.

The name of an operation is a verb with the group's name and UID. The group's status or absence shows the result.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from provisioner.google.errors import Call
from provisioner.kube import fields
from provisioner.kube.errors import ClusterError
from provisioner.kube.fields import MalformedObject
from provisioner.kube.live import list_all
from provisioner.kube.protocol import Api, Timeouts, collection_path, object_path
from provisioner.model.capacity import (
    Failure,
    FailureKind,
    NodePool,
    NodePoolRequest,
    Operation,
    OperationName,
    PoolName,
    PoolStatus,
)
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.types import API_VERSION, Kind, TpuNodeGroup
from provisioner.settings import Settings
from provisioner.slices.supplier import Blocked, PoolRules, SupplierError
from provisioner.slices.suppliers.nodegroup.rules import NODE_GROUP_RULES
from provisioner.slices.suppliers.nodegroup.translate import group_document, pool_of, supplier_error

API_ROOT = f"/apis/{API_VERSION}"
_PLURAL = Kind.TPU_NODE_GROUP.plural
#: Time-outs of a create: `provisioner.slices.act.CALL_TIMEOUT_SECONDS` in total.
_WHOLE = Timeouts(connect_seconds=3.0, read_seconds=7.0)
#: Time-outs of a get and of a delete: half of `CALL_TIMEOUT_SECONDS` each, because `delete_pool` sends both requests.
_HALF = Timeouts(connect_seconds=2.0, read_seconds=3.0)
_CREATE, _DELETE = "create", "delete"


def groups_path(namespace: str) -> str:
    """Return the path of the TPUNodeGroups of a namespace."""
    return collection_path(_PLURAL, namespace=namespace, root=API_ROOT)


@dataclass(slots=True, kw_only=True)
class NodeGroupSupplier:
    """Supplier of the TPUNodeGroups in one namespace. Used by many threads, `list_pools` by one thread."""

    api: Api
    settings: Settings
    clock: Callable[[], datetime]
    rules: PoolRules = NODE_GROUP_RULES
    #: Resource version and group of the last list by name, so that only changed groups are parsed again.
    _listed: dict[str, tuple[str, TpuNodeGroup]] = field(default_factory=dict)

    def list_pools(self) -> tuple[NodePool, ...]:
        """Implement `Supplier.list_pools` with a list of the namespace that comes from the API server, not a cache."""
        path = groups_path(self.settings.node_groups_in)
        with _call(f"list of TPUNodeGroups in {self.settings.node_groups_in}", Call.READ):
            bodies: list[Any] = list_all(self.api, path, {}, lambda raw: raw)
        before, listed, pools = self._listed, {}, []
        for raw in bodies:
            metadata = fields.at(raw, "metadata")
            name, version = fields.name(metadata.get("name")), fields.name(metadata.get("resourceVersion"))
            try:
                entry = before.get(name)
                group = entry[1] if entry is not None and version and entry[0] == version else parse(TpuNodeGroup, raw)
            except MalformedObject:
                pools.append(NodePool(name=PoolName(name), status=PoolStatus.UNKNOWN))
                continue
            listed[name] = (version, group)
            pools.append(self._pool(group))
        self._listed = listed
        return tuple(pools)

    def unknown_sources(self) -> frozenset[str]:
        """Implement `Supplier.unknown_sources`: TPUNodeGroups have no optional sources."""
        return frozenset()

    def get_pool(self, name: PoolName, *, uid: str = "") -> NodePool:
        """Implement `Supplier.get_pool`. With `uid`, a group with another UID is NOT_FOUND."""
        try:
            group = self._read(name)
        except MalformedObject:
            return NodePool(name=name, status=PoolStatus.UNKNOWN)
        if uid and group.meta.uid != uid:
            raise _failed(FailureKind.NOT_FOUND, f"TPUNodeGroup {name!r} was replaced by another one.")
        return self._pool(group)

    def create_pool(self, request: NodePoolRequest, blocked: Blocked) -> OperationName:
        """Implement `Supplier.create_pool`: create a TPUNodeGroup, whose controller creates the machines."""
        path = groups_path(self.settings.node_groups_in)
        body = group_document(request, self.settings)
        failure = blocked()
        if failure is not None:
            raise SupplierError(failure)
        with _call(f"create of TPUNodeGroup {request.name!r}", Call.CREATE):
            created = self.api.post(path, body, timeouts=_WHOLE)
        return OperationName(f"{_CREATE}/{request.name}/{fields.name(fields.at(created, 'metadata').get('uid'))}")

    def delete_pool(self, name: PoolName) -> OperationName:
        """Implement `Supplier.delete_pool`: read the group, then delete it unless another group has replaced it."""
        try:
            meta = self._read(name).meta
        except MalformedObject as error:
            raise _failed(FailureKind.INVALID, f"TPUNodeGroup {name!r} cannot be read: {error}") from error
        if meta.deleting:
            raise _failed(FailureKind.OPERATION_IN_THE_WAY, f"TPUNodeGroup {name!r} is already being deleted.")
        with _call(f"delete of TPUNodeGroup {name!r}", Call.DELETE):
            self.api.delete(self._path(name), uid=meta.uid, timeouts=_HALF)
        return OperationName(f"{_DELETE}/{name}/{meta.uid}")

    def get_operation(self, name: OperationName) -> Operation:
        """Implement `Supplier.get_operation` by reading the group."""
        verb, _, made = name.partition("/")
        group_name, _, uid = made.partition("/")
        if verb not in (_CREATE, _DELETE) or not uid:
            raise _failed(FailureKind.NOT_FOUND, f"There is no operation {name!r}.")
        try:
            pool = self.get_pool(PoolName(group_name), uid=uid)
        except SupplierError as error:
            if verb == _DELETE and error.failure.kind is FailureKind.NOT_FOUND:
                return Operation(name=name, done=True)
            raise
        if verb == _DELETE:
            return Operation(name=name, done=False)
        under_way = pool.status in (PoolStatus.PROVISIONING, PoolStatus.UNKNOWN)
        # A pool that waits, for example because of a limit, may have a failure, but its create has not failed.
        return Operation(name=name, done=not under_way, failure=None if under_way else pool.failure)

    def _read(self, name: PoolName) -> TpuNodeGroup:
        with _call(f"get of TPUNodeGroup {name!r}", Call.READ):
            raw = self.api.get(self._path(name), timeouts=_HALF)
        return parse(TpuNodeGroup, raw)

    def _pool(self, group: TpuNodeGroup) -> NodePool:
        return pool_of(group, self.clock(), capacity_wait_seconds=self.settings.capacity_wait_seconds)

    def _path(self, name: PoolName) -> str:
        return object_path(_PLURAL, name, namespace=self.settings.node_groups_in, root=API_ROOT)


def _failed(kind: FailureKind, message: str) -> SupplierError:
    return SupplierError(Failure(kind=kind, message=message))


@contextmanager
def _call(subject: str, call: Call) -> Iterator[None]:
    try:
        yield
    except ClusterError as error:
        raise supplier_error(error, subject, call) from error
