"""Stores policies, templates and groups; inserts and deletes them by operations, and checks whether they are in use.

By default, a resource is visible from its insert on. Before the end of the insert, and during its delete, other
resources cannot use it, and it cannot be deleted (resourceNotReady). Not thread-safe: the model holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TypeVar

from rehearsal.simulators.compute import errors
from rehearsal.simulators.compute.errors import Failure
from rehearsal.simulators.compute.ledger import Asked, Ledger
from rehearsal.simulators.compute.names import Scope
from rehearsal.simulators.compute.records import (
    GROUPS,
    POLICIES,
    TEMPLATES,
    Group,
    Machine,
    Operation,
    Policy,
    Resource,
    Template,
)
from rehearsal.simulators.compute.settings import ComputeSettings

_Resource = TypeVar("_Resource", Policy, Template, Group)
#: Names of kinds in errors about resources in use.
_KINDS = {POLICIES: "resource_policy", TEMPLATES: "instance_template"}


def _nothing(_when: datetime) -> None:
    pass


class Store:
    """All policies, templates and groups, by their full names."""

    def __init__(self, *, settings: Callable[[], ComputeSettings], ledger: Ledger) -> None:
        self.policies: dict[str, Policy] = {}
        self.templates: dict[str, Template] = {}
        self.groups: dict[str, Group] = {}
        self._settings = settings
        self._ledger = ledger

    @property
    def shelves(self) -> dict[str, Any]:
        """Dictionaries of resources by collection."""
        return {POLICIES: self.policies, TEMPLATES: self.templates, GROUPS: self.groups}

    def __iter__(self) -> Iterator[Resource]:
        for shelf in self.shelves.values():
            yield from shelf.values()

    def machines(self) -> list[Machine]:
        """Return the VMs of all groups."""
        return [machine for group in self.groups.values() for machine in group.machines]

    def instance_names(self, scope: Scope) -> set[str]:
        """Return the names of all managed instances of a zone."""
        return {member.name for group in self.groups.values() if group.scope == scope for member in group.members}

    def get(self, shelf: dict[str, _Resource], path: str) -> _Resource:
        """Return a resource that is visible to clients. Raises ApiError."""
        found = shelf.get(path)
        if found is None or not self._is_visible(found):
            raise errors.not_found(path)
        return found

    def usable(self, shelf: dict[str, _Resource], path: str) -> _Resource:
        """Return a resource that can be used or changed now. Raises ApiError."""
        found = shelf.get(path)
        if found is None:
            raise errors.not_found(path)
        if not found.is_ready:
            raise errors.not_ready(path)
        return found

    def listed(self, shelf: dict[str, _Resource], scope: Scope) -> list[_Resource]:
        """Return the resources of a scope that are visible to clients."""
        return [found for found in shelf.values() if found.scope == scope and self._is_visible(found)]

    def _is_visible(self, resource: Resource) -> bool:
        # Policies are always visible, because their status shows whether they are being created.
        is_hidden = resource.inserting is not None and not isinstance(resource, Policy)
        return not is_hidden or self._settings().visible_while_inserted

    def insert(
        self,
        shelf: dict[str, _Resource],
        resource: _Resource,
        asked: Asked,
        *,
        then: Callable[[datetime], None] = _nothing,
    ) -> Operation:
        """Begin to create a resource; `then` is called when it is created."""
        if resource.path in shelf:
            raise errors.ApiError(409, "alreadyExists", f"The resource '{resource.path}' already exists")
        operation = self._ledger.begin(asked, resource, resource.created)
        shelf[resource.path] = resource
        resource.inserting = operation

        def effect(when: datetime) -> Failure | None:
            resource.inserting = None
            then(when)
            return None

        def undo() -> None:
            del shelf[resource.path]

        self._ledger.finish_later(operation, self._settings().operation_seconds, effect=effect, undo=undo)
        return operation

    def _check_unused(self, resource: Resource) -> None:
        for group in self.groups.values():
            if group.template is resource or group.policy is resource:
                kind = _KINDS[resource.collection]
                text = f"The {kind} resource '{resource.path}' is already being used by '{group.path}'"
                raise errors.ApiError(400, "resourceInUseByAnotherResource", text)

    def delete(
        self,
        shelf: dict[str, _Resource],
        resource: _Resource,
        asked: Asked,
        now: datetime,
        *,
        seconds: float = 0.0,
        then: Callable[[datetime], None] = _nothing,
    ) -> Operation:
        """Begin to delete an unused resource; this takes `seconds` longer than usual, and ends with `then`."""
        self._check_unused(resource)
        operation = self._ledger.begin(asked, resource, now)
        resource.deleting = operation

        def effect(when: datetime) -> Failure | None:
            then(when)
            del shelf[resource.path]
            return None

        def undo() -> None:
            resource.deleting = None

        lasting = self._settings().operation_seconds + seconds
        self._ledger.finish_later(operation, lasting, effect=effect, undo=undo)
        return operation
