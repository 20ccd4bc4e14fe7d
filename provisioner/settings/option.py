"""What an option is, and the options that every process of ours in the cluster has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from provisioner import constants
from provisioner.settings import forms

#: Of CONCURRENCY.
MOST_CONCURRENCY = 64


class Group(Enum):
    """What an option is about: a section of docs/settings.md, in this order."""

    REQUIRED = "Required"
    WORKLOADS = "Workloads"
    CAPACITY = "Capacity"
    LIMITS = "Limits"
    NODES = "Nodes"
    COMPUTE_ENGINE = "Clusters on Compute Engine without GKE"
    TUNING = "Tuning"
    ENVIRONMENT = "The provisioner's own environment"
    WEBHOOK = "The webhook server"
    NODE_GROUPS = "The controller of node groups"
    PARTITIONS = "The controller of IPU partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One environment variable."""

    variable: str
    field: str
    group: Group
    read: Callable[[str], Any]
    #: In the environment's form; None: required.
    default: str | None
    description: str


def served_namespaces(group: Group, description: str, *, field: str = "namespaces") -> Option:
    """Return SERVED_NAMESPACES."""
    read = forms.list_of(forms.NAMESPACE, "a namespace name")
    return Option(
        variable="SERVED_NAMESPACES", field=field, group=group, read=read, default="", description=description
    )


def pod_namespace(group: Group, description: str) -> Option:
    """Return POD_NAMESPACE, which the manifests take from the pod itself."""
    return Option(
        variable="POD_NAMESPACE",
        field="own_namespace",
        group=group,
        read=forms.matching(forms.NAMESPACE, "a namespace name"),
        default=constants.DEFAULT_NAMESPACE,
        description=description,
    )


def pod_name(group: Group, process: str) -> Option:
    """Return POD_NAME of a process that descriptions call so; the manifests take it from the pod itself."""
    return Option(
        variable="POD_NAME",
        field="own_name",
        group=group,
        read=str,
        default="",
        description=f"The {process}'s identity in the Lease. Empty: host name and process.",
    )


def log_level(group: Group) -> Option:
    """Return LOG_LEVEL."""
    return Option(
        variable="LOG_LEVEL",
        field="log_level",
        group=group,
        read=forms.choice("debug", "info", "warning", "error"),
        default="info",
        description="debug, info, warning or error.",
    )
