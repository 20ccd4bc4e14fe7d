"""Which managed instance groups use a workload policy or an instance template."""

from __future__ import annotations

from provisioner.nodegroups.api.conditions import Reason
from provisioner.nodegroups.api.types import InstanceTemplate, Kind, WorkloadPolicy
from provisioner.nodegroups.compute.links import same_resource
from provisioner.nodegroups.planning.child import Hold
from provisioner.nodegroups.planning.round import Round


def in_use(kind: Kind, child: WorkloadPolicy | InstanceTemplate, round_: Round) -> Hold:
    """Hold the delete of what a managed instance group of its namespace uses: Compute Engine would refuse it.

    Those of other namespaces hold nothing by what they say; where one really uses it, Compute Engine says so.
    """
    if not child.status.url:
        return Hold()
    for manager in round_.snapshot.managers:
        url = manager.spec.workload_policy if kind is Kind.WORKLOAD_POLICY else manager.spec.instance_template
        if manager.meta.namespace != child.meta.namespace:
            continue
        if url and manager.meta.finalizers and same_resource(url, child.status.url):
            message = f"ManagedInstanceGroup {manager.meta} uses it, and is deleted first"
            return Hold(message=message, reason=Reason.PROVISIONING)
    return Hold()
