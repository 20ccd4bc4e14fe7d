"""Options of the controller of slices. Options that the Go provisioner also has keep their names."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from provisioner import constants
from provisioner.model import choices
from provisioner.model.capacity import ClusterName, Zone
from provisioner.model.choices import CapacityChoice
from provisioner.settings import forms, node_forms
from provisioner.settings.forms import ACCELERATOR, GCE, Prices, check_accelerator, parse_prices
from provisioner.settings.node_fields import NodeFields, allowed_settings
from provisioner.settings.option import MAX_CONCURRENCY, Group, options_of

IMAGE = re.compile(r"[A-Za-z0-9:/._~-]*projects/[A-Za-z0-9:._~-]+/global/images/[A-Za-z0-9/._~-]+")
_IMAGE_FORM = '"ACCELERATOR=IMAGE" (or "*" for all others), such as "tpu7x=projects/my-project/global/images/my-image"'


def parse_images(text: str) -> tuple[tuple[str, str], ...]:
    """Read boot images by accelerator label. Raises ValueError with the mistake."""
    image = forms.matching(IMAGE, f"an image; the form is {_IMAGE_FORM}")
    return forms.by_name(text, f"of the form {_IMAGE_FORM}", ACCELERATOR, image, check_accelerator)


_required = Group.REQUIRED.required
_workloads = Group.WORKLOADS.option
_capacity = Group.CAPACITY.option
_limits = Group.LIMITS.option
_nodes = Group.NODES.option
_compute_engine = Group.COMPUTE_ENGINE.option
_tuning = Group.TUNING.option
_environment = Group.ENVIRONMENT.option


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(NodeFields):
    """Effective settings of the controller of slices. A limit of None means no limit."""

    # fmt: off
    project_id: str = _required(
        "GCP_PROJECT_ID", forms.matching(choices.PROJECT, "a Google Cloud project id"),
        "The project of the cluster, e.g. my-project. Inferred on Google Cloud machines.")
    cluster_location: str = _required(
        "GCP_CLUSTER_LOCATION",
        forms.matching(forms.LOCATION, "a region such as us-central2 or a zone such as us-central2-b"),
        "The region of a regional cluster or the zone of a zonal one, e.g. us-central2. Inferred on GKE.")
    zone: Zone = _required(
        "GCP_ZONE", forms.matching(forms.LOCATION, "a zone such as us-central2-b"),
        "The zone in which node pools are created, e.g. us-central2-b. Inferred on Google Cloud.")
    cluster: str = _required(
        "GCP_CLUSTER", forms.matching(forms.CLUSTER, "a GKE cluster name"),
        "The name of the cluster, e.g. my-cluster. Inferred on GKE.")

    serve_jobs: bool = _workloads(
        "SERVE_JOBS", forms.go_bool, "false",
        'Also serve plain Jobs with the annotation tpu-provisioner.cloud.google.com/serve: "true", which needs the '
        "permission to watch Jobs.")
    serve_pods: str = _workloads(
        "SERVE_PODS", forms.choice("all", "annotated", "none"), "all",
        "Serve pods of any controller and pods without one: all, annotated (only pods with the annotation "
        'tpu-provisioner.cloud.google.com/serve: "true") or none.')
    pod_deletion_cost: bool = _workloads(
        "POD_DELETION_COST", forms.go_bool, "true",
        "Annotate pods of Deployments on several shared node pools with controller.kubernetes.io/pod-deletion-cost, "
        "so that a scale-in empties one node pool before the next.")
    namespaces: tuple[str, ...] = Group.WORKLOADS.served_namespaces(
        "Comma-separated namespaces whose workloads are served. Empty: all.")
    opt_in_label: tuple[str, str] | None = _workloads(
        "OPT_IN_LABEL", forms.label, None,
        'Serve only pods that have this label ("key=value") or whose namespace has it. Empty: all. It separates no '
        "tenants without an admission policy.")

    force_on_demand: bool = _capacity(
        "GCP_FORCE_ON_DEMAND", forms.go_bool, "false",
        "Never create spot pools or use reservations. If a pod selects them, an Event says so.")
    zones: tuple[Zone, ...] = _capacity(
        "ZONES", choices.parse_zones, (),
        "Comma-separated zones of the cluster's region in which pools may be created, best first. Empty: GCP_ZONE. A "
        "pod's own selector takes precedence.")
    capacity: tuple[CapacityChoice, ...] = _capacity(
        "CAPACITY", choices.parse_choices, (),
        'Comma-separated choices of capacity, best first: "reservation/r1, on-demand, spot, flex-start"; "@zone" '
        "restricts a choice to one zone. Empty: on-demand. A pod's own selector takes precedence.")
    same_zone: bool = _capacity(
        "SAME_ZONE", forms.go_bool, "false", "Create all pools of one workload in one zone.")
    max_run_seconds: float = _capacity(
        "MAX_RUN_DURATION", forms.go_duration_seconds, "0s",
        "Google removes the nodes of flex-start pools after this time; 10 minutes to 7 days. 0: 7 days.")
    all_or_nothing: bool = _capacity(
        "ALL_OR_NOTHING", forms.go_bool, "false",
        "Start the slices of a workload together: nodes have a taint until every slice has a ready pool.")
    partial_hold_seconds: float = _capacity(
        "PARTIAL_HOLD", forms.go_duration_seconds, "20m",
        "With ALL_OR_NOTHING or a gang: slices are given back if no further one came up for this time, and none is "
        "being created.")

    max_chips: int | None = _limits(
        "MAX_CHIPS", forms.whole_number(0, forms.MOST), None,
        "Maximum number of chips of all node pools together.")
    max_chips_per_namespace: tuple[tuple[str, int], ...] = _limits(
        "MAX_CHIPS_PER_NAMESPACE", forms.amounts(forms.NAMESPACE, "a namespace name"), (),
        'Maximum number of chips that the pods of a namespace use, with idle pools created for it: "team-a=512, '
        'team-b=64, *=16"; * is every other namespace.')
    max_requested_chips_per_namespace: tuple[tuple[str, int], ...] = _limits(
        "MAX_REQUESTED_CHIPS_PER_NAMESPACE", forms.amounts(forms.NAMESPACE, "a namespace name"), "*=1024",
        "Maximum number of chips that ProvisioningRequests and CapacityBuffers of a namespace hold while no pods "
        'use them, which no ResourceQuota counts: "team-a=4096, *=0"; * is every other namespace.')
    max_chips_per_accelerator: tuple[tuple[str, int], ...] = _limits(
        "MAX_CHIPS_PER_ACCELERATOR", forms.amounts(ACCELERATOR, "an accelerator label", check_accelerator), (),
        'Maximum number of chips of one accelerator: "tpu-v5p-slice=1024, *=0".')
    max_pools_per_jobset: int | None = _limits(
        "MAX_POOLS_PER_JOBSET", forms.whole_number(0, forms.MOST), None,
        "Maximum number of node pools of a workload, with idle ones created for it.")
    max_creates_per_hour: int | None = _limits(
        "MAX_CREATES_PER_HOUR", forms.whole_number(0, forms.MOST), None,
        "Maximum number of node pools that are created within any hour.")
    allowed_namespaces: tuple[str, ...] | None = _limits(
        "ALLOWED_NAMESPACES", forms.allowed(forms.NAME_OR_PREFIX, "a namespace name, or its beginning and *"), None,
        'Comma-separated namespaces whose workloads may have pools; "team-*" allows all names that begin with "team-". '
        "Others get an Event. Empty: all.")
    allowed_reservations: tuple[str, ...] | None = _limits(
        "ALLOWED_RESERVATIONS", forms.allowed(forms.NAME_OR_PREFIX, "a reservation"), None,
        'Comma-separated reservations that a pod or workload may name, as "r1" or "project/r1". "none": none. Empty: '
        "all that IAM allows. Those in CAPACITY are always allowed.")
    allowed_service_accounts: tuple[str, ...] | None = _limits(
        "ALLOWED_SERVICE_ACCOUNTS", forms.allowed(forms.NAME_OR_PREFIX, "a service account"), None,
        "The same for service accounts of nodes. GCP_NODE_SERVICE_ACCOUNT is always allowed.")
    allowed_networks: tuple[str, ...] | None = _limits(
        "ALLOWED_NETWORKS", forms.allowed(forms.NAME_OR_PREFIX, "a network"), None,
        'The same for additional networks, as "vpc" or "vpc:subnet".')
    allowed_label_keys: tuple[str, ...] | None = _limits(
        "ALLOWED_LABEL_KEYS", forms.allowed(forms.NAME_OR_PREFIX, "a label key"), None,
        "The same for keys of node labels that a pod sets by selector or copy-labels. Those in GCP_POD_TO_NODE_LABELS "
        "are always allowed.")
    allowed_node_settings: node_forms.Entries = _limits(
        "ALLOWED_NODE_SETTINGS", allowed_settings, (),
        'Comma-separated annotations by which workloads may choose node settings, such as "node-disk-size=500, '
        'node-image-type, node-labels=team=*". Empty: none.')
    pause_creation: bool = _limits(
        "PAUSE_CREATION", forms.go_bool, "false", "Create no pools. Existing pools are used and deleted as usual.")
    prices: Prices = _limits(
        "CHIP_HOUR_PRICES", parse_prices, Prices(),
        "The price of one chip for one hour, by accelerator and capacity type, in any one currency: "
        '"tpu-v6e-slice/spot=1.35, tpu-v6e-slice=2.7, *=3, currency=USD"; * is every other accelerator. Empty: no cost '
        "is shown.")

    pod_to_node_labels: tuple[str, ...] = _nodes(
        "GCP_POD_TO_NODE_LABELS", forms.list_of(forms.LABEL_KEY, "a label key"), (),
        "Comma-separated pod labels to copy to the nodes.")
    #: Whether GKE upgrades node pools; None if the cluster's release channel decides.
    auto_upgrade: bool | None = _nodes(
        "NODEPOOL_AUTO_UPGRADE", forms.auto_upgrade, "auto",
        "auto, on or off. auto: on only on a release channel, where GKE requires it, with a maintenance exclusion "
        "until the end of support.")
    single_host_placement: bool = _nodes(
        "SINGLE_HOST_PLACEMENT", forms.placement, "none",
        "none or compact: COMPACT placement of single-host pools, as the Go provisioner sends it.")

    node_group_namespace: str = _compute_engine(
        "NODE_GROUP_NAMESPACE", forms.matching(forms.NAMESPACE, "a namespace name"), "",
        "The namespace of the TPUNodeGroups. Empty: the provisioner's own.")
    node_images: tuple[tuple[str, str], ...] = _compute_engine(
        "NODE_GROUP_IMAGES", parse_images, (),
        'Boot images by accelerator, "tpu-v6e-slice=projects/p/global/images/a, tpu7x=projects/p/global/images/b"; * '
        "is every other accelerator. Required.")
    node_disk_gb: int | None = _compute_engine(
        "NODE_GROUP_DISK_GB", forms.whole_number(10, 65_536), None,
        "The size of boot disks in GB. Empty: that of the image.")
    node_subnetwork: str = _compute_engine(
        "NODE_GROUP_SUBNETWORK", forms.matching(forms.SUBNETWORK, "the name or the path of a subnetwork"), "default",
        "The subnetwork of the machines, by its name or, of a shared network, its path.")
    capacity_wait_seconds: float = _compute_engine(
        "NODE_GROUP_CAPACITY_WAIT", forms.go_duration_seconds, "10m",
        "A TPUNodeGroup whose machines are out of stock for this time is deleted, and the next choice is tried. "
        "Flex-start waits without limit.")

    node_min_lifespan_seconds: float = _tuning(
        "NODE_MIN_LIFESPAN", forms.go_duration_seconds, "10s",
        "No pool is deleted while one of its nodes is younger than this.")
    deletion_delay_seconds: float = _tuning(
        "NODEPOOL_DELETION_DELAY", forms.go_duration_seconds, "30s",
        "A pool that nothing needs is deleted after this time. The Go provisioner ignores it.")
    keep_suspended: bool = _tuning(
        "KEEP_POOLS_OF_SUSPENDED_JOBSETS", forms.go_bool, "false",
        "Keep the pools of a suspended JobSet until it completes, fails or is deleted, as the Go provisioner does. "
        "They cost money and count for the limits.")
    booking_seconds: float = _tuning(
        "PROVISIONING_REQUEST_BOOKING", forms.go_duration_seconds, "10m",
        "How long the pools of a ProvisioningRequest are kept for its pods.")
    ready_timeout_seconds: float = _tuning(
        "NODEPOOL_READY_TIMEOUT", forms.go_duration_seconds, "15m",
        "Replace a pool without all nodes and chips ready for this time, if no pod is on it, or only pods of a "
        "multi-host slice whose other pods are unschedulable. These end with it.")
    replaced_share_percent: int = _tuning(
        "NODEPOOL_REPLACED_SHARE", forms.whole_number(1, 100), "20",
        "At most this percentage of the pools, but at least one, is replaced for that reason at once.")
    replace_stuck_slices: bool = _tuning(
        "REPLACE_STUCK_SLICES", forms.go_bool, "false",
        "Replace a ready pool with some pods of a multi-host slice, whose other pods have been unschedulable for "
        "ten minutes. The bound pods end with it.")
    concurrency: int = _tuning(
        "CONCURRENCY", forms.number_up_to(MAX_CONCURRENCY), "16",
        "Maximum number of concurrent requests to GKE, separately for creates and deletes; up to 64.")
    log_level: str = Group.TUNING.log_level()

    pod_resource_type: str = _environment(
        "POD_RESOURCE_TYPE", forms.choice(constants.TPU_RESOURCE), constants.TPU_RESOURCE,
        "The resource that counts chips: only google.com/tpu.")
    provider: str = _environment(
        "PROVIDER", forms.provider, forms.GKE,
        "gke creates GKE node pools; gce creates TPUNodeGroups on Compute Engine without GKE.")
    gke_endpoint: str = _environment(
        "GKE_ENDPOINT", forms.endpoint, "",
        "The address of another GKE, used without credentials, e.g. the simulator's http://127.0.0.1:8085. Other "
        "machines need https. Empty: Google's.")
    assume_same_cluster: bool = _environment(
        "ASSUME_SAME_CLUSTER", forms.go_bool, "false",
        "Skip the proof that the kubeconfig and GCP_CLUSTER are one cluster. If they are not, another cluster's pools "
        "are deleted.")
    own_namespace: str = Group.ENVIRONMENT.pod_namespace(
        "The namespace of the process: of its Lease and its other objects.")
    own_name: str = Group.ENVIRONMENT.pod_name("provisioner")
    # fmt: on

    @property
    def on_gce(self) -> bool:
        """Whether capacity comes from TPUNodeGroups instead of GKE."""
        return self.provider == GCE

    @property
    def node_groups_in(self) -> str:
        """Namespace of the TPUNodeGroups."""
        return self.node_group_namespace or self.own_namespace

    @property
    def node_namespace(self) -> str:
        """Value of the label TRUSTED_GROUP_NAMESPACE on the provisioner's nodes; empty on GKE."""
        return self.node_groups_in if self.on_gce else ""

    @property
    def cluster_name(self) -> ClusterName:
        """Full name of the cluster."""
        return ClusterName(project=self.project_id, location=self.cluster_location, cluster=self.cluster)

    def on_channel(self, release_channel: str) -> Settings:
        """Return the settings; `auto_upgrade` None becomes True if there is a release channel, otherwise False."""
        if self.auto_upgrade is not None:
            return self
        # Release channels require auto-upgrade. A maintenance exclusion prevents upgrades until the end of support.
        return replace(self, auto_upgrade=bool(release_channel))


OPTIONS = options_of(Settings)
