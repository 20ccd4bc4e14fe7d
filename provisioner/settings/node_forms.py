"""Readers of node settings with special forms. A reader returns the value, or raises ValueError with the mistake."""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from provisioner import constants
from provisioner.model import bounds, wording
from provisioner.model.capacity import Taint
from provisioner.model.choices import comma_items
from provisioner.model.fit import is_system
from provisioner.settings import forms

Entries = tuple[tuple[str, Any], ...]
_PERCENT = forms.whole_number(10, 85)
# fmt: off
#: Fields of the kubelet's configuration that may be set, by their path in GKE's NodeKubeletConfig.
KUBELET: Mapping[str, Callable[[str], Any]] = {
    "cpuManagerPolicy": forms.choice("none", "static"), "cpuCfsQuota": forms.go_bool,
    "cpuCfsQuotaPeriod": forms.matching(re.compile(r"[1-9][0-9]{0,2}ms|1s"), "a duration from 1ms to 1s"),
    "podPidsLimit": forms.whole_number(1024, 4_194_303), "maxParallelImagePulls": forms.whole_number(2, 5),
    "imageGcLowThresholdPercent": _PERCENT, "imageGcHighThresholdPercent": _PERCENT,
    "containerLogMaxSize": forms.matching(re.compile(r"([1-9][0-9]|[1-4][0-9]{2}|500)Mi"), "from 10Mi to 500Mi"),
    "containerLogMaxFiles": forms.whole_number(2, 10), "singleProcessOomKill": forms.go_bool,
    "topologyManager.policy": forms.choice("none", "best-effort", "restricted", "single-numa-node"),
    "topologyManager.scope": forms.choice("container", "pod"),
}
#: Kernel parameters of LinuxNodeConfig, except insecure ones such as kernel.core_pattern, which can run any program.
SYSCTLS = frozenset(
    f"{group}.{name}" for group, names in {
        "net.core": "busy_poll busy_read netdev_max_backlog rmem_max rmem_default wmem_default wmem_max optmem_max "
        "somaxconn",
        "net.ipv4": "neigh.default.gc_thresh1 neigh.default.gc_thresh2 neigh.default.gc_thresh3 tcp_ecn "
        "tcp_max_orphans tcp_max_tw_buckets tcp_mtu_probing tcp_rmem tcp_syn_retries tcp_tw_reuse tcp_wmem",
        "net.netfilter": "nf_conntrack_acct nf_conntrack_buckets nf_conntrack_max nf_conntrack_tcp_timeout_close_wait "
        "nf_conntrack_tcp_timeout_established nf_conntrack_tcp_timeout_time_wait",
        "kernel": "keys.maxbytes keys.maxkeys shmall shmmax shmmni",
        "fs": "aio-max-nr file-max inotify.max_user_instances inotify.max_user_watches nr_open",
        "vm": "dirty_background_bytes dirty_background_ratio dirty_bytes dirty_expire_centisecs dirty_ratio "
        "dirty_writeback_centisecs max_map_count min_free_kbytes overcommit_memory overcommit_ratio swappiness "
        "vfs_cache_pressure watermark_scale_factor",
    }.items() for name in names.split()
)
# fmt: on
_COUNTS = forms.matching(re.compile(r"[0-9]{1,19}( [0-9]{1,10}){0,2}"), "a number, or three of tcp_rmem and tcp_wmem")
#: Entries of GCP_NODE_LINUX_CONFIG that may be set, with the reader of each value.
LINUX: Mapping[str, Callable[[str], Any]] = {
    "hugepages-2Mi": forms.whole_number(0, 1_000_000),
    "hugepages-1Gi": forms.whole_number(0, 2_000),
    "transparentHugepage": forms.choice("always", "madvise", "never"),
    **dict.fromkeys(sorted(SYSCTLS), _COUNTS),
}
#: Keys of Google's labels and taints that an administrator may set, because GKE sets them only on request.
OF_CREATORS = (
    *(constants.COMPUTE_CLASS, constants.COLLECTION, constants.WORKLOAD_TYPE),
    *(constants.LOCATION_HINT, constants.ICI_RESILIENCY, constants.AUTO_RESTART),
)
_BILL = re.compile(
    rf"(?!goog)[a-z][a-z0-9_-]{{0,62}}=([a-z0-9_-]{{0,63}}|\{{(namespace|workload|label:({forms.LABEL_KEY.pattern}))\}})"
)


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in comma_items(text, noun="entries", limit=bounds.NODE_ENTRIES):
        name, separator, value = (part.strip() for part in item.partition("="))
        if not separator or name in pairs:
            raise ValueError(f"has {bounds.quoted(item)}, which is not name=value with a new name")
        pairs[name] = value
    return pairs


