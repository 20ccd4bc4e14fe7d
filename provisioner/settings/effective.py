"""The effective settings, as the rest of the program sees them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from provisioner import constants
from provisioner.model.capacity import Network, Zone
from provisioner.model.choices import CapacityChoice
from provisioner.model.cluster import ClusterName
from provisioner.settings.forms import GCE, GKE, SCOPE_PREFIX
from provisioner.settings.prices import Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The effective settings; each field is described by its entry in OPTIONS."""

    project_id: str
    cluster_location: str
    zone: Zone
    cluster: str
    node_service_account: str = ""
    node_oauth_scopes: tuple[str, ...] = (f"{SCOPE_PREFIX}cloud-platform",)
    node_tags: tuple[str, ...] = ()
    pod_to_node_labels: tuple[str, ...] = ()
    node_secondary_disk: str = ""
    node_secure_boot: bool = True
    node_additional_networks: tuple[Network, ...] = ()
    node_disk_type: str = ""
    node_confidential_storage: bool = False
    node_boot_disk_kms_key: str = ""
    force_on_demand: bool = False
    node_min_lifespan_seconds: float = 10.0
    deletion_delay_seconds: float = 30.0
    keep_suspended: bool = False
    ready_timeout_seconds: float = 900.0
    replaced_share_percent: int = 20
    #: None: as the cluster's release channel demands.
    auto_upgrade: bool | None = None
    replace_stuck_slices: bool = False
    concurrency: int = 16
    max_pods_per_node: int = 15
    provider: str = GKE
    #: Empty: its own.
    node_group_namespace: str = ""
    node_images: tuple[tuple[str, str], ...] = ()
    #: None: that of the image.
    node_disk_gb: int | None = None
    node_subnetwork: str = "default"
    capacity_wait_seconds: float = 600.0
    gke_endpoint: str = ""
    serve_jobs: bool = False
    namespaces: tuple[str, ...] = ()
    opt_in_label: tuple[str, str] | None = None
    zones: tuple[Zone, ...] = ()
    capacity: tuple[CapacityChoice, ...] = ()
    same_zone: bool = False
    max_run_seconds: float = 0.0
    all_or_nothing: bool = False
    partial_hold_seconds: float = 1200.0
    #: Limits: None stands for no limit.
    max_chips: int | None = None
    max_chips_per_namespace: tuple[tuple[str, int], ...] = ()
    max_chips_per_accelerator: tuple[tuple[str, int], ...] = ()
    max_pools_per_jobset: int | None = None
    max_creates_per_hour: int | None = None
    allowed_namespaces: tuple[str, ...] | None = None
    allowed_reservations: tuple[str, ...] | None = None
    allowed_service_accounts: tuple[str, ...] | None = None
    allowed_networks: tuple[str, ...] | None = None
    allowed_label_keys: tuple[str, ...] | None = None
    pause_creation: bool = False
    prices: Prices = field(default_factory=Prices)
    single_host_placement: bool = False
    assume_same_cluster: bool = False
    own_namespace: str = constants.DEFAULT_NAMESPACE
    own_name: str = ""
    log_level: str = "info"

    @property
    def on_gce(self) -> bool:
        """Whether capacity comes from TPUNodeGroups, and not from GKE."""
        return self.provider == GCE

    @property
    def node_groups_in(self) -> str:
        """The namespace of the TPUNodeGroups."""
        return self.node_group_namespace or self.own_namespace

    @property
    def cluster_name(self) -> ClusterName:
        """The full name of the cluster."""
        return ClusterName(project=self.project_id, location=self.cluster_location, cluster=self.cluster)

    def on_channel(self, release_channel: str) -> Settings:
        """Return the settings with auto-upgrade fixed for a cluster on this release channel, or on none (empty)."""
        if self.auto_upgrade is not None:
            return self
        # Upgraded in name alone: the exclusion comes with it.
        return replace(self, auto_upgrade=bool(release_channel))
