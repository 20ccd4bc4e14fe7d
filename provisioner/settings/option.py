"""Declares and reads options. `Group` also declares the options that several processes have, such as LOG_LEVEL."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, TypeVar

from provisioner import constants
from provisioner.model.wording import UserError
from provisioner.settings import forms

_T = TypeVar("_T")

MAX_CONCURRENCY = 64


class Group(Enum):
    """Section of options on the settings pages, in this order. The methods declare fields of settings classes."""

    REQUIRED = "Required", "On GKE, all of them are inferred if they are not set."
    WORKLOADS = "Workloads", "Which workloads get node pools."
    CAPACITY = "Capacity", "What is bought, where, and in which order. An annotation of that name takes precedence."
    LIMITS = "Limits", "What may be spent, and what a workload may name. Empty: no limit."
    NODES = (
        "Nodes",
        "What the nodes of a pool have from its creation on. ALLOWED_NODE_SETTINGS lets workloads choose.",
    )
    COMPUTE_ENGINE = "Clusters on Compute Engine without GKE", "Read only with PROVIDER=gce."
    TUNING = "Tuning", "How soon pools are deleted and replaced, and how much is done at once."
    ENVIRONMENT = "The provisioner's own environment", "The manifests set what is needed."
    WEBHOOK = (
        "The webhook server",
        "Read only by `tpu-provisioner webhook`, which also reads LOG_LEVEL, POD_NAMESPACE and POD_NAME.",
    )
    NODE_GROUPS = "The controller of node groups", "Read only by `tpu-provisioner nodegroups`."
    PARTITIONS = "The controller of IPU partitions", "Read only by `tpu-provisioner partitions`."
    PODS_WITH_IPUS = (
        "The webhook server",
        "Read by `tpu-provisioner webhook`, with SERVED_NAMESPACES and LARGEST_PARTITION as above.",
    )

    def __init__(self, title: str, about: str) -> None:
        self.title = title
        self.about = about

    def required(self, variable: str, read: Callable[[str], Any], description: str) -> Any:
        """Declare a field without a default."""
        made = Option(variable=variable, group=self, read=read, default=None, description=description)
        return field(metadata={"option": made})

    def option(self, variable: str, read: Callable[[str], Any], default: Any, description: str, **metadata: Any) -> Any:
        """Declare a field. `default` is a text for the variable, or a value that no text represents, such as None."""
        text = default if isinstance(default, str) else ""
        value = read(text) if text else default
        made = Option(variable=variable, group=self, read=read, default=text, value=value, description=description)
        return field(default_factory=lambda: value, metadata={"option": made, **metadata})

    def served_namespaces(self, description: str) -> Any:
        """Declare SERVED_NAMESPACES."""
        return self.option("SERVED_NAMESPACES", forms.list_of(forms.NAMESPACE, "a namespace name"), (), description)

    def pod_namespace(self, description: str) -> Any:
        """Declare POD_NAMESPACE, which the manifests set from the pod."""
        read = forms.matching(forms.NAMESPACE, "a namespace name")
        return self.option("POD_NAMESPACE", read, constants.DEFAULT_NAMESPACE, description)

    def pod_name(self, process: str) -> Any:
        """Declare POD_NAME, which the manifests set from the pod. `process` names the process in the description."""
        description = f"The {process}'s identity in the Lease. Empty: host name and process."
        return self.option("POD_NAME", str, "", description)

    def log_level(self) -> Any:
        """Declare LOG_LEVEL."""
        read = forms.choice("debug", "info", "warning", "error")
        return self.option("LOG_LEVEL", read, "info", "debug, info, warning or error.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Environment variable that sets a field of the settings."""

    variable: str
    group: Group
    read: Callable[[str], Any]
    #: Text of the default; empty if no text represents it; None if the option is required.
    default: str | None
    #: Value of the field if the variable is not set; None if the option is required.
    value: Any = None
    description: str
    field: str = ""


def options_of(settings: type) -> tuple[Option, ...]:
    """Return the options that a dataclass declares. Fields without an option are constants."""
    return tuple(
        replace(field_.metadata["option"], field=field_.name)
        for field_ in fields(settings)
        if "option" in field_.metadata
    )


class SettingsError(UserError, ValueError):
    """Some settings are missing or invalid. The message lists every problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{count} setting{'s are' if count > 1 else ' is'} missing or invalid:\n{lines}")


def read(
    kind: type[_T],
    environment: Mapping[str, str],
    *,
    inferred: Mapping[str, str] | None = None,
    contradictions: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _: (),
) -> _T:
    """Read a dataclass of settings, with `inferred` values for unset variables. Raises SettingsError with all problems.

    `contradictions` gets the valid values by field, and returns the problems of their combinations.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for option in options_of(kind):
        text = (
            environment.get(option.variable, "").strip() or (inferred or {}).get(option.variable, "") or option.default
        )
        if text is None:
            problems.append(f"{option.variable} is not set. {option.description}")
        elif text:
            try:
                values[option.field] = option.read(text)
            except forms.SecretValueError as error:
                problems.append(f"{option.variable} {error}. {option.description}")
            except ValueError as error:
                problems.append(f"{option.variable}={text!r} {error}. {option.description}")
    problems += contradictions(values)
    if problems:
        raise SettingsError(problems)
    return kind(**values)


def readable(effective: Any) -> dict[str, object]:
    """Return the effective settings by variable for the log, without empty defaults."""
    texts: dict[str, object] = {}
    for option in options_of(type(effective)):
        value = getattr(effective, option.field)
        if value in ("", None, ()):
            if value == option.value:
                continue
            # An empty value that is not the default was usually set with "none".
            value = forms.NONE
        if isinstance(value, tuple):
            value = ["=".join(map(str, item)) if type(item) is tuple else str(item) for item in value]
        texts[option.variable] = f"{value:g}s" if option.field.endswith("_seconds") else value
    return texts
