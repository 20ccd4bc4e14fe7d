"""Workload policies: how the machines of one slice are wired. Regional."""

from __future__ import annotations

from provisioner.model import bounds
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import Kind, WorkloadPolicy
from provisioner.nodegroups.compute.links import REGION
from provisioner.nodegroups.compute.records import READY, ResourcePolicy, Scope
from provisioner.nodegroups.planning.calls import Resource, Target
from provisioner.nodegroups.planning.child import Case, Hold, Rules, in_use
from provisioner.nodegroups.planning.refusal import Refusal, invalid, not_allowed
from provisioner.nodegroups.planning.round import Round


class PolicyRules(Rules[WorkloadPolicy]):
    """What is particular to workload policies."""

    kind = Kind.WORKLOAD_POLICY
    what = "workload policy"
    settled_seconds = 3600.0

    def target(self, child: WorkloadPolicy) -> Target:
        """Return its resource, in the region."""
        scope = Scope(project=child.spec.project, region=child.spec.region)
        return Target(uid=child.meta.uid, kind=self.kind, scope=scope, name=child.meta.name)

    def refusal(self, child: WorkloadPolicy, round_: Round) -> Refusal | None:
        """Say why it is not served."""
        problem = names.resource_name_problem(child.meta.name)
        if not problem and not REGION.fullmatch(child.spec.region):
            problem = f"region {bounds.quoted(child.spec.region)} is not a region such as us-east5"
        return invalid(problem) if problem else not_allowed(child.meta, child.spec.project, round_)

    def body(self, child: WorkloadPolicy, mark: str) -> Resource:
        """Return what Compute Engine is asked for."""
        return ResourcePolicy(
            name=child.meta.name,
            description=mark,
            type=child.spec.type,
            topology=child.spec.accelerator_topology,
        )

    def difference(self, child: WorkloadPolicy, resource: Resource) -> str:
        """Say in what the resource is another one."""
        if not isinstance(resource, ResourcePolicy):
            return "it is no workload policy"
        asked = (child.spec.type, child.spec.accelerator_topology)
        if asked == (resource.type, resource.topology):
            return ""
        return (
            f"it has type {resource.type or 'none'} and topology {resource.topology or 'none'}, and cannot be changed; "
            "delete this object to have it made anew"
        )

    def not_usable(self, resource: Resource) -> str:
        """Say why the policy cannot be used yet."""
        if not isinstance(resource, ResourcePolicy) or resource.status in ("", READY):
            return ""
        return f"the workload policy is {resource.status}"

    def hold(self, case: Case[WorkloadPolicy]) -> Hold:
        """Wait for what uses it."""
        return in_use(self.kind, case.child, case.round)
