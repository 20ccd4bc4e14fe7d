"""Between GKE's JSON and our types, field by field. Nothing here calls anybody.

A word that this release does not know, of an enum that GKE has extended, is neither an error nor a warning.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from provisioner import constants
from provisioner.model.capacity import (
    CapacityKind,
    Failure,
    FailureKind,
    NodePool,
    NodePoolRequest,
    Operation,
    OperationName,
    PoolName,
    PoolStatus,
    Taint,
    WorkloadPolicy,
    Zone,
)
from provisioner.slices.suppliers.gke.errors import RPC_NUMBERS, classify_message
from provisioner.slices.suppliers.gke.rules import slice_topology

#: Exactly what a NodePool is made from, and what GKE may repeat of it in the words for its failure.
NODE_POOL_FIELDS = (
    "name",
    "status",
    "statusMessage",
    "conditions",
    "config.labels",
    "config.taints",
    "config.machineType",
    "config.diskType",
    "config.spot",
    "config.flexStart",
    "config.reservationAffinity",
    "initialNodeCount",
    "autoscaling.enabled",
    "autoscaling.maxNodeCount",
    "locations",
    "placementPolicy",
    "config.serviceAccount",
    "networkConfig.additionalNodeNetworkConfigs",
)
LIST_FIELDS = tuple(f"nodePools.{field}" for field in NODE_POOL_FIELDS)
CLUSTER_FIELDS = (
    "name",
    "status",
    "releaseChannel.channel",
    "masterAuth.clusterCaCertificate",
    "instanceGroupUrls",
    "nodePools.name",
    "nodePools.instanceGroupUrls",
    "nodePools.config.workloadMetadataConfig.mode",
    "autopilot.enabled",
    "autoscaling.enableNodeAutoprovisioning",
    "autoscaling.resourceLimits",
    "workloadIdentityConfig.workloadPool",
)

_T = TypeVar("_T")
Json = Mapping[str, Any]
#: What lists and maps are that GKE leaves out.
_LIST: list[Any] = []
_MAP: dict[str, str] = {}
_RESERVATION_KEY = "compute.googleapis.com/reservation-name"
_EFFECTS = {
    "NoSchedule": "NO_SCHEDULE",
    "PreferNoSchedule": "PREFER_NO_SCHEDULE",
    "NoExecute": "NO_EXECUTE",
}
_EFFECT_NAMES = {word: name for name, word in _EFFECTS.items()}
_FAILED = frozenset({PoolStatus.ERROR, PoolStatus.RUNNING_WITH_ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster that the client is bound to, as far as it helps to recognise it."""

    name: str
    #: GKE's own word: RUNNING, RECONCILING, DEGRADED, ...; empty when it says nothing we know.
    status: str = ""
    #: RAPID, REGULAR, STABLE, EXTENDED; empty for none. Only on none GKE takes pools without auto-upgrade.
    release_channel: str = ""
    #: The certificate authority of the Kubernetes API server, PEM; empty when GKE gives none.
    ca_certificate_pem: bytes = b""
    #: Instance group managers of all node pools.
    instance_group_urls: tuple[str, ...] = ()
    #: GKE makes and deletes the nodes itself, and takes no node pools from others.
    autopilot: bool = False
    #: Resources with "tpu" in their names that node auto-provisioning may buy; empty where it is off or buys none.
    auto_provisioned_tpus: tuple[str, ...] = ()
    #: PROJECT.svc.id.goog; empty where Workload Identity is off.
    workload_pool: str = ""
    #: Node pools whose pods have the permissions of their node all the same.
    pools_without_identity: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A reservation of Compute Engine, as far as it is looked at."""

    #: Compute Engine's own word: CREATING, READY, UPDATING, DELETING, INVALID; empty when it says none.
    status: str = ""
    #: When Compute Engine deletes it; None: never.
    ends_at: datetime | None = None


def _at(body: Json, path: str, absent: _T) -> _T:
    """Return what is at a path; `absent` where GKE leaves it out. Raises ValueError where it is of another type."""
    value: Any = body
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else value
        if value is None:
            return absent
    if type(absent) is int and isinstance(value, str):
        # An int64 is a text in JSON.
        value = int(value)
    if not isinstance(value, type(absent)):
        raise ValueError(f"{path} is {value!r:.100}")  # noqa: TRY004 - GKE's mistake, not ours
    return value


def node_pools_of(body: Json) -> tuple[NodePool, ...]:
    """Return the node pools of a list. Raises ValueError."""
    # A pool without a name could be neither matched nor deleted.
    return tuple(
        node_pool_of(each) for each in _at(body, "nodePools", _LIST) if isinstance(each, dict) and each.get("name")
    )


def node_pool_of(body: Json) -> NodePool:
    """Return a node pool from its JSON; one that cannot be read keeps its name and gets status UNKNOWN."""
    try:
        return _node_pool(body)
    except ValueError:
        return NodePool(name=PoolName(str(body.get("name", ""))), status=PoolStatus.UNKNOWN)


def _node_pool(body: Json) -> NodePool:
    status = PoolStatus.__members__.get(_at(body, "status", ""), PoolStatus.UNKNOWN)
    labels = _at(body, "config.labels", _MAP)
    machine_type, policy_name = _at(body, "config.machineType", ""), _at(body, "placementPolicy.policyName", "")
    reservation = _reservation(body)
    autoscaled_to = _at(body, "autoscaling.maxNodeCount", 0) if _at(body, "autoscaling.enabled", absent=False) else 0
    return NodePool(
        name=PoolName(_at(body, "name", "")),
        status=status,
        failure=_pool_failure(body) if status in _FAILED else None,
        labels=labels,
        taints=tuple(
            Taint(key=key, value=value, effect=_EFFECT_NAMES.get(effect, "")) for key, value, effect in _taints(body)
        ),
        machine_type=machine_type,
        hosts=max(autoscaled_to, _at(body, "initialNodeCount", 0)),
        zones=tuple(map(Zone, _at(body, "locations", _LIST))),
        topology=slice_topology(
            placement_topology=_at(body, "placementPolicy.tpuTopology", ""),
            labels=labels,
            policy_name=policy_name,
            machine_type=machine_type,
        ),
        capacity=_capacity_kind(body, reservation),
        reservation=reservation,
        policy_name=policy_name,
        disk_type=_at(body, "config.diskType", ""),
    )


def _taints(body: Json) -> list[tuple[str, str, str]]:
    taints = _at(body, "config.taints", _LIST)
    return [(_at(each, "key", ""), _at(each, "value", ""), _at(each, "effect", "")) for each in taints]


def _reservation(body: Json) -> str:
    values = _at(body, "config.reservationAffinity.values", _LIST)
    # ANY_RESERVATION and the like name none.
    named = _at(body, "config.reservationAffinity.key", "") == _RESERVATION_KEY
    return str(values[0]) if named and values else ""


def _capacity_kind(body: Json, reservation: str) -> CapacityKind:
    if reservation:
        return CapacityKind.RESERVATION
    if _at(body, "config.flexStart", absent=False):
        return CapacityKind.FLEX_START
    return CapacityKind.SPOT if _at(body, "config.spot", absent=False) else CapacityKind.ON_DEMAND


def _pool_failure(body: Json) -> Failure:
    code, text = _words_of_conditions(_at(body, "conditions", _LIST))
    # statusMessage is the deprecated form of the conditions, and often the fuller one.
    text = _joined(_at(body, "statusMessage", ""), text)
    if not text and code is None:
        return Failure(kind=FailureKind.UNAVAILABLE, message="GKE gives no reason.")
    return Failure(kind=classify_message(code, text, said_by(body)), message=text)


def _words_of_conditions(conditions: Iterable[Json]) -> tuple[int | None, str]:
    """Return the first canonical code, and all texts, each after its GKE code where that says something."""
    canonical: int | None = None
    texts: list[str] = []
    for each in conditions:
        canonical = canonical or RPC_NUMBERS.get(_at(each, "canonicalCode", ""))
        name, message = _at(each, "code", ""), _at(each, "message", "")
        # Many messages begin with the code already.
        text = f"[{name}] {message}".strip() if name and name not in message else message
        if text and text not in texts:
            texts.append(text)
    return canonical, " ".join(texts)


def _joined(words: str, text: str) -> str:
    """Put two texts one after the other, of which one may say all that the other does."""
    if words in text:
        return text
    return words if text in words else f"{words} {text}"


def operation_of(body: Json, values: Iterable[str] = ()) -> Operation:
    """Return an operation from its JSON, and from what its request said of itself (`said_by`). Raises ValueError."""
    done = _at(body, "status", "") == "DONE"
    failure = _operation_failure(body, values) if done else None
    return Operation(name=OperationName(_at(body, "name", "")), done=done, failure=failure)


def _operation_failure(body: Json, values: Iterable[str]) -> Failure | None:
    # `error` replaces the three others, which older answers still use instead of it.
    conditions = (*_at(body, "clusterConditions", _LIST), *_at(body, "nodepoolConditions", _LIST))
    code, text = _words_of_conditions(conditions)
    code = _at(body, "error.code", 0) or code
    for words in (_at(body, "statusMessage", ""), _at(body, "error.message", "")):
        text = _joined(words, text)
    if not text and code is None:
        return None
    return Failure(
        kind=classify_message(code, text, values),
        message=text or f"The operation failed with code {code} and without a message.",
    )


def cluster_of(body: Json) -> Cluster:
    """Return the cluster from its JSON. Raises ValueError."""
    try:
        certificate = base64.b64decode(_at(body, "masterAuth.clusterCaCertificate", ""), validate=True)
    except binascii.Error:
        certificate = b""
    pools = _at(body, "nodePools", _LIST)
    groups = [url for pool in pools for url in _at(pool, "instanceGroupUrls", _LIST)]
    return Cluster(
        name=_at(body, "name", ""),
        status=_at(body, "status", ""),
        release_channel=_at(body, "releaseChannel.channel", ""),
        ca_certificate_pem=certificate,
        instance_group_urls=tuple(dict.fromkeys((*_at(body, "instanceGroupUrls", _LIST), *groups))),
        autopilot=_at(body, "autopilot.enabled", absent=False),
        auto_provisioned_tpus=_auto_provisioned_tpus(body),
        workload_pool=_at(body, "workloadIdentityConfig.workloadPool", ""),
        pools_without_identity=tuple(
            _at(pool, "name", "")
            for pool in pools
            if _at(pool, "config.workloadMetadataConfig.mode", "") != "GKE_METADATA"
        ),
    )


def _auto_provisioned_tpus(body: Json) -> tuple[str, ...]:
    """Return the TPU resources with a limit above 0; for accelerators GKE has no auto-provisioning without a limit."""
    if not _at(body, "autoscaling.enableNodeAutoprovisioning", absent=False):
        return ()
    limits = [
        (_at(limit, "resourceType", ""), _at(limit, "maximum", 0))
        for limit in _at(body, "autoscaling.resourceLimits", _LIST)
    ]
    return tuple(resource for resource, most in limits if "tpu" in resource and most > 0)


def create_request_json(cluster_path: str, request: NodePoolRequest) -> dict[str, Any]:
    """Return what a create sends; fields with the API's absent value are left out."""
    late = request.capacity is CapacityKind.FLEX_START
    pool = {
        "name": request.name,
        "config": _config_json(request),
        # Flex-start capacity demands that a pool begins without nodes and grows to its whole size at once.
        "initialNodeCount": 0 if late else request.hosts,
        # A flex-start node that is given back for repair is not had again.
        "management": _given(autoUpgrade=request.auto_upgrade, autoRepair=not late),
        "maxPodsConstraint": {"maxPodsPerNode": str(request.max_pods_per_node)},
        "locations": [request.zone],
        "upgradeSettings": {"strategy": "SHORT_LIVED"} if late else {"maxSurge": 1},
        # The maximum counts by zone: of the total, GKE says that 0 is not a valid size of a slice.
        "autoscaling": {"enabled": True, "maxNodeCount": request.hosts, "locationPolicy": "ANY"} if late else {},
        "placementPolicy": _placement_json(request),
        "networkConfig": _given(
            additionalNodeNetworkConfigs=[
                {"network": one.network, "subnetwork": one.subnetwork} for one in request.additional_networks
            ],
            acceleratorNetworkProfile=request.labels.get(constants.NETWORK_PROFILE, ""),
        ),
        # A new node version in the middle of a job would cost the job; the pool lives no longer than its work.
        "maintenancePolicy": {"exclusionUntilEndOfSupport": {"enabled": True}} if request.auto_upgrade else {},
    }
    # Without a message for the management GKE has defaults of its own.
    return {"nodePool": _given(**pool) | {"management": pool["management"]}, "parent": cluster_path}


