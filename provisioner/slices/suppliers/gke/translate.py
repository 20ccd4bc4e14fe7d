"""Converts messages of GKE and Compute Engine into the provisioner's types, and requests into GKE's JSON. Pure.

Functions that read a response of GKE take its protobuf message and its JSON: only the JSON has the names of enum values
that Google's library does not know. This module imports no library of Google, so offline commands can use it.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from itertools import chain, repeat
from typing import Any

from provisioner import constants
from provisioner.kube import fields
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
from provisioner.settings import node_fields
from provisioner.slices.suppliers.gke.errors import classify_message
from provisioner.slices.suppliers.gke.rules import slice_topology

#: Fields for the attributes of `NodePool`, and some fields whose values GKE may repeat in the text of a failure.
NODE_POOL_FIELDS = (
    "name", "status", "statusMessage", "conditions", "config.labels", "config.taints", "config.machineType",
    "config.diskType", "config.diskSizeGb", "config.imageType", "config.linuxNodeConfig.hugepages",
    "config.sandboxConfig", "config.resourceLabels", "config.spot", "config.flexStart", "config.reservationAffinity",
    "initialNodeCount", "autoscaling.enabled", "autoscaling.maxNodeCount", "locations", "placementPolicy",
    "config.serviceAccount", "networkConfig.additionalNodeNetworkConfigs", "networkConfig.podRange",
    "networkConfig.enablePrivateNodes", "maxPodsConstraint", "instanceGroupUrls",
)  # fmt: skip
LIST_FIELDS = tuple(f"nodePools.{field}" for field in NODE_POOL_FIELDS)
CLUSTER_FIELDS = (
    "name", "status", "releaseChannel.channel", "masterAuth.clusterCaCertificate", "instanceGroupUrls",
    "nodePools.name", "nodePools.instanceGroupUrls", "nodePools.config.workloadMetadataConfig.mode",
    "autopilot.enabled", "autoscaling.enableNodeAutoprovisioning", "autoscaling.resourceLimits",
    "workloadIdentityConfig.workloadPool",
)  # fmt: skip

Json = Mapping[str, Any]
Message = Any
_RESERVATION_KEY = "compute.googleapis.com/reservation-name"
#: URL of an instance group. The names of its machines begin with `prefix`, or with gke-tpu-`hash` if they have TPUs.
INSTANCE_GROUP = re.compile(
    r"/projects/(?P<project>[^/]+)/zones/(?P<zone>[^/]+)/instanceGroup(Manager)?s/(?P<prefix>gke-[^/]+-(?P<hash>\w+))-grp$"
)
_EFFECTS = {"NoSchedule": "NO_SCHEDULE", "PreferNoSchedule": "PREFER_NO_SCHEDULE", "NoExecute": "NO_EXECUTE"}
_EFFECT_NAMES = {word: name for name, word in _EFFECTS.items()}
_FAILED = frozenset({PoolStatus.ERROR, PoolStatus.RUNNING_WITH_ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Facts about a GKE cluster, to identify and check it."""

    name: str
    #: Status as GKE spells it, such as RUNNING; empty if unknown.
    status: str = ""
    #: RAPID, REGULAR, STABLE or EXTENDED; empty if none. With a channel, GKE rejects pools without auto-upgrade.
    release_channel: str = ""
    #: Certificate authority of the Kubernetes API server in PEM; empty if GKE returns none or a damaged one.
    ca_certificate_pem: bytes = b""
    instance_group_urls: tuple[str, ...] = ()
    #: Whether GKE manages all nodes (Autopilot), and rejects node pools of other clients.
    autopilot: bool = False
    #: Resources with "tpu" in their names that node auto-provisioning may create; empty if auto-provisioning is off.
    auto_provisioned_tpus: tuple[str, ...] = ()
    #: Workload pool, PROJECT.svc.id.goog; empty if Workload Identity is off.
    workload_pool: str = ""
    #: Names of node pools without Workload Identity, whose pods have the permissions of their node.
    pools_without_identity: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Status and end of a reservation of Compute Engine."""

    status: str = ""
    #: Time at which Compute Engine deletes the reservation; None if it never does.
    ends_at: datetime | None = None


def _enum(message: Message, field: str, body: Json) -> str:
    """Return the name of an enum field's value, or its number as text if the name is unknown; empty without a value."""
    descriptor = message.DESCRIPTOR.fields_by_name[field]
    names, number = descriptor.enum_type.values_by_number, getattr(message, field)
    if number:
        return str(names[number].name) if number in names else str(number)
    word = body.get(descriptor.json_name)
    return word if isinstance(word, str) and word not in descriptor.enum_type.values_by_name else ""


def _pairs(messages: Iterable[Message], bodies: object) -> Iterator[tuple[Message, Json]]:
    return zip(messages, chain(map(fields.mapping, fields.sequence(bodies)), repeat({})), strict=False)


