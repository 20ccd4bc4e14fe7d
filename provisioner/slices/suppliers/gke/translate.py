"""Between GKE's protocol buffers and our types, field by field. Nothing here calls anybody.

Enums are read as numbers, so that a value which this release of the library does not know is neither an error nor a
warning.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from google.cloud import container_v1
from google.protobuf import json_format  # type: ignore[import-untyped]

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
from provisioner.slices.suppliers.gke import echoes, errors
from provisioner.slices.suppliers.gke.protocol import Cluster
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
#: Exactly what a Cluster is made from.
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


def _members(kind: Any) -> dict[int, str]:
    """Return the numbers and names of one of the library's enums, whose types do not say that they are enums."""
    return {int(member): str(member.name) for member in kind}


_RESERVATION_KEY = "compute.googleapis.com/reservation-name"
_EFFECTS = {
    "NoSchedule": container_v1.NodeTaint.Effect.NO_SCHEDULE,
    "PreferNoSchedule": container_v1.NodeTaint.Effect.PREFER_NO_SCHEDULE,
    "NoExecute": container_v1.NodeTaint.Effect.NO_EXECUTE,
}
_GKE_METADATA = int(container_v1.WorkloadMetadataConfig.Mode.GKE_METADATA)
_EFFECT_NAMES = {int(number): name for name, number in _EFFECTS.items()}
_POOL_STATUSES = {
    number: PoolStatus[name]
    for number, name in _members(container_v1.NodePool.Status).items()
    if name in PoolStatus.__members__
}
_FAILED = frozenset({PoolStatus.ERROR, PoolStatus.RUNNING_WITH_ERROR})
_CONDITION_CODES = _members(container_v1.StatusCondition.Code)
_CLUSTER_STATUSES = _members(container_v1.Cluster.Status)
_RELEASE_CHANNELS = _members(container_v1.ReleaseChannel.Channel)


def node_pool_from_json(body: Mapping[str, Any]) -> NodePool:
    """Return a node pool from its JSON; one that cannot be read keeps its name and gets status UNKNOWN."""
    message = container_v1.NodePool.pb(container_v1.NodePool())
    try:
        json_format.ParseDict(dict(body), message, ignore_unknown_fields=True)
        return node_pool_from_message(message)
    except (json_format.Error, ValueError):
        return NodePool(name=PoolName(str(body.get("name", ""))), status=PoolStatus.UNKNOWN)


def node_pool_from_message(message: Any) -> NodePool:
    """Return a node pool from its raw protocol buffer."""
    status = _POOL_STATUSES.get(message.status, PoolStatus.UNKNOWN)
    affinity = message.config.reservation_affinity
    # ANY_RESERVATION and the like name none.
    reservation = affinity.values[0] if affinity.key == _RESERVATION_KEY and affinity.values else ""
    labels, placement = dict(message.config.labels), message.placement_policy
    autoscaled_to = message.autoscaling.max_node_count if message.autoscaling.enabled else 0
    return NodePool(
        name=PoolName(message.name),
        status=status,
        failure=_pool_failure(message) if status in _FAILED else None,
        labels=labels,
        taints=tuple(
            Taint(key=taint.key, value=taint.value, effect=_EFFECT_NAMES.get(taint.effect, ""))
            for taint in message.config.taints
        ),
        machine_type=message.config.machine_type,
        hosts=max(autoscaled_to, message.initial_node_count),
        zones=tuple(Zone(zone) for zone in message.locations),
        topology=slice_topology(
            placement_topology=placement.tpu_topology,
            labels=labels,
            policy_name=placement.policy_name,
            machine_type=message.config.machine_type,
        ),
        capacity=_capacity_kind(message, reservation),
        reservation=reservation,
        policy_name=placement.policy_name,
        disk_type=message.config.disk_type,
    )


def _capacity_kind(message: Any, reservation: str) -> CapacityKind:
    if reservation:
        return CapacityKind.RESERVATION
    if message.config.flex_start:
        return CapacityKind.FLEX_START
    return CapacityKind.SPOT if message.config.spot else CapacityKind.ON_DEMAND


def _pool_failure(message: Any) -> Failure:
    code, text = _words_of_conditions(message.conditions)
    # statusMessage is the deprecated form of the conditions, and often the fuller one.
    text = _joined(message.status_message, text)
    if not text and code is None:
        return Failure(kind=FailureKind.UNAVAILABLE, message="GKE gives no reason.")
    return Failure(kind=errors.classify_message(code, text, echoes.of_pool(message)), message=text)


