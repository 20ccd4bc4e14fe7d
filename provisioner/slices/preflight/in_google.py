"""Checks of Google's resources: the cluster, its node pools, permissions, and the resources that settings name."""

import itertools
from collections.abc import Iterable

from provisioner.kube.api import KubeApi
from provisioner.model.capacity import FailureKind, PoolStatus
from provisioner.model.choices import reservation_parts
from provisioner.settings import Settings
from provisioner.slices.planning.spec.specification import read_ownership
from provisioner.slices.preflight import Finding, failed, ok, unknown, warning
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.identity_check import CHANNEL_CONSEQUENCE, autopilot_refusal, prove
from provisioner.slices.suppliers.gke.translate import Cluster, Reservation

_HEALTHY = frozenset({"RUNNING", "RECONCILING"})
#: Maximum number of checked reservations: each check takes one call per zone.
_MAX_RESERVATIONS = 20
_ROLES = "docs/install.md, Rights in Google Cloud, has the commands."
#: Required permissions on the project. The required roles in docs/install.md and Terraform grant these and ACT_AS.
PROJECT_PERMISSIONS = ("container.clusters.get", "container.clusters.update", "container.operations.get")
ACT_AS = "iam.serviceAccounts.actAs"
#: Optional permission. Without it, the ends of reservations are unknown.
READ_RESERVATION = "compute.reservations.get"


def check_status(cluster: Cluster) -> Finding:
    """Check the status that GKE reports for the cluster."""
    if cluster.status in _HEALTHY:
        return ok(f"GKE reports that {cluster.name!r} is {cluster.status}")
    return warning(
        f"GKE reports that {cluster.name!r} is {cluster.status or 'in an unknown status'}",
        f"See its status and conditions: gcloud container clusters describe {cluster.name}",
    )


def check_identity(cluster: Cluster, api: KubeApi, *, assume: bool) -> Finding:
    """Check that the API server of `api` belongs to the GKE cluster `cluster`."""
    proven, reason = prove(cluster, api, trusted_ca_pem=api.ca_pem, assume=assume)
    return ok(reason) if proven else failed(reason)


def check_channel(cluster: Cluster, *, auto_upgrade: bool | None) -> Finding:
    """Check the cluster's release channel against NODEPOOL_AUTO_UPGRADE (on: True, off: False, auto: None)."""
    if channel := cluster.release_channel:
        if auto_upgrade is False:
            advice = "GKE rejects node pools without auto-upgrade on a release channel; set it to auto."
            return warning(channel, f"NODEPOOL_AUTO_UPGRADE=off, but {advice}")
        return ok(f"{channel}: {CHANNEL_CONSEQUENCE}")
    if auto_upgrade:
        return warning(
            "none",
            "NODEPOOL_AUTO_UPGRADE=on, but the cluster has no release channel. GKE may then reject the maintenance "
            "exclusion that prevents upgrades of nodes while their jobs run; set it to auto.",
        )
    return ok("none: node pools are created with auto-upgrade off")


def check_autopilot(cluster: Cluster) -> Finding:
    """Check that the cluster is not an Autopilot cluster, in which the provisioner cannot work."""
    return failed(autopilot_refusal(cluster.name)) if cluster.autopilot else ok("a Standard cluster")


def check_auto_provisioning(cluster: Cluster) -> Finding:
    """Check that GKE's node auto-provisioning does not also create node pools with TPUs."""
    if cluster.auto_provisioned_tpus:
        return warning(
            "it creates node pools with TPUs too.",
            f"Node auto-provisioning has limits for {', '.join(cluster.auto_provisioned_tpus)} and acts on the same "
            "pods, so both may create a slice for one job. Set these limits to 0, or remove the TPU limits from "
            "auto-provisioning.",
        )
    return ok("creates no node pools with TPUs")


def check_workload_identity(cluster: Cluster) -> Finding:
    """Check whether the controller's pod can have its own IAM identity instead of the identity of its node."""
    if cluster.workload_pool and cluster.pools_without_identity:
        pools = cluster.pools_without_identity
        return warning(
            f"on: {cluster.workload_pool}, but pods on {', '.join(pools[:5])} (of {len(pools)} such node pools) have "
            "the permissions of their node, if any.",
            f"Enable it for the one that the controller runs on: gcloud container node-pools update {pools[0]} "
            f"--cluster={cluster.name} --workload-metadata=GKE_METADATA",
        )
    if cluster.workload_pool:
        return ok(f"on: {cluster.workload_pool}")
    return warning(
        "off: a controller that is installed in the cluster has the permissions of its node, if any.",
        f"Enable it: gcloud container clusters update {cluster.name} --workload-pool=PROJECT_ID.svc.id.goog",
    )


