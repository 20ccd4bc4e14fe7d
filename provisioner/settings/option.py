"""What an option is, and the options that every process of ours in the cluster has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
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
    """One environment variable, and the field of the effective settings that it sets."""

    variable: str
    group: Group
    read: Callable[[str], Any]
    #: In the environment's form; None: required.
    default: str | None
    description: str
    field: str = ""


def required(group: Group, variable: str, read: Callable[[str], Any], description: str) -> Any:
    """Declare a field without a default."""
    made = Option(variable=variable, group=group, read=read, default=None, description=description)
    return field(metadata={"option": made})


def option(group: Group, variable: str, read: Callable[[str], Any], default: Any, description: str) -> Any:
    """Declare a field with a default: a text in the environment's form, or the value where no text stands for it."""
    text = default if isinstance(default, str) else ""
    value = read(text) if text else default
    made = Option(variable=variable, group=group, read=read, default=text, description=description)
    return field(default_factory=lambda: value, metadata={"option": made})


def options_of(settings: type) -> tuple[Option, ...]:
    """List the options that a dataclass declares."""
    return tuple(replace(each.metadata["option"], field=each.name) for each in fields(settings))


def served_namespaces(group: Group, description: str) -> Any:
    """Declare SERVED_NAMESPACES."""
    return option(group, "SERVED_NAMESPACES", forms.list_of(forms.NAMESPACE, "a namespace name"), (), description)


def pod_namespace(group: Group, description: str) -> Any:
    """Declare POD_NAMESPACE, which the manifests take from the pod itself."""
    read = forms.matching(forms.NAMESPACE, "a namespace name")
    return option(group, "POD_NAMESPACE", read, constants.DEFAULT_NAMESPACE, description)


def pod_name(group: Group, process: str) -> Any:
    """Declare POD_NAME of a process that descriptions call so; the manifests take it from the pod itself."""
    description = f"The {process}'s identity in the Lease. Empty: host name and process."
    return option(group, "POD_NAME", str, "", description)


def log_level(group: Group) -> Any:
    """Declare LOG_LEVEL."""
    read = forms.choice("debug", "info", "warning", "error")
    return option(group, "LOG_LEVEL", read, "info", "debug, info, warning or error.")
