"""Methods of Compute Engine that the controller of node groups calls, which determine its permissions."""

from __future__ import annotations

from rehearsal.simulators.compute.api import PERMISSIONS

#: Permission on service accounts; all others are on projects.
ACT_AS = "iam.serviceAccounts.actAs"
#: Methods that are called during the life of a group.
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
