"""Compute Engine's REST methods over the model: which path means which call, and what it answers.

Transport-free: `Api.handle` takes a parsed request and returns a JSON body or raises an ApiError. What is looked at
before a call has any effect, in this order: project and place, limits of calls a minute, permissions, policies of the
organisation, the request id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from rehearsal.simulators.compute import errors, lists, names, permissions, schema, wire
from rehearsal.simulators.compute.ledger import Asked
from rehearsal.simulators.compute.model import World
from rehearsal.simulators.compute.names import COMPUTE_API, GLOBAL, REGIONS, ZONES, Scope
from rehearsal.simulators.compute.records import GROUPS, INSTANCES, OPERATIONS, POLICIES, RESERVATIONS, TEMPLATES
from rehearsal.simulators.http.exchange import Request, Route

_PROJECT = r"/compute/v1/projects/(?P<project>[^/]+)"
_PLACES = {
    ZONES: rf"{_PROJECT}/zones/(?P<zone>[^/]+)",
    REGIONS: rf"{_PROJECT}/regions/(?P<region>[^/]+)",
    GLOBAL: rf"{_PROJECT}/global",
}
_CRUD = (("GET", "", "list"), ("POST", "", "insert"), ("GET", "/NAME", "get"), ("DELETE", "/NAME", "delete"))
_OPERATION_CALLS = (("GET", "", "list"), ("GET", "/NAME", "get"), ("POST", "/NAME/wait", "wait"))
_ALL = (
    (POLICIES, POLICIES, (REGIONS,), _CRUD),
    (TEMPLATES, TEMPLATES, (GLOBAL, REGIONS), _CRUD),
    (
        GROUPS,
        GROUPS,
        (ZONES,),
        (
            *_CRUD,
            ("POST", "/NAME/listManagedInstances", "listManagedInstances"),
            ("POST", "/NAME/deleteInstances", "deleteInstances"),
            ("POST", "/NAME/recreateInstances", "recreateInstances"),
            ("POST", "/NAME/resize", "resize"),
        ),
    ),
    (
        INSTANCES,
        INSTANCES,
        (ZONES,),
        (("GET", "", "list"), ("GET", "/NAME", "get"), ("POST", "/NAME/setMetadata", "setMetadata")),
    ),
    (RESERVATIONS, RESERVATIONS, (ZONES,), (("GET", "", "list"), ("GET", "/NAME", "get"))),
    (OPERATIONS, "zoneOperations", (ZONES,), _OPERATION_CALLS),
    (OPERATIONS, "regionOperations", (REGIONS,), _OPERATION_CALLS),
    (OPERATIONS, "globalOperations", (GLOBAL,), _OPERATION_CALLS),
)
_ROUTES = tuple(
    (
        http_method,
        re.compile(f"{_PLACES[place]}/{collection}" + suffix.replace("NAME", "(?P<name>[^/]+)")),
        f"{title}.{verb}",
    )
    for collection, title, places, calls in _ALL
    for place in places
    for http_method, suffix, verb in calls
)
_LIST_KINDS = {
    "resourcePolicies.list": "resourcePolicyList",
    "instanceTemplates.list": "instanceTemplateList",
    "instanceGroupManagers.list": "instanceGroupManagerList",
    "instances.list": "instanceList",
    "reservations.list": "reservationList",
}


def route(http_method: str, path: str) -> Route:
    """Return the call that a request means."""
    for expected, pattern, method in _ROUTES:
        match = pattern.fullmatch(path) if expected == http_method else None
        if match is not None:
            return Route(method=method, parts=match.groupdict())
    if re.match(_PROJECT, path):
        raise errors.not_played(f"{http_method} {path}")
    raise errors.of_http_code(404, f"Method not found: {http_method} {path}.")


def scope_of(found: Route) -> Scope:
    """Return the scope that a path names."""
    project = found.parts["project"]
    if "zone" in found.parts:
        return Scope(project, ZONES, found.parts["zone"])
    return Scope(project, REGIONS, found.parts["region"]) if "region" in found.parts else Scope(project, GLOBAL)


_Handler = Callable[[Scope, str, Request], dict[str, Any]]


class Api:
    """Answers calls from the model."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._limits = permissions.RateLimits()
        self._reads: dict[str, _Handler] = {
            "resourcePolicies.get": lambda scope, name, _: wire.policy_body(world.policy(scope, name)),
            "resourcePolicies.list": lambda scope, _, request: self._page(
                "resourcePolicies.list", scope, world.policies(scope), wire.policy_body, request
            ),
            "instanceTemplates.get": lambda scope, name, _: wire.template_body(world.template(scope, name)),
            "instanceTemplates.list": lambda scope, _, request: self._page(
                "instanceTemplates.list", scope, world.templates(scope), wire.template_body, request
            ),
            "instanceGroupManagers.get": self._get_group,
            "instanceGroupManagers.list": self._list_groups,
            "instanceGroupManagers.listManagedInstances": self._list_managed,
            "instances.get": lambda scope, name, _: wire.machine_body(world.instances.get(scope, name)),
            "instances.list": lambda scope, _, request: self._page(
                "instances.list", scope, world.instances.in_zone(scope), wire.machine_body, request
            ),
            "reservations.get": lambda scope, name, _: wire.reservation_body(world.reservation(scope, name)),
            "reservations.list": lambda scope, _, request: self._page(
                "reservations.list", scope, world.reservations(scope), wire.reservation_body, request
            ),
            "operations.get": self.operation,
            "operations.wait": self.operation,
            "operations.list": lambda scope, _, request: self._page(
                "operations.list", scope, world.operations(scope), wire.operation_body, request
            ),
        }
        self._changes: dict[str, Callable[[Scope, str, Request, Asked], Any]] = {
            "resourcePolicies.insert": lambda scope, _, request, asked: world.insert_policy(
                scope, schema.read(request.body, schema.RESOURCE_POLICY), asked
            ),
            "resourcePolicies.delete": lambda scope, name, _, asked: world.delete_policy(scope, name, asked),
            "instanceTemplates.insert": lambda scope, _, request, asked: world.insert_template(
                scope, schema.read(request.body, schema.INSTANCE_TEMPLATE), asked
            ),
            "instanceTemplates.delete": lambda scope, name, _, asked: world.delete_template(scope, name, asked),
            "instanceGroupManagers.insert": lambda scope, _, request, asked: world.groups.insert(
                scope, schema.read(request.body, schema.INSTANCE_GROUP_MANAGER), asked
            ),
            "instanceGroupManagers.delete": lambda scope, name, _, asked: world.groups.delete(scope, name, asked),
            "instanceGroupManagers.deleteInstances": self._delete_instances,
            "instanceGroupManagers.recreateInstances": self._recreate_instances,
            "instanceGroupManagers.resize": self._resize,
            "instances.setMetadata": lambda scope, name, request, asked: world.instances.set_metadata(
                scope, name, schema.read(request.body, schema.METADATA), asked
            ),
        }

    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the answer, a picture of one moment."""
        with self._world.frozen():
            scope, name = scope_of(found), found.parts.get("name", "")
            self._admit(found, scope, name, request)
            if found.method in self._changes:
                return lists.partial(self._change(found, scope, name, request), request.query.get("fields", ""))
            verb = found.method if found.method in self._reads else f"operations.{found.method.partition('.')[2]}"
            return lists.partial(self._reads[verb](scope, name, request), request.query.get("fields", ""))

    def _admit(self, found: Route, scope: Scope, name: str, request: Request) -> None:
        settings, method = self._world.settings, found.method
        if settings.project not in (None, scope.project):
            raise errors.not_found(f"projects/{scope.project}")
        if scope.kind == ZONES and (not names.is_zone(scope.location) or not _has_zone(settings.zones, scope.location)):
            raise errors.invalid("zone", scope.location, "Unknown zone.")
        if scope.kind == REGIONS and not names.is_region(scope.location):
            raise errors.invalid("region", scope.location, "Unknown region.")
        changes = method in self._changes
        self._limits.check(scope.project, changes=changes, now=self._world.now(), settings=settings)
        permissions.check_permissions(method, _subject(found, scope, name, request), settings)
        if changes and method in settings.violated_constraints:
            text = errors.constraint_violated(settings.violated_constraints[method], scope.project)
            raise errors.condition_not_met(text)

    def _change(self, found: Route, scope: Scope, name: str, request: Request) -> dict[str, Any]:
        content = (found.method, request.path, json.dumps(request.body, sort_keys=True))
        request_id = request.query.get("requestId", "")
        operation = self._world.repeated(scope.project, request_id, content)
        if operation is None:
            asked = Asked(method=found.method, request_id=request_id, content=content)
            operation = self._changes[found.method](scope, name, request, asked)
        return wire.operation_body(operation)

    def operation(self, scope: Scope, name: str, _request: Request | None = None) -> dict[str, Any]:
        """Return the body of an operation."""
        return wire.operation_body(self._world.operation(scope, name))

    def _page(
        self, method: str, scope: Scope, items: Sequence[Any], render: Callable[[Any], dict[str, Any]], request: Request
    ) -> dict[str, Any]:
        title = method.partition(".")[0]
        path = f"{scope.path}/{title}"
        shown = lists.page_of(items, request.query, render)
        kind = _LIST_KINDS.get(method, "operationList")
        return {"kind": f"compute#{kind}", "id": path, "selfLink": f"{COMPUTE_API}/{path}", **shown}

    # -- groups --------------------------------------------------------------------------------------------------

    def _get_group(self, scope: Scope, name: str, _request: Request) -> dict[str, Any]:
        return wire.group_body(self._world.groups.get(scope, name), self._world.now())

    def _list_groups(self, scope: Scope, _name: str, request: Request) -> dict[str, Any]:
        now = self._world.now()
        found = self._world.groups.in_zone(scope)
        return self._page(
            "instanceGroupManagers.list", scope, found, lambda group: wire.group_body(group, now), request
        )

    def _list_managed(self, scope: Scope, name: str, request: Request) -> dict[str, Any]:
        group = self._world.groups.get(scope, name)
        if "orderBy" in request.query:
            raise errors.invalid("orderBy", request.query["orderBy"], "Not supported by listManagedInstances.")
        members = self._world.groups.members(scope, name)
        if group.body.get("listManagedInstancesResults") == "PAGINATED":
            return lists.page_of(
                members, request.query, lambda member: wire.member_body(group, member), key="managedInstances"
            )
        bodies = [wire.member_body(group, member) for member in members]
        chosen = [body for body in bodies if lists.matches(body, request.query.get("filter", ""))]
        return {"managedInstances": chosen} if chosen else {}

    def _delete_instances(self, scope: Scope, name: str, request: Request, asked: Asked) -> Any:
        sent = schema.read(request.body, schema.DELETE_INSTANCES)
        skip = sent.get("skipInstancesOnValidationError", False)
        return self._world.groups.delete_instances(scope, name, sent.get("instances", []), skip=skip, asked=asked)

    def _recreate_instances(self, scope: Scope, name: str, request: Request, asked: Asked) -> Any:
        sent = schema.read(request.body, schema.RECREATE_INSTANCES)
        return self._world.groups.recreate_instances(scope, name, sent.get("instances", []), asked)

    def _resize(self, scope: Scope, name: str, request: Request, asked: Asked) -> Any:
        size = request.query.get("size", "")
        if not size.isdecimal():
            raise errors.required("size") if not size else errors.invalid("size", size, "Must be a number.")
        return self._world.groups.resize(scope, name, int(size), asked)


def _has_zone(zones: Any, zone: str) -> bool:
    return zones is None or zone in zones


def _subject(found: Route, scope: Scope, name: str, request: Request) -> str:
    """Return what a call is about, as far as it shows, for texts on permissions."""
    title = found.method.partition(".")[0]
    collection = OPERATIONS if title.endswith("Operations") else title
    if not name and isinstance(request.body, dict):
        name = str(request.body.get("name", ""))
    return scope.resource(collection, name) if name else f"projects/{scope.project}"
