"""Every option of the controller of node groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from provisioner import constants
from provisioner.model import choices
from provisioner.settings import forms
from provisioner.settings.option import (
    MOST_CONCURRENCY,
    Group,
    Option,
    log_level,
    pod_name,
    pod_namespace,
    served_namespaces,
)
from provisioner.settings.reading import SettingsError, read_options

_DEFAULT_PORT = 6443
_ADDRESS = re.compile(rf"(?P<host>{forms.HOST})(:(?P<port>[0-9]{{1,5}}))?")
_VERSION = re.compile(r"1\.[0-9]{1,3}")
_IMAGE = re.compile(r"[a-z0-9][-A-Za-z0-9._/:@]{0,500}")
_REPOSITORY = re.compile(r"https?://[A-Za-z0-9][-A-Za-z0-9.:/_]{0,500}")


def _address(text: str) -> str:
    """Read HOST or HOST:PORT; return HOST:PORT."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"] or _DEFAULT_PORT) <= forms.HIGHEST_PORT:
        raise ValueError(
            'is not a host, or a host and a port, such as "10.128.0.2:6443"; put IPv6 addresses in brackets'
        )
    return f"{match['host']}:{match['port'] or _DEFAULT_PORT}"


def _image(text: str) -> str:
    """Read an image; the one word "none" means no container."""
    return "" if text == forms.NONE else forms.matching(_IMAGE, 'an image, or "none"')(text)


