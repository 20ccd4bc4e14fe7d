"""What may be asked of managed instance groups.

The operation of an insert ends when the group is there, those of deleteInstances, recreateInstances and resize when the
action is scheduled; whether VMs are there or gone is told by the group and its managed instances (reference of
instanceGroupManagers). The operation of a delete ends when all VMs are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from rehearsal.simulators.compute import errors, groups, templates
from rehearsal.simulators.compute.errors import Failure
from rehearsal.simulators.compute.ledger import Asked
from rehearsal.simulators.compute.names import Scope
from rehearsal.simulators.compute.parts import Parts, check_name
from rehearsal.simulators.compute.records import (
    GROUPS,
    POLICIES,
    TEMPLATES,
    Action,
    Group,
    Member,
    Operation,
    Template,
)
from rehearsal.simulators.compute.settings import ComputeSettings


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
        base_name, store, settings = groups.base_name(body), self._parts.store, self._parts.settings()
        within, name = groups.reference(body, "instanceTemplate", TEMPLATES, scope)
        template = store.usable(store.templates, within.resource(TEMPLATES, name))
        policy = None
        if "workloadPolicy" in body.get("resourcePolicies", {}):
            within, name = groups.reference(body["resourcePolicies"], "workloadPolicy", POLICIES, scope)
            policy = store.usable(store.policies, within.resource(POLICIES, name))
        groups.check_group(body, scope, template, policy, settings)
        _check_account(template, settings)
        return Group(
            scope=scope,
            name=body["name"],
            body=body,
            created=now,
            template=template,
            policy=policy,
            base_name=base_name,
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
            members = groups.find_members(group, instances, skip=skip)
            groups.check_removal(group, len(members))

            def begin(when: datetime) -> None:
                leaving = _staying(group, members)
                group.size -= len(leaving)
                self._parts.life.remove(group, leaving, when)

            return self._act(group, asked, begin)

    def recreate_instances(self, scope: Scope, name: str, instances: list[str], asked: Asked) -> Operation:
        """Begin to make the VMs of managed instances again."""
        with self._parts.lock:
            group = self._usable(scope, name)
            members = groups.find_members(group, instances, skip=False)
            groups.check_recreation(group, members)

            def begin(when: datetime) -> None:
                self._parts.life.recreate(group, _staying(group, members), when)

            return self._act(group, asked, begin)

    def resize(self, scope: Scope, name: str, size: int, asked: Asked) -> Operation:
        """Begin to give a group another size."""
        with self._parts.lock:
            group = self._usable(scope, name)
            groups.check_size(group, size)

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
