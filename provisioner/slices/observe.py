"""Combines the watches of Kubernetes objects and the list of node pools into a snapshot."""

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import structlog

from provisioner import constants, tpu
from provisioner.kube import fields, machineconfigs
from provisioner.kube.kept import NamespaceBound
from provisioner.kube.protocol import Api
from provisioner.kube.reflector import WATCH_DEFAULTS, Collection, WatchOptions
from provisioner.kube.volumes import BOUND_OF_CLAIMS, parse_claim, parse_class, parse_volume
from provisioner.kube.watches import (
    PAUSE_QUERY,
    UNFINISHED,
    CombinedWatch,
    ListWatch,
    Watch,
    doubt_of,
    knowledge_of,
    parse_labels,
    parse_node,
)
from provisioner.model.capacity import Node, NodePool, PoolName
from provisioner.model.sources import (
    CLAIMS,
    MACHINE_CONFIGS,
    POD_TEMPLATES,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUMES,
    Knowledge,
)
from provisioner.model.volumes import Claim, Storage, StorageClass, with_volumes
from provisioner.model.workloads import Pod, Requirements, Workload, WorkloadKind
from provisioner.runtime.clock import shifted
from provisioner.settings import Settings
from provisioner.slices.demand.capacity_requests import with_slices
from provisioner.slices.demand.owners import with_owners
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.planning.spec.specification import read_ownership
from provisioner.slices.supplier import Supplier, SupplierError, with_remedy
from provisioner.tpu import Accelerator
from provisioner.workloads import KINDS, Kind, kinds_served
from provisioner.workloads.capacity_requests import BOUND_OF_TEMPLATES, parse_pod_template
from provisioner.workloads.parse_pod import parse_pod
from provisioner.workloads.pods import bound_of_pods

_log = structlog.get_logger(__name__)

_T = TypeVar("_T")

#: ResourceSlices, which contain the chips that nodes offer to pods with ResourceClaims.
DEVICES = Collection(
    name=RESOURCE_SLICES,
    resource=RESOURCE_SLICES,
    root="/apis/resource.k8s.io/v1",
    query={"fieldSelector": f"spec.driver={constants.TPU_DRIVER_NAME}"},
    optional=True,
)
TEMPLATES = Collection(name=POD_TEMPLATES, resource=POD_TEMPLATES, optional=True)
_CLAIMS = Collection(name=CLAIMS, resource=CLAIMS, optional=True)
_VOLUMES = Collection(name=VOLUMES, resource=VOLUMES, optional=True)
_CLASSES = Collection(name=STORAGE_CLASSES, resource=STORAGE_CLASSES, root="/apis/storage.k8s.io/v1", optional=True)
_NAMESPACES = Collection(name="namespaces", resource="namespaces")
#: Names of the watches without which no decision is possible, if they exist. All other watches are optional.
REQUIRED = frozenset(
    ("pods", "nodes", "namespaces", "configmaps", *(kind.resource for kind in KINDS.values() if not kind.optional))
)
#: Seconds for which a CRD must be missing before its workloads count as deleted: a starting API server may answer 404.
_GONE_AFTER_SECONDS = 86_400.0
#: Pause in seconds after the first failed list of node pools. Each further failure doubles the pause, up to 30 s.
_RELIST_SECONDS = 1.0
_RELIST_CAP_SECONDS = 30.0
#: Maximum share of one processor for periodic lists. A list of 1,000 GKE node pools takes 0.12 s of processor time.
_MAX_LISTING_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Watches:
    """All list-watches of the controller of slices."""

    workloads: Mapping[WorkloadKind, Watch[Workload]]
    pods: Watch[Pod]
    nodes: Watch[Node]
    serve_pods: str = "none"
    #: Watch of PodTemplates; None unless ProvisioningRequests or CapacityBuffers are watched.
    templates: Watch[Requirements] | None = None
    #: Watch of ResourceSlices; a record is the name of a node and the number of its chips.
    devices: Watch[tuple[str, int]] | None = None
    #: Watches of claims, volumes and storage classes, which show the zones of the pods' volumes.
    claims: Watch[Claim] | None = None
    volumes: Watch[frozenset[str]] | None = None
    storage_classes: Watch[StorageClass] | None = None
    namespaces: Watch[dict[str, str]] | None = None
    #: Watch of the ConfigMap that pauses creates; a record is the creation time of the ConfigMap.
    pause: Watch[datetime] | None = None
    machine_configs: Watch[tuple[Accelerator, ...]] | None = None

    def named(self) -> dict[str, Watch[Any]]:
        """Return the watches that exist, by the name of their resource."""
        named: dict[str, Watch[Any] | None] = {
            **{KINDS[kind].resource: watch for kind, watch in self.workloads.items()},
            "pods": self.pods,
            "nodes": self.nodes,
            POD_TEMPLATES: self.templates,
            RESOURCE_SLICES: self.devices,
            CLAIMS: self.claims,
            VOLUMES: self.volumes,
            STORAGE_CLASSES: self.storage_classes,
            "namespaces": self.namespaces,
            "configmaps": self.pause,
            MACHINE_CONFIGS: self.machine_configs,
        }
        return {name: watch for name, watch in named.items() if watch is not None}


