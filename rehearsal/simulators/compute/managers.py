"""What may be asked of managed instance groups.

The operation of an insert ends when the group is there, those of deleteInstances, recreateInstances and resize when the
action is scheduled; whether VMs are there or gone is told by the group and its managed instances (reference of
instanceGroupManagers). The operation of a delete ends when all VMs are gone.

Managed instance groups: what Compute Engine refuses of them.

"About bulk mode": TPU machine types only (older versions: reservation-bound and flex-start VMs only); flex-start needs
defaultActionOnFailure DO_NOTHING; the mode can't change; instances are added at size 0 only; a size other than 0 is
reached by deleting only while no bulk operation runs. "About workload policies": a policy is regional, and needed for a
slice of several hosts. That the policy's topology fixes the size was seen through GKE (xpk 751): "Should be equal to
the gang size". "Failure recovery of TPU instances": instances of a multi-host slice can't be rescheduled one by one, so
here they can't be deleted or recreated one by one either; what Compute Engine says to it is not on record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rehearsal.simulators.compute import errors, names, templates
from rehearsal.simulators.compute.errors import Failure
from rehearsal.simulators.compute.faults import FLEX_START, RESERVATION_BOUND
from rehearsal.simulators.compute.ledger import Asked
from rehearsal.simulators.compute.names import BASE_NAME_LENGTH, Scope
from rehearsal.simulators.compute.parts import Parts, check_name
from rehearsal.simulators.compute.records import (
    GROUPS,
    INSTANCES,
    POLICIES,
    TEMPLATES,
    Action,
    Group,
    Member,
    Operation,
    Policy,
    Template,
)
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


class Managers:
    """The managed instance groups of the world."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._groups = parts.store.groups

    def get(self, scope: Scope, name: str) -> Group:
        """Return a group."""
        with self._parts.lock:
            self._parts.now()
            return self._parts.store.get(self._groups, scope.resource(GROUPS, name))

    def in_zone(self, scope: Scope) -> list[Group]:
        """Return the groups of a zone."""
        with self._parts.lock:
            self._parts.now()
            return self._parts.store.listed(self._groups, scope)

    def members(self, scope: Scope, name: str) -> list[Member]:
        """Return the managed instances of a group."""
        with self._parts.lock:
            return [*self.get(scope, name).members]

    def insert(self, scope: Scope, body: dict[str, Any], asked: Asked) -> Operation:
        """Begin to make a group."""
        parts = self._parts
        with parts.lock:
            now = parts.now()
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
        check_group(body, scope, template, policy, settings)
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
        with parts.lock:
            now = parts.now()
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

    def delete_instances(self, scope: Scope, name: str, instances: list[str], *, skip: bool, asked: Asked) -> Operation:
        """Begin to delete managed instances; the group's size falls by as many."""
        with self._parts.lock:
            group = self._usable(scope, name)
            members = find_members(group, instances, skip=skip)
            check_removal(group, len(members))

            def begin(when: datetime) -> None:
                leaving = _staying(group, members)
                group.size -= len(leaving)
                self._parts.life.remove(group, leaving, when)

            return self._act(group, asked, begin)

    def recreate_instances(self, scope: Scope, name: str, instances: list[str], asked: Asked) -> Operation:
        """Begin to make the VMs of managed instances again."""
        with self._parts.lock:
            group = self._usable(scope, name)
            members = find_members(group, instances, skip=False)
            check_recreation(group, members)

            def begin(when: datetime) -> None:
                self._parts.life.recreate(group, _staying(group, members), when)

            return self._act(group, asked, begin)

    def resize(self, scope: Scope, name: str, size: int, asked: Asked) -> Operation:
        """Begin to give a group another size."""
        with self._parts.lock:
            group = self._usable(scope, name)
            check_size(group, size)

            def begin(when: datetime) -> None:
                group.size = size
                self._parts.life.remove(group, _staying(group, group.members)[size:], when)
                self._parts.life.fill(group, when)

            return self._act(group, asked, begin)

    def _usable(self, scope: Scope, name: str) -> Group:
        self._parts.now()
        return self._parts.store.usable(self._groups, scope.resource(GROUPS, name))

    def _act(self, group: Group, asked: Asked, begin: Callable[[datetime], None]) -> Operation:
        """Begin an operation that schedules something; it has its effect at once, unless a fault keeps it."""
        now = self._parts.now()
        operation = self._parts.ledger.begin(asked, group, now)
        held = operation.held_by is not None
        if operation.fate is None and not held:
            begin(now)

        def effect(when: datetime) -> Failure | None:
            if held and group.is_ready:
                begin(when)
            return None

        self._parts.ledger.finish_later(operation, self._parts.settings().operation_seconds, effect=effect)
        return operation


def _staying(group: Group, members: Sequence[Member]) -> list[Member]:
    """Return those that are still of a group: an operation that hung finds others than when it began."""
    return [member for member in members if member in group.members and member.action is not Action.DELETING]


def _check_account(template: Template, settings: ComputeSettings) -> None:
    account = templates.service_account(template.properties, template.scope.project)
    state = settings.service_accounts.get(account)
    if state == "missing":
        raise errors.invalid("resource.serviceAccounts", account, "The service account does not exist.")
    if state == "forbidden":
        text = f"The user does not have access to service account '{account}'. User: 'somebody@example.com'."
        raise errors.ApiError(400, "serviceAccountAccessDenied", text)
