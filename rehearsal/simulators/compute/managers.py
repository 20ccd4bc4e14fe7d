"""What may be asked of managed instance groups.

The operation of an insert ends when the group is there; whether VMs are there is told by the group and its managed
instances (reference of instanceGroupManagers). The operation of a delete ends when all VMs are gone.

Managed instance groups: what Compute Engine refuses of them.

"About bulk mode": TPU machine types only; flex-start needs defaultActionOnFailure DO_NOTHING. "About workload
policies": a policy is regional, and needed for a slice of several hosts. That the policy's topology fixes the size was
seen through GKE (xpk 751): "Should be equal to the gang size". Groups are not resized, and instances are neither
deleted nor recreated one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rehearsal.simulators.compute import errors, names, templates
from rehearsal.simulators.compute.faults import FLEX_START
from rehearsal.simulators.compute.ledger import Asked
from rehearsal.simulators.compute.names import BASE_NAME_LENGTH, Scope
from rehearsal.simulators.compute.parts import Parts, check_name
from rehearsal.simulators.compute.records import (
    GROUPS,
    POLICIES,
    TEMPLATES,
    Group,
    Member,
    Operation,
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


class Managers:
    """The managed instance groups of the world."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._groups = parts.store.groups

    def get(self, scope: Scope, name: str) -> Group:
        """Return a group."""
        with self._parts.moment():
            return self._parts.store.get(self._groups, scope.resource(GROUPS, name))

    def in_zone(self, scope: Scope) -> list[Group]:
        """Return the groups of a zone."""
        with self._parts.moment():
            return self._parts.store.listed(self._groups, scope)

    def members(self, scope: Scope, name: str) -> list[Member]:
        """Return the managed instances of a group."""
        with self._parts.moment():
            return [*self.get(scope, name).members]

    def insert(self, scope: Scope, body: dict[str, Any], asked: Asked) -> Operation:
        """Begin to make a group."""
        parts = self._parts
        with parts.moment() as now:
            check_name(body)
            templates.check_description(body)
            group = self._planned(scope, body, now)
            return parts.store.insert(self._groups, group, asked, then=lambda when: parts.life.fill(group, when))

    def _planned(self, scope: Scope, body: dict[str, Any], now: datetime) -> Group:
        if "instanceTemplate" not in body:
            raise errors.required("resource.instanceTemplate")
        base, store, settings = base_name(body), self._parts.store, self._parts.settings()
        within, name = reference(body, "instanceTemplate", TEMPLATES, scope)
        template = store.usable(store.templates, within.resource(TEMPLATES, name))
        policy = None
        if "workloadPolicy" in body.get("resourcePolicies", {}):
            within, name = reference(body["resourcePolicies"], "workloadPolicy", POLICIES, scope)
            policy = store.usable(store.policies, within.resource(POLICIES, name))
        check_group(body, scope, template, policy)
        _check_account(template, settings)
        return Group(
            scope=scope,
            name=body["name"],
            body=body,
            created=now,
            template=template,
            policy=policy,
            base_name=base,
            size=body["targetSize"],
        )

    def delete(self, scope: Scope, name: str, asked: Asked) -> Operation:
        """Begin to delete a group with its VMs."""
        parts = self._parts
        with parts.moment() as now:
            group = parts.store.usable(self._groups, scope.resource(GROUPS, name))
            operation = parts.store.delete(
                self._groups,
                group,
                asked,
                now,
                seconds=parts.settings().stopping_seconds if group.machines else 0.0,
                then=lambda when: parts.life.end(group, when),
            )
            if operation.fate is None and operation.held_by is None:
                parts.life.remove(group, [*group.members], now)
            return operation


def _check_account(template: Template, settings: ComputeSettings) -> None:
    account = templates.service_account(template.properties, template.scope.project)
    state = settings.service_accounts.get(account)
    if state == "missing":
        raise errors.invalid("resource.serviceAccounts", account, "The service account does not exist.")
    if state == "forbidden":
        text = f"The user does not have access to service account '{account}'. User: 'somebody@example.com'."
        raise errors.ApiError(400, "serviceAccountAccessDenied", text)