def make_watches(
    api: Api,
    settings: Settings,
    on_change: Callable[[], None],
    *,
    kinds: Mapping[WorkloadKind, Kind] | None = None,
    options: WatchOptions = WATCH_DEFAULTS,
) -> Watches:
    """Return the watches, not started, for the workloads in `kinds`; if None, for the kinds that the settings serve."""

    def watch(
        collection: Collection, parse: Callable[[object], _T | None], bound: NamespaceBound[_T] | None = None
    ) -> ListWatch[_T]:
        return ListWatch(api, collection, parse=parse, on_change=on_change, options=options, bound=bound)

    def watch_in_all(
        collection: Collection, parse: Callable[[object], _T | None], bound: NamespaceBound[_T]
    ) -> Watch[_T]:
        places = dict.fromkeys(namespaces) or ("",)
        return CombinedWatch([watch(replace(collection, namespace=place), parse, bound) for place in places])

    # Records that `bound` shortens keep the opt-in label, which decides whether the objects are served.
    labels = settings.opt_in_label[:1] if settings.opt_in_label is not None else ()
    namespaces, kinds = settings.namespaces, kinds_served(settings) if kinds is None else kinds
    workloads = {
        kind: Collection(
            name=api_kind.plural,
            resource=api_kind.resource,
            root=api_kind.root,
            query={"labelSelector": api_kind.selector} if api_kind.selector else {},
            install_hint=api_kind.install_hint,
            optional=api_kind.optional,
        )
        for kind, api_kind in kinds.items()
    }
    # Pods have no common label, so all unfinished pods are watched, and the parser drops irrelevant pods.
    pods = Collection(name="pods", resource="pods", query={"fieldSelector": UNFINISHED})
    parse = partial(parse_pod, serve_pods=settings.serve_pods, jobs=WorkloadKind.JOB in kinds)
    pause = Collection(name="configmaps", resource="configmaps", namespace=settings.own_namespace, query=PAUSE_QUERY)
    trusted = f",{constants.TRUSTED_GROUP_NAMESPACE}={settings.node_namespace}" if settings.on_gce else ""
    selector = f"{constants.NODEPOOL_MANAGER}={constants.MANAGER}{trusted}"
    with_requests = any(not kind.has_pods for kind in kinds)
    return Watches(
        workloads={
            kind: watch_in_all(collection, kinds[kind].parse, kinds[kind].bound(labels))
            for kind, collection in workloads.items()
        },
        pods=watch_in_all(pods, parse, bound_of_pods(labels)),
        serve_pods=settings.serve_pods,
        nodes=watch(Collection(name="nodes", resource="nodes", query={"labelSelector": selector}), parse_node),
        templates=watch_in_all(TEMPLATES, parse_pod_template, BOUND_OF_TEMPLATES) if with_requests else None,
        devices=watch(DEVICES, _parse_resource_slice),
        claims=watch_in_all(_CLAIMS, parse_claim, BOUND_OF_CLAIMS),
        volumes=watch(_VOLUMES, parse_volume),
        storage_classes=watch(_CLASSES, parse_class),
        namespaces=watch(_NAMESPACES, parse_labels) if settings.opt_in_label is not None else None,
        pause=watch(pause, fields.created_at),
        machine_configs=watch(machineconfigs.MACHINE_CONFIGS, machineconfigs.parse_machine_config),
    )


