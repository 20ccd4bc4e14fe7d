"""Labels and taints that a machine's kubelet registers its node with, as instance metadata has them. Pure.

`kube-labels` is GKE's and gke-labs/tpu-operator's key; the startup script of machines reads both. A node has them from
its first moment, so that no pod is bound to it before its taints are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from provisioner.model.capacity import Taint

#: KEY=VALUE, separated by commas.
LABELS = "kube-labels"
#: KEY=VALUE:EFFECT, separated by commas.
TAINTS = "kube-taints"


def labels_text(labels: Mapping[str, str]) -> str:
    """Write labels, sorted by their keys."""
    return ",".join(f"{key}={labels[key]}" for key in sorted(labels))


def parse_labels(text: str) -> dict[str, str]:
    """Read labels; what is none is left out."""
    found = {}
    for part in text.split(","):
        key, separator, value = part.strip().partition("=")
        if separator and key:
            found[key] = value
    return found


def taints_text(taints: Iterable[Taint]) -> str:
    """Write taints."""
    return ",".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in taints)


def parse_taints(text: str) -> tuple[Taint, ...]:
    """Read taints; what is none is left out."""
    found = []
    for part in text.split(","):
        name, separator, effect = part.strip().rpartition(":")
        key, _, value = name.partition("=")
        if separator and key and effect:
            found.append(Taint(key=key, value=value, effect=effect))
    return tuple(found)
