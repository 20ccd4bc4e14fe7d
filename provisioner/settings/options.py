"""Every option of the controller: name, form, default, unit and why.

`OPTIONS` is the one list: reading the environment, the table in docs/settings.md and the log line with the effective
values all come from it. Names and meanings of the first two groups are those of the Go provisioner.
"""

from __future__ import annotations

import re

from provisioner import constants
from provisioner.model import choices
from provisioner.settings import forms, images, limits
from provisioner.settings.option import (
    MOST_CONCURRENCY,
    Group,
    Option,
    log_level,
    pod_name,
    pod_namespace,
    served_namespaces,
)

_MAX_PODS = 256

OPTIONS: tuple[Option, ...] = (
    Option(
        variable="GCP_PROJECT_ID",
        field="project_id",
        group=Group.REQUIRED,
        read=forms.matching(choices.PROJECT, "a Google Cloud project id"),
        default=None,
        description="The project of the cluster, e.g. my-project. Inferred on Google Cloud machines.",
    ),
    Option(
        variable="GCP_CLUSTER_LOCATION",
        field="cluster_location",
        group=Group.REQUIRED,
        read=forms.matching(forms.LOCATION, "a region such as us-central2 or a zone such as us-central2-b"),
        default=None,
        description="The region of a regional cluster or the zone of a zonal one, e.g. us-central2. Inferred on GKE.",
    ),
    Option(
        variable="GCP_ZONE",
        field="zone",
        group=Group.REQUIRED,
        read=forms.matching(forms.LOCATION, "a zone such as us-central2-b"),
        default=None,
        description="The zone in which node pools are created, e.g. us-central2-b. Inferred on Google Cloud.",
    ),
    Option(
        variable="GCP_CLUSTER",
        field="cluster",
        group=Group.REQUIRED,
        read=forms.matching(forms.CLUSTER, "a GKE cluster name"),
        default=None,
        description="The name of the cluster, e.g. my-cluster. Inferred on GKE.",
    ),
    Option(
        variable="GCP_NODE_SERVICE_ACCOUNT",
        field="node_service_account",
        group=Group.NODES,
        read=forms.matching(forms.ACCOUNT, "the e-mail address of a service account"),
        default="",
        description="The service account of the nodes. Empty: the project's Compute Engine default.",
    ),
    Option(
        variable="GCP_NODE_OAUTH_SCOPES",
        field="node_oauth_scopes",
        group=Group.NODES,
        read=forms.list_of(forms.SCOPE, f"an OAuth scope such as {forms.SCOPE_PREFIX}cloud-platform"),
        default=f"{forms.SCOPE_PREFIX}cloud-platform",
        description="Comma-separated OAuth scopes of the nodes. With cloud-platform, IAM alone decides what the "
        "nodes' service account may do. Without it and without devstorage.read_only, nodes cannot pull private "
        "images.",
    ),
    Option(
        variable="GCP_NODE_TAGS",
        field="node_tags",
        group=Group.NODES,
        read=forms.list_of(forms.NETWORK_TAG, "a network tag"),
        default="",
        description="Comma-separated network tags of the nodes.",
    ),
    Option(
        variable="GCP_POD_TO_NODE_LABELS",
        field="pod_to_node_labels",
        group=Group.NODES,
        read=forms.list_of(forms.LABEL_KEY, "a label key"),
        default="",
        description="Comma-separated pod labels to copy to the nodes.",
    ),
    Option(
        variable="GCP_NODE_SECONDARY_DISK",
        field="node_secondary_disk",
        group=Group.NODES,
        read=str,
        default="",
        description="The disk image of a secondary boot disk with cached container images. Empty: none.",
    ),
    Option(
        variable="GCP_NODE_SECURE_BOOT",
        field="node_secure_boot",
        group=Group.NODES,
        read=forms.go_bool,
        default="true",
        description="Create shielded nodes with secure boot.",
    ),
    Option(
        variable="GCP_NODE_ADDITIONAL_NETWORKS",
        field="node_additional_networks",
        group=Group.NODES,
        read=forms.parse_networks,
        default="",
        description='Additional networks of the nodes, "vpc1:subnet1, vpc2:subnet2".',
    ),
    Option(
        variable="GCP_NODE_DISK_TYPE",
        field="node_disk_type",
        group=Group.NODES,
        read=forms.matching(re.compile(r"[a-z0-9-]*"), "a disk type such as pd-balanced"),
        default="",
        description="The boot disk type. Empty: the type that the machine type needs. If a machine type does not "
        "accept it, an Event on the pod says so.",
    ),
    Option(
        variable="GCP_NODE_CONFIDENTIAL_STORAGE",
        field="node_confidential_storage",
        group=Group.NODES,
        read=forms.go_bool,
        default="false",
        description="Use confidential mode for hyperdisks.",
    ),
    Option(
        variable="GCP_NODE_BOOT_DISK_KMS_KEY",
        field="node_boot_disk_kms_key",
        group=Group.NODES,
        read=str,
        default="",
        description="The customer-managed encryption key of the boot disks, as a full resource name.",
    ),
    Option(
        variable="GCP_FORCE_ON_DEMAND",
        field="force_on_demand",
        group=Group.CAPACITY,
        read=forms.go_bool,
        default="false",
        description="Never create spot pools and never use reservations. If a pod selects them by nodeSelector, an "
        "Event on the pod says so.",
    ),
    Option(
        variable="NODE_MIN_LIFESPAN",
        field="node_min_lifespan_seconds",
        group=Group.TUNING,
        read=forms.go_duration_seconds,
        default="10s",
        description="No pool is deleted while one of its nodes is younger than this.",
    ),
    Option(
        variable="NODEPOOL_DELETION_DELAY",
        field="deletion_delay_seconds",
        group=Group.TUNING,
        read=forms.go_duration_seconds,
        default="30s",
        description="A pool is deleted after nothing has needed it for this time. The Go provisioner ignores it.",
    ),
    Option(
        variable="KEEP_POOLS_OF_SUSPENDED_JOBSETS",
        field="keep_suspended",
        group=Group.TUNING,
        read=forms.go_bool,
        default="false",
        description="Keep the pools of a suspended JobSet until it completes, fails or is deleted, as the Go "
        "provisioner does. These pools cost money and count for the limits, and other workloads' pods may be scheduled "
        "there. Without this setting they are deleted after NODEPOOL_DELETION_DELAY.",
    ),
    Option(
        variable="NODEPOOL_READY_TIMEOUT",
        field="ready_timeout_seconds",
        group=Group.TUNING,
        read=forms.go_duration_seconds,
        default="15m",
        description="Replace a pool that GKE reports as up if it has been without all of its nodes ready, with all "
        "their chips, for longer than this, and nothing can run on it: no pod is on it, or only pods of one multi-host "
        "slice whose other pods are unschedulable. These end with it.",
    ),
    Option(
        variable="NODEPOOL_REPLACED_SHARE",
        field="replaced_share_percent",
        group=Group.TUNING,
        read=forms.whole_number(1, 100),
        default="20",
        description="At most this percentage of the pools, but at least one, is replaced for that reason at once.",
    ),
    Option(
        variable="NODEPOOL_AUTO_UPGRADE",
        field="auto_upgrade",
        group=Group.NODES,
        read=forms.auto_upgrade,
        default="auto",
        description="auto, on or off. On a cluster with a release channel GKE accepts no node pool without "
        "auto-upgrade. auto creates pools there with auto-upgrade on and excluded from maintenance until the end of "
        "support of their version, and elsewhere with auto-upgrade off. on and off set it regardless of the cluster.",
    ),
    Option(
        variable="REPLACE_STUCK_SLICES",
        field="replace_stuck_slices",
        group=Group.TUNING,
        read=forms.go_bool,
        default="false",
        description="Replace a pool whose nodes are all ready while pods of its slice stay unschedulable for ten "
        "minutes. Bound pods of a multi-host slice end with it; bound pods of single hosts keep it. Without this "
        "setting, an Event reports it and nothing is changed.",
    ),
    Option(
        variable="POD_RESOURCE_TYPE",
        field="",
        group=Group.ENVIRONMENT,
        read=forms.choice(constants.TPU_RESOURCE),
        default=constants.TPU_RESOURCE,
        description="The resource that counts chips. Only google.com/tpu, because no other resource counts the chips "
        "of a TPU node.",
    ),
    Option(
        variable="CONCURRENCY",
        field="concurrency",
        group=Group.TUNING,
        read=forms.number_up_to(MOST_CONCURRENCY),
        default="16",
        description="The number of concurrent requests to GKE, separately for creates and deletes. No request waits "
        "for an operation, so this does not limit concurrent pool creations. At most 64; a higher value counts as 64.",
    ),
    Option(
        variable="GKE_MAX_PODS_PER_NODE",
        field="max_pods_per_node",
        group=Group.NODES,
        read=forms.whole_number(8, _MAX_PODS),
        default="15",
        description="The maximum number of pods on a node. It determines the size of each node's pod address range.",
    ),
    Option(
        variable="PROVIDER",
        field="provider",
        group=Group.ENVIRONMENT,
        read=forms.provider,
        default=forms.GKE,
        description="Who supplies the capacity: gke creates GKE node pools; gce creates TPUNodeGroups, on clusters "
        "that run on Compute Engine without GKE (docs/compute-engine.md).",
    ),
    Option(
        variable="NODE_GROUP_NAMESPACE",
        field="node_group_namespace",
        group=Group.COMPUTE_ENGINE,
        read=forms.matching(forms.NAMESPACE, "a namespace name"),
        default="",
        description="The namespace of the TPUNodeGroups. Those of others may be in it; their names are taken. Empty: "
        "the provisioner's own.",
    ),
    Option(
        variable="NODE_GROUP_IMAGES",
        field="node_images",
        group=Group.COMPUTE_ENGINE,
        read=images.parse_images,
        default="",
        description='Boot images by accelerator, "tpu-v6e-slice=projects/p/global/images/a, '
        'tpu7x=projects/p/global/images/b"; * is every other accelerator. Required with PROVIDER=gce.',
    ),
    Option(
        variable="NODE_GROUP_DISK_GB",
        field="node_disk_gb",
        group=Group.COMPUTE_ENGINE,
        read=forms.whole_number(10, 65_536),
        default="",
        description="The size of boot disks in GB. Empty: that of the image.",
    ),
    Option(
        variable="NODE_GROUP_SUBNETWORK",
        field="node_subnetwork",
        group=Group.COMPUTE_ENGINE,
        read=forms.matching(forms.SUBNETWORK, "the name or the path of a subnetwork"),
        default="default",
        description="The subnetwork of the machines, by its name or, of a shared network, its path.",
    ),
    Option(
        variable="NODE_GROUP_CAPACITY_WAIT",
        field="capacity_wait_seconds",
        group=Group.COMPUTE_ENGINE,
        read=forms.go_duration_seconds,
        default="10m",
        description="A TPUNodeGroup whose machines are out of stock for this time is deleted, and the next choice of "
        "CAPACITY and ZONES is tried. Flex-start capacity is waited for without end.",
    ),
    Option(
        variable="GKE_ENDPOINT",
        field="gke_endpoint",
        group=Group.ENVIRONMENT,
        read=forms.endpoint,
        default="",
        description="The address of another GKE, which is used without credentials, e.g. the simulator's "
        "http://127.0.0.1:8085. Other machines need https. Empty: Google's address.",
    ),
    Option(
        variable="SERVE_JOBS",
        field="serve_jobs",
        group=Group.WORKLOADS,
        read=forms.go_bool,
        default="false",
        description='Also serve plain Jobs with the annotation tpu-provisioner.cloud.google.com/serve: "true". The '
        "provisioner then watches all Jobs that are not part of a JobSet, and their pods, and needs the permission to.",
    ),
    served_namespaces(Group.WORKLOADS, "Comma-separated namespaces whose workloads are served. Empty: all."),
    Option(
        variable="OPT_IN_LABEL",
        field="opt_in_label",
        group=Group.WORKLOADS,
        read=forms.label,
        default="",
        description='Serve only pods that have this label ("key=value") or whose namespace has it. Empty: serve all. '
        "For clusters where something else also provisions TPUs. Whoever writes a pod template can set the label: it "
        "is no boundary between tenants without an admission policy.",
    ),
    Option(
        variable="ZONES",
        field="zones",
        group=Group.CAPACITY,
        read=choices.parse_zones,
        default="",
        description="Comma-separated zones in the cluster's region in which pools may be created, best first. Empty: "
        "only GCP_ZONE. A pod's own zone selector and the annotation of the same name take precedence.",
    ),
    Option(
        variable="CAPACITY",
        field="capacity",
        group=Group.CAPACITY,
        read=choices.parse_choices,
        default="",
        description='Comma-separated choices of capacity, best first, for pods that select none: "reservation/r1, '
        'on-demand, spot, flex-start". Each is tried when those before it are out of stock. "@zone" restricts a '
        "choice to one zone. Empty: on-demand. The annotation of the same name takes precedence.",
    ),
    Option(
        variable="SAME_ZONE",
        field="same_zone",
        group=Group.CAPACITY,
        read=forms.go_bool,
        default="false",
        description="Create all pools of one workload in one zone. The annotation of the same name takes precedence.",
    ),
    Option(
        variable="MAX_RUN_DURATION",
        field="max_run_seconds",
        group=Group.CAPACITY,
        read=forms.go_duration_seconds,
        default="0s",
        description="Google removes the nodes of flex-start pools after this time; 10 minutes to 7 days. 0: Google's "
        "default, 7 days. The annotation of the same name takes precedence.",
    ),
    Option(
        variable="ALL_OR_NOTHING",
        field="all_or_nothing",
        group=Group.CAPACITY,
        read=forms.go_bool,
        default="false",
        description="Start the slices of a workload together: nodes have a taint until every slice of the workload "
        "that wants a pool has a ready one. If only some slices are up, they are given back after PARTIAL_HOLD. The "
        "annotation of the same name takes precedence.",
    ),
    Option(
        variable="PARTIAL_HOLD",
        field="partial_hold_seconds",
        group=Group.CAPACITY,
        read=forms.go_duration_seconds,
        default="20m",
        description="Under ALL_OR_NOTHING: when no further slice of a workload has come up for this time, and none is "
        "being created, those that are up are given back, and the workload queues.",
    ),
    *limits.OPTIONS,
    Option(
        variable="SINGLE_HOST_PLACEMENT",
        field="single_host_placement",
        group=Group.NODES,
        read=forms.placement,
        default="none",
        description="none or compact: COMPACT placement with topology on single-host pools. According to its "
        "documents GKE rejects it; the Go provisioner sends it.",
    ),
    Option(
        variable="ASSUME_SAME_CLUSTER",
        field="assume_same_cluster",
        group=Group.ENVIRONMENT,
        read=forms.go_bool,
        default="false",
        description="Skip the check that the kubeconfig and GCP_CLUSTER are one cluster, if it cannot be proven (a "
        "proxy with its own certificates, or public ones and no node yet). If they are not one cluster, another "
        "cluster's pools are deleted.",
    ),
    pod_namespace(Group.ENVIRONMENT, "The namespace of the provisioner's Lease and hints."),
    pod_name(Group.ENVIRONMENT, "provisioner"),
    log_level(Group.TUNING),
)
