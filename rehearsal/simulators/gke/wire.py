"""JSON bodies of GKE for clusters, pools and operations.

Bodies are canonical JSON with enums as names. The bodies of a pool are cached until the pool changes, because lists of
hundreds of pools are requested often.
"""

from __future__ import annotations

import hashlib
from typing import Any

from rehearsal.simulators.gke import names, validation
from rehearsal.simulators.gke.names import ClusterName
from rehearsal.simulators.gke.records import Cluster, Operation, Pool, PoolStatus
from rehearsal.simulators.gke.settings import SimulatorSettings
from rehearsal.simulators.gke.validation import Failure
from rehearsal.simulators.http import google
from rehearsal.simulators.http.fieldmask import Mask, apply

_DEFAULT_PODS = "110"
_RENDERINGS_KEPT = 8


def pool_body(pool: Pool, *, version: str) -> dict[str, Any]:
    """Return a NodePool with the defaults of GKE."""
    sent, name = pool.body, pool.cluster
    config = {
        "machineType": pool.plan.machine.name,
        "diskSizeGb": 100,
        "diskType": pool.plan.machine.disks[0],
        "imageType": "COS_CONTAINERD",
        "metadata": {"disable-legacy-endpoints": "true"},
        "oauthScopes": list(validation.ADDED),
        "serviceAccount": "default",
        "shieldedInstanceConfig": {"enableIntegrityMonitoring": True},
        "workloadMetadataConfig": {"mode": "GKE_METADATA"},
        **sent.get("config", {}),
    }
    # The field is left out, because clients read pools with v1, which does not have it.
    config.pop("hostMaintenancePolicy", None)
    body: dict[str, Any] = {
        **sent,
        "config": config,
        "initialNodeCount": sent.get("initialNodeCount", 0),
        "locations": list(pool.plan.zones),
        "selfLink": f"{names.CONTAINER_API}/{name.pool_path(pool.name)}",
        "version": version,
        "instanceGroupUrls": [names.group_url(name.project, zone, prefix) for zone, prefix in pool.groups.items()],
        "status": pool.status.value,
        "maxPodsConstraint": sent.get("maxPodsConstraint") or {"maxPodsPerNode": _DEFAULT_PODS},
        "podIpv4CidrSize": _pod_range(sent),
        # Fields that a client leaves out of `management` are false.
        "management": sent.get("management", {"autoUpgrade": True, "autoRepair": True}),
        "upgradeSettings": sent.get("upgradeSettings") or {"maxSurge": 1, "strategy": "SURGE"},
        "etag": pool.etag,
    }
    # proto3 JSON leaves out values that are false.
    body["management"] = {key: value for key, value in body["management"].items() if value}
    if pool.trouble is not None:
        body["statusMessage"] = pool.trouble.message
        body["conditions"] = [_condition(pool.trouble)]
    return body


def _pod_range(sent: dict[str, Any]) -> int:
    """Return the prefix length of a node's pod range: twice the pods, rounded up to a power of two."""
    pods = int(sent.get("maxPodsConstraint", {}).get("maxPodsPerNode", _DEFAULT_PODS))
    return 32 - (2 * pods - 1).bit_length()


def _condition(failure: Failure) -> dict[str, Any]:
    condition = {"canonicalCode": failure.status, "message": failure.message}
    return {"code": failure.condition, **condition} if failure.condition else condition


def masked_pool(pool: Pool, *, version: str, mask: Mask, mask_key: str) -> dict[str, Any]:
    """Return the part of a pool's body that a client requested."""
    key = (mask_key, version)
    known: dict[str, Any] | None = pool.rendered.get(key)
    if known is None:
        known = apply(mask, pool_body(pool, version=version))
        if len(pool.rendered) >= _RENDERINGS_KEPT:
            pool.rendered.clear()
        pool.rendered[key] = known
    return known


def operation_body(operation: Operation) -> dict[str, Any]:
    """Return an Operation."""
    name = operation.cluster
    scope = f"projects/{name.project}/{names.location_kind(name.location)}/{name.location}"
    target = name.pool_path(operation.pool)
    body: dict[str, Any] = {
        "name": operation.name,
        "zone": name.location,
        "location": name.location,
        "operationType": operation.kind.value,
        "status": operation.status.value,
        "selfLink": f"{names.CONTAINER_API}/" + google.numbered(f"{scope}/operations/{operation.name}", name.project),
        "targetLink": f"{names.CONTAINER_API}/{google.numbered(target, name.project)}",
        "startTime": names.timestamp(operation.started),
    }
    if operation.ended is not None:
        body["endTime"] = names.timestamp(operation.ended)
    if operation.failure is not None:
        failure = operation.failure
        body["statusMessage"] = body["detail"] = failure.message
        body["clusterConditions"] = [_condition(failure)]
        body["nodepoolConditions"] = [_condition(failure)]
        body["error"] = {
            "code": google.canonical(failure.status)[0],
            "message": failure.message,
        }
    return body


def cluster_body(
    cluster: Cluster, *, settings: SimulatorSettings, ca_certificate: str, endpoint: str
) -> dict[str, Any]:
    """Return a Cluster without its pools; the caller adds them."""
    name, version = cluster.name, settings.version
    zones = names.zones_of(name.location)
    broken = any(pool.status is PoolStatus.ERROR for pool in cluster.pools.values())
    return {
        "name": name.cluster,
        "nodeConfig": {"machineType": "e2-medium", "diskSizeGb": 100, "imageType": "COS_CONTAINERD"},
        "masterAuth": {"clusterCaCertificate": ca_certificate} if ca_certificate else {},
        "loggingService": "logging.googleapis.com/kubernetes",
        "monitoringService": "monitoring.googleapis.com/kubernetes",
        "network": "default",
        "subnetwork": "default",
        "locations": list(zones),
        "ipAllocationPolicy": {"useIpAliases": True},
        "selfLink": f"{names.CONTAINER_API}/{name.path}",
        "zone": name.location,
        "location": name.location,
        "endpoint": endpoint,
        "initialClusterVersion": version,
        "currentMasterVersion": version,
        "currentNodeVersion": version,
        "createTime": names.timestamp(cluster.created)[:19] + "+00:00",
        "status": "RUNNING",
        "releaseChannel": {"channel": settings.release_channel} if settings.release_channel else {},
        "currentNodeCount": sum(node.is_wanted for pool in cluster.pools.values() for node in pool.nodes),
        "id": hashlib.sha256(name.path.encode()).hexdigest(),
        **({"conditions": [{"canonicalCode": "UNKNOWN", "message": "a node pool is in ERROR"}]} if broken else {}),
        **_cluster_features(name, settings),
    }


def _cluster_features(name: ClusterName, settings: SimulatorSettings) -> dict[str, Any]:
    """Return the parts of a Cluster that show enabled features; proto3 JSON leaves out disabled ones."""
    features: dict[str, Any] = {}
    if settings.autopilot:
        features["autopilot"] = {"enabled": True}
    limits = settings.auto_provisioning_limits
    if limits:
        features["autoscaling"] = {
            "enableNodeAutoprovisioning": True,
            "resourceLimits": [{"resourceType": key, "maximum": str(value)} for key, value in limits.items()],
        }
    if settings.workload_identity:
        features["workloadIdentityConfig"] = {"workloadPool": f"{name.project}.svc.id.goog"}
    return features
