"""Which IAM permissions each call needs, by the references of the methods; and how many calls a minute there may be.

Whoever creates a group needs what the creation of its machines needs: what its template says of disks, images,
networks, metadata, tags and service accounts. Here that is always asked for, whatever the template says. Everybody has
every permission but those that the settings deny.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta

from rehearsal.simulators.compute import errors, names
from rehearsal.simulators.compute.settings import ComputeSettings

_MINUTE = timedelta(minutes=1)
#: By method; what is first is named first where several are missing.
PERMISSIONS = {
    "resourcePolicies.insert": ("compute.resourcePolicies.create",),
    "resourcePolicies.get": ("compute.resourcePolicies.get",),
    "resourcePolicies.list": ("compute.resourcePolicies.list",),
    "resourcePolicies.delete": ("compute.resourcePolicies.delete",),
    "instanceTemplates.insert": ("compute.instanceTemplates.create",),
    "instanceTemplates.get": ("compute.instanceTemplates.get",),
    "instanceTemplates.list": ("compute.instanceTemplates.list",),
    "instanceTemplates.delete": ("compute.instanceTemplates.delete",),
    "instanceGroupManagers.insert": (
        "compute.instanceGroupManagers.create",
        "compute.instanceTemplates.useReadOnly",
        "compute.instances.create",
        "compute.disks.create",
        "compute.images.useReadOnly",
        "compute.subnetworks.use",
        "compute.instances.setMetadata",
        "compute.instances.setTags",
        "compute.instances.setServiceAccount",
        "compute.resourcePolicies.use",
        "iam.serviceAccounts.actAs",
    ),
    "instanceGroupManagers.get": ("compute.instanceGroupManagers.get",),
    "instanceGroupManagers.list": ("compute.instanceGroupManagers.list",),
    "instanceGroupManagers.delete": ("compute.instanceGroupManagers.delete", "compute.instances.delete"),
    "instanceGroupManagers.listManagedInstances": ("compute.instanceGroupManagers.get",),
    "instanceGroupManagers.deleteInstances": ("compute.instanceGroupManagers.update", "compute.instances.delete"),
    "instanceGroupManagers.recreateInstances": ("compute.instanceGroupManagers.update", "compute.instances.create"),
    "instanceGroupManagers.resize": ("compute.instanceGroupManagers.update",),
    "instances.get": ("compute.instances.get",),
    "instances.list": ("compute.instances.list",),
    "instances.setMetadata": ("compute.instances.setMetadata", "iam.serviceAccounts.actAs"),
    "reservations.get": ("compute.reservations.get",),
    "reservations.list": ("compute.reservations.list",),
    "zoneOperations.get": ("compute.zoneOperations.get",),
    "zoneOperations.list": ("compute.zoneOperations.list",),
    "zoneOperations.wait": ("compute.zoneOperations.get",),
    "regionOperations.get": ("compute.regionOperations.get",),
    "regionOperations.list": ("compute.regionOperations.list",),
    "regionOperations.wait": ("compute.regionOperations.get",),
    "globalOperations.get": ("compute.globalOperations.get",),
    "globalOperations.list": ("compute.globalOperations.list",),
    "globalOperations.wait": ("compute.globalOperations.get",),
}


def check_permissions(method: str, path: str, settings: ComputeSettings) -> None:
    """Refuse a call for which the caller lacks a permission; `path` is what the call is about."""
    for permission in PERMISSIONS[method]:
        if permission in settings.denied_permissions:
            raise errors.forbidden(permission, path)


class RateLimits:
    """Counts the calls of each project in the last minute. Not thread-safe: the API locks."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, bool], deque[datetime]] = {}

    def check(self, project: str, *, changes: bool, now: datetime, settings: ComputeSettings) -> None:
        """Count a call, or refuse it."""
        limit = settings.changes_per_minute if changes else settings.reads_per_minute
        taken = self._taken.setdefault((project, changes), deque())
        while taken and taken[0] <= now - _MINUTE:
            taken.popleft()
        if limit is not None and len(taken) >= limit:
            group = "Mutation" if changes else "Read"
            raise errors.rate_limited(settings.rate_limit_code, group, names.project_number(project))
        if limit is not None:
            taken.append(now)
