"""What pods and workloads may name: namespaces, reservations, service accounts, networks, label keys.

Each function says why something may not be named, in words with the setting's name, and nothing where it may.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from provisioner.model.capacity import Network
from provisioner.model.choices import reservation_parts
from provisioner.settings import Settings


def namespace_problem(namespace: str, settings: Settings) -> str:
    """Say why a namespace may not have pools, empty where it may."""
    return _problem(f"namespace {namespace}", "ALLOWED_NAMESPACES", settings.allowed_namespaces, namespace)


def reservation_problem(path: str, settings: Settings) -> str:
    """Say why a pod may not name a reservation, empty where it may; blocks go with their reservation."""
    own = settings.project_id
    name = _reservation_name(path, own)
    in_full = [pattern for pattern in settings.allowed_reservations or () if pattern.startswith(f"{own}/")]
    if name in {_reservation_name(choice.reservation, own) for choice in settings.capacity} or (
        "/" not in name and _allowed(in_full, (f"{own}/{name}",))
    ):
        return ""
    return _problem(
        f"reservation {name}", "ALLOWED_RESERVATIONS", settings.allowed_reservations, name, remedy="name another"
    )


def service_account_problem(account: str, settings: Settings) -> str:
    """Say why a pod may not name a node service account, empty where it may."""
    if account == settings.node_service_account:
        return ""
    allowed, remedy = settings.allowed_service_accounts, "remove the annotation"
    return _problem(f"service account {account}", "ALLOWED_SERVICE_ACCOUNTS", allowed, account, remedy=remedy)


def network_problem(networks: Iterable[Network], settings: Settings) -> str:
    """Say why a pod may not name additional networks, empty where it may."""
    named = ((each.network, f"{each.network}:{each.subnetwork}") for each in networks)
    allowed = settings.allowed_networks
    found = (_problem(f"network {each[1]}", "ALLOWED_NETWORKS", allowed, *each, remedy="remove it") for each in named)
    return next(filter(None, found), "")


def label_problem(keys: Iterable[str], settings: Settings) -> str:
    """Say why a pod may not set these node labels, empty where it may."""
    allowed, remedy = settings.allowed_label_keys, "remove it from nodeSelector and copy-labels"
    found = (_problem(f"node label {key}", "ALLOWED_LABEL_KEYS", allowed, key, remedy=remedy) for key in sorted(keys))
    return next(filter(None, found), "")


def _problem(what: str, setting: str, patterns: Collection[str] | None, *names: str, remedy: str = "") -> str:
    if _allowed(patterns, names):
        return ""
    return f"{what} is not among {setting}; {f'{remedy} or ' if remedy else ''}ask the administrator to add it"


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