def _config_json(request: NodePoolRequest) -> dict[str, Any]:
    affinity: dict[str, Any] = {}
    if request.capacity is CapacityKind.FLEX_START:
        affinity = {"consumeReservationType": "NO_RESERVATION"}
    elif request.reservation:
        affinity = {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": _RESERVATION_KEY,
            "values": [request.reservation],
        }
    image = request.secondary_boot_disk
    return _given(
        machineType=request.machine_type,
        oauthScopes=list(request.oauth_scopes),
        serviceAccount=request.service_account,
        labels=dict(sorted(request.labels.items())),
        tags=list(request.tags),
        diskType=request.disk_type,
        taints=[_given(key=taint.key, value=taint.value, effect=_EFFECTS[taint.effect]) for taint in request.taints],
        shieldedInstanceConfig=_given(enableSecureBoot=request.secure_boot, enableIntegrityMonitoring=True),
        reservationAffinity=affinity,
        bootDiskKmsKey=request.boot_disk_kms_key,
        spot=request.capacity is CapacityKind.SPOT,
        enableConfidentialStorage=request.confidential_storage,
        # A cache of images is read by image streaming alone.
        gcfsConfig={"enabled": True} if image else {},
        secondaryBootDisks=[{"diskImage": image, "mode": "CONTAINER_IMAGE_CACHE"}] if image else [],
        maxRunDuration=f"{request.max_run_seconds}s" if request.max_run_seconds else "",
        hostMaintenancePolicy=_host_maintenance_json(request.idle_maintenance_seconds),
        flexStart=request.capacity is CapacityKind.FLEX_START,
    )