def node_pools_of(response: Message, body: Json) -> tuple[NodePool, ...]:
    """Return the node pools of a list. Pools without a name, which could not be deleted, are left out."""
    return tuple(node_pool_of(*pair) for pair in _pairs(response.node_pools, body.get("nodePools")) if pair[0].name)


def node_pool_of(pool: Message, body: Json) -> NodePool:
    """Return a node pool. An unknown status becomes UNKNOWN. Pools without an error status have no failure."""
    status = PoolStatus.__members__.get(_enum(pool, "status", body), PoolStatus.UNKNOWN)
    config, labels = pool.config, dict(pool.config.labels)
    policy_name, affinity = pool.placement_policy.policy_name, config.reservation_affinity
    # Affinities with other keys or without a key, such as ANY_RESERVATION, name no reservation.
    reservation = affinity.values[0] if affinity.key == _RESERVATION_KEY and affinity.values else ""
    return NodePool(
        name=PoolName(pool.name),
        status=status,
        failure=_pool_failure(pool, body) if status in _FAILED else None,
        labels=labels,
        taints=tuple(
            Taint(key=taint.key, value=taint.value, effect=_EFFECT_NAMES.get(_enum(taint, "effect", {}), ""))
            for taint in config.taints
        ),
        machine_type=config.machine_type,
        hosts=max(pool.autoscaling.max_node_count if pool.autoscaling.enabled else 0, pool.initial_node_count),
        zones=tuple(map(Zone, pool.locations)),
        topology=slice_topology(
            placement_topology=pool.placement_policy.tpu_topology,
            labels=labels,
            policy_name=policy_name,
            machine_type=config.machine_type,
        ),
        capacity=_capacity_kind(config, reservation),
        reservation=reservation,
        policy_name=policy_name,
        node=node_fields.listed_values(pool),
        node_prefixes=tuple(chain.from_iterable(map(_node_prefixes, pool.instance_group_urls))),
    )


def _node_prefixes(group_url: str) -> tuple[str, ...]:
    """Return the possible prefixes of node names in an instance group; empty if its URL has an unknown form."""
    match = INSTANCE_GROUP.search(group_url)
    return (match["prefix"], f"gke-tpu-{match['hash']}") if match is not None else ()


def _capacity_kind(config: Message, reservation: str) -> CapacityKind:
    if reservation:
        return CapacityKind.RESERVATION
    if config.flex_start:
        return CapacityKind.FLEX_START
    return CapacityKind.SPOT if config.spot else CapacityKind.ON_DEMAND


def _pool_failure(pool: Message, body: Json) -> Failure:
    conditions = _pairs(pool.conditions, body.get("conditions"))
    # statusMessage is deprecated in favor of `conditions`, but often contains more text.
    failure = _failure(0, conditions, (pool.status_message,), user_texts_of(pool))
    return failure or Failure(kind=FailureKind.UNAVAILABLE, message="GKE gives no reason.")


def _failure(
    code: int, conditions: Iterable[tuple[Message, Json]], texts: Iterable[str], values: Iterable[str]
) -> Failure | None:
    """Return the failure in conditions and texts, None without text and code. A condition's code replaces code 0."""
    lines: dict[str, None] = {}
    for condition, body in conditions:
        code = code or condition.canonical_code
        name, message = _enum(condition, "code", body), condition.message
        lines[f"[{name}] {message}".strip() if name and name not in message else message] = None
    text = " ".join(filter(None, lines))
    for more in texts:
        if more not in text:
            text = more if text in more else f"{more} {text}"
    if not text and not code:
        return None
    message = text or f"GKE gives only the code {code}, without a message."
    return Failure(kind=classify_message(code, text, values), message=message)


def operation_of(operation: Message, body: Json, values: Iterable[str] = ()) -> Operation:
    """Return an operation. `values` are texts that users may have written in its request (`user_texts_of`)."""
    done = _enum(operation, "status", body) == "DONE"
    # Older responses have statusMessage and two lists of conditions instead of `error`.
    of_cluster = _pairs(operation.cluster_conditions, body.get("clusterConditions"))
    of_pool = _pairs(operation.nodepool_conditions, body.get("nodepoolConditions"))
    texts = (operation.status_message, operation.error.message)
    failure = _failure(operation.error.code, (*of_cluster, *of_pool), texts, values) if done else None
    return Operation(name=OperationName(operation.name), done=done, failure=failure)


def cluster_of(cluster: Message, body: Json) -> Cluster:
    """Return the facts about a cluster, without its certificate if that is damaged."""
    try:
        certificate = base64.b64decode(cluster.master_auth.cluster_ca_certificate, validate=True)
    except binascii.Error:
        certificate = b""
    groups = (url for pool in cluster.node_pools for url in pool.instance_group_urls)
    channel = fields.mapping(body.get("releaseChannel"))
    # Node auto-provisioning creates only accelerators for which the cluster has a limit.
    limits = cluster.autoscaling.resource_limits if cluster.autoscaling.enable_node_autoprovisioning else ()
    return Cluster(
        name=cluster.name,
        status=_enum(cluster, "status", body),
        release_channel=_enum(cluster.release_channel, "channel", channel),
        ca_certificate_pem=certificate,
        instance_group_urls=tuple(dict.fromkeys((*cluster.instance_group_urls, *groups))),
        autopilot=cluster.autopilot.enabled,
        auto_provisioned_tpus=tuple(
            limit.resource_type for limit in limits if "tpu" in limit.resource_type and limit.maximum > 0
        ),
        workload_pool=cluster.workload_identity_config.workload_pool,
        pools_without_identity=tuple(
            pool.name
            for pool in cluster.node_pools
            if _enum(pool.config.workload_metadata_config, "mode", {}) != "GKE_METADATA"
        ),
    )


