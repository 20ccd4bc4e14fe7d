"""The options about what may be spent, and what a workload may name."""

from __future__ import annotations

from provisioner.settings import forms, prices
from provisioner.settings.option import Group, Option

OPTIONS: tuple[Option, ...] = (
    Option(
        variable="MAX_CHIPS",
        field="max_chips",
        group=Group.LIMITS,
        read=forms.whole_number(0, forms.MOST),
        default="",
        description="No pool is created that would raise the number of chips of all the provisioner's pools above "
        "this.",
    ),
    Option(
        variable="MAX_CHIPS_PER_NAMESPACE",
        field="max_chips_per_namespace",
        group=Group.LIMITS,
        read=forms.amounts(forms.NAMESPACE, "a namespace name"),
        default="",
        description="The same for the chips that pods of one namespace use, and of idle pools created for it: "
        '"team-a=512, team-b=64, *=16"; * is every other namespace.',
    ),
    Option(
        variable="MAX_CHIPS_PER_ACCELERATOR",
        field="max_chips_per_accelerator",
        group=Group.LIMITS,
        read=forms.amounts(prices.ACCELERATOR, "an accelerator label", prices.check_accelerator),
        default="",
        description='The same for the pools of one accelerator: "tpu-v5p-slice=1024, *=0".',
    ),
    Option(
        variable="MAX_POOLS_PER_JOBSET",
        field="max_pools_per_jobset",
        group=Group.LIMITS,
        read=forms.whole_number(0, forms.MOST),
        default="",
        description="No pool is created for a workload (JobSet, LeaderWorkerSet, Job) that uses this many, idle ones "
        "created for it included.",
    ),
    Option(
        variable="MAX_CREATES_PER_HOUR",
        field="max_creates_per_hour",
        group=Group.LIMITS,
        read=forms.whole_number(0, forms.MOST),
        default="",
        description="At most this many pools are created within any hour.",
    ),
    Option(
        variable="ALLOWED_NAMESPACES",
        field="allowed_namespaces",
        group=Group.LIMITS,
        read=forms.allowed(forms.NAME_OR_PREFIX, "a namespace name, or its beginning and *"),
        default="",
        description="Comma-separated namespaces whose workloads may have pools. For all others an Event says so. "
        '"team-*" allows all names that begin with "team-". Empty: all namespaces.',
    ),
    Option(
        variable="ALLOWED_RESERVATIONS",
        field="allowed_reservations",
        group=Group.LIMITS,
        read=forms.allowed(forms.NAME_OR_PREFIX, "a reservation"),
        default="",
        description='Comma-separated reservations that a pod or workload may name, as "r1" or "project/r1". "none": '
        "none at all. Empty: everything that IAM allows. Those in CAPACITY are always allowed.",
    ),
    Option(
        variable="ALLOWED_SERVICE_ACCOUNTS",
        field="allowed_service_accounts",
        group=Group.LIMITS,
        read=forms.allowed(forms.NAME_OR_PREFIX, "a service account"),
        default="",
        description='The same for the node service accounts that a pod may name. "none": none at all. Empty: '
        "everything that IAM allows. GCP_NODE_SERVICE_ACCOUNT is always allowed.",
    ),
    Option(
        variable="ALLOWED_NETWORKS",
        field="allowed_networks",
        group=Group.LIMITS,
        read=forms.allowed(forms.NAME_OR_PREFIX, "a network"),
        default="",
        description='The same for the additional networks that a pod may name, as "vpc" or "vpc:subnet". "none": none '
        "at all. Empty: everything that IAM allows.",
    ),
    Option(
        variable="ALLOWED_LABEL_KEYS",
        field="allowed_label_keys",
        group=Group.LIMITS,
        read=forms.allowed(forms.NAME_OR_PREFIX, "a label key"),
        default="",
        description='The same for the keys of node labels that a pod may set by selector or copy-labels. "none": none '
        "at all. Empty: all. Those in GCP_POD_TO_NODE_LABELS are always allowed.",
    ),
    Option(
        variable="PAUSE_CREATION",
        field="pause_creation",
        group=Group.LIMITS,
        read=forms.go_bool,
        default="false",
        description="Create no new pools. Existing pools are used, monitored and deleted as usual.",
    ),
    Option(
        variable="CHIP_HOUR_PRICES",
        field="prices",
        group=Group.LIMITS,
        read=prices.parse_prices,
        default="",
        description='The price of one chip for one hour, by accelerator and capacity type: "tpu-v6e-slice/spot=1.35, '
        'tpu-v6e-slice=2.7, *=3"; * is every other accelerator. In any one currency. With prices, metrics show cost '
        "(docs/metrics.md). Empty: no cost is shown.",
    ),
)
