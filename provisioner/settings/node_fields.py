"""Table of the node settings: variable, annotation, form, and place in a create request of each setting.

`NodeFields` is the table; `Settings` inherits its fields. Suppliers put the values of a node pool, from the settings
and the pods, into `NodePoolRequest.node` (`slices.suppliers.nodes`); `request_fields` returns their JSON for GKE.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from provisioner import constants, tpu
from provisioner.model import bounds
from provisioner.model.capacity import Network, NodePoolRequest, Taint
from provisioner.model.choices import comma_items
from provisioner.settings import forms, node_forms
from provisioner.settings.node_forms import Entries
from provisioner.settings.option import Group

#: Value of GVISOR in the enum SandboxConfig.Type of GKE's API.
_GVISOR_NUMBER = 1
#: Page size in bytes, and field of LinuxNodeConfig.hugepages for the number of pages, by resource.
_PAGES = {"hugepages-2Mi": (2**21, "hugepageSize2m"), "hugepages-1Gi": (2**30, "hugepageSize1g")}
#: Longest maxRunDuration of Compute Engine in seconds: 120 days.
_MAX_LIFE_SECONDS = 120 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Annotation, place in create requests, and rules of a node setting. Its option has variable, form and default."""

    #: Dotted path in GKE's create request, or function that returns values by path; empty if other code sets the value.
    write: str | Callable[[Any], Mapping[str, Any]] = ""
    #: Key of the annotation that sets the value for one workload; empty if only the administrator may set it.
    annotation: str = ""
    #: Reader of the annotation; None if the reader of the option is used.
    reads: Callable[[str], Any] | None = None
    #: Key of a nodeSelector that is read like the annotation; empty if none.
    selector: str = ""
    #: Whether the annotation only adds entries to those of the setting. If not, it replaces the value.
    adds: bool = False
    #: Returns why the machines of a slice cannot have the value; empty if they can.
    problem: Callable[[Any, tpu.Shape], str] = lambda *_: ""
    #: Reads the value of an existing pool from GKE's message, to decide which pods fit; None if not needed.
    listed: Callable[[Any], Any] | None = None
    on_gce: bool = False


def _linux(entries: Entries) -> Mapping[str, Any]:
    values, path = dict(entries), "config.linuxNodeConfig"
    config: dict[str, Any] = {
        f"{path}.hugepages.{key}": values[name] for name, (_, key) in _PAGES.items() if name in values
    }
    if word := values.get("transparentHugepage"):
        config[f"{path}.transparentHugepageEnabled"] = f"TRANSPARENT_HUGEPAGE_ENABLED_{word.upper()}"
    sysctls = {name: value for name, value in entries if name in node_forms.SYSCTLS}
    return config | ({f"{path}.sysctls": sysctls} if sysctls else {})


def _idle_maintenance(idle_seconds: float) -> Mapping[str, Any]:
    """Return the policy that permits maintenance of idle nodes up to 28 days early; empty for 0 seconds."""
    strategy = {
        "nodeIdleTimeWindow": f"{int(idle_seconds)}s",
        "maintenanceAvailabilityWindow": f"{28 * 24 * 3600}s",
        "minNodesPerPool": "0",
    }
    # Google's reference requires PERIODIC for every opportunistic strategy.
    policy = {"maintenanceInterval": "PERIODIC", "opportunisticMaintenanceStrategy": strategy}
    return {"config.hostMaintenancePolicy": policy} if idle_seconds else {}


def _disk_problem(disk: str, shape: tpu.Shape) -> str:
    allowed = shape.machine_type.disk_types
    return "" if disk in allowed else f"{shape.machine_type.name} boots only from {', '.join(allowed)}"


def _sandbox_problem(_: str, shape: tpu.Shape) -> str:
    # Source: google/gvisor issue 12180.
    supported = not shape.multi_host and shape.machine_type.name.startswith(("ct4", "ct5", "ct6"))
    return "" if supported else "gVisor supports TPUs only on single hosts of TPU v4 to v6e"


def _listed_pages(pool: Any) -> Entries:
    pages = pool.config.linux_node_config.hugepages
    counts = zip(_PAGES, (pages.hugepage_size2m, pages.hugepage_size1g), strict=True)
    return tuple((name, count) for name, count in counts if count)