def _parse_resource_slice(raw: object) -> tuple[str, int]:
    """Return the name of a node and the number of its chips, which are all in one ResourceSlice."""
    spec = fields.at(raw, "spec")
    return fields.name(spec.get("nodeName")), len(fields.sequence(spec.get("devices")))


@dataclass(slots=True, kw_only=True)
class PoolList:
    """Lists the node pools, and keeps the last list. Used only by the loop's thread."""

    supplier: Supplier
    clock: Callable[[], datetime]
    pools: tuple[NodePool, ...] = ()
    #: Time at which the request for the last successful list was sent; None before the first success.
    listed_at: datetime | None = None
    problem: str = ""
    failures: int = 0
    processor_seconds: Callable[[], float] = time.thread_time
    #: Processor time in seconds that the last successful list took.
    cost_seconds: float = 0.0
    tried_at: datetime = field(default=datetime.min.replace(tzinfo=UTC))

    def age_seconds(self, now: datetime) -> float:
        """Return the age of the list in seconds; infinite before the first success."""
        return float("inf") if self.listed_at is None else (now - self.listed_at).total_seconds()

    def due_in_seconds(self, now: datetime, *, every_seconds: float) -> float:
        """Return the seconds until the list must be fetched again; 0 or less if it is due."""
        if self.failures:
            pause = min(_RELIST_CAP_SECONDS, _RELIST_SECONDS * 2.0 ** min(self.failures - 1, 10))
            return pause - (now - self.tried_at).total_seconds()
        return max(every_seconds, self.cost_seconds / _MAX_LISTING_SHARE) - self.age_seconds(now)

    def fetch(self) -> bool:
        """List the pools; return whether the list succeeded. After a failure, no decision is made until a success."""
        requested_at = self.tried_at = self.clock()
        started = self.processor_seconds()
        try:
            self.pools = self.supplier.list_pools()
        except SupplierError as error:
            self.failures += 1
            if not self.problem:
                _log.warning("pools.list_failed", kind=error.failure.kind.value, error=str(error))
            # `str(error)` also names the failed call, which `problem` already describes.
            remedy = with_remedy(error, error.failure.message)
            self.problem = f"{self.supplier.rules.supplier_name} does not list the node pools: {remedy}"
            return False
        if self.problem:
            _log.info("pools.list_recovered", failures=self.failures)
        self.listed_at, self.problem, self.failures = requested_at, "", 0
        self.cost_seconds = self.processor_seconds() - started
        return True

    def clock_set(self, by: timedelta) -> None:
        """Shift the times after the clock was set, so that the age of the list remains correct."""
        self.listed_at, self.tried_at = shifted(self.listed_at, by), shifted(self.tried_at, by)

    def by_name(self) -> dict[PoolName, NodePool]:
        """Return the pools by name."""
        return {pool.name: pool for pool in self.pools}


def not_synced(watches: Watches) -> tuple[str, ...]:
    """Return the reasons why the watches allow no decision; empty if a decision is allowed.

    A required watch must be complete and fresh. An optional watch must be listed, or report why not; otherwise
    a decision would drop the hints about slices of workloads that are not listed yet.
    """
    doubts = (
        doubt_of(name, watch)
        for name, watch in watches.named().items()
        if name in REQUIRED or not (watch.synced or watch.problem)
    )
    return tuple(filter(None, doubts))


def read_sources(watches: Watches) -> dict[str, Knowledge]:
    """Return the state of each optional source that is watched, by name."""
    return {name: knowledge_of(watch) for name, watch in watches.named().items() if name not in REQUIRED}


def unknown_in(sources: Mapping[str, Knowledge]) -> frozenset[str]:
    """Return the names of the sources in the state UNKNOWN."""
    return frozenset(name for name, knowledge in sources.items() if knowledge is Knowledge.UNKNOWN)


def unknown_kinds(watches: Watches, sources: Mapping[str, Knowledge]) -> frozenset[WorkloadKind]:
    """Return the kinds whose workloads, or PodTemplates that they need, are not watched or not readable."""
    plain = () if watches.serve_pods != "none" else (WorkloadKind.POD,)
    lacking = {name for name, knowledge in sources.items() if knowledge is not Knowledge.KNOWN}
    return frozenset(plain).union(
        kind
        for kind, row in KINDS.items()
        if kind not in watches.workloads
        or (row.optional and not lacking.isdisjoint((row.resource, *([] if kind.has_pods else [POD_TEMPLATES]))))
    )