def _host_maintenance_json(idle_seconds: int) -> dict[str, Any]:
    """Let idle nodes be maintained from the announcement on, 28 days ahead, also all nodes of a pool at once."""
    if not idle_seconds:
        return {}
    strategy = {
        "nodeIdleTimeWindow": f"{idle_seconds}s",
        "maintenanceAvailabilityWindow": f"{28 * 24 * 3600}s",
        "minNodesPerPool": "0",
    }
    # Google's reference: every strategy requires PERIODIC.
    return {"maintenanceInterval": "PERIODIC", "opportunisticMaintenanceStrategy": strategy}


def _placement_json(request: NodePoolRequest) -> dict[str, Any]:
    if request.policy_name:
        # With a workload policy the type stays unset: COMPACT beside it ends in a pool in ERROR.
        return {"policyName": request.policy_name}
    topology = request.placement_topology
    return {"type": "COMPACT", "tpuTopology": topology} if topology else {}


def _given(**values: Any) -> dict[str, Any]:
    """Leave out what has the absent value of its type."""
    return {key: value for key, value in values.items() if value}


def said_by(pool: Json) -> tuple[str, ...]:
    """Return all that a node pool, as it is asked for or listed, says in words that may be a user's."""
    config, images = _at(pool, "config", _MAP), _at(pool, "config.secondaryBootDisks", _LIST)
    labels, networks = _at(pool, "config.labels", _MAP), _at(pool, "networkConfig.additionalNodeNetworkConfigs", _LIST)
    return (
        _at(pool, "name", ""),
        *_at(pool, "locations", _LIST),
        _at(pool, "placementPolicy.policyName", ""),
        *(_at(config, field, "") for field in ("machineType", "diskType", "serviceAccount", "bootDiskKmsKey")),
        *(_at(each, "diskImage", "") for each in images),
        *_at(pool, "config.reservationAffinity.values", _LIST),
        *_at(pool, "config.tags", _LIST),
        *labels,
        *labels.values(),
        *(part for key, value, _ in _taints(pool) for part in (key, value)),
        *(_at(one, part, "") for one in networks for part in ("network", "subnetwork")),
    )


def workload_policy_of(body: Json) -> WorkloadPolicy:
    """Return a resource policy from its JSON; one that is no workload policy has neither type nor topology."""
    return WorkloadPolicy(
        name=_at(body, "name", ""),
        type=_at(body, "workloadPolicy.type", ""),
        topology=_at(body, "workloadPolicy.acceleratorTopology", ""),
        status=_at(body, "status", ""),
    )


def reservation_of(body: Json) -> Reservation:
    """Read a reservation. Raises ValueError."""
    end = _at(body, "deleteAtTime", "")
    return Reservation(
        status=_at(body, "status", ""),
        ends_at=datetime.fromisoformat(end).astimezone(UTC) if end else None,
    )
