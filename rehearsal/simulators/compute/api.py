"""Compute Engine's REST methods over the model: maps paths to calls, and calls to responses.

Transport-free: `Api.handle` takes a parsed request and returns a JSON body or raises an ApiError. Checks before a call
has any effect, in this order: project and zone or region, permissions, the request ID.

A call needs the IAM permissions that the reference of its method names. An insert of a group also needs all permissions
to create machines, regardless of its template. Every caller has all permissions that the settings do not deny.

Lists have at most 500 items per page, in alphabetical order; the supported filters are `name eq "REGEX"` and
`description eq "REGEX"`. Lists of managed instances are PAGELESS. `fields` selects a part of a response.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rehearsal.simulators.compute import errors, names, schema, wire
from rehearsal.simulators.compute.ledger import Asked
from rehearsal.simulators.compute.model import World
from rehearsal.simulators.compute.names import GLOBAL, REGIONS, ZONES, Scope
from rehearsal.simulators.compute.records import (
    GROUPS,
    INSTANCES,
    OPERATIONS,
    POLICIES,
    TEMPLATES,
    Group,
    Operation,
)
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http import fieldmask, google
from rehearsal.simulators.http.exchange import Request, Route

_PROJECT = r"/compute/v1/projects/(?P<project>[^/]+)"
_AGGREGATED = "aggregated"
_PLACES = {
    ZONES: rf"{_PROJECT}/zones/(?P<zone>[^/]+)",
    REGIONS: rf"{_PROJECT}/regions/(?P<region>[^/]+)",
    GLOBAL: rf"{_PROJECT}/global",
    _AGGREGATED: rf"{_PROJECT}/aggregated",
}
_CRUD = (("GET", "", "list"), ("POST", "", "insert"), ("GET", "/NAME", "get"), ("DELETE", "/NAME", "delete"))
_READS = (("GET", "", "list"), ("GET", "/NAME", "get"))
_ALL = (
    (POLICIES, POLICIES, (REGIONS,), _CRUD),
    (TEMPLATES, TEMPLATES, (GLOBAL, REGIONS), _CRUD),
    (
        GROUPS,
        GROUPS,
        (ZONES,),
        (*_CRUD, ("POST", "/NAME/listManagedInstances", "listManagedInstances")),
    ),
    (GROUPS, GROUPS, (_AGGREGATED,), (("GET", "", "aggregatedList"),)),
    (INSTANCES, INSTANCES, (ZONES,), (*_READS, ("POST", "/NAME/setMetadata", "setMetadata"))),
    (OPERATIONS, "zoneOperations", (ZONES,), _READS),
    (OPERATIONS, "regionOperations", (REGIONS,), _READS),
    (OPERATIONS, "globalOperations", (GLOBAL,), _READS),
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
}


_RIGHTS = {"insert": "create", "listManagedInstances": "list", "aggregatedList": "list"}
#: Permissions in addition to compute.COLLECTION.VERB of each method. If several are missing, the error names the first.
_MORE = {
    "instanceGroupManagers.insert": (
        "compute.instanceTemplates.useReadOnly",
        "compute.instances.create",
        "compute.disks.create",
        "compute.images.useReadOnly",
        "compute.subnetworks.use",
        "compute.instances.setMetadata",
        "compute.instances.setTags",
        "compute.instances.setServiceAccount",
        "compute.resourcePolicies.use",
        "iam.serviceAccounts.actAs",
    ),
    "instanceGroupManagers.delete": ("compute.instances.delete",),
    "instances.setMetadata": ("iam.serviceAccounts.actAs",),
}


def _permissions_of(method: str) -> tuple[str, ...]:
    title, _, verb = method.partition(".")
    return (f"compute.{title}.{_RIGHTS.get(verb, verb)}", *_MORE.get(method, ()))


PERMISSIONS = {method: _permissions_of(method) for _, _, method in _ROUTES}


_MOST = 500
_FILTER = re.compile(r'(name|description) eq "([^"]*)"')


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Item = TypeVar("_Item", bound=_Named)


def page_of(
    items: Sequence[_Item], query: Mapping[str, str], render: Callable[[_Item], dict[str, Any]]
) -> dict[str, Any]:
    """Return the requested page of a list, with the token of the next page; only items of the page are rendered."""
    size, start = _number("maxResults", query) or _MOST, _number("pageToken", query)
    if size > _MOST:
        raise errors.invalid("maxResults", size, f"Must be from 0 to {_MOST}.")
    chosen = sorted(_chosen(items, query.get("filter", "")), key=lambda item: item.name)
    page = [render(item) for item in chosen[start : start + size]]
    shown: dict[str, Any] = {"items": page} if page else {}
    return {**shown, "nextPageToken": str(start + size)} if start + size < len(chosen) else shown


def _number(field: str, query: Mapping[str, str]) -> int:
    text = query.get(field, "0")
    if not text.isdecimal():
        raise errors.invalid(field, text, "Not a number.")
    return int(text)


def _chosen(items: Sequence[_Item], text: str) -> Sequence[_Item]:
    if not text:
        return items
    match = _FILTER.fullmatch(text)
    if match is None:
        raise errors.invalid("filter", text, 'Only name eq "REGEX" and description eq "REGEX" are supported.')
    return [item for item in items if re.fullmatch(match[2], _value_of(item, match[1]))]


def _value_of(item: Any, field: str) -> str:
    return str(item.name if field == "name" else item.body.get(field, ""))


def partial(body: dict[str, Any], fields: str) -> dict[str, Any]:
    """Return the part of a body that `fields` names, such as items/name,nextPageToken."""
    return fieldmask.apply(_mask_of(fields), body) if fields else body


@functools.lru_cache(maxsize=256)
def _mask_of(fields: str) -> fieldmask.Mask:
    try:
        return fieldmask.tree(fieldmask.paths(fields))
    except fieldmask.MaskError as error:
        raise errors.invalid("fields", fields, "Invalid field selection.") from error


def check_permissions(method: str, path: str, settings: ComputeSettings) -> None:
    """Raise ApiError if the caller lacks a permission for a call; `path` is the resource named in the error."""
    for permission in PERMISSIONS[method]:
        if permission in settings.denied_permissions:
            raise errors.ApiError(403, "forbidden", f"Required '{permission}' permission for '{path}'")


def route(http_method: str, path: str) -> Route:
    """Return the call that a request makes. Raises ApiError if the call does not exist."""
    for expected, pattern, method in _ROUTES:
        match = pattern.fullmatch(path) if expected == http_method else None
        if match is not None:
            return Route(method=method, parts=match.groupdict())
    if re.match(_PROJECT, path):
        raise errors.not_played(f"{http_method} {path}")
    raise errors.of_http_code(404, f"Method not found: {http_method} {path}.")


def scope_of(found: Route) -> Scope:
    """Return the zone, region or global scope in a path."""
    project = found.parts["project"]
    if "zone" in found.parts:
        return Scope(project, ZONES, found.parts["zone"])
    return Scope(project, REGIONS, found.parts["region"]) if "region" in found.parts else Scope(project, GLOBAL)


_SCHEMAS = {
    POLICIES: schema.RESOURCE_POLICY,
    TEMPLATES: schema.INSTANCE_TEMPLATE,
    GROUPS: schema.INSTANCE_GROUP_MANAGER,
}
_CHANGES = ("insert", "delete", "setMetadata")


class Api:
    """Handles calls with the model."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bodies: dict[str, Callable[[Any], dict[str, Any]]] = {
            POLICIES: wire.policy_body,
            TEMPLATES: wire.template_body,
            GROUPS: lambda group: wire.group_body(group, world.now()),
            INSTANCES: wire.machine_body,
            OPERATIONS: wire.operation_body,
        }

    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the response, which shows the state at one point in time."""
        with self._world.moment():
            scope, name = scope_of(found), found.parts.get("name", "")
            self._admit(found, scope, name, request)
            return partial(self._answer(found, scope, name, request), request.query.get("fields", ""))

    def _answer(self, found: Route, scope: Scope, name: str, request: Request) -> dict[str, Any]:
        collection, verb = _collection_of(found), found.method.partition(".")[2]
        if verb in _CHANGES:
            return self._change(found, scope, name, request)
        if verb == "listManagedInstances":
            return self._list_managed(scope, name)
        if verb == "list":
            return self._page(found, scope, collection, request)
        if verb == "aggregatedList":
            return self._aggregated(scope, request)
        return self._bodies[collection](self._world.get(collection, scope, name))

    def _admit(self, found: Route, scope: Scope, name: str, request: Request) -> None:
        settings, method = self._world.settings, found.method
        if settings.project not in (None, scope.project):
            raise errors.not_found(f"projects/{scope.project}")
        is_zone = google.is_zone(scope.location) and (settings.zones is None or scope.location in settings.zones)
        if scope.kind == ZONES and not is_zone:
            raise errors.invalid("zone", scope.location, "Unknown zone.")
        if scope.kind == REGIONS and not names.is_region(scope.location):
            raise errors.invalid("region", scope.location, "Unknown region.")
        check_permissions(method, _subject(found, scope, name, request), settings)

    def _change(self, found: Route, scope: Scope, name: str, request: Request) -> dict[str, Any]:
        content = (found.method, request.path, json.dumps(request.body, sort_keys=True))
        request_id = request.query.get("requestId", "")
        operation = self._world.repeated(scope.project, request_id, content)
        if operation is None:
            asked = Asked(method=found.method, request_id=request_id, content=content)
            operation = self._begin(found, scope, name, request.body, asked)
        return wire.operation_body(operation)

    def _begin(self, found: Route, scope: Scope, name: str, body: object, asked: Asked) -> Operation:
        collection, verb = _collection_of(found), found.method.partition(".")[2]
        if verb == "insert":
            return self._world.insert(collection, scope, schema.read(body, _SCHEMAS[collection]), asked)
        if verb == "delete":
            return self._world.delete(collection, scope, name, asked)
        return self._world.set_metadata(scope, name, schema.read(body, schema.METADATA), asked)

    def _page(self, found: Route, scope: Scope, collection: str, request: Request) -> dict[str, Any]:
        path = f"{scope.path}/{collection}"
        shown = page_of(self._world.listed(collection, scope), request.query, self._bodies[collection])
        kind = _LIST_KINDS.get(found.method, "operationList")
        return {"kind": f"compute#{kind}", "id": path, "selfLink": f"{google.COMPUTE_API}/{path}", **shown}

    def _aggregated(self, scope: Scope, request: Request) -> dict[str, Any]:
        """Return the managed instance groups of a project by zone."""
        groups = [
            group
            for group in self._world.resources()
            if isinstance(group, Group) and group.scope.project == scope.project
        ]
        page = page_of(groups, request.query, self._bodies[GROUPS])
        zones: dict[str, Any] = {}
        for body in page.pop("items", ()):
            zone = f"zones/{body['zone'].rpartition('/')[2]}"
            zones.setdefault(zone, {GROUPS: []})[GROUPS].append(body)
        return {"kind": "compute#instanceGroupManagerAggregatedList", "items": zones, **page}

    def _list_managed(self, scope: Scope, name: str) -> dict[str, Any]:
        group = self._world.get(GROUPS, scope, name)
        bodies = [wire.member_body(group, member) for member in group.members]
        return {"managedInstances": bodies} if bodies else {}


def _collection_of(found: Route) -> str:
    title = found.method.partition(".")[0]
    return OPERATIONS if title.endswith("Operations") else title


def _subject(found: Route, scope: Scope, name: str, request: Request) -> str:
    """Return the resource of a call, or its project if the resource is unknown, for messages about permissions."""
    if not name and isinstance(request.body, dict):
        name = str(request.body.get("name", ""))
    return scope.resource(_collection_of(found), name) if name else f"projects/{scope.project}"
