"""testIamPermissions of Cloud Resource Manager and of IAM: the subset of permissions that the caller has on a resource.

Every caller has all permissions that the settings do not deny, and may act as all service accounts that the settings
do not forbid. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.gke.settings import ACT_AS, SimulatorSettings

_MAX_AT_ONCE = 100
#: Permissions that exist on each kind of resource, limited to those that clients here use.
_ON_ACCOUNTS = frozenset({ACT_AS, "iam.serviceAccounts.get", "iam.serviceAccounts.getAccessToken"})
_ON_PROJECTS = _ON_ACCOUNTS | {
    "compute.reservations.get",
    "compute.reservations.list",
    "compute.resourcePolicies.create",
    "compute.resourcePolicies.get",
    "container.clusters.get",
    "container.clusters.list",
    "container.clusters.update",
    "container.operations.get",
    "container.operations.list",
    "resourcemanager.projects.get",
}


def on_project(raw: object, denied: Collection[str]) -> dict[str, Any]:
    """Return the body of a test on a project."""
    return _answer(raw, _ON_PROJECTS, denied)


def on_account(raw: object, account: str, settings: SimulatorSettings) -> dict[str, Any]:
    """Return the body of a test on a service account."""
    state = settings.state_of_account(account)
    if state == "missing":
        raise ApiError("NOT_FOUND", "Unknown service account")
    forbidden = {ACT_AS} if state == "forbidden" else set()
    return _answer(raw, _ON_ACCOUNTS, forbidden.union(settings.denied_permissions))


def _answer(raw: object, valid: Collection[str], denied: Collection[str]) -> dict[str, Any]:
    asked = _read(raw)
    for permission in asked:
        if permission not in valid:
            raise ApiError("INVALID_ARGUMENT", f"Permission {permission} is not valid for this resource.")
    granted = [permission for permission in asked if permission not in denied]
    return {"permissions": granted} if granted else {}


def _read(raw: object) -> list[str]:
    sent = raw if isinstance(raw, dict) else {}
    for field in sent:
        if field != "permissions":
            raise ApiError(
                "INVALID_ARGUMENT", f'Invalid JSON payload received. Unknown name "{field}": Cannot find field.'
            )
    asked = sent.get("permissions", [])
    if not isinstance(asked, list) or not all(isinstance(permission, str) for permission in asked):
        raise ApiError("INVALID_ARGUMENT", "Invalid value at 'permissions' (TYPE_STRING).")
    if len(asked) > _MAX_AT_ONCE:
        raise ApiError("INVALID_ARGUMENT", f"At most {_MAX_AT_ONCE} permissions can be tested at once.")
    return asked
