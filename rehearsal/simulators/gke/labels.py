"""The rules for labels and taints that a node pool may carry."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.http import google

_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DNS = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_MAX_CHARACTERS = 1024
_MAX_RESOURCE_LABELS = 64


def check_labels(labels: Mapping[str, str]) -> None:
    """Refuse node labels that break Kubernetes' syntax or GKE's total of 1,024 characters."""
    for key, value in labels.items():
        _check_key(key)
        if value and _NAME.fullmatch(value) is None:
            raise ApiError(
                "INVALID_ARGUMENT",
                f'Invalid value for field "node_pool.config.labels": invalid label value "{value}" of "{key}": must be '
                "no more than 63 characters, begin and end with an alphanumeric character, with dashes, underscores, "
                "dots and alphanumerics between.",
            )
    total = sum(len(key) + len(value) for key, value in labels.items())
    if total > _MAX_CHARACTERS:
        raise ApiError(
            "INVALID_ARGUMENT",
            f'Invalid value for field "node_pool.config.labels": This field supports up to 1,024 total characters in '
            f"a single request, got {total}.",
        )


def check_resource_labels(labels: Mapping[str, str]) -> None:
    """Refuse labels that Compute Engine would not put on a VM."""
    if len(labels) > _MAX_RESOURCE_LABELS:
        raise ApiError("INVALID_ARGUMENT", f"Too many resource labels: {len(labels)}, at most 64 are allowed.")
    for key, value in labels.items():
        if not google.is_label(key, value):
            raise ApiError(
                "INVALID_ARGUMENT",
                f'Invalid value for field "node_pool.config.resource_labels": "{key}={value}".',
            )


def check_taints(taints: Sequence[Mapping[str, Any]]) -> None:
    """Refuse taints without a valid key or effect."""
    for taint in taints:
        _check_key(taint.get("key", ""))
        if taint.get("effect", "EFFECT_UNSPECIFIED") == "EFFECT_UNSPECIFIED":
            raise ApiError("INVALID_ARGUMENT", f'Taint "{taint["key"]}" has no effect.')


def _check_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    valid_prefix = not slash or (len(prefix) <= 253 and _DNS.fullmatch(prefix) is not None)
    if not valid_prefix or _NAME.fullmatch(name) is None:
        raise ApiError(
            "INVALID_ARGUMENT",
            f'Invalid value for field "node_pool.config.labels": invalid label key "{key}": must be a name of at most '
            "63 characters, optionally after a DNS subdomain and a slash.",
        )
