"""Reads the cluster without a cache, mostly right before a delete, and writes to nodes."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import structlog

from provisioner import constants
from provisioner.kube import errors, fields
from provisioner.kube.fields import MalformedObject
from provisioner.kube.protocol import Api, JsonObject, Pager, Request, Timeouts, collection_path, object_path
from provisioner.model.capacity import PoolName
from provisioner.model.membership import Membership, reported_pool

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_CORDON = {"metadata": {"annotations": {constants.CORDONED: "true"}}, "spec": {"unschedulable": True}}
_OPEN = "spec.unschedulable=false"
_WITHOUT_TPUS = {"labelSelector": f"!{constants.TPU_ACCELERATOR}"}
_UID_NAMESPACE = "kube-system"
_IDENTITY_PAGE_SIZE = 100
_IDENTITY_PAGES = 20
#: Maximum attempts to list a collection. A list fails if it takes longer than etcd keeps the listed revision.
_LIST_ATTEMPTS = 3
_CHANGE_ATTEMPTS = 5
_REREAD_CAP_SECONDS = 60.0
#: Maximum duration in seconds of the last check of the nodes before a delete; a slower check is repeated. If a
#: node registers after the check, no pod with chips is bound to it until its device plugin runs, 13 s later.
_LAST_LOOK_SECONDS = 2.0
_LAST_LOOKS = 3
#: Maximum time in seconds between the requests that share a list. A list of 4,000 objects takes 1 s to read.
_SHARED_SECONDS = 2.0
#: Maximum number of shared lists in memory: all nodes, or objects of one namespace. Each list has a few megabytes.
_MAX_SHARED = 16
#: Makes a read, or returns the result of a recent read with the same key. Callers must not change results.
Share: TypeAlias = Callable[[str, Callable[[], Any]], Any]


def unshared(_key: str, read: Callable[[], Any]) -> Any:
    """Implement Share without sharing."""
    return read()


@dataclass(frozen=True, slots=True)
class SharedLists:
    """Lists that concurrent checks share. Threads that wait for a read get its result, or raise its ClusterError."""

    #: Time of the request, lock of the read, and its result or error (empty until the read ends), by key.
    _reads: dict[str, tuple[float, threading.RLock, list[Any]]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def get(self, now: float, key: str, read: Callable[[], Any]) -> Any:
        """Return the result of `read`, or of a read with this key that was requested at most 2 s before `now`."""
        with self._lock:
            self.forget_expired(now)
            entry = self._reads.setdefault(key, (now, threading.RLock(), []))
            if len(self._reads) > _MAX_SHARED:
                del self._reads[next(iter(self._reads))]
        _, reading, outcomes = entry
        try:
            with reading:
                if not outcomes:
                    try:
                        outcomes.append(read())
                    except errors.ClusterError as error:
                        outcomes.append(error)
                        self._forget(key, entry)
            if isinstance(outcomes[0], errors.ClusterError):
                raise outcomes[0]
            return outcomes[0]
        finally:
            # An error's traceback must not refer to the error through these names: the cycle would stay in memory.
            del entry, outcomes

    def _forget(self, key: str, entry: object) -> None:
        with self._lock:
            if self._reads.get(key) is entry:
                del self._reads[key]

    def forget_expired(self, now: float) -> None:
        """Release the memory of lists that are too old."""
        with self._lock:
            for key in [key for key, (requested_at, *_) in self._reads.items() if now - requested_at > _SHARED_SECONDS]:
                del self._reads[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """Fields of a node that are checked before the delete of the node's pool."""

    name: str
    #: Node pool in GKE's annotation or in the node pool label; empty if both are missing.
    pool_name: PoolName
    uid: str = ""
    #: Whether the node is not cordoned, so that the scheduler may bind pods to it.
    open: bool
    #: Whether the node has the annotation that the provisioner sets when it cordons a node.
    marked: bool
    #: Whether the node has the node pool label of the pool that is checked.
    labelled: bool = False
    #: Namespace of the node's TPUNodeGroup, from a label that no kubelet can set; empty without the label, as on GKE.
    namespace: str = ""

    def pool_by(self, membership: Membership, namespace: str) -> PoolName:
        """Return the node's pool, empty if unknown. `pool_name` counts only if `namespace` is the node's namespace."""
        # The name of the node always counts, because pods may run on the node before it has the namespace label.
        reported = self.pool_name if self.namespace == namespace else PoolName("")
        return membership.pool_of(self.name, reported)


