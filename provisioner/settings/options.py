"""Every option of the controller: name, form, default, unit and why.

`OPTIONS` is the one list: reading the environment, the table in docs/settings.md and the log line with the effective
values all come from it. Names and meanings of the first two groups are those of the Go provisioner.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from provisioner import constants
from provisioner.model import choices
from provisioner.settings import forms

_MAX_PODS = 256
MOST_CONCURRENCY = 64
_ACCELERATOR = re.compile(r"[a-z][-a-z0-9]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One environment variable."""

    variable: str
    field: str
    read: Callable[[str], Any]
    #: In the environment's form; None: required.
    default: str | None
    description: str


OPTIONS: tuple[Option, ...] = (
    Option(
        variable="GCP_PROJECT_ID",
        field="project_id",
        read=forms.matching(choices.PROJECT, "a Google Cloud project id"),
        default=None,
        description="The project of the cluster, e.g. my-project. On Google Cloud machines it is inferred.",
    ),
    Option(
        variable="GCP_CLUSTER_LOCATION",
        field="cluster_location",
        read=forms.matching(forms.LOCATION, "a region such as us-central2 or a zone such as us-central2-b"),
        default=None,
        description="Region of a regional cluster, zone of a zonal one, e.g. us-central2. On GKE it is inferred.",
    ),
    Option(
        variable="GCP_ZONE",
        field="zone",
        read=forms.matching(forms.LOCATION, "a zone such as us-central2-b"),
        default=None,
        description="The zone in which node pools are made, e.g. us-central2-b. On Google Cloud it is inferred.",
    ),
    Option(
        variable="GCP_CLUSTER",
        field="cluster",
        read=forms.matching(forms.CLUSTER, "a GKE cluster name"),
        default=None,
        description="The cluster's name, e.g. my-cluster. On GKE it is inferred.",
    ),
    Option(
        variable="GCP_NODE_SERVICE_ACCOUNT",
        field="node_service_account",
        read=forms.matching(forms.ACCOUNT, "the e-mail address of a service account"),
        default="",
        description="Service account of the nodes; empty for the project's Compute Engine default.",
    ),
    Option(
        variable="GCP_NODE_OAUTH_SCOPES",
        field="node_oauth_scopes",
        read=forms.list_of(forms.SCOPE, f"an OAuth scope such as {forms.SCOPE_PREFIX}cloud-platform"),
        default=f"{forms.SCOPE_PREFIX}cloud-platform",
        description="Comma list of OAuth scopes of the nodes. cloud-platform leaves it to IAM what the nodes' service "
        "account may do; without it, or devstorage.read_only, nodes cannot pull private images.",
    ),
    Option(
        variable="GCP_NODE_TAGS",
        field="node_tags",
        read=forms.list_of(forms.NETWORK_TAG, "a network tag"),
        default="",
        description="Comma list of network tags of the nodes.",
    ),
    Option(
        variable="GCP_POD_TO_NODE_LABELS",
        field="pod_to_node_labels",
        read=forms.list_of(forms.LABEL_KEY, "a label key"),
        default="",
        description="Comma list of pod labels that are copied to the nodes.",
    ),
    Option(
        variable="GCP_NODE_SECONDARY_DISK",
        field="node_secondary_disk",
        read=str,
        default="",
        description="Disk image of a secondary boot disk with cached container images; empty for none.",
    ),
    Option(
        variable="GCP_NODE_SECURE_BOOT",
        field="node_secure_boot",
        read=forms.go_bool,
        default="true",
        description="Shielded nodes with secure boot.",
    ),
    Option(
        variable="GCP_NODE_ADDITIONAL_NETWORKS",
        field="node_additional_networks",
        read=forms.parse_networks,
        default="",
        description='Additional networks of the nodes, "vpc1:subnet1, vpc2:subnet2".',
    ),
    Option(
        variable="GCP_NODE_DISK_TYPE",
        field="node_disk_type",
        read=forms.matching(re.compile(r"[a-z0-9-]*"), "a disk type such as pd-balanced"),
        default="",
        description="Boot disk type; empty for what the machine type needs. Where a machine type does not accept it, "
        "the pod is told so.",
    ),
    Option(
        variable="GCP_NODE_CONFIDENTIAL_STORAGE",
        field="node_confidential_storage",
        read=forms.go_bool,
        default="false",
        description="Confidential mode for hyperdisks.",
    ),
    Option(
        variable="GCP_NODE_BOOT_DISK_KMS_KEY",
        field="node_boot_disk_kms_key",
        read=str,
        default="",
        description="Customer-managed encryption key of the boot disks, as a full resource name.",
    ),
    Option(
        variable="GCP_FORCE_ON_DEMAND",
        field="force_on_demand",
        read=forms.go_bool,
        default="false",
        description="Never make spot pools nor use reservations. A pod that insists by nodeSelector is told so.",
    ),
    Option(
        variable="NODE_MIN_LIFESPAN",
        field="node_min_lifespan_seconds",
        read=forms.go_duration_seconds,
        default="10s",
        description="No pool is deleted while one of its nodes is younger than this.",
    ),
    Option(
        variable="NODEPOOL_DELETION_DELAY",
        field="deletion_delay_seconds",
        read=forms.go_duration_seconds,
        default="30s",
        description="How long nothing must need a pool before it is deleted. The Go provisioner ignores it.",
    ),
    Option(
        variable="KEEP_POOLS_OF_SUSPENDED_JOBSETS",
        field="keep_suspended",
        read=forms.go_bool,
        default="false",
        description="The pools of a suspended JobSet stay until it completes, fails or is deleted, as with the Go "
        "provisioner. They are paid for and count for the limits, and other JobSets' pods may be scheduled there. "
        "Without this they go after NODEPOOL_DELETION_DELAY.",
    ),
    Option(
        variable="NODEPOOL_READY_TIMEOUT",
        field="ready_timeout_seconds",
        read=forms.go_duration_seconds,
        default="15m",
        description="A pool that GKE calls up, and that no pod is on, is replaced when it is without all its nodes "
        "ready, with all their chips, for longer than this.",
    ),
    Option(
        variable="NODEPOOL_REPLACED_SHARE",
        field="replaced_share_percent",
        read=forms.whole_number(1, 100),
        default="20",
        description="So many percent of the pools, but at least one, are replaced for that at once, not more.",
    ),
    Option(
        variable="NODEPOOL_AUTO_UPGRADE",
        field="auto_upgrade",
        read=forms.auto_upgrade,
        default="auto",
        description="auto, on or off. On a cluster with a release channel GKE takes no node pool without auto-upgrade: "
        "auto makes pools there with auto-upgrade on and excluded from maintenance until their version's end of "
        "support, and with auto-upgrade off elsewhere. on and off send the one or the other whatever the cluster is.",
    ),
    Option(
        variable="REPLACE_STUCK_SLICES",
        field="replace_stuck_slices",
        read=forms.go_bool,
        default="false",
        description="Replace a pool that is ready while pods of its slice stay unschedulable for ten minutes. The "
        "slice's own pods that do run there end with it. Without this, an Event tells of it and nothing is touched.",
    ),
    Option(
        variable="POD_RESOURCE_TYPE",
        field="",
        read=forms.choice(constants.TPU_RESOURCE),
        default=constants.TPU_RESOURCE,
        description="The resource that counts chips; only google.com/tpu, for no other counts the chips of a TPU node.",
    ),
    Option(
        variable="CONCURRENCY",
        field="concurrency",
        read=forms.number_up_to(MOST_CONCURRENCY),
        default="16",
        description="Requests to GKE at once, creates and deletes each. None waits for an operation, so this does not "
        "limit pools in the making. At most 64; more counts as 64.",
    ),
    Option(
        variable="GKE_MAX_PODS_PER_NODE",
        field="max_pods_per_node",
        read=forms.whole_number(8, _MAX_PODS),
        default="15",
        description="Sizes the pod address range of each node.",
    ),
    Option(
        variable="PROVIDER",
        field="",
        read=forms.provider,
        default="gke",
        description="Who supplies the capacity; only gke.",
    ),
    Option(
        variable="GKE_ENDPOINT",
        field="gke_endpoint",
        read=forms.endpoint,
        default="",
        description="Address of another GKE, used without credentials: the simulator's http://127.0.0.1:8085. "
        "Elsewhere than on this machine only https. Empty for Google's.",
    ),
    Option(
        variable="SERVED_NAMESPACES",
        field="namespaces",
        read=forms.list_of(forms.NAMESPACE, "a namespace name"),
        default="",
        description="Comma list of the namespaces whose JobSets are served; empty for all.",
    ),
    Option(
        variable="OPT_IN_LABEL",
        field="opt_in_label",
        read=forms.label,
        default="",
        description='Serve only pods that carry this label ("key=value"), or whose namespace does; empty: serve all. '
        "For clusters where something else provisions TPUs too.",
    ),
    Option(
        variable="ZONES",
        field="zones",
        read=choices.parse_zones,
        default="",
        description="Comma list of zones in the cluster's region, best first, in which pools may be made; empty for "
        "GCP_ZONE alone. A pod's own zone selector, and the annotation of the same name, take precedence.",
    ),
    Option(
        variable="CAPACITY",
        field="capacity",
        read=choices.parse_choices,
        default="",
        description='Comma list of capacity choices, best first, for pods that pin none: "reservation/r1, on-demand, '
        'spot, flex-start". Each is tried when those before it are out of stock; "@zone" ties one to a zone. '
        "Empty: on-demand. The annotation of the same name takes precedence.",
    ),
    Option(
        variable="SAME_ZONE",
        field="same_zone",
        read=forms.go_bool,
        default="false",
        description="Make all pools of one JobSet in one zone. The annotation of the same name takes precedence.",
    ),
    Option(
        variable="MAX_RUN_DURATION",
        field="max_run_seconds",
        read=forms.go_duration_seconds,
        default="0s",
        description="Google takes the nodes of flex-start pools away after this; 10 minutes to 7 days. 0: Google's own "
        "default, 7 days. The annotation of the same name takes precedence.",
    ),
    Option(
        variable="ALL_OR_NOTHING",
        field="all_or_nothing",
        read=forms.go_bool,
        default="false",
        description="A JobSet's slices start together: nodes keep a taint until every slice of the JobSet that wants "
        "a pool has a ready one. What is only partly there is given back after PARTIAL_HOLD. The annotation of "
        "the same name takes precedence.",
    ),
    Option(
        variable="PARTIAL_HOLD",
        field="partial_hold_seconds",
        read=forms.go_duration_seconds,
        default="20m",
        description="Under ALL_OR_NOTHING: when no further slice of a JobSet has come for this long, and none is "
        "being made, those that are there are given back, and the JobSet queues.",
    ),
    Option(
        variable="MAX_CHIPS",
        field="max_chips",
        read=forms.whole_number(0, forms.MOST),
        default="",
        description="No pool is made that would bring the chips of all pools of the provisioner above this.",
    ),
    Option(
        variable="MAX_CHIPS_PER_NAMESPACE",
        field="max_chips_per_namespace",
        read=forms.amounts(forms.NAMESPACE, "a namespace name"),
        default="",
        description='Likewise for the pools of one namespace: "team-a=512, team-b=64, *=16"; * is each other one.',
    ),
    Option(
        variable="MAX_CHIPS_PER_ACCELERATOR",
        field="max_chips_per_accelerator",
        read=forms.amounts(_ACCELERATOR, "an accelerator label"),
        default="",
        description='Likewise for the pools of one accelerator: "tpu-v5p-slice=1024, *=0".',
    ),
    Option(
        variable="MAX_POOLS_PER_JOBSET",
        field="max_pools_per_jobset",
        read=forms.whole_number(0, forms.MOST),
        default="",
        description="No pool is made for a JobSet that has this many.",
    ),
    Option(
        variable="MAX_CREATES_PER_HOUR",
        field="max_creates_per_hour",
        read=forms.whole_number(0, forms.MOST),
        default="",
        description="No more pools than this are made within any hour.",
    ),
    Option(
        variable="ALLOWED_NAMESPACES",
        field="allowed_namespaces",
        read=forms.allowed(forms.NAME_OR_PREFIX, "a namespace name, or its beginning and *"),
        default="",
        description="Comma list of the namespaces whose JobSets may have pools; all others are told so by an Event. "
        '"team-*" allows all names that begin so. Empty: all namespaces.',
    ),
    Option(
        variable="ALLOWED_RESERVATIONS",
        field="allowed_reservations",
        read=forms.allowed(forms.NAME_OR_PREFIX, "a reservation"),
        default="",
        description='Comma list of the reservations that a pod or JobSet may name, as "r1" or "project/r1"; "none" for '
        "none at all; empty: whatever IAM allows. Those in CAPACITY are always allowed.",
    ),
    Option(
        variable="ALLOWED_SERVICE_ACCOUNTS",
        field="allowed_service_accounts",
        read=forms.allowed(forms.NAME_OR_PREFIX, "a service account"),
        default="",
        description='Likewise for the node service accounts that a pod may name; "none" for none at all; empty: '
        "whatever IAM allows. GCP_NODE_SERVICE_ACCOUNT is always allowed.",
    ),
    Option(
        variable="ALLOWED_NETWORKS",
        field="allowed_networks",
        read=forms.allowed(forms.NAME_OR_PREFIX, "a network"),
        default="",
        description='Likewise for the additional networks that a pod may name, as "vpc" or "vpc:subnet"; "none" for '
        "none at all; empty: whatever IAM allows.",
    ),
    Option(
        variable="ALLOWED_LABEL_KEYS",
        field="allowed_label_keys",
        read=forms.allowed(forms.NAME_OR_PREFIX, "a label key"),
        default="",
        description='Likewise for the keys of node labels that a pod may set by selector or copy-labels; "none" for '
        "none at all; empty: all. Those in GCP_POD_TO_NODE_LABELS are always allowed.",
    ),
    Option(
        variable="PAUSE_CREATION",
        field="pause_creation",
        read=forms.go_bool,
        default="false",
        description="Make no new pools. Those that are there are used, watched over and deleted as ever.",
    ),
    Option(
        variable="SINGLE_HOST_PLACEMENT",
        field="single_host_placement",
        read=forms.placement,
        default="none",
        description="none or compact: COMPACT placement with topology on single-host pools. GKE refuses it by its "
        "documents; the Go provisioner sends it.",
    ),
    Option(
        variable="ASSUME_SAME_CLUSTER",
        field="assume_same_cluster",
        read=forms.go_bool,
        default="false",
        description="Your word, where it cannot be proven, that the kubeconfig and GCP_CLUSTER are one cluster (a "
        "proxy with its own certificates, or public ones and no node yet). Wrong, it costs another cluster its pools.",
    ),
    Option(
        variable="POD_NAMESPACE",
        field="own_namespace",
        read=forms.matching(forms.NAMESPACE, "a namespace name"),
        default=constants.DEFAULT_NAMESPACE,
        description="Where the provisioner keeps its Lease and its hints.",
    ),
    Option(
        variable="POD_NAME",
        field="own_name",
        read=str,
        default="",
        description="The provisioner's identity in the Lease; empty for host name and process.",
    ),
    Option(
        variable="LOG_LEVEL",
        field="log_level",
        read=forms.choice("debug", "info", "warning", "error"),
        default="info",
        description="debug, info, warning or error.",
    ),
)