def create_request_json(cluster_path: str, request: NodePoolRequest) -> dict[str, Any]:
    """Return the JSON body of a create, without most fields that are empty, 0 or false."""
    late = request.capacity is CapacityKind.FLEX_START
    pool: dict[str, Any] = {
        "name": request.name,
        "config": _config_json(request),
        # Flex-start pools must begin without nodes, and grow to their whole size in one step.
        "initialNodeCount": 0 if late else request.hosts,
        # A flex-start node that is released for a repair may not be available again.
        "management": _filled(autoUpgrade=request.auto_upgrade, autoRepair=not late),
        "locations": [request.zone],
        "upgradeSettings": {"strategy": "SHORT_LIVED"} if late else {"maxSurge": 1},
        # `maxNodeCount` is for one zone: GKE rejects a total maximum for a slice ("0 is not a valid size").
        "autoscaling": {"enabled": True, "maxNodeCount": request.hosts, "locationPolicy": "ANY"} if late else {},
        "placementPolicy": _placement_json(request),
        "networkConfig": _filled(acceleratorNetworkProfile=request.labels.get(constants.NETWORK_PROFILE, "")),
        # An upgrade of the nodes would interrupt the job, and the pool is deleted after the job anyway.
        "maintenancePolicy": {"exclusionUntilEndOfSupport": {"enabled": True}} if request.auto_upgrade else {},
    }
    for path, value in node_fields.request_fields(request):
        if path and value not in ({}, []):
            *parents, last = path.split(".")
            reduce(lambda body, key: body.setdefault(key, {}), parents, pool)[last] = value
    # An empty management message turns autoUpgrade and autoRepair off; without the message, GKE uses its defaults.
    return {"nodePool": _filled(**pool) | {"management": pool["management"]}, "parent": cluster_path}


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
    return _filled(
        machineType=request.machine_type,
        labels=dict(sorted(request.labels.items())),
        taints=[_filled(key=taint.key, value=taint.value, effect=_EFFECTS[taint.effect]) for taint in request.taints],
        shieldedInstanceConfig={"enableIntegrityMonitoring": True},
        reservationAffinity=affinity,
        spot=request.capacity is CapacityKind.SPOT,
        maxRunDuration=f"{request.max_run_seconds}s" if request.max_run_seconds else "",
        flexStart=request.capacity is CapacityKind.FLEX_START,
    )


def _placement_json(request: NodePoolRequest) -> dict[str, Any]:
    if request.policy_name:
        # A workload policy together with type COMPACT results in a pool with status ERROR.
        return {"policyName": request.policy_name}
    topology = request.placement_topology
    return {"type": "COMPACT", "tpuTopology": topology} if topology else {}


def _filled(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def user_texts_of(pool: Message) -> tuple[str, ...]:
    """Return texts that users may have written in a requested or listed node pool, such as names and labels."""
    config, labels, networks = pool.config, pool.config.labels, pool.network_config.additional_node_network_configs
    return (
        pool.name,
        *pool.locations,
        pool.placement_policy.policy_name,
        *(config.machine_type, config.disk_type, config.service_account, config.boot_disk_kms_key),
        *(disk.disk_image for disk in config.secondary_boot_disks),
        *config.reservation_affinity.values,
        *config.tags,
        pool.network_config.pod_range,
        *config.resource_labels.values(),
        *labels,
        *labels.values(),
        *(part for taint in config.taints for part in (taint.key, taint.value)),
        *(part for network in networks for part in (network.network, network.subnetwork)),
    )


def workload_policy_of(body: Json) -> WorkloadPolicy:
    """Return a resource policy from its JSON. Its type and topology are empty if it is no workload policy."""
    policy = fields.mapping(body.get("workloadPolicy"))
    return WorkloadPolicy(
        name=fields.text(body.get("name")),
        type=fields.text(policy.get("type")),
        topology=fields.text(policy.get("acceleratorTopology")),
        status=fields.text(body.get("status")),
    )


def reservation_of(body: Json) -> Reservation:
    """Return a reservation from its JSON. Raises ValueError if its end is not a time."""
    end = str(body.get("deleteAtTime") or "")
    ends_at = datetime.fromisoformat(end).astimezone(UTC) if end else None
    return Reservation(status=fields.text(body.get("status")), ends_at=ends_at)
