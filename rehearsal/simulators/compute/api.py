"""Compute Engine's REST methods over the model: which path means which call, and what it answers.

Transport-free: `Api.handle` takes a parsed request and returns a JSON body or raises an ApiError. What is looked at
before a call has any effect, in this order: project and place, limits of calls a minute, permissions, policies of the
organisation, the request id.

Which IAM permissions each call needs, by the references of the methods; and how many calls a minute there may be.

Whoever creates a group needs what the creation of its machines needs: what its template says of disks, images,
networks, metadata, tags and service accounts. Here that is always asked for, whatever the template says. Everybody has
every permission but those that the settings deny.

Lists as Compute Engine gives them: pages, filters, orders; and the part of an answer that a client asks for.

Reference of every list: at most 500 a page, names in alphabetical order or the newest first, filters with = != and : of
AIP 160 or with eq and ne, of which the values are regular expressions. Comparisons by size, OR, and parentheses inside
parentheses are not played. Partial answers: "Partial response", parameter `fields`.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from rehearsal.simulators.compute import errors, names, schema, wire
from rehearsal.simulators.compute.ledger import Asked
from rehearsal.simulators.compute.model import World
from rehearsal.simulators.compute.names import GLOBAL, REGIONS, ZONES, Scope
from rehearsal.simulators.compute.records import GROUPS, INSTANCES, OPERATIONS, POLICIES, RESERVATIONS, TEMPLATES
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http import google
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


_MINUTE = timedelta(minutes=1)
#: By method; what is first is named first where several are missing.
PERMISSIONS = {
    "resourcePolicies.insert": ("compute.resourcePolicies.create",),
    "resourcePolicies.get": ("compute.resourcePolicies.get",),
    "resourcePolicies.list": ("compute.resourcePolicies.list",),
    "resourcePolicies.delete": ("compute.resourcePolicies.delete",),
    "instanceTemplates.insert": ("compute.instanceTemplates.create",),
    "instanceTemplates.get": ("compute.instanceTemplates.get",),
    "instanceTemplates.list": ("compute.instanceTemplates.list",),
    "instanceTemplates.delete": ("compute.instanceTemplates.delete",),
    "instanceGroupManagers.insert": (
        "compute.instanceGroupManagers.create",
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
    "instanceGroupManagers.get": ("compute.instanceGroupManagers.get",),
    "instanceGroupManagers.list": ("compute.instanceGroupManagers.list",),
    "instanceGroupManagers.delete": ("compute.instanceGroupManagers.delete", "compute.instances.delete"),
    "instanceGroupManagers.listManagedInstances": ("compute.instanceGroupManagers.get",),
    "instances.get": ("compute.instances.get",),
    "instances.list": ("compute.instances.list",),
    "instances.setMetadata": ("compute.instances.setMetadata", "iam.serviceAccounts.actAs"),
    "reservations.get": ("compute.reservations.get",),
    "reservations.list": ("compute.reservations.list",),
    "zoneOperations.get": ("compute.zoneOperations.get",),
    "zoneOperations.list": ("compute.zoneOperations.list",),
    "zoneOperations.wait": ("compute.zoneOperations.get",),
    "regionOperations.get": ("compute.regionOperations.get",),
    "regionOperations.list": ("compute.regionOperations.list",),
    "regionOperations.wait": ("compute.regionOperations.get",),
    "globalOperations.get": ("compute.globalOperations.get",),
    "globalOperations.list": ("compute.globalOperations.list",),
    "globalOperations.wait": ("compute.globalOperations.get",),
}


_MOST = 500
_TERM = re.compile(r"\s*([A-Za-z][\w.-]*)\s*(!=|=|:|\beq\b|\bne\b)\s*(\"[^\"]*\"|'[^']*'|[^\s()\"']+)\s*")
_FIELD_NAMES = re.compile(r"[A-Za-z0-9_/*$-]+|[(),]")


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Item = TypeVar("_Item", bound=_Named)


def page_of(
    items: Sequence[_Item], query: Mapping[str, str], render: Callable[[_Item], dict[str, Any]], *, key: str = "items"
) -> dict[str, Any]:
    """Return the page of a list that is asked for, with the token of the next; only what has to be is rendered."""
    size, start = _size(query.get("maxResults", str(_MOST))), _start(query.get("pageToken", ""))
    if query.get("filter") or query.get("orderBy"):
        chosen = [item for item in items if _may_match(item.name, query.get("filter", ""))]
        bodies = [body for body in map(render, chosen) if matches(body, query.get("filter", ""))]
        total, page = len(bodies), ordered(bodies, query.get("orderBy", ""))[start : start + size]
    else:
        chosen = sorted(items, key=lambda item: item.name)[start : start + size]
        total, page = len(items), [render(item) for item in chosen]
    shown = {key: page} if page else {}
    if start + size < total:
        return {**shown, "nextPageToken": base64.urlsafe_b64encode(str(start + size).encode()).decode()}
    return shown


def ordered(items: Sequence[dict[str, Any]], order: str) -> list[dict[str, Any]]:
    """Return bodies in the order that is asked for."""
    if order in ("", "name", "name asc"):
        return sorted(items, key=lambda item: str(item["name"]))
    if order == "creationTimestamp desc":
        return sorted(items, key=lambda item: str(item.get("creationTimestamp") or item["insertTime"]), reverse=True)
    raise errors.invalid("orderBy", order, "Only name and creationTimestamp desc are supported.")


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) > _MOST:
        raise errors.invalid("maxResults", text, f"Must be from 0 to {_MOST}.")
    return int(text) or _MOST


def _start(token: str) -> int:
    try:
        return int(base64.b64decode(token, altchars=b"-_", validate=True).decode() or "0")
    except ValueError as error:
        raise errors.invalid("pageToken", token, "Not a token of a list.") from error


def _may_match(name: str, text: str) -> bool:
    """Whether something of this name may pass a filter: to render thousands for a few of them takes long."""
    return all(_holds({"name": name}, *term) for term in _terms(text) if term[0] == "name")


def matches(item: Mapping[str, Any], text: str) -> bool:
    """Tell whether a body passes a filter."""
    return all(_holds(item, *term) for term in _terms(text))


@functools.lru_cache(maxsize=256)
def _terms(text: str) -> tuple[tuple[str, str, str], ...]:
    terms = []
    for part in re.split(r"\)\s*(?:AND\s*)?\(|\s+AND\s+", text.strip().removeprefix("(").removesuffix(")")):
        match = _TERM.fullmatch(part)
        if match is None and part.strip():
            raise errors.invalid("filter", text, "Invalid list filter expression.")
        if match is not None:
            terms.append((match[1], match[2], match[3].strip("\"'")))
    return tuple(terms)


def _holds(item: Mapping[str, Any], field: str, operator: str, value: str) -> bool:
    found: Any = item
    for name in field.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if operator == ":" and value == "*":
        return found is not None
    shown = str(found).lower() if isinstance(found, bool) else "" if found is None else str(found)
    match operator:
        case "=":
            return shown == value
        case "!=":
            return shown != value
        case ":":
            return value.rstrip("*") in shown
        case _:
            return (re.fullmatch(value, shown) is not None) == (operator == "eq")


def partial(body: dict[str, Any], fields: str) -> dict[str, Any]:
    """Return the part of a body that `fields` names, such as items(name,status),nextPageToken."""
    if not fields or fields == "*":
        return body
    tokens = _FIELD_NAMES.findall(fields)
    if "".join(tokens) != fields.replace(" ", ""):
        raise errors.invalid("fields", fields, "Invalid field selection.")
    mask, rest = _mask(tokens)
    if rest:
        raise errors.invalid("fields", fields, "Invalid field selection.")
    found: dict[str, Any] = _part(body, mask)
    return found


_Mask = dict[str, Any]


def _mask(tokens: Sequence[str]) -> tuple[_Mask, list[str]]:
    mask: _Mask = {}
    left, inner = list(tokens), mask
    while left and left[0] != ")":
        part = left.pop(0)
        if part == "(":
            below, left = _mask(left)
            inner.update(below)
            left = left[1:]
        elif part != ",":
            inner = mask
            for name in part.split("/"):
                inner = inner.setdefault(name, {})
    return mask, left


def _part(body: Any, mask: _Mask) -> Any:
    if not mask or "*" in mask:
        return body
    if isinstance(body, list):
        return [_part(item, mask) for item in body]
    if isinstance(body, dict):
        return {name: _part(body[name], below) for name, below in mask.items() if name in body}
    return body


def check_permissions(method: str, path: str, settings: ComputeSettings) -> None:
    """Refuse a call for which the caller lacks a permission; `path` is what the call is about."""
    for permission in PERMISSIONS[method]:
        if permission in settings.denied_permissions:
            raise errors.forbidden(permission, path)


class RateLimits:
    """Counts the calls of each project in the last minute. Not thread-safe: the API locks."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, bool], deque[datetime]] = {}

    def check(self, project: str, *, changes: bool, now: datetime, settings: ComputeSettings) -> None:
        """Count a call, or refuse it."""
        limit = settings.changes_per_minute if changes else settings.reads_per_minute
        taken = self._taken.setdefault((project, changes), deque())
        while taken and taken[0] <= now - _MINUTE:
            taken.popleft()
        if limit is not None and len(taken) >= limit:
            group = "Mutation" if changes else "Read"
            raise errors.rate_limited(settings.rate_limit_code, group, google.project_number(project))
        if limit is not None:
            taken.append(now)


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
        self._limits = RateLimits()
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
            "instances.setMetadata": lambda scope, name, request, asked: world.instances.set_metadata(
                scope, name, schema.read(request.body, schema.METADATA), asked
            ),
        }

    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the answer, a picture of one moment."""
        with self._world.moment():
            scope, name = scope_of(found), found.parts.get("name", "")
            self._admit(found, scope, name, request)
            if found.method in self._changes:
                return partial(self._change(found, scope, name, request), request.query.get("fields", ""))
            verb = found.method if found.method in self._reads else f"operations.{found.method.partition('.')[2]}"
            return partial(self._reads[verb](scope, name, request), request.query.get("fields", ""))

    def _admit(self, found: Route, scope: Scope, name: str, request: Request) -> None:
        settings, method = self._world.settings, found.method
        if settings.project not in (None, scope.project):
            raise errors.not_found(f"projects/{scope.project}")
        is_zone = google.is_zone(scope.location) and (settings.zones is None or scope.location in settings.zones)
        if scope.kind == ZONES and not is_zone:
            raise errors.invalid("zone", scope.location, "Unknown zone.")
        if scope.kind == REGIONS and not names.is_region(scope.location):
            raise errors.invalid("region", scope.location, "Unknown region.")
        changes = method in self._changes
        self._limits.check(scope.project, changes=changes, now=self._world.now(), settings=settings)
        check_permissions(method, _subject(found, scope, name, request), settings)
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
        shown = page_of(items, request.query, render)
        kind = _LIST_KINDS.get(method, "operationList")
        return {"kind": f"compute#{kind}", "id": path, "selfLink": f"{google.COMPUTE_API}/{path}", **shown}

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
            return page_of(
                members, request.query, lambda member: wire.member_body(group, member), key="managedInstances"
            )
        bodies = [wire.member_body(group, member) for member in members]
        chosen = [body for body in bodies if matches(body, request.query.get("filter", ""))]
        return {"managedInstances": chosen} if chosen else {}


def _subject(found: Route, scope: Scope, name: str, request: Request) -> str:
    """Return what a call is about, as far as it shows, for texts on permissions."""
    title = found.method.partition(".")[0]
    collection = OPERATIONS if title.endswith("Operations") else title
    if not name and isinstance(request.body, dict):
        name = str(request.body.get("name", ""))
    return scope.resource(collection, name) if name else f"projects/{scope.project}"
