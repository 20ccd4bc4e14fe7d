"""Options of the controller of node groups."""

import re
from dataclasses import dataclass

from provisioner.model import bounds, choices
from provisioner.settings import forms
from provisioner.settings.option import MAX_CONCURRENCY, Group, options_of

_DEFAULT_PORT = 6443
#: Host of the API server: a name or an IPv4 address, because machines have no IPv6 addresses.
_HOST = r"[A-Za-z0-9](?:[-.A-Za-z0-9]{0,252}[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"(?P<host>{_HOST})(:(?P<port>[0-9]{{1,5}}))?")
_VERSION = re.compile(r"1\.[0-9]{1,3}")
_IMAGE = re.compile(r"[a-z0-9][-A-Za-z0-9._/:@]{0,500}")
_REPOSITORY = re.compile(r"https?://[A-Za-z0-9][-A-Za-z0-9.:/_]{0,500}")


def _address(text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"] or _DEFAULT_PORT) <= forms.HIGHEST_PORT:
        raise ValueError(
            'is not an IPv4 address or name with or without a port, such as "10.128.0.2:6443"; machines have no IPv6 '
            "addresses"
        )
    return f"{match['host']}:{match['port'] or _DEFAULT_PORT}"


def _image(text: str) -> str:
    return "" if text == forms.NONE else forms.matching(_IMAGE, 'an image, or "none"')(text)


_option = Group.NODE_GROUPS.option


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroupSettings:
    """Effective settings of the controller of node groups."""

    # fmt: off
    project_id: str = Group.NODE_GROUPS.required(
        "GCP_PROJECT_ID", forms.matching(choices.PROJECT, "a Google Cloud project id"),
        "The project that the provisioner runs in. Inferred on Google Cloud machines.")
    projects: tuple[str, ...] = _option(
        "ALLOWED_PROJECTS", forms.list_of(choices.PROJECT, "a Google Cloud project id"), (),
        "Comma-separated projects in which resources may be created, and whose images, subnetworks, reservations, disk "
        "types and service accounts may be used. Google's public images are always allowed. Empty: the controller's "
        "own project alone.")
    namespaces: tuple[str, ...] = Group.NODE_GROUPS.served_namespaces(
        "Comma-separated namespaces whose objects are served, in addition to the controller's own. Empty: all.")
    machines_per_namespace: int = _option(
        "MAX_MACHINES_PER_NAMESPACE", forms.whole_number(0, 1_000_000), "64",
        "Maximum number of machines of the TPUNodeGroups and ManagedInstanceGroups of a namespace. More wait until "
        "others are deleted. 0: any number.")
    repair_after_seconds: float = _option(
        "REPAIR_AFTER", forms.duration_from(60, "is less than a minute, which the restart of a kubelet may take"), "5m",
        "A slice is recreated as a whole when one of its machines has been lost for this time. At least 1m.")
    repairs_per_day: int = _option(
        "REPAIRS_PER_DAY", forms.whole_number(0, bounds.RECREATIONS), "3",
        "How often within a day the same slice is recreated. 0: never.")
    join_seconds: float = _option(
        "JOIN_TIMEOUT",
        forms.duration_from(300, "is less than five minutes, in which few machines boot, install Kubernetes and join"),
        "30m",
        "A machine that has run for this time without becoming a ready node with all its chips counts as lost. At "
        "least 5m.")
    drain_seconds: float = _option(
        "DRAIN_TIMEOUT", forms.go_duration_seconds, "1h",
        "How long pods without chips keep the machines of a TPUNodeGroup that is deleted; pods of other namespaces, "
        "and pods on a slice that lacks machines, at most 1m. Unfinished pods with chips keep them without limit.")
    api_server: str = _option(
        "API_SERVER_ADDRESS", _address, "",
        "HOST:PORT at which machines read the ConfigMap cluster-info in kube-public, e.g. 10.128.0.2:6443. They join "
        "at the server in it. Empty: that server.")
    kubernetes_version: str = _option(
        "KUBERNETES_VERSION", forms.matching(_VERSION, "a minor version such as 1.31"), "",
        "The minor version of the kubelet that machines install, e.g. 1.31. Empty: the API server's.")
    packages: str = _option(
        "KUBERNETES_PACKAGES", forms.matching(_REPOSITORY, "an address such as https://pkgs.k8s.io"),
        "https://pkgs.k8s.io",
        "Where machines get the packages of Kubernetes: pkgs.k8s.io, or a mirror with the same paths.")
    device_plugin_image: str = _option(
        "DEVICE_PLUGIN_IMAGE", _image, "gcr.io/gke-release/tpu-device-plugin:1.35.7-gke.0",
        'The image of the TPU device plugin. "none": its DaemonSet is not managed.')
    device_plugin_agent_image: str = _option(
        "DEVICE_PLUGIN_AGENT_IMAGE", _image,
        "gcr.io/gke-release/vbar_control_agent@sha256:450e948cfa0b0db0c0136138f96da19589635409e6eb790b80fcaee3ffc6cd75",
        'The image of the sidecar container that controls the links between chips. "none": no such container.')
    device_plugin_log_image: str = _option(
        "DEVICE_PLUGIN_LOG_IMAGE", _image,
        "gcr.io/gke-release/gke-distroless/bash@sha256:f97677214e19917c800bd7165a42bf5dbe1e5afde513aecb48a4916c145e1504",
        'The image, with a shell and tail, of the sidecar container that prints the log of the TPU driver. "none": no '
        "such container.")
    gce_endpoint: str = _option(
        "GCE_ENDPOINT", forms.endpoint, "",
        "The address of another Compute Engine, used without credentials, such as a simulator's. Other machines need "
        "https. Empty: Google's.")
    calls_per_second: int = _option(
        "GCE_CALLS_PER_SECOND", forms.whole_number(1, 1000), "20",
        "Calls to Compute Engine a second, of each sort, region and project. Compute Engine allows 1,500 a minute; "
        "this default uses up to 1,400.")
    concurrency: int = _option(
        "CONCURRENCY", forms.number_up_to(MAX_CONCURRENCY), "16",
        "Maximum number of concurrent calls to Compute Engine, deletes with their checks, and writes to Kubernetes, "
        "separately for each; up to 64.")
    dry_run: bool = _option("DRY_RUN", forms.go_bool, "false", "Nothing is changed; the log says what would be.")
    own_namespace: str = Group.NODE_GROUPS.pod_namespace("The namespace of the controller's Lease.")
    own_name: str = Group.NODE_GROUPS.pod_name("controller")
    log_level: str = Group.NODE_GROUPS.log_level()
    # fmt: on

    @property
    def served_namespaces(self) -> tuple[str, ...]:
        """Served namespaces, including the controller's own; empty if all."""
        return (*self.namespaces, self.own_namespace) if self.namespaces else ()


OPTIONS = options_of(NodeGroupSettings)