def find_nodes_of_pool(
    api: Api, pool_name: PoolName, hosts: int, membership: Membership, namespace: str = "", *, share: Share = unshared
) -> tuple[list[PoolNode], frozenset[str]]:
    """Return the nodes of a pool, and the names of nodes whose pool is unknown or is not in `membership.listed`.

    If fewer than `hosts` nodes have the pool's label, labels may have been edited, so all nodes' metadata (megabytes)
    are read through `share`; otherwise the second result is empty. `namespace` is the TPUNodeGroup's, empty on GKE;
    nodes of TPUNodeGroups in other namespaces are ignored.
    """
    nodes = list_nodes_of_pool(api, pool_name, membership, namespace)
    if len(nodes) >= hosts:
        return nodes, frozenset()
    every: list[PoolNode] = share(collection_path("nodes"), lambda: _list_metadata(api, {}))
    pool_of = {node.name: node.pool_by(membership, namespace) for node in every if node.namespace in ("", namespace)}
    labelled = {node.name for node in nodes}
    strayed = [name for name, pool in pool_of.items() if pool == pool_name and name not in labelled]
    if strayed:
        nodes = list_nodes_of_pool(api, pool_name, membership, namespace, strayed)
    return nodes, frozenset(name for name, pool in pool_of.items() if pool not in membership.listed)


def list_nodes_of_pool(
    api: Api, pool_name: PoolName, membership: Membership, namespace: str = "", names: Iterable[str] = ()
) -> list[PoolNode]:
    """Return a pool's nodes, sorted by name, from the nodes with the pool's label and the nodes in `names`.

    Metadata do not show a cordon, so a second query selects the nodes without a cordon, which all count as `open`.
    """
    queries = [{"fieldSelector": f"metadata.name={name}"} for name in names]
    by_name: dict[str, PoolNode] = {}
    for query in (*queries, {"labelSelector": f"{constants.NODE_POOL}={pool_name}"}):
        opened = ",".join(filter(None, (query.get("fieldSelector"), _OPEN)))
        nodes = {node.name: node for node in _list_metadata(api, query)}
        nodes |= {
            node.name: replace(node, open=True) for node in _list_metadata(api, query | {"fieldSelector": opened})
        }
        by_name |= {name: replace(node, labelled="labelSelector" in query) for name, node in nodes.items()}
    return [node for _, node in sorted(by_name.items()) if node.pool_by(membership, namespace) == pool_name]


def list_provider_ids_without_tpus(api: Api) -> Iterator[str]:
    """Yield the provider IDs of up to 2,000 nodes without TPUs, page by page. The IDs identify the GKE cluster."""
    pager = Pager(api, Request("GET", collection_path("nodes"), query=_WITHOUT_TPUS), max_limit=_IDENTITY_PAGE_SIZE)
    for page in islice(pager.pages(), _IDENTITY_PAGES):
        yield from filter(None, (fields.text(fields.at(item, "spec").get("providerID")) for item in page.items))


def _list_metadata(api: Api, query: Mapping[str, str]) -> list[PoolNode]:
    return list_all(api, collection_path("nodes"), query, _pool_node, metadata_only=True)


def _pool_node(raw: Any) -> PoolNode:
    metadata = fields.at(raw, "metadata")
    labels, annotations = (fields.mapping(metadata.get(part)) for part in ("labels", "annotations"))
    if not (name := fields.name(metadata.get("name"))):
        raise MalformedObject("a node of the list has no name")
    return PoolNode(
        name=name,
        uid=fields.name(metadata.get("uid")),
        pool_name=reported_pool(labels, annotations),
        open=False,
        marked=annotations.get(constants.CORDONED) == "true",
        namespace=fields.name(labels.get(constants.TRUSTED_GROUP_NAMESPACE)),
    )


def cordon(api: Api, node_name: str) -> None:
    """Cordon a node, and set the annotation CORDONED. Do nothing if the node does not exist."""
    with contextlib.suppress(errors.NotFound):
        api.patch(object_path("nodes", node_name), _CORDON, strategic=True)


def label(api: Api, node_name: str, labels: Mapping[str, str | None], *, timeouts: Timeouts) -> None:
    """Set labels of a node; the value None removes a label. Do nothing if the node does not exist."""
    with contextlib.suppress(errors.NotFound):
        body = {"metadata": {"labels": dict(labels)}}
        api.patch(object_path("nodes", node_name), body, strategic=True, timeouts=timeouts)


def uncordon(api: Api, node_name: str) -> None:
    """If a live read of a node shows the annotation CORDONED, remove the annotation and uncordon the node."""

    def change(node: JsonObject) -> JsonObject | None:
        if ((node.get("metadata") or {}).get("annotations") or {}).get(constants.CORDONED) != "true":
            return None
        return {"metadata": {"annotations": {constants.CORDONED: None}}, "spec": {"unschedulable": None}}

    _change_node(api, node_name, change)


def release(api: Api, node_name: str) -> None:
    """Remove the taint with which a flex-start node rejects pods until all slices of its workload are ready."""

    def change(node: JsonObject) -> JsonObject | None:
        taints = (node.get("spec") or {}).get("taints") or []
        kept = [taint for taint in taints if taint.get("key") not in constants.HELD_KEYS]
        return {"spec": {"taints": kept or None}} if len(kept) < len(taints) else None

    _change_node(api, node_name, change)