def take_snapshot(
    watches: Watches,
    pools: PoolList,
    live_calls: frozenset[PoolName] = frozenset(),
    rejected: AbstractSet[str] = frozenset(),
    *,
    lacks_machine_configs: bool = False,
) -> Snapshot:
    """Return the input of one decision; `rejected` names the objects whose changes have failed for 10 minutes."""
    # States are read before records; otherwise a watch that syncs in between would count as synced with old records.
    reasons, sources = not_synced(watches), read_sources(watches)
    if lacks_machine_configs:
        # The catalogue lacks machine types of some MachineConfigs that the API server has.
        sources[MACHINE_CONFIGS] = Knowledge.UNKNOWN
    unknown, hidden = unknown_in(sources), unknown_kinds(watches, sources)
    if pools.listed_at is None or pools.problem:
        reasons = (*reasons, pools.problem or "the node pools are not listed yet")
    namespaces = watches.namespaces.records() if watches.namespaces is not None else {}
    pauses = watches.pause.records() if watches.pause is not None else {}
    watched = [watch for kind, watch in watches.workloads.items() if kind not in hidden]
    absent = {kind: watch for kind, watch in watches.workloads.items() if watch.missing_seconds() > _GONE_AFTER_SECONDS}
    listed = {record.uid: record for watch in watched for record in watch.records().values()}
    offered = dict(watches.devices.records().values()) if watches.devices is not None else {}
    templates = watches.templates.records() if watches.templates is not None else {}
    pods = tuple(watches.pods.records().values())
    listed, pods = with_owners(listed, pods, serve_pods=watches.serve_pods, unknown_kinds=hidden - absent.keys())
    workloads, leaders = with_slices(listed, templates, rejected, unlisted=MACHINE_CONFIGS in unknown)
    owners = {owner.workload_uid for pool in pools.pools if (owner := read_ownership(pool.labels)) is not None}
    deleted = {
        uid
        for uid in owners - workloads.keys()
        if any(watch.seen_deleted(uid) for watch in (*watched, *absent.values()))
    }
    return Snapshot(
        workloads=MappingProxyType(workloads),
        unknown=unknown,
        unknown_kinds=hidden - absent.keys(),
        absent_kinds=frozenset(absent),
        deleted_workloads=frozenset(deleted),
        pods=tuple(with_volumes((*pods, *leaders), _storage(watches, sources))),
        nodes=tuple(
            _with_devices(node, offered, known=sources.get(RESOURCE_SLICES, Knowledge.KNOWN) is Knowledge.KNOWN)
            for node in watches.nodes.records().values()
        ),
        pools=pools.pools,
        live_calls=live_calls,
        rejected=rejected,
        pools_listed_at=pools.listed_at or datetime.min.replace(tzinfo=UTC),
        paused_since=min(pauses.values(), default=None),
        namespace_labels={name: labels for (_, name), labels in namespaces.items()},
        not_synced=reasons,
    )


def _storage(watches: Watches, sources: Mapping[str, Knowledge]) -> Storage:
    def records_of(name: str, watch: Watch[_T] | None) -> Mapping[tuple[str, str], _T] | None:
        return watch.records() if watch is not None and sources[name] is Knowledge.KNOWN else None

    volumes, classes = records_of(VOLUMES, watches.volumes), records_of(STORAGE_CLASSES, watches.storage_classes)
    return Storage(
        claims=records_of(CLAIMS, watches.claims),
        zones={name: zones for (_, name), zones in volumes.items()} if volumes is not None else None,
        classes={name: storage_class for (_, name), storage_class in classes.items()} if classes is not None else None,
    )


def _with_devices(node: Node, offered: Mapping[str, int], *, known: bool) -> Node:
    """Return a node; if it reports no google.com/tpu, with the chips of its ResourceSlice.

    If ResourceSlices are not known, a ready node with the label of the TPU driver counts as having all chips of its
    machine. Otherwise slices that start together would never start, and their pools would be replaced repeatedly.
    """
    chips = node.allocatable_chips or offered.get(node.name, 0)
    if not (known or chips) and node.ready and node.labels.get(constants.TPU_DRA_DRIVER) == "true":
        chips = tpu.machine_of(node.labels.get(constants.INSTANCE_TYPE, ""))[1]
    return replace(node, allocatable_chips=chips) if chips != node.allocatable_chips else node
