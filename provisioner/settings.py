"""Every option of the controller: name, form, default, unit and why.

`OPTIONS` is the one list: reading the environment, the table in docs/settings.md and the log line with the effective
values all come from it. Names and meanings of the first two groups are those of the Go provisioner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioner import constants
from provisioner.model.capacity import Network, Zone

#: A location is a region ("us-central2") or a zone ("us-central2-b", "us-central1-ai1a").
_LOCATION = re.compile(r"[a-z]+-[a-z]+[0-9]+(-[a-z0-9]+)?")
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_CLUSTER = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_NETWORK_TAG = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+|default")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_GO_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_PODS = 256
#: Go's longest duration: 2^63 nanoseconds, 292 years.
_LONGEST_SECONDS = 2**63 * 1e-9


class SettingsError(ValueError):
    """Some settings are missing or wrong; the message lists every problem and how to mend it."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{count} setting{'s are' if count > 1 else ' is'} missing or wrong:\n{lines}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The effective settings; each field is described by its entry in OPTIONS."""

    project_id: str
    cluster_location: str
    zone: Zone
    cluster: str
    node_service_account: str = ""
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
    ready_timeout_seconds: float = 900.0
    replaced_share_percent: int = 20
    replace_stuck_slices: bool = False
    chip_resource: str = constants.TPU_RESOURCE
    concurrency: int = 16
    max_pods_per_node: int = 15
    gke_endpoint: str = ""
    namespaces: tuple[str, ...] = ()
    opt_in_label: tuple[str, str] | None = None
    single_host_placement: bool = False
    assume_same_cluster: bool = False
    own_namespace: str = constants.DEFAULT_NAMESPACE
    own_name: str = ""
    log_level: str = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One environment variable."""

    variable: str
    field: str
    read: Callable[[str], Any]
    #: In the environment's form; None: required.
    default: str | None
    description: str


def go_duration_seconds(text: str) -> float:
    """Read a duration in Go's form ("10s", "1m30s", "0")."""
    if text in ("0", "+0"):
        return 0.0
    body = text.removeprefix("+")
    parts = _GO_DURATION.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise ValueError('is no duration; write it as in Go: "30s", "1m30s", "2h"')
    seconds = float(sum(float(number) * _SECONDS[unit] for number, unit in parts))
    if seconds >= _LONGEST_SECONDS:
        raise ValueError("is longer than any duration in Go, 292 years")
    return seconds


def go_bool(text: str) -> bool:
    """Read a truth value as Go's strconv.ParseBool does."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ValueError("is neither true nor false")


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read "vpc1:subnet1, vpc2:subnet2"; raise ValueError with what is wrong."""
    networks = []
    for part in _items(text):
        network, separator, subnetwork = (piece.strip() for piece in part.partition(":"))
        if not separator or not network or not subnetwork:
            raise ValueError(f'has {part!r}, which is not of the form "vpc:subnet"')
        networks.append(Network(network=network, subnetwork=subnetwork))
    return tuple(networks)


def _items(text: str) -> tuple[str, ...]:
    return tuple(stripped for part in text.split(",") if (stripped := part.strip()))


def _matching(pattern: re.Pattern[str], meaning: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"is not {meaning}")
        return text

    return read


def _list_of(pattern: re.Pattern[str], meaning: str) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        for item in _items(text):
            if not pattern.fullmatch(item):
                raise ValueError(f"has {item!r}, which is not {meaning}")
        return _items(text)

    return read


def _whole_number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise ValueError(f"is not a whole number from {least} to {most}")
        return int(text)

    return read