def valid_name(name: str, names: Collection[str]) -> str:
    """Return a name that is in `names`. Raises ValueError with the nearest valid name."""
    if name not in names:
        near = forms.nearest(name, names)
        raise wording.ProblemError(f"has {bounds.quoted(name)}, which may not be set", f"did you mean {near}?")
    return name


def named(readers: Mapping[str, Callable[[str], Any]]) -> Callable[[str], Entries]:
    """Return a reader of "name=value" entries. `readers` has the reader of the value for each valid name."""

    def read(text: str) -> Entries:
        pairs = {name: (readers[valid_name(name, readers)], value) for name, value in _pairs(text).items()}
        try:
            return tuple((name, form(value)) for name, (form, value) in pairs.items())
        except ValueError as error:
            raise ValueError(f"has a value that {error}") from error

    return read


def _check_label(key: str, value: str, also: Collection[str]) -> None:
    if not forms.LABEL_KEY.fullmatch(key) or len(key) > bounds.LABEL_KEY or not forms.LABEL_VALUE.fullmatch(value):
        raise ValueError(f"has {bounds.quoted(f'{key}={value}')}, which is not the key and the value of a label")
    if key in constants.OWNER_LABELS or (is_system(key) and key not in also):
        raise ValueError(f"has {bounds.quoted(key)}, which Google, Kubernetes or the provisioner sets")


def labels(text: str, also: Collection[str] = ()) -> Entries:
    """Read labels of nodes. Keys of Google (except in `also`), Kubernetes and the provisioner are errors."""
    pairs = _pairs(text)
    for key, value in pairs.items():
        _check_label(key, value, also)
    return tuple(pairs.items())


def taints(text: str, also: Collection[str] = ()) -> tuple[Taint, ...]:
    """Read taints of nodes, such as "key=value:NoSchedule". The rules for keys are those of `labels`."""
    split = [(key, value_and_effect.partition(":")) for key, value_and_effect in _pairs(text).items()]
    parsed = [Taint(key=key, value=value, effect=effect) for key, (value, _, effect) in split]
    for taint in parsed:
        _check_label(taint.key, taint.value, also)
        if taint.effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise ValueError(f'has {bounds.quoted(str(taint))}, which is not of the form "key=value:NoSchedule"')
    return tuple(parsed)


ADMIN_LABELS = partial(labels, also=OF_CREATORS)
ADMIN_TAINTS = partial(taints, also=OF_CREATORS)


def resource_labels(text: str) -> Entries:
    """Read the labels of machines on Google's bill, such as "team={label:team}"."""
    pairs = {} if text == forms.NONE else _pairs(text)
    for key, value in pairs.items():
        if not _BILL.fullmatch(f"{key}={value}"):
            raise ValueError(
                f"has {bounds.quoted(f'{key}={value}')}; keys begin with a letter, keys and values have at most 63 "
                "lower-case letters, digits, _ and -, or the value is {namespace}, {workload} or {label:KEY}"
            )
    return tuple(pairs.items())


def bill_of(entries: Entries, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a pool on Google's bill. `labels` are those of its nodes, which name the workload."""
    values = {f"{{label:{key}}}": value for key, value in labels.items()}
    for form, key, old_key in (
        ("{namespace}", constants.POOL_JOBSET_NAMESPACE, constants.POOL_WORKLOAD_NAMESPACE),
        ("{workload}", constants.POOL_JOBSET_NAME, constants.POOL_WORKLOAD_NAME),
    ):
        values[form] = labels.get(key) or labels.get(old_key, "")
    values_by_key = {key: values.get(form, "" if form.startswith("{") else form) for key, form in entries}
    return {key: re.sub(r"[^a-z0-9_-]", "-", value.lower())[:63] for key, value in values_by_key.items() if value}
