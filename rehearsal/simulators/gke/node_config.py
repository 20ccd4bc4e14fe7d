"""Checks the options of nodes like GKE: disks, images, kubelet, Linux, sandbox, labels on the bill and networks.

The lists and ranges are those of the reference of container v1 (NodeConfig, NodeKubeletConfig, LinuxNodeConfig) and of
Google's pages about labels and GKE Sandbox. The texts of GKE's messages are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.machines import Machine

_IMAGES = ("COS_CONTAINERD", "UBUNTU_CONTAINERD")
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_BILL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_BILL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_MAX_LABELS, _MAX_TAGS = 64, 64
_DISK_GB = (10, 65_536)
_SYSCTL = re.compile(
    r"net\.core\.(busy_poll|busy_read|netdev_max_backlog|[rw]mem_(max|default)|optmem_max|somaxconn)"
    r"|net\.ipv4\.(neigh\.default\.gc_thresh[123]|tcp_([rw]mem|tw_reuse|mtu_probing|max_(orphans|tw_buckets)|syn_retries"
    r"|ecn|congestion_control))"
    r"|net\.netfilter\.nf_conntrack_(max|buckets|acct|tcp_timeout_(close_wait|time_wait|established))"
    r"|kernel\.(keys\.max(keys|bytes)|shm(mni|max|all)|core_pattern|perf_event_paranoid|sched_rt_runtime_us"
    r"|softlockup_panic|yama\.ptrace_scope|kptr_restrict|dmesg_restrict|sysrq)"
    r"|fs\.(aio-max-nr|file-max|inotify\.max_user_(instances|watches)|nr_open)"
    r"|vm\.(dirty_((background_)?(ratio|bytes)|(expire|writeback)_centisecs)|max_map_count|overcommit_(memory|ratio)"
    r"|vfs_cache_pressure|swappiness|watermark_scale_factor|min_free_kbytes)"
)
_TRIPLES = ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_TRIPLE = re.compile(r"[0-9]+[ \t]+[0-9]+[ \t]+[0-9]+")
_KUBELET_RANGES = {
    "podPidsLimit": (1024, 4_194_303),
    "imageGcLowThresholdPercent": (10, 85),
    "imageGcHighThresholdPercent": (10, 85),
    "containerLogMaxFiles": (2, 10),
    "maxParallelImagePulls": (2, 5),
}
_KUBELET_WORDS = {
    "cpuManagerPolicy": ("none", "static"),
    "topologyManager.policy": ("none", "best-effort", "restricted", "single-numa-node"),
    "topologyManager.scope": ("container", "pod"),
}
_LOG_SIZE = re.compile(r"([0-9]+)(Ki|Mi)")
_LOG_MIB = (10, 500)
_PERIOD = re.compile(r"[1-9][0-9]{0,2}ms|1s")
_GC_DEFAULTS = {"imageGcLowThresholdPercent": 80, "imageGcHighThresholdPercent": 85}
#: Machine families with huge pages of 1 GiB, and families with TPUs in gVisor.
_LARGE_PAGES = ("ct5l-", "ct5lp-", "ct6e-", "tpu7-", "tpu7x-")
_SANDBOXED = ("ct4l-", "ct4p-", "ct5l-", "ct5lp-", "ct5p-", "ct6e-")


def _invalid(field: str, value: object, rule: str) -> ApiError:
    return ApiError("INVALID_ARGUMENT", f'Invalid value for field "node_pool.{field}": "{value}". {rule}')


def _check_range(field: str, value: object, bounds: tuple[int, int]) -> None:
    if not bounds[0] <= int(str(value)) <= bounds[1]:
        raise _invalid(field, value, f"Must be between {bounds[0]} and {bounds[1]}.")


def check_node_config(pool: Mapping[str, Any], machine: Machine, *, multi_host: bool) -> None:
    """Raise ApiError for options of nodes that GKE rejects."""
    config = pool.get("config", {})
    if "bootDisk" in config and ("diskSizeGb" in config or "diskType" in config):
        raise _invalid("config.boot_disk", "", "Cannot be used with disk_type and disk_size_gb.")
    if "diskSizeGb" in config:
        _check_range("config.disk_size_gb", config["diskSizeGb"], _DISK_GB)
    image = config.get("imageType", _IMAGES[0])
    if image not in _IMAGES or (multi_host and image != _IMAGES[0]):
        raise _invalid("config.image_type", image, "Not supported by this node pool.")
    _check_bill(config.get("resourceLabels", {}))
    tags = config.get("tags", [])
    if len(tags) > _MAX_TAGS or any(_NAME.fullmatch(tag) is None for tag in tags):
        raise _invalid("config.tags", ",".join(tags), "Must be at most 64 names of RFC 1035.")
    _check_kubelet(config.get("kubeletConfig", {}))
    _check_linux(config.get("linuxNodeConfig", {}), machine)
    _check_sandbox(config, machine, multi_host=multi_host)
    network = pool.get("networkConfig", {})
    if "podRange" in network and _NAME.fullmatch(network["podRange"]) is None:
        raise _invalid("network_config.pod_range", network["podRange"], "Must be the name of a secondary range.")
    if pool.get("autoscaling", {}).get("autoprovisioned"):
        raise _invalid("autoscaling.autoprovisioned", True, "Node auto-provisioning is not enabled.")


def _check_bill(labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        if _BILL_KEY.fullmatch(key) is None or key.startswith("goog") or _BILL_VALUE.fullmatch(value) is None:
            raise _invalid("config.resource_labels", f"{key}={value}", "Not a label of Google Cloud.")
    if len(labels) > _MAX_LABELS:
        raise _invalid("config.resource_labels", len(labels), f"At most {_MAX_LABELS} labels.")


def _check_kubelet(config: Mapping[str, Any]) -> None:
    for name, bounds in _KUBELET_RANGES.items():
        if name in config:
            _check_range(f"config.kubelet_config.{name}", config[name], bounds)
    for path, words in _KUBELET_WORDS.items():
        first, _, rest = path.partition(".")
        value = config.get(first, {}).get(rest) if rest else config.get(first)
        if value is not None and value not in words:
            raise _invalid(f"config.kubelet_config.{path}", value, f"Must be one of {', '.join(words)}.")
    low, high = (config.get(name, default) for name, default in _GC_DEFAULTS.items())
    if low >= high:
        raise _invalid("config.kubelet_config.image_gc_low_threshold_percent", low, f"Must be smaller than {high}.")
    period = config.get("cpuCfsQuotaPeriod", "100ms")
    if _PERIOD.fullmatch(period) is None:
        raise _invalid("config.kubelet_config.cpu_cfs_quota_period", period, "Must be between 1ms and 1s.")
    size = config.get("containerLogMaxSize", "10Mi")
    match = _LOG_SIZE.fullmatch(size)
    mib = int(match[1]) / (1024 if match[2] == "Ki" else 1) if match is not None else 0
    if not _LOG_MIB[0] <= mib <= _LOG_MIB[1]:
        raise _invalid("config.kubelet_config.container_log_max_size", size, "Must be between 10Mi and 500Mi.")


def _check_linux(config: Mapping[str, Any], machine: Machine) -> None:
    for name, value in config.get("sysctls", {}).items():
        if _SYSCTL.fullmatch(name) is None:
            raise _invalid("config.linux_node_config.sysctls", name, "Not a supported sysctl.")
        form = _TRIPLE if name in _TRIPLES else _NUMBER
        if name not in ("kernel.core_pattern", "net.ipv4.tcp_congestion_control") and form.fullmatch(value) is None:
            raise _invalid(f"config.linux_node_config.sysctls[{name}]", value, "Not a valid value.")
    pages = config.get("hugepages", {})
    small, large = pages.get("hugepageSize2m", 0), pages.get("hugepageSize1g", 0)
    if large and not machine.name.startswith(_LARGE_PAGES):
        raise _invalid("config.linux_node_config.hugepages", large, f"{machine.name} has no huge pages of 1 GiB.")
    share = 0.6 if machine.memory_gib < 30 else 0.8
    if min(small, large) < 0 or small / 512 + large > machine.memory_gib * share:
        raise _invalid("config.linux_node_config.hugepages", f"{small}, {large}", "Exceeds the memory of the machine.")


def _check_sandbox(config: Mapping[str, Any], machine: Machine, *, multi_host: bool) -> None:
    if config.get("sandboxConfig", {}).get("type") != "GVISOR":
        return
    if config.get("imageType", _IMAGES[0]) != _IMAGES[0]:
        raise _invalid("config.sandbox_config", "GVISOR", "Requires image type COS_CONTAINERD.")
    if machine.is_tpu and (multi_host or not machine.name.startswith(_SANDBOXED)):
        raise _invalid("config.sandbox_config", "GVISOR", f"Not supported by machine type {machine.name}.")