def _node(variable: str, read: Callable[[str], Any], default: Any, description: str, **properties: Any) -> Any:
    return Group.NODES.option(variable, read, default, description, row=Row(**properties))


def _annotation(name: str) -> str:
    return constants.NODE_SETTING_PREFIX + name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFields:
    """Effective values of the settings of nodes."""

    # fmt: off
    node_service_account: str = _node(
        "GCP_NODE_SERVICE_ACCOUNT", forms.matching(forms.ACCOUNT, "the e-mail address of a service account"), "",
        "The service account of the nodes. Empty: the project's Compute Engine default.",
        write="config.serviceAccount", annotation=constants.NODE_SERVICE_ACCOUNT, on_gce=True,
        reads=forms.matching(forms.SERVICE_ACCOUNT, "the e-mail address of a Google service account, such as "
                             "NAME@PROJECT.iam.gserviceaccount.com"))
    node_oauth_scopes: tuple[str, ...] = _node(
        "GCP_NODE_OAUTH_SCOPES",
        forms.list_of(forms.SCOPE, f"an OAuth scope such as {forms.SCOPE_PREFIX}cloud-platform"),
        f"{forms.SCOPE_PREFIX}cloud-platform",
        "Comma-separated OAuth scopes of the nodes. With cloud-platform, IAM alone decides. Without it and "
        "without devstorage.read_only, nodes cannot pull private images.",
        write="config.oauthScopes", on_gce=True)
    node_tags: tuple[str, ...] = _node(
        "GCP_NODE_TAGS", forms.list_of(forms.RESOURCE_NAME, "a network tag", bounds.NETWORK_TAGS), (),
        "Comma-separated network tags of the nodes.",
        write="config.tags", annotation=_annotation("tags"), adds=True, on_gce=True)
    node_labels: Entries = _node(
        "GCP_NODE_LABELS", node_forms.ADMIN_LABELS, (),
        'Comma-separated labels of the nodes, "team=a, example.com/pool=tpu". Workloads cannot change them.',
        annotation=_annotation("labels"), reads=node_forms.labels, adds=True, on_gce=True)
    node_taints: tuple[Taint, ...] = _node(
        "GCP_NODE_TAINTS", node_forms.ADMIN_TAINTS, (),
        'Comma-separated taints of the nodes, "team=a:NoSchedule". Pods that do not tolerate them get no pools.',
        annotation=_annotation("taints"), reads=node_forms.taints, adds=True, on_gce=True)
    node_resource_labels: Entries = _node(
        "GCP_NODE_RESOURCE_LABELS", node_forms.resource_labels, "tpu-namespace={namespace}, tpu-workload={workload}",
        "Comma-separated labels of the machines on Google's bill. {namespace} and {workload} are those of the "
        'workload; {label:KEY} is a node label, "team={label:team}" with GCP_POD_TO_NODE_LABELS=team. Characters that '
        'Google does not accept become "-". "none": none.')
    node_disk_type: str = _node(
        "GCP_NODE_DISK_TYPE", forms.matching(re.compile(r"[a-z0-9-]*"), "a disk type such as pd-balanced"), "",
        "The boot disk type. Empty: the one that the machine type needs.",
        write="config.diskType", annotation=_annotation("disk-type"), problem=_disk_problem,
        listed=lambda pool: pool.config.disk_type, on_gce=True)
    node_disk_size_gb: int | None = _node(
        "GCP_NODE_DISK_SIZE", forms.whole_number(10, 65_536), None,
        "The size of boot disks in GB, which limits the ephemeral storage of pods. Empty: 100, GKE's default.",
        write="config.diskSizeGb", annotation=_annotation("disk-size"), listed=lambda pool: pool.config.disk_size_gb)
    node_image_type: str = _node(
        "GCP_NODE_IMAGE_TYPE", forms.choice("cos_containerd", "ubuntu_containerd"), "",
        "The image of the nodes: cos_containerd or, for single hosts, ubuntu_containerd. Empty: cos_containerd.",
        write=lambda image: {"config.imageType": image.upper()}, annotation=_annotation("image-type"),
        problem=lambda image, shape: "slices of several hosts need cos_containerd"
        if shape.multi_host and not image.startswith("cos") else "",
        listed=lambda pool: pool.config.image_type.lower())
    node_secondary_disk: str = _node(
        "GCP_NODE_SECONDARY_DISK", str, "",
        "The disk image of a secondary boot disk with container images. Empty: none.",
        # Enable image streaming (gcfsConfig), because only image streaming reads the images on the disk.
        write=lambda image: {"config.gcfsConfig.enabled": True, "config.secondaryBootDisks": [
            {"diskImage": image, "mode": "CONTAINER_IMAGE_CACHE"}]})
    node_secure_boot: bool = _node(
        "GCP_NODE_SECURE_BOOT", forms.go_bool, "true",
        "Create shielded nodes with secure boot.",
        write="config.shieldedInstanceConfig.enableSecureBoot")
    node_additional_networks: tuple[Network, ...] = _node(
        "GCP_NODE_ADDITIONAL_NETWORKS", forms.parse_networks, (),
        'Additional networks of the nodes, "vpc1:subnet1, vpc2:subnet2".',
        write=lambda networks: {"networkConfig.additionalNodeNetworkConfigs": [
            {"network": entry.network, "subnetwork": entry.subnetwork} for entry in networks]},
        annotation=constants.ADDITIONAL_NODE_NETWORKS)
    node_private: bool | None = _node(
        "GCP_NODE_PRIVATE", forms.auto_upgrade, "auto",
        "auto, on or off: whether nodes have only internal addresses. auto: as the cluster's default.",
        write="networkConfig.enablePrivateNodes", annotation=_annotation("private"),
        listed=lambda pool: pool.network_config.enable_private_nodes)
    node_pod_range: str = _node(
        "GCP_NODE_POD_RANGE", forms.matching(forms.RESOURCE_NAME, "the name of a secondary range"), "",
        "The secondary range of the subnetwork for the addresses of pods. Empty: the cluster's.",
        write="networkConfig.podRange", annotation=_annotation("pod-range"))
    node_confidential_storage: bool = _node(
        "GCP_NODE_CONFIDENTIAL_STORAGE", forms.go_bool, "false",
        "Use confidential mode for hyperdisks.",
        write="config.enableConfidentialStorage")
    node_boot_disk_kms_key: str = _node(
        "GCP_NODE_BOOT_DISK_KMS_KEY", str, "",
        "The customer-managed encryption key of the boot disks, as a full resource name.",
        write="config.bootDiskKmsKey")
    node_kubelet_config: Entries = _node(
        "GCP_NODE_KUBELET_CONFIG", node_forms.named(node_forms.KUBELET), (),
        'Comma-separated fields of kubeletConfig, "podPidsLimit=4096, topologyManager.policy=restricted": '
        f"{', '.join(node_forms.KUBELET)}.",
        write=lambda entries: {f"config.kubeletConfig.{path}": value for path, value in entries},
        annotation=_annotation("kubelet-config"), adds=True)
    node_linux_config: Entries = _node(
        "GCP_NODE_LINUX_CONFIG", node_forms.named(node_forms.LINUX), (),
        'Comma-separated numbers of huge pages and kernel parameters, "hugepages-2Mi=1024, hugepages-1Gi=4, '
        'net.core.somaxconn=4096"; transparentHugepage is always, madvise or never.',
        write=_linux, annotation=_annotation("linux-config"), adds=True, listed=_listed_pages)
    node_sandbox: str = _node(
        "GCP_NODE_SANDBOX", forms.choice(constants.GVISOR), "",
        "gvisor: nodes of GKE Sandbox, for pods of its RuntimeClass, on single hosts of TPU v4 to v6e. Empty: none.",
        write=lambda sandbox: {"config.sandboxConfig.type": sandbox.upper()}, annotation=_annotation("sandbox"),
        selector=constants.SANDBOX_RUNTIME, problem=_sandbox_problem,
        listed=lambda pool: constants.GVISOR if pool.config.sandbox_config.type_ == _GVISOR_NUMBER else "")
    node_max_run_seconds: float | None = _node(
        "GCP_NODE_MAX_RUN_DURATION",
        forms.duration_from(forms.SHORTEST_RUN_SECONDS, "is not from 10m to 2880h", _MAX_LIFE_SECONDS), None,
        "Google deletes nodes of all kinds of capacity this time after their creation, with the pods on them; 10m to "
        "2880h. For flex-start, MAX_RUN_DURATION takes precedence. Empty: never.",
        annotation=_annotation("max-run-duration"))
    idle_maintenance_seconds: float = _node(
        "NODEPOOL_IDLE_MAINTENANCE", forms.go_duration_seconds, "0s",
        "Maintain a host as soon as its node has been idle for this time, with periodic host maintenance (v1beta1 of "
        "GKE's API). 0: GKE's default, at the scheduled time.",
        write=_idle_maintenance)
    max_pods_per_node: int = _node(
        "GKE_MAX_PODS_PER_NODE", forms.whole_number(8, 256), "15",
        "Maximum number of pods on a node. It determines the size of its pod address range.",
        write=lambda count: {"maxPodsConstraint.maxPodsPerNode": str(count)},
        listed=lambda pool: pool.max_pods_constraint.max_pods_per_node)
    # fmt: on


