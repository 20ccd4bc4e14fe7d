"""Managed instance groups: what Compute Engine refuses of them.

"About bulk mode": TPU machine types only (older versions: reservation-bound and flex-start VMs only); flex-start needs
defaultActionOnFailure DO_NOTHING; the mode can't change; instances are added at size 0 only; a size other than 0 is
reached by deleting only while no bulk operation runs. "About workload policies": a policy is regional, and needed for a
slice of several hosts. That the policy's topology fixes the size was seen through GKE (xpk 751): "Should be equal to
the gang size". "Failure recovery of TPU instances": instances of a multi-host slice can't be rescheduled one by one, so
here they can't be deleted or recreated one by one either; what Compute Engine says to it is not on record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rehearsal.simulators.compute import errors, names
from rehearsal.simulators.compute.faults import FLEX_START, RESERVATION_BOUND
from rehearsal.simulators.compute.names import BASE_NAME_LENGTH, Scope
from rehearsal.simulators.compute.records import INSTANCES, Action, Group, Member, Policy, Template
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.machines import find_machine

_MOST_INSTANCES = 1000


def base_name(body: Mapping[str, Any]) -> str:
    """Return what the names of a group's instances begin with; without a word it is the group's name."""
    sent = body.get("baseInstanceName")
    if sent is None:
        return str(body["name"])[:BASE_NAME_LENGTH].rstrip("-")
    if "#" in sent:
        raise errors.not_played("numbered names of instances")
    if not names.is_name(sent) or len(sent) > BASE_NAME_LENGTH:
        rule = f"Must be a match of regex '{names.NAME_PATTERN}' with at most {BASE_NAME_LENGTH} characters."
        raise errors.invalid("resource.baseInstanceName", sent, rule)
    return str(sent)


def reference(body: Mapping[str, Any], field: str, collection: str, within: Scope) -> tuple[Scope, str]:
    """Return the scope and name in a field that links to a resource."""
    found = names.read_reference(body[field], collection, within)
    if found is None:
        raise errors.invalid(f"resource.{field}", body[field], "The URL is malformed.")
    return found


def check_group(
    body: Mapping[str, Any], scope: Scope, template: Template, policy: Policy | None, settings: ComputeSettings
) -> None:
    """Refuse a group that can't be made of its template and policy."""
    if "targetSize" not in body:
        raise errors.required("resource.targetSize")
    size = body["targetSize"]
    if not 0 <= size <= _MOST_INSTANCES:
        raise errors.invalid("resource.targetSize", size, f"Must be from 0 to {_MOST_INSTANCES}.")
    terms = template.terms
    lifecycle = body.get("instanceLifecyclePolicy", {})
    if terms.model == FLEX_START and lifecycle.get("defaultActionOnFailure") != "DO_NOTHING":
        field = "resource.instanceLifecyclePolicy.defaultActionOnFailure"
        raise errors.invalid(field, "REPAIR", "Must be DO_NOTHING for provisioning model FLEX_START.")
    if template.scope.location and template.scope.location != scope.region:
        raise errors.invalid("resource.instanceTemplate", body["instanceTemplate"], "Is of another region.")
    if body.get("targetSizePolicy", {}).get("mode") == "BULK":
        _check_bulk(template, settings)
    if policy is not None:
        if policy.scope != scope.regional:
            link = body["resourcePolicies"]["workloadPolicy"]
            raise errors.invalid("resource.resourcePolicies.workloadPolicy", link, "Is of another region.")
        check_gang(size, template, policy, "resource.targetSize")


def _check_bulk(template: Template, settings: ComputeSettings) -> None:
    terms, field = template.terms, "resource.targetSizePolicy.mode"
    if not terms.chips:
        raise errors.invalid(field, "BULK", f"Not supported for machine type {terms.machine_type}.")
    if settings.bulk_needs_assured_capacity and terms.model not in (RESERVATION_BOUND, FLEX_START):
        raise errors.invalid(field, "BULK", f"Not supported for provisioning model {terms.model}.")


def check_gang(size: int, template: Template, policy: Policy, field: str) -> None:
    """Refuse a size that the slice of a policy has not; none at all is allowed."""
    if not policy.topology:
        return
    terms = template.terms
    machine = find_machine(terms.machine_type)
    hosts = machine.hosts_of(policy.topology) if machine is not None else None
    if hosts is None:
        rule = f"Accelerator topology {policy.topology} is not supported by machine type {terms.machine_type}."
        raise errors.invalid("resource.resourcePolicies.workloadPolicy", policy.path, rule)
    if size not in (0, hosts):
        rule = (
            f"Requested invalid target size '{size}' for a Managed Instance Group in the gang mode of size '{hosts}'. "
            "Should be equal to the gang size."
        )
        raise errors.invalid(field, size, rule)


def find_members(group: Group, instances: Sequence[str], *, skip: bool) -> list[Member]:
    """Return the members that links or names of instances mean; others are refused, or left out with `skip`."""
    if not instances:
        raise errors.required("instances")
    by_name = {member.name: member for member in group.members}
    found = []
    for text in instances:
        name = text if "/" not in text else _instance_name(text, group)
        member = by_name.get(name)
        gone = member is None or member.action is Action.DELETING
        if gone and not skip:
            rule = f"The instance is not a member of {group.path}."
            raise errors.invalid("instances", text, rule)
        if member is not None and not gone and member not in found:
            found.append(member)
    return found


def _instance_name(text: str, group: Group) -> str:
    read = names.read_reference(text, INSTANCES, group.scope)
    if read is None or read[0] != group.scope:
        raise errors.invalid("instances", text, "The URL is malformed, or is of another zone.")
    return read[1]


def check_removal(group: Group, leaving: int) -> None:
    """Refuse to delete some instances of a group that then has `leaving` fewer."""
    rest = group.size - leaving
    if rest and group.is_bulk and group.bulk_running:
        raise errors.invalid("instances", leaving, "A bulk instance operation is in progress.")
    if rest and group.policy is not None:
        check_gang(rest, group.template, group.policy, "instances")


def check_recreation(group: Group, members: Sequence[Member]) -> None:
    """Refuse to recreate a part of what only goes as a whole."""
    if group.is_bulk and group.bulk_running:
        raise errors.invalid("instances", len(members), "A bulk instance operation is in progress.")
    if group.is_slice and len(members) != len(group.members):
        rule = "The instances of a multi-host slice can be recreated only together."
        raise errors.invalid("instances", len(members), rule)


def check_size(group: Group, size: int) -> None:
    """Refuse a size that a group can't get to from where it is."""
    if not 0 <= size <= _MOST_INSTANCES:
        raise errors.invalid("size", size, f"Must be from 0 to {_MOST_INSTANCES}.")
    if group.is_bulk and size > group.size > 0:
        raise errors.invalid("size", size, "In bulk mode instances can be added only to a group without any.")
    if group.is_bulk and 0 < size < group.size and group.bulk_running:
        raise errors.invalid("size", size, "A bulk instance operation is in progress.")
    if group.policy is not None:
        check_gang(size, group.template, group.policy, "size")