def _words_of_conditions(conditions: Any) -> tuple[int | None, str]:
    """Return the first canonical code, and all texts, each after its GKE code where that says something."""
    canonical: int | None = None
    texts = []
    for condition in conditions:
        canonical = canonical or condition.canonical_code or None
        name = _CONDITION_CODES.get(condition.code, "") if condition.code else ""
        # Many messages begin with the code already.
        text = f"[{name}] {condition.message}".strip() if name and name not in condition.message else condition.message
        if text and text not in texts:
            texts.append(text)
    return canonical, " ".join(texts)


def _joined(words: str, text: str) -> str:
    """Put two texts one after the other, of which one may say all that the other does."""
    if words in text:
        return text
    return words if text in words else f"{words} {text}"


def operation_from_message(message: Any, values: Iterable[str] = ()) -> Operation:
    """Return an operation from its raw protocol buffer; DONE does not mean that it succeeded.

    `values` are what its request said of itself (see `echoes`).
    """
    done = message.status == int(container_v1.Operation.Status.DONE)
    return Operation(
        name=OperationName(message.name), done=done, failure=_operation_failure(message, values) if done else None
    )


def _operation_failure(message: Any, values: Iterable[str]) -> Failure | None:
    # `error` replaces the three others, which older answers still use instead of it.
    code, text = _words_of_conditions((*message.cluster_conditions, *message.nodepool_conditions))
    code = message.error.code or code
    for words in (message.status_message, message.error.message):
        text = _joined(words, text)
    if not text and code is None:
        return None
    return Failure(
        kind=errors.classify_message(code, text, values),
        message=text or f"The operation failed with code {code} and without a message.",
    )


def cluster_from_message(message: Any) -> Cluster:
    """Return the cluster from its raw protocol buffer."""
    try:
        certificate = base64.b64decode(message.master_auth.cluster_ca_certificate, validate=True)
    except binascii.Error:
        certificate = b""
    groups = [url for pool in message.node_pools for url in pool.instance_group_urls]
    return Cluster(
        name=message.name,
        status=_CLUSTER_STATUSES.get(message.status or -1, ""),
        release_channel=_RELEASE_CHANNELS.get(message.release_channel.channel or -1, ""),
        ca_certificate_pem=certificate,
        instance_group_urls=tuple(dict.fromkeys((*message.instance_group_urls, *groups))),
        autopilot=message.autopilot.enabled,
        auto_provisioned_tpus=_auto_provisioned_tpus(message.autoscaling),
        workload_pool=message.workload_identity_config.workload_pool,
        pools_without_identity=tuple(
            pool.name for pool in message.node_pools if pool.config.workload_metadata_config.mode != _GKE_METADATA
        ),
    )


def _auto_provisioned_tpus(autoscaling: Any) -> tuple[str, ...]:
    """Return the TPU resources with a limit above 0; for accelerators GKE has no auto-provisioning without a limit."""
    if not autoscaling.enable_node_autoprovisioning:
        return ()
    limits = autoscaling.resource_limits
    return tuple(limit.resource_type for limit in limits if "tpu" in limit.resource_type and limit.maximum > 0)