ROWS: Mapping[str, Row] = {field_.name: field_.metadata["row"] for field_ in fields(NodeFields)}


_ANNOTATIONS = {row.annotation for row in ROWS.values() if row.annotation}
#: Annotations that ALLOWED_NODE_SETTINGS can allow. Other settings allow service accounts and networks.
NODE_SETTING_KEYS = _ANNOTATIONS - {constants.NODE_SERVICE_ACCOUNT, constants.ADDITIONAL_NODE_NETWORKS}
_SELECTORS = {constants.SANDBOX_RUNTIME, constants.MAX_RUN_SECONDS}


def allowed_settings(text: str) -> Entries:
    """Read the node settings that workloads may choose, such as "node-disk-size=500, node-labels=team=*"."""
    names = sorted(key.rpartition("/")[2] for key in NODE_SETTING_KEYS)
    listed = () if text.strip() == forms.NONE else comma_items(text, noun="settings", limit=bounds.NODE_ENTRIES)
    split = [[part.strip() for part in item.partition("=")] for item in listed]
    return tuple((node_forms.valid_name(name, names), pattern or forms.OTHERS) for name, _, pattern in split)


def own_settings(annotations: Mapping[str, str], selector: Mapping[str, str]) -> str:
    """Return a digest of the node settings that pods choose themselves; empty if they choose none."""
    keys = [*sorted(_ANNOTATIONS & annotations.keys()), *sorted(_SELECTORS & selector.keys())]
    text = repr([(key, annotations.get(key), selector.get(key)) for key in keys])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16] if keys else ""