def _change_node(api: Api, node_name: str, change: Callable[[JsonObject], JsonObject | None]) -> None:
    path = object_path("nodes", node_name)
    for attempt in range(1, _CHANGE_ATTEMPTS + 1):
        try:
            node = api.get(path)
            body = change(node)
            if body is None:
                return
            version = (node.get("metadata") or {}).get("resourceVersion")
            marks = {**body.get("metadata", {}), "resourceVersion": version}
            api.patch(path, {**body, "metadata": marks}, strategic=True)
        except errors.NotFound:
            return
        except errors.Conflict:
            # Retry, because conflicts are frequent: the kubelet often reports the node's status.
            if attempt == _CHANGE_ATTEMPTS:
                raise
        else:
            return


def list_all(
    api: Api, path: str, query: Mapping[str, str], parse: Callable[[Any], T], *, metadata_only: bool = False
) -> list[T]:
    """Return the parsed objects of all pages of a list. Raises ClusterError; Malformed if `parse` rejects an object."""
    for attempt in range(1, _LIST_ATTEMPTS + 1):
        try:
            pages = Pager(api, Request("GET", path, query=query, metadata_only=metadata_only)).pages()
            return [read_one(item, parse) for page in pages for item in page.items]
        except errors.Gone:
            if attempt == _LIST_ATTEMPTS:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def read_one(raw: Any, parse: Callable[[Any], T]) -> T:
    """Parse an object. Raises Malformed if `parse` raises MalformedObject."""
    try:
        return parse(raw)
    except MalformedObject as error:
        raise errors.Malformed(str(error)) from error


def read_cluster_uid(api: Api, *, timeouts: Timeouts) -> str:
    """Return the UID of the namespace kube-system, which permanently identifies the cluster. Raises ClusterError."""
    namespace = api.get(object_path("namespaces", _UID_NAMESPACE), timeouts=timeouts)
    uid = fields.name(fields.mapping(namespace.get("metadata")).get("uid"))
    if not uid:
        raise errors.Malformed(f"namespace {_UID_NAMESPACE} has no uid")
    return uid


@dataclass(slots=True, kw_only=True)
class PeriodicRead:
    """Schedule of a periodic read that is retried after failures. The read blocks the calling thread."""

    api: Api
    clock: Callable[[], datetime]
    problem: str = ""
    failures: int = 0
    tried_at: datetime = field(default=datetime.min.replace(tzinfo=UTC))

    def left_seconds(self, now: datetime, pause_seconds: float) -> float:
        """Return the seconds left of a pause that began with the last read; 0 or negative if the pause has ended."""
        passed = (now - self.tried_at).total_seconds()
        # If the clock was set back to a time before the last read, the pause ends.
        return pause_seconds - passed if passed >= 0 else 0.0

    def retry_seconds(self) -> float:
        """Return the seconds before a retry, doubled by each failure up to 60; 0 unless the last read failed."""
        return min(_REREAD_CAP_SECONDS, 2.0 ** min(self.failures - 1, 10)) if self.failures else 0.0

    def attempt(self, read: Callable[[], None], trouble: str, *, failed_event: str, ended_event: str) -> None:
        """Call `read`. After a ClusterError, set `problem` to `trouble` and the error. `trouble` ends with a colon."""
        self.tried_at = self.clock()
        try:
            read()
        except errors.ClusterError as error:
            self.failures += 1
            if not self.problem:
                _log.warning(failed_event, error=str(error))
            self.problem = f"{trouble} {error}"
        else:
            if self.problem:
                _log.info(ended_event, failures=self.failures)
            self.problem, self.failures = "", 0


class DeletionBlockedError(Exception):
    """The object must not be deleted now. The message is the reason; `public` is a version that every user may see."""

    def __init__(self, message: str, *, public: str = "") -> None:
        super().__init__(message)
        self.public = public or message


def why_kept(verify_deletable: Callable[[], None], *, call: str) -> str | None:
    """Run the checks before a delete; return the reason to keep the object, None if it may be deleted. Never raises."""
    try:
        verify_deletable()
    except DeletionBlockedError as error:
        return str(error)
    except errors.ClusterError as error:
        return f"Kubernetes does not allow the check: {error}"
    except Exception as error:  # noqa: BLE001 - the caller needs a result
        _log.exception("gate.crashed", call=call)
        return f"the check failed: {error!r}"
    return None


def look_last(open_nodes: Callable[[], Iterable[str]], monotonic: Callable[[], float]) -> None:
    """Right before a delete, raise DeletionBlockedError if `open_nodes` yields a node, or is too slow three times."""
    for _ in range(_LAST_LOOKS):
        began = monotonic()
        for name in open_nodes():
            raise DeletionBlockedError(f"node {name} has registered or was uncordoned meanwhile")
        if monotonic() - began <= _LAST_LOOK_SECONDS:
            return
    raise DeletionBlockedError("the API server takes too long to confirm that its nodes are cordoned")