def node_pool_message(request: NodePoolRequest) -> container_v1.NodePool:
    """Return the body of a create."""
    config = container_v1.NodeConfig(
        machine_type=request.machine_type,
        labels=dict(request.labels),
        taints=[
            container_v1.NodeTaint(key=taint.key, value=taint.value, effect=_EFFECTS[taint.effect])
            for taint in request.taints
        ],
        spot=request.capacity is CapacityKind.SPOT,
        disk_type=request.disk_type,
        service_account=request.service_account,
        oauth_scopes=list(request.oauth_scopes),
        tags=list(request.tags),
        enable_confidential_storage=request.confidential_storage,
        boot_disk_kms_key=request.boot_disk_kms_key,
        shielded_instance_config=container_v1.ShieldedInstanceConfig(
            enable_integrity_monitoring=True, enable_secure_boot=request.secure_boot
        ),
    )
    if request.max_run_seconds:
        config.max_run_duration = timedelta(seconds=request.max_run_seconds)
    if request.reservation:
        config.reservation_affinity = container_v1.ReservationAffinity(
            consume_reservation_type=container_v1.ReservationAffinity.Type.SPECIFIC_RESERVATION,
            key=_RESERVATION_KEY,
            values=[request.reservation],
        )
    if request.secondary_boot_disk:
        config.secondary_boot_disks = [
            container_v1.SecondaryBootDisk(
                disk_image=request.secondary_boot_disk,
                mode=container_v1.SecondaryBootDisk.Mode.CONTAINER_IMAGE_CACHE,
            )
        ]
    pool = container_v1.NodePool(
        name=request.name,
        initial_node_count=request.hosts,
        locations=[request.zone],
        config=config,
        management=container_v1.NodeManagement(auto_repair=True, auto_upgrade=request.auto_upgrade),
        upgrade_settings=container_v1.NodePool.UpgradeSettings(max_surge=1),
        max_pods_constraint=container_v1.MaxPodsConstraint(max_pods_per_node=request.max_pods_per_node),
    )
    if request.auto_upgrade:
        # A new node version in the middle of a job would cost the job; the pool lives no longer than its work.
        pool.maintenance_policy = container_v1.NodePool.NodePoolMaintenancePolicy(
            exclusion_until_end_of_support={"enabled": True}
        )
    placement = container_v1.NodePool.PlacementPolicy
    if request.policy_name:
        # With a workload policy the type stays unset: COMPACT beside it ends in a pool in ERROR.
        pool.placement_policy = placement(policy_name=request.policy_name)
    elif request.placement_topology:
        pool.placement_policy = placement(type_=placement.Type.COMPACT, tpu_topology=request.placement_topology)
    if request.capacity is CapacityKind.FLEX_START:
        _make_empty(pool, request)
    if request.additional_networks:
        pool.network_config = container_v1.NodeNetworkConfig(
            additional_node_network_configs=[
                container_v1.AdditionalNodeNetworkConfig(network=one.network, subnetwork=one.subnetwork)
                for one in request.additional_networks
            ]
        )
    return pool


def create_request_json(cluster_path: str, request: NodePoolRequest) -> dict[str, Any]:
    """Return what a create sends, as JSON with enums by their names."""
    sent = container_v1.CreateNodePoolRequest(parent=cluster_path, node_pool=node_pool_message(request))
    found: dict[str, Any] = json_format.MessageToDict(container_v1.CreateNodePoolRequest.pb(sent))
    config = found["nodePool"]["config"]
    # A map of a message has no order.
    config["labels"] = dict(sorted(config["labels"].items()))
    return found


def _make_empty(pool: container_v1.NodePool, request: NodePoolRequest) -> None:
    """Let the pool begin without nodes and grow to its whole size at once, as flex-start capacity demands."""
    pool.initial_node_count = 0
    # The maximum counts by zone: of the total, GKE says that 0 is not a valid size of a slice.
    pool.autoscaling = container_v1.NodePoolAutoscaling(
        enabled=True,
        min_node_count=0,
        max_node_count=request.hosts,
        location_policy=container_v1.NodePoolAutoscaling.LocationPolicy.ANY,
    )
    # A node that is given back for repair is not had again.
    pool.management.auto_repair = False
    pool.upgrade_settings = container_v1.NodePool.UpgradeSettings(
        strategy=container_v1.NodePoolUpdateStrategy.SHORT_LIVED
    )
    pool.config.reservation_affinity = container_v1.ReservationAffinity(
        consume_reservation_type=container_v1.ReservationAffinity.Type.NO_RESERVATION
    )
    pool.config.flex_start = True


def workload_policy_from_json(body: Mapping[str, Any]) -> WorkloadPolicy:
    """Return a resource policy from its JSON; one that is no workload policy has neither type nor topology."""
    workload = body.get("workloadPolicy")
    said = workload if isinstance(workload, dict) else {}
    return WorkloadPolicy(
        name=str(body.get("name", "")),
        type=str(said.get("type", "")),
        topology=str(said.get("acceleratorTopology", "")),
        status=str(body.get("status", "")),
    )


def workload_policy_json(policy: WorkloadPolicy) -> dict[str, Any]:
    """Return the body of a policy's create."""
    return {"name": policy.name, "workloadPolicy": {"type": policy.type, "acceleratorTopology": policy.topology}}
