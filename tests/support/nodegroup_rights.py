"""Methods of Compute Engine that the controller of node groups calls, and the permissions that these methods need."""

from __future__ import annotations

from rehearsal.simulators.compute.api import PERMISSIONS

#: The only permission that is granted on service accounts; all other permissions are granted on projects.
ACT_AS = "iam.serviceAccounts.actAs"
METHODS = frozenset(
    {
        "resourcePolicies.insert",
        "resourcePolicies.get",
        "resourcePolicies.delete",
        "instanceTemplates.insert",
        "instanceTemplates.get",
        "instanceTemplates.delete",
        "instanceGroupManagers.insert",
        "instanceGroupManagers.get",
        "instanceGroupManagers.delete",
        "instanceGroupManagers.listManagedInstances",
        "instanceGroupManagers.aggregatedList",
        "instances.list",
        "instances.setMetadata",
        "globalOperations.get",
        "regionOperations.get",
        "zoneOperations.get",
    }
)
NEEDED = frozenset(permission for method in METHODS for permission in PERMISSIONS[method])
