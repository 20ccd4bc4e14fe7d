"""Checks which pods are served, and which names and values the allowlists in the settings permit. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import Network
from provisioner.model.choices import comma_items, reservation_parts
from provisioner.model.workloads import Requirements, Workload
from provisioner.settings import Settings


class NotServed(NamedTuple):
    """Reason why no pools are created for the pods of a workload. The last of several clauses is the next step."""

    why: tuple[str, ...]
    #: Whether the owner opted out on purpose, and therefore has nothing to change.
    meant: bool = False


_DYNAMIC = ": a controller of dynamic slicing makes their slices from node pools that exist"
_VALUES = "`tpu-provisioner topologies` lists the values"
NO_TOPOLOGY = NotServed((f"its pods have no nodeSelector {constants.TPU_TOPOLOGY}", _VALUES))
NO_SELECTORS = NotServed(
    (f"its pods have no nodeSelector {constants.TPU_TOPOLOGY} and no {constants.TPU_ACCELERATOR}", _VALUES)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPolicy:
    """Settings that decide which pods are served."""

    #: Served namespaces; empty if all namespaces are served.
    namespaces: frozenset[str] = frozenset()
    #: Key and value of a label that the pod or its namespace must have; None if no label is required.
    opt_in_label: tuple[str, str] | None = None
    #: Labels of namespaces, by namespace; empty unless `opt_in_label` is set.
    namespace_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def serves(self, workload: Workload, requirements: Requirements) -> bool:
        """Return whether pools may be created for a pod."""
        return self.why_not(workload, requirements) is None

    def why_not(self, workload: Workload, requirements: Requirements) -> NotServed | None:
        """Return why no pools may be created for a pod; None if they may."""
        if asks_for_slices(workload.labels, workload.annotations):
            return NotServed((f"{constants.SLICE_AUTOPROVISIONING} requests Slice resources",), meant=True)
        return self._refusal(workload, requirements)

    def leaves_to_slices(self, workload: Workload) -> bool:
        """Return whether a workload with chips requests Slice resources and is not excluded by settings or DISABLE."""
        return asks_for_slices(workload.labels, workload.annotations) and any(
            job.template.chips and not self._refusal(workload, job.template, dynamic=True) for job in workload.groups
        )

    def _refusal(self, workload: Workload, requirements: Requirements, *, dynamic: bool = False) -> NotServed | None:
        for marks in (requirements.labels, requirements.annotations, workload.labels, workload.annotations):
            if marks and marks.get(constants.DISABLE) == "true":
                return NotServed((f"{constants.DISABLE} is set",), meant=True)
        if not dynamic and constants.SLICE_TOPOLOGY in requirements.annotations:
            return NotServed((f"its pods have the annotation {constants.SLICE_TOPOLOGY}{_DYNAMIC}",))
        if not dynamic and constants.TPU_TOPOLOGY not in requirements.node_selector:
            return NO_TOPOLOGY if constants.TPU_ACCELERATOR in requirements.node_selector else NO_SELECTORS
        if self.namespaces and workload.namespace not in self.namespaces:
            return NotServed((f"namespace {workload.namespace} is not among SERVED_NAMESPACES",))
        if self.opt_in_label is None:
            return None
        key, value = self.opt_in_label
        of_namespace = self.namespace_labels.get(workload.namespace)
        if requirements.labels.get(key) == value or (of_namespace or {}).get(key) == value:
            return None
        restriction = "" if of_namespace is not None else ", as far as the namespace is known,"
        return NotServed((f"neither its pods nor its namespace have{restriction} the label {key}={value}",))


def asks_for_slices(labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Return whether labels or annotations request Slice resources instead of node pools."""
    by_label = labels.get(constants.SLICE_AUTOPROVISIONING) in ("sync", "async")
    return by_label or annotations.get(constants.SLICE_AUTOPROVISIONING) == "true"


def namespace_problem(namespace: str, settings: Settings) -> tuple[str, ...]:
    """Return why a namespace may not have pools; empty if it may."""
    return _problem(f"namespace {namespace}", "ALLOWED_NAMESPACES", settings.allowed_namespaces, namespace)


def reservation_problem(path: str, settings: Settings) -> tuple[str, ...]:
    """Return why a pod may not name a reservation or a block of a reservation; empty if it may."""
    project = settings.project_id
    name = _reservation_name(path, project)
    in_full = [pattern for pattern in settings.allowed_reservations or () if pattern.startswith(f"{project}/")]
    if name in {_reservation_name(choice.reservation, project) for choice in settings.capacity} or (
        "/" not in name and _allowed(in_full, (f"{project}/{name}",))
    ):
        return ()
    return _problem(
        f"reservation {name}", "ALLOWED_RESERVATIONS", settings.allowed_reservations, name, remedy="name another"
    )


def service_account_problem(account: str, settings: Settings) -> tuple[str, ...]:
    """Return why a pod may not name a node service account; empty if it may."""
    if account == settings.node_service_account:
        return ()
    allowed, remedy = settings.allowed_service_accounts, "remove the annotation"
    return _problem(f"service account {account}", "ALLOWED_SERVICE_ACCOUNTS", allowed, account, remedy=remedy)


def network_problem(networks: Iterable[Network], settings: Settings) -> tuple[str, ...]:
    """Return why a pod may not name additional networks; empty if it may."""
    named = ((network.network, f"{network.network}:{network.subnetwork}") for network in networks)
    allowed = settings.allowed_networks
    problems = (
        _problem(f"network {names[1]}", "ALLOWED_NETWORKS", allowed, *names, remedy="remove it") for names in named
    )
    return next(filter(None, problems), ())


def node_setting_problem(name: str, text: str, settings: Settings) -> tuple[str, ...]:
    """Return why a workload may not choose this value of a node setting; empty if it may."""
    patterns = [pattern for allowed, pattern in settings.allowed_node_settings if allowed == name]
    maximum = max((int(pattern) for pattern in patterns if pattern.isdecimal()), default=-1)
    if text.isdecimal() and int(text) <= maximum:
        return ()
    named, remedy = ((item, f"{name}={bounds.cut(item)}") for item in comma_items(text)), "remove it"
    problems = (_problem(setting, "ALLOWED_NODE_SETTINGS", patterns, item, remedy=remedy) for item, setting in named)
    return next(filter(None, problems), ())


def label_problem(keys: Iterable[str], settings: Settings) -> tuple[str, ...]:
    """Return why a pod may not set these node labels; empty if it may."""
    allowed, remedy = settings.allowed_label_keys, "remove it from nodeSelector and copy-labels"
    found = (_problem(f"node label {key}", "ALLOWED_LABEL_KEYS", allowed, key, remedy=remedy) for key in sorted(keys))
    return next(filter(None, found), ())


def _problem(
    title: str, setting: str, patterns: Collection[str] | None, *names: str, remedy: str = ""
) -> tuple[str, ...]:
    if _allowed(patterns, names):
        return ()
    return f"{title} is not among {setting}", f"{f'{remedy} or ' if remedy else ''}ask the administrator to add it"


def _reservation_name(path: str, own_project: str) -> str:
    project, name, _, _ = reservation_parts(path)
    return name if project in ("", own_project) else f"{project}/{name}"


def _allowed(patterns: Collection[str] | None, names: Collection[str]) -> bool:
    if patterns is None:
        return True
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in patterns
        for name in names
    )