def check_node_pools(gke: GkeClient) -> Finding:
    """Check that all node pools can be listed and read."""
    pools = gke.list_node_pools()
    unreadable = sorted(pool.name for pool in pools if pool.status is PoolStatus.UNKNOWN)
    if unreadable:
        return warning(
            f"{len(unreadable)} of {len(pools)} cannot be read: {', '.join(unreadable[:5])}",
            "They are not changed; a newer release of the provisioner may be able to read them.",
        )
    owned = sum(read_ownership(pool.labels) is not None for pool in pools)
    return ok(f"{len(pools)} are listed, {owned} of them belong to the provisioner")


def check_permissions(gke: GkeClient, project: str) -> Finding:
    """Check that the provisioner's identity has all PROJECT_PERMISSIONS."""
    try:
        granted = gke.test_project_permissions(PROJECT_PERMISSIONS)
    except GkeError as error:
        return unknown(str(error), _ask_by_gcloud(error, project, "cloudresourcemanager.googleapis.com"))
    missing = [permission for permission in PROJECT_PERMISSIONS if permission not in granted]
    if missing:
        return failed(f"{', '.join(missing)} missing on project {project}", f"Grant them: {_ROLES}")
    return ok(f"{', '.join(PROJECT_PERMISSIONS)} on project {project}")


def check_node_account(gke: GkeClient, settings: Settings) -> Finding:
    """Check that the provisioner's identity may act as the service account of the nodes."""
    account, project = settings.node_service_account, settings.project_id
    if not account:
        return warning(
            "GCP_NODE_SERVICE_ACCOUNT is not set, so nodes get Compute Engine's default service account",
            f"Set it to an account with few permissions, and grant {ACT_AS} on that account: {_ROLES}",
        )
    try:
        granted = gke.test_account_permissions(account, (ACT_AS,))
    except GkeError as error:
        if error.failure.kind is FailureKind.NOT_FOUND:
            return failed(f"{account} does not exist: {error}", "Create it, or change GCP_NODE_SERVICE_ACCOUNT.")
        return unknown(str(error), _ask_by_gcloud(error, project, "iam.googleapis.com"))
    if ACT_AS in granted:
        return ok(f"{ACT_AS} on {account}")
    return failed(f"{ACT_AS} missing on {account}, so GKE rejects every node pool", f"Grant {ACT_AS} on it: {_ROLES}")


def _ask_by_gcloud(error: GkeError, project: str, service: str) -> str:
    if error.failure.kind is FailureKind.PERMISSION:
        return f"If the API is not enabled: gcloud services enable {service} --project={project}"
    return "Try again later."


def named_reservations(settings: Settings) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the reservations that settings name, by project and name, each with the zones to check.

    Reservations in CAPACITY come first, then those in ALLOWED_RESERVATIONS without a wildcard; at most 20 in total.
    """
    everywhere = tuple(settings.zones or (settings.zone,))
    reservations: dict[tuple[str, str], tuple[str, ...]] = {}
    for choice in settings.capacity:
        if choice.reservation:
            project, name, _, _ = reservation_parts(choice.reservation)
            key = project or settings.project_id, name
            zones = (choice.zone,) if choice.zone else everywhere
            reservations[key] = tuple(dict.fromkeys((*reservations.get(key, ()), *zones)))
    for allowed in settings.allowed_reservations or ():
        project, _, name = allowed.rpartition("/")
        if not allowed.endswith("*"):
            reservations.setdefault((project or settings.project_id, name), everywhere)
    return dict(itertools.islice(reservations.items(), _MAX_RESERVATIONS))


def check_reservation(gke: GkeClient, project: str, name: str, zones: Iterable[str]) -> Finding:
    """Check that a reservation exists and is READY in at least one of the zones."""
    by_zone: dict[str, Reservation] = {}
    for zone in zones:
        try:
            by_zone[zone] = gke.get_reservation(project=project, zone=zone, name=name)
        except GkeError as error:
            kind = error.failure.kind
            if kind is FailureKind.NOT_FOUND:
                continue
            advice = f"Grant {READ_RESERVATION} on project {project}." if kind is FailureKind.PERMISSION else ""
            return unknown(str(error), advice)
    if not by_zone:
        return failed(
            f"project {project} has no reservation of this name in {', '.join(zones)}",
            "Correct its name, project or zone in CAPACITY or ALLOWED_RESERVATIONS.",
        )
    ends = {
        zone: f" until {at:%Y-%m-%d %H:%M} UTC"
        for zone, reservation in by_zone.items()
        if (at := reservation.ends_at) is not None
    }
    where = ", ".join(
        f"{reservation.status or 'of an unknown status'} in {zone}{ends.get(zone, '')}"
        for zone, reservation in by_zone.items()
    )
    if all(reservation.status != "READY" for reservation in by_zone.values()):
        return warning(f"{where}, not READY", "Until it is READY, node pools on it fail.")
    return ok(where)
