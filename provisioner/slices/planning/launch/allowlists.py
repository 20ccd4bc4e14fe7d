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
    if _allowed(settings.allowed_namespaces, (namespace,)):
        return ""
    return f"namespace {namespace} is not among ALLOWED_NAMESPACES; ask the administrator to add it"


def reservation_problem(path: str, settings: Settings) -> str:
    """Say why a pod may not name a reservation, empty where it may; blocks go with their reservation."""
    own = settings.project_id
    name = _reservation_name(path, own)
    listed = {_reservation_name(choice.reservation, own) for choice in settings.capacity}
    if name in listed or _allowed(settings.allowed_reservations, (name,)):
        return ""
    in_full = [pattern for pattern in settings.allowed_reservations or () if pattern.startswith(f"{own}/")]
    if "/" not in name and _allowed(in_full, (f"{own}/{name}",)):
        return ""
    return f"reservation {name} is not among ALLOWED_RESERVATIONS; name another or ask the administrator to add it"


def service_account_problem(account: str, settings: Settings) -> str:
    """Say why a pod may not name a node service account, empty where it may."""
    if account == settings.node_service_account or _allowed(settings.allowed_service_accounts, (account,)):
        return ""
    return (
        f"service account {account} is not among ALLOWED_SERVICE_ACCOUNTS; remove the annotation or ask the "
        "administrator to add it"
    )


def network_problem(networks: Iterable[Network], settings: Settings) -> str:
    """Say why a pod may not name additional networks, empty where it may."""
    for each in networks:
        if not _allowed(settings.allowed_networks, (each.network, f"{each.network}:{each.subnetwork}")):
            return (
                f"network {each.network}:{each.subnetwork} is not among ALLOWED_NETWORKS; remove it or ask the "
                "administrator to add it"
            )
    return ""


def label_problem(keys: Iterable[str], settings: Settings) -> str:
    """Say why a pod may not set these node labels, empty where it may."""
    for key in sorted(keys):
        if not _allowed(settings.allowed_label_keys, (key,)):
            return (
                f"node label {key} is not among ALLOWED_LABEL_KEYS; remove it from nodeSelector and copy-labels or ask "
                "the administrator to add it"
            )
    return ""


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