def _choice(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in values:
            raise ValueError(f"is not one of {', '.join(values)}")
        return text

    return read


def _provider(text: str) -> str:
    if text == "mock":
        raise ValueError(
            "asks for the mock provider, which does not exist any more: run `tpu-provisioner simulator` and set "
            "GKE_ENDPOINT=http://127.0.0.1:8085"
        )
    return _choice("gke")(text)


def _endpoint(text: str) -> str:
    if text and not re.fullmatch(r"https?://[^/\s]+/?", text):
        raise ValueError("is not an address such as http://127.0.0.1:8085")
    return text.rstrip("/")


def _label(text: str) -> tuple[str, str] | None:
    if not text:
        return None
    key, separator, value = text.partition("=")
    if not separator or not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
        raise ValueError('is not a label of the form "key=value"')
    return key, value


def _placement(text: str) -> bool:
    return _choice("none", "compact")(text) == "compact"


OPTIONS: tuple[Option, ...] = (
    Option(
        variable="GCP_PROJECT_ID",
        field="project_id",
        read=_matching(_PROJECT, "a Google Cloud project id"),
        default=None,
        description="The project of the cluster, e.g. my-project. On Google Cloud machines it is inferred.",
    ),
    Option(
        variable="GCP_CLUSTER_LOCATION",
        field="cluster_location",
        read=_matching(_LOCATION, "a region such as us-central2 or a zone such as us-central2-b"),
        default=None,
        description="Region of a regional cluster, zone of a zonal one, e.g. us-central2. On GKE it is inferred.",
    ),
    Option(
        variable="GCP_ZONE",
        field="zone",
        read=_matching(_LOCATION, "a zone such as us-central2-b"),
        default=None,
        description="The zone in which node pools are made, e.g. us-central2-b. On Google Cloud it is inferred.",
    ),
    Option(
        variable="GCP_CLUSTER",
        field="cluster",
        read=_matching(_CLUSTER, "a GKE cluster name"),
        default=None,
        description="The cluster's name, e.g. my-cluster. On GKE it is inferred.",
    ),
    Option(
        variable="GCP_NODE_SERVICE_ACCOUNT",
        field="node_service_account",
        read=_matching(_ACCOUNT, "the e-mail address of a service account"),
        default="",
        description="Service account of the nodes; empty for the project's Compute Engine default.",
    ),
    Option(
        variable="GCP_NODE_TAGS",
        field="node_tags",
        read=_list_of(_NETWORK_TAG, "a network tag"),
        default="",
        description="Comma list of network tags of the nodes.",
    ),
    Option(
        variable="GCP_POD_TO_NODE_LABELS",
        field="pod_to_node_labels",
        read=_list_of(_LABEL_KEY, "a label key"),
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
        read=go_bool,
        default="true",
        description="Shielded nodes with secure boot.",
    ),
    Option(
        variable="GCP_NODE_ADDITIONAL_NETWORKS",
        field="node_additional_networks",
        read=parse_networks,
        default="",
        description='Additional networks of the nodes, "vpc1:subnet1, vpc2:subnet2".',
    ),
    Option(
        variable="GCP_NODE_DISK_TYPE",
        field="node_disk_type",
        read=_matching(re.compile(r"[a-z0-9-]*"), "a disk type such as pd-balanced"),
        default="",
        description="Boot disk type; empty for what the machine type needs. Where a machine type does not accept it, "
        "the pod is told so.",
    ),
    Option(
        variable="GCP_NODE_CONFIDENTIAL_STORAGE",
        field="node_confidential_storage",
        read=go_bool,
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
        read=go_bool,
        default="false",
        description="Never make spot pools nor use reservations. A pod that insists by nodeSelector is told so.",
    ),
    Option(
        variable="NODE_MIN_LIFESPAN",
        field="node_min_lifespan_seconds",
        read=go_duration_seconds,
        default="10s",
        description="No pool is deleted while one of its nodes is younger than this.",
    ),
    Option(
        variable="NODEPOOL_DELETION_DELAY",
        field="deletion_delay_seconds",
        read=go_duration_seconds,
        default="30s",
        description="How long nothing must need a pool before it is deleted. The Go provisioner ignores it.",
    ),
    Option(
        variable="NODEPOOL_READY_TIMEOUT",
        field="ready_timeout_seconds",
        read=go_duration_seconds,
        default="15m",
        description="A pool that GKE calls up, and that no pod is on, is replaced when it is without all its nodes "
        "ready, with all their chips, for longer than this.",
    ),
    Option(
        variable="NODEPOOL_REPLACED_SHARE",
        field="replaced_share_percent",
        read=_whole_number(1, 100),
        default="20",
        description="So many percent of the pools, but at least one, are replaced for that at once, not more.",
    ),
    Option(
        variable="REPLACE_STUCK_SLICES",
        field="replace_stuck_slices",
        read=go_bool,
        default="false",
        description="Replace a pool that is ready while pods of its slice stay unschedulable for ten minutes. The "
        "slice's own pods that do run there end with it. Without this, an Event tells of it and nothing is touched.",
    ),
    Option(
        variable="POD_RESOURCE_TYPE",
        field="chip_resource",
        read=_matching(_LABEL_KEY, "a resource name"),
        default=constants.TPU_RESOURCE,
        description="The resource that counts chips.",
    ),
    Option(
        variable="CONCURRENCY",
        field="concurrency",
        read=_whole_number(1, 64),
        default="16",
        description="Requests to GKE at once. None waits for an operation, so this does not limit pools in the making.",
    ),
    Option(
        variable="GKE_MAX_PODS_PER_NODE",
        field="max_pods_per_node",
        read=_whole_number(8, _MAX_PODS),
        default="15",
        description="Sizes the pod address range of each node.",
    ),
    Option(
        variable="PROVIDER",
        field="",
        read=_provider,
        default="gke",
        description="Who supplies the capacity; only gke.",
    ),
    Option(
        variable="GKE_ENDPOINT",
        field="gke_endpoint",
        read=_endpoint,
        default="",
        description="Address of another GKE, used without credentials: the simulator's http://127.0.0.1:8085. "
        "Empty for Google's.",
    ),
    Option(
        variable="SERVED_NAMESPACES",
        field="namespaces",
        read=_list_of(_NAMESPACE, "a namespace name"),
        default="",
        description="Comma list of the namespaces whose JobSets are served; empty for all.",
    ),
    Option(
        variable="OPT_IN_LABEL",
        field="opt_in_label",
        read=_label,
        default="",
        description='Serve only pods that carry this label ("key=value"), or whose namespace does; empty: serve all. '
        "For clusters where something else provisions TPUs too.",
    ),
    Option(
        variable="SINGLE_HOST_PLACEMENT",
        field="single_host_placement",
        read=_placement,
        default="none",
        description="none or compact: COMPACT placement with topology on single-host pools. GKE refuses it by its "
        "documents; the Go provisioner sends it.",
    ),
    Option(
        variable="ASSUME_SAME_CLUSTER",
        field="assume_same_cluster",
        read=go_bool,
        default="false",
        description="Your word, where it cannot be proven, that the kubeconfig and GCP_CLUSTER are one cluster (a "
        "proxy with its own certificates, or public ones and no node yet). Wrong, it costs another cluster its pools.",
    ),
    Option(
        variable="POD_NAMESPACE",
        field="own_namespace",
        read=_matching(_NAMESPACE, "a namespace name"),
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
        read=_choice("debug", "info", "warning", "error"),
        default="info",
        description="debug, info, warning or error.",
    ),
)


def read_settings(environment: Mapping[str, str], *, inferred: Mapping[str, str] | None = None) -> Settings:
    """Read all options; `inferred` holds values by variable for those that the environment leaves out.

    Raises SettingsError with every problem at once.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for option in OPTIONS:
        text = environment.get(option.variable, "").strip() or (inferred or {}).get(option.variable, "")
        if not text:
            if option.default is None:
                problems.append(f"{option.variable} is not set; set it. {option.description}")
                continue
            text = option.default
            if not text:
                continue
        try:
            value = option.read(text)
        except ValueError as error:
            problems.append(f"{option.variable}={text!r} {error}. {option.description}")
            continue
        if option.field:
            values[option.field] = value
    problems += _contradictions(values)
    if problems:
        raise SettingsError(problems)
    return Settings(**values)


def region_of(location: str) -> str:
    """Return the region of a zone or region: "us-central1-ai1a" -> "us-central1"."""
    return "-".join(location.split("-")[:2])


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    zone, location = values.get("zone"), values.get("cluster_location")
    problems = []
    if zone and zone == region_of(zone):
        problems.append(f"GCP_ZONE={zone!r} is a region; set a zone of it, such as {zone}-b.")
    elif zone and location and region_of(zone) != region_of(location):
        problems.append(
            f"GCP_ZONE={zone!r} is not in GCP_CLUSTER_LOCATION={location!r}; set a zone of {region_of(location)}."
        )
    return problems