OPTIONS: tuple[Option, ...] = (
    Option(
        variable="GCP_PROJECT_ID",
        field="project_id",
        group=Group.NODE_GROUPS,
        read=forms.matching(choices.PROJECT, "a Google Cloud project id"),
        default=None,
        description="The project that the provisioner runs in. Inferred on Google Cloud machines.",
    ),
    Option(
        variable="ALLOWED_PROJECTS",
        field="projects",
        group=Group.NODE_GROUPS,
        read=forms.list_of(choices.PROJECT, "a Google Cloud project id"),
        default="",
        description="The projects in which resources may be created, separated by commas: anybody who may create a "
        "TPUNodeGroup or one of its children spends there. Images, subnetworks, reservations, disk types and service "
        "accounts must be of these projects, too; Google's public images may always be used. Empty: the project that "
        "the provisioner runs in alone.",
    ),
    served_namespaces(
        Group.NODE_GROUPS,
        "Namespaces whose objects are served, separated by commas; the others are told that they are not. Empty: all.",
    ),
    Option(
        variable="MAX_MACHINES_PER_NAMESPACE",
        field="machines_per_namespace",
        group=Group.NODE_GROUPS,
        read=forms.whole_number(0, 1_000_000),
        default="0",
        description="How many machines the TPUNodeGroups and ManagedInstanceGroups of one namespace may have together. "
        "More wait until others are deleted. 0: any number.",
    ),
    Option(
        variable="REPAIR_AFTER",
        field="repair_after_seconds",
        group=Group.NODE_GROUPS,
        read=forms.duration_from(60, "is less than a minute, which the restart of a kubelet may take"),
        default="5m",
        description="A slice is created anew as a whole when one of its machines has been lost for so long. At "
        "least 1m.",
    ),
    Option(
        variable="REPAIRS_PER_DAY",
        field="repairs_per_day",
        group=Group.NODE_GROUPS,
        read=forms.whole_number(0, 100),
        default="3",
        description="How often within a day the same slice is created anew. 0: never.",
    ),
    Option(
        variable="JOIN_TIMEOUT",
        field="join_seconds",
        group=Group.NODE_GROUPS,
        read=forms.duration_from(
            300, "is less than five minutes, in which few machines boot, install Kubernetes and join"
        ),
        default="30m",
        description="How long a machine that runs may take to become a node that is ready with all its chips; then it "
        "counts as lost. Longer for images that load much before they join. At least 5m.",
    ),
    Option(
        variable="DRAIN_TIMEOUT",
        field="drain_seconds",
        group=Group.NODE_GROUPS,
        read=forms.go_duration_seconds,
        default="1h",
        description="How long pods without chips may keep the machines of a TPUNodeGroup that is deleted. Unfinished "
        "pods with chips keep them however long it takes.",
    ),
    Option(
        variable="API_SERVER_ADDRESS",
        field="api_server",
        group=Group.NODE_GROUPS,
        read=_address,
        default="",
        description="HOST:PORT at which machines reach the API server, e.g. 10.128.0.2:6443. Empty: what the ConfigMap "
        "cluster-info in kube-public says.",
    ),
    Option(
        variable="KUBERNETES_VERSION",
        field="kubernetes_version",
        group=Group.NODE_GROUPS,
        read=forms.matching(_VERSION, "a minor version such as 1.31"),
        default="",
        description="The minor version of the kubelet that machines install, e.g. 1.31. Empty: the API server's.",
    ),
    Option(
        variable="KUBERNETES_PACKAGES",
        field="packages",
        group=Group.NODE_GROUPS,
        read=forms.matching(_REPOSITORY, "an address such as https://pkgs.k8s.io"),
        default="https://pkgs.k8s.io",
        description="Where machines get the packages of Kubernetes: pkgs.k8s.io, or a mirror with the same paths.",
    ),
    Option(
        variable="DEVICE_PLUGIN_IMAGE",
        field="device_plugin_image",
        group=Group.NODE_GROUPS,
        read=_image,
        default="gcr.io/gke-release/tpu-device-plugin:1.35.7-gke.0",
        description='The image of the TPU device plugin. "none": its DaemonSet is not managed.',
    ),
    Option(
        variable="DEVICE_PLUGIN_AGENT_IMAGE",
        field="device_plugin_agent_image",
        group=Group.NODE_GROUPS,
        read=_image,
        default="gcr.io/gke-release/vbar_control_agent@sha256:450e948cfa0b0db0c0136138f96da19589635409e6eb790b80fcaee3ffc6cd75",
        description='The image of the container beside it that controls the links between chips. "none": no such '
        "container.",
    ),
    Option(
        variable="DEVICE_PLUGIN_LOG_IMAGE",
        field="device_plugin_log_image",
        group=Group.NODE_GROUPS,
        read=_image,
        default="gcr.io/gke-release/gke-distroless/bash@sha256:f97677214e19917c800bd7165a42bf5dbe1e5afde513aecb48a4916c145e1504",
        description="The image, with a shell and tail, of the container beside it that prints the log of the TPU "
        'driver. "none": no such container.',
    ),
    Option(
        variable="GCE_ENDPOINT",
        field="gce_endpoint",
        group=Group.NODE_GROUPS,
        read=forms.endpoint,
        default="",
        description="The address of another Compute Engine, which is used without credentials, such as a simulator's. "
        "Other machines need https. Empty: Google's address.",
    ),
    Option(
        variable="GCE_CALLS_PER_SECOND",
        field="calls_per_second",
        group=Group.NODE_GROUPS,
        read=forms.whole_number(1, 1000),
        default="20",
        description="Calls to Compute Engine in a second, of each sort that it counts in a project (changes, reads, "
        "lists, reads of operations), for each region and globally; and ten seconds' worth of them at once. "
        "Compute Engine allows 1,500 in a minute unless you have asked for more; the default uses up to 1,400.",
    ),
    Option(
        variable="CONCURRENCY",
        field="concurrency",
        group=Group.NODE_GROUPS,
        read=forms.number_up_to(MOST_CONCURRENCY),
        default="16",
        description="The number of concurrent calls to Compute Engine, deletes with their checks, and writes to "
        "Kubernetes, separately for each. At most 64; a higher value counts as 64.",
    ),
    Option(
        variable="DRY_RUN",
        field="dry_run",
        group=Group.NODE_GROUPS,
        read=forms.go_bool,
        default="false",
        description="Nothing is changed; the log says what would be.",
    ),
    pod_namespace(Group.NODE_GROUPS, "The namespace of the controller's Lease."),
    pod_name(Group.NODE_GROUPS, "controller"),
    log_level(Group.NODE_GROUPS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroupSettings:
    """The effective settings of the controller of node groups; each field is described by its entry in OPTIONS."""

    project_id: str
    projects: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    machines_per_namespace: int = 0
    repair_after_seconds: float = 300.0
    repairs_per_day: int = 3
    join_seconds: float = 1800.0
    drain_seconds: float = 3600.0
    api_server: str = ""
    kubernetes_version: str = ""
    packages: str = "https://pkgs.k8s.io"
    device_plugin_image: str = ""
    device_plugin_agent_image: str = ""
    device_plugin_log_image: str = ""
    gce_endpoint: str = ""
    calls_per_second: int = 20
    concurrency: int = 16
    dry_run: bool = False
    own_namespace: str = constants.DEFAULT_NAMESPACE
    own_name: str = ""
    log_level: str = "info"


def read_node_group_settings(
    environment: Mapping[str, str], *, inferred: Mapping[str, str] | None = None
) -> NodeGroupSettings:
    """Read all options, `inferred` as for `read_options`; raise SettingsError with every problem at once."""
    values, problems = read_options(OPTIONS, environment, inferred=inferred)
    if problems:
        raise SettingsError(problems)
    return NodeGroupSettings(**values)
