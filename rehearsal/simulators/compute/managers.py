"""Managed instance groups: what Compute Engine refuses of them.

The operation of an insert ends when the group is there; whether VMs are there is told by the group and its managed
instances (reference of instanceGroupManagers). The operation of a delete ends when all VMs are gone.

"About bulk mode": TPU machine types only; flex-start needs defaultActionOnFailure DO_NOTHING. "About workload
policies": a policy is regional, and needed for a slice of several hosts. That the policy's topology fixes the size was
seen through GKE (xpk 751): "Should be equal to the gang size". Groups are not resized, and instances are neither
deleted nor recreated one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.simulators.compute import errors, names, templates
from rehearsal.simulators.compute.faults import FLEX_START
from rehearsal.simulators.compute.names import BASE_NAME_LENGTH, Scope
from rehearsal.simulators.compute.records import (
    Policy,
    Template,
)
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http import google
from rehearsal.simulators.machines import find_machine

_MOST_INSTANCES = 1000


def base_name(body: Mapping[str, Any]) -> str:
    """Return what the names of a group's instances begin with; without a word it is the group's name."""
    sent = body.get("baseInstanceName")
    if sent is None:
        return str(body["name"])[:BASE_NAME_LENGTH].rstrip("-")
    if "#" in sent:
        raise errors.not_played("numbered names of instances")
    if not google.is_name(sent) or len(sent) > BASE_NAME_LENGTH:
        rule = f"Must be a match of regex '{google.NAME_PATTERN}' with at most {BASE_NAME_LENGTH} characters."
        raise errors.invalid("resource.baseInstanceName", sent, rule)
    return str(sent)


def reference(body: Mapping[str, Any], field: str, collection: str, within: Scope) -> tuple[Scope, str]:
    """Return the scope and name in a field that links to a resource."""
    found = names.read_reference(body[field], collection, within)
    if found is None:
        raise errors.invalid(f"resource.{field}", body[field], "The URL is malformed.")
    return found


def check_group(body: Mapping[str, Any], scope: Scope, template: Template, policy: Policy | None) -> None:
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
    if body.get("targetSizePolicy", {}).get("mode") == "BULK" and not terms.chips:
        rule = f"Not supported for machine type {terms.machine_type}."
        raise errors.invalid("resource.targetSizePolicy.mode", "BULK", rule)
    if policy is not None:
        if policy.scope != scope.regional:
            link = body["resourcePolicies"]["workloadPolicy"]
            raise errors.invalid("resource.resourcePolicies.workloadPolicy", link, "Is of another region.")
        _check_gang(size, template, policy)


def _check_gang(size: int, template: Template, policy: Policy) -> None:
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
        raise errors.invalid("resource.targetSize", size, rule)


def check_account(template: Template, settings: ComputeSettings) -> None:
    """Refuse a group whose VMs would get a service account that they cannot."""
    account = templates.service_account(template.properties, template.scope.project)
    state = settings.service_accounts.get(account)
    if state == "missing":
        raise errors.invalid("resource.serviceAccounts", account, "The service account does not exist.")
    if state == "forbidden":
        text = f"The user does not have access to service account '{account}'. User: 'somebody@example.com'."
        raise errors.ApiError(400, "serviceAccountAccessDenied", text)