def request_fields(request: NodePoolRequest) -> Iterator[tuple[str, Any]]:
    """Yield path in GKE's create request and JSON of each value; the path is empty for values that other code sets."""
    for name, value in request.node.items():
        write = ROWS[name].write
        if isinstance(write, str):
            yield write, list(value) if isinstance(value, tuple) else value
        else:
            yield from write(value).items()
    yield "config.resourceLabels", node_forms.bill_of(request.node.get("node_resource_labels", ()), request.labels)


def listed_values(pool: Any) -> dict[str, Any]:
    """Return the non-empty values of an existing pool, from GKE's message, that affect which pods fit."""
    listed = ((name, row.listed(pool)) for name, row in ROWS.items() if row.listed is not None)
    return {name: value for name, value in listed if value}


def boot_disk_gb(node: Mapping[str, Any]) -> int:
    """Return the size in GB of a node's boot disk, which limits the ephemeral storage of pods."""
    return int(node.get("node_disk_size_gb") or tpu.DEFAULT_DISK_GB)


def huge_pages_bytes(node: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of huge pages by resource; the kubelet subtracts them from the allocatable memory."""
    counts = dict(node.get("node_linux_config", ()))
    return {name: counts.get(name, 0) * size for name, (size, _) in _PAGES.items()}
