"""GKE's REST methods over the model: maps paths to calls, and calls to responses.

The same address also serves Compute Engine's methods for workload policies and reservations, and the tests of IAM
permissions. Transport-free: `Api.handle` takes a parsed request and returns a JSON body or raises an ApiError. Methods
that node pools do not need raise UNIMPLEMENTED.

Masks of partial responses are checked against the messages of the API. As in GKE, a mask with an unknown field is
rejected, so that typing mistakes of clients become visible.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from rehearsal.simulators.gke import permissions, schema, wire
from rehearsal.simulators.gke.errors import ApiError, FieldViolation
from rehearsal.simulators.gke.model import World
from rehearsal.simulators.gke.names import ClusterName
from rehearsal.simulators.gke.policies import RegionName
from rehearsal.simulators.http import fieldmask
from rehearsal.simulators.http.exchange import Request, Route
from rehearsal.simulators.http.fieldmask import Mask, MaskError, apply

_SCOPE = r"/v1/projects/(?P<project>[^/:]+)/locations/(?P<location>[^/:]+)"
_CLUSTER = rf"{_SCOPE}/clusters/(?P<cluster>[^/:]+)"
#: Path of a create. It has the version, because clients use v1beta1 for fields that v1 does not have.
_CREATE = _CLUSTER.replace("/v1/", "/(?P<version>v1|v1beta1)/", 1) + "/nodePools"
_POOL = rf"{_CLUSTER}/nodePools/(?P<pool>[^/:]+)"
_OPERATION = rf"{_SCOPE}/operations/(?P<operation>[^/:]+)"
_POLICIES = r"/compute/v1/projects/(?P<project>[^/:]+)/regions/(?P<region>[^/:]+)/resourcePolicies"
#: The format that Google's client libraries request; gcloud requests json.
_ENUMS_AS_NUMBERS = "json;enum-encoding=int"
_RESERVATION = r"/compute/v1/projects/(?P<project>[^/:]+)/zones/(?P<zone>[^/:]+)/reservations/(?P<reservation>[^/:]+)"


# Clients send the same few masks repeatedly, and parsed masks are never changed.
@functools.lru_cache(maxsize=256)
def parse(text: str, descriptor: schema.Descriptor) -> Mask:
    """Return the mask in a text, whose paths must be fields of the message. An empty mask selects everything."""
    try:
        return fieldmask.tree([_canonical(path, descriptor) for path in fieldmask.paths(text)])
    except MaskError as error:
        raise _refusal(str(error)) from error


def _canonical(path: tuple[str, ...], descriptor: schema.Descriptor) -> tuple[str, ...]:
    canonical = schema.canonical_path(descriptor, path)
    if canonical is None:
        raise _refusal("/".join(path))
    return canonical


def _refusal(path: str) -> ApiError:
    description = f"Error expanding 'fields' parameter. Cannot find matching fields for path '{path}'."
    violations = (FieldViolation(path=path, description=description),)
    return ApiError("INVALID_ARGUMENT", "Request contains an invalid argument.", violations=violations)


def cluster_of(found: Route) -> ClusterName:
    """Return the cluster in a path."""
    return ClusterName(found.parts["project"], found.parts["location"], found.parts["cluster"])


_ROUTES = tuple(
    (http_method, re.compile(pattern), method)
    for http_method, pattern, method in (
        ("GET", f"{_SCOPE}/clusters", "clusters.list"),
        ("GET", _CLUSTER, "clusters.get"),
        ("GET", f"{_CLUSTER}/nodePools", "nodePools.list"),
        ("POST", _CREATE, "nodePools.create"),
        ("GET", _POOL, "nodePools.get"),
        ("DELETE", _POOL, "nodePools.delete"),
        ("GET", f"{_SCOPE}/operations", "operations.list"),
        ("GET", _OPERATION, "operations.get"),
        ("GET", rf"{_POLICIES}/(?P<policy>[^/:]+)", "resourcePolicies.get"),
        ("POST", _POLICIES, "resourcePolicies.insert"),
        ("GET", _RESERVATION, "reservations.get"),
        ("POST", r"/v1/projects/(?P<project>[^/:]+):testIamPermissions", "projects.testIamPermissions"),
        (
            "POST",
            r"/v1/projects/(?P<project>[^/:]+)/serviceAccounts/(?P<account>[^/:]+):testIamPermissions",
            "serviceAccounts.testIamPermissions",
        ),
    )
)


def route(http_method: str, path: str) -> Route:
    """Return the call that a request makes. Raises ApiError if the call does not exist."""
    known = False
    for expected, pattern, method in _ROUTES:
        match = pattern.fullmatch(path)
        if match is not None:
            known = True
            if expected == http_method:
                return Route(method=method, parts=match.groupdict())
    if known or re.match(_SCOPE, path) or re.match(_POLICIES, path):
        raise ApiError("UNIMPLEMENTED", f"{http_method} {path} is not implemented by the simulator.")
    raise ApiError("NOT_FOUND", f"Method not found: {http_method} {path}.")


class Api:
    """Handles calls with the model."""

    def __init__(self, world: World, *, ca_certificate: str = "", endpoint: str = "") -> None:
        self._world = world
        self._ca_certificate = ca_certificate
        self._endpoint = endpoint
        self._answers: dict[str, Callable[[Route, Request], dict[str, Any]]] = {
            "clusters.list": self._list_clusters,
            "clusters.get": self._get_cluster,
            "nodePools.list": self._list_pools,
            "nodePools.create": self._create_pool,
            "nodePools.get": self._get_pool,
            "nodePools.delete": self._delete_pool,
            "operations.list": self._list_operations,
            "operations.get": self._get_operation,
            "resourcePolicies.get": self._get_policy,
            "resourcePolicies.insert": self._insert_policy,
            "reservations.get": self._get_reservation,
            "projects.testIamPermissions": self._test_project,
            "serviceAccounts.testIamPermissions": self._test_account,
        }

    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the response, which shows the state at one point in time."""
        with self._world.moment():
            return self._answers[found.method](found, request)

    # -- pools ---------------------------------------------------------------------------------------------------

    def _create_pool(self, found: Route, request: Request) -> dict[str, Any]:
        output = _Output(request, "Operation")
        sent = schema.read(schema.message("CreateNodePoolRequest", found.parts["version"]), request.body)
        if "nodePool" not in sent:
            raise ApiError("INVALID_ARGUMENT", "Missing required field: node_pool.")
        operation = self._world.create_pool(cluster_of(found), sent["nodePool"])
        return output.render(wire.operation_body(operation))

    def _get_pool(self, found: Route, request: Request) -> dict[str, Any]:
        output = _Output(request, "NodePool")
        pool = self._world.pool(cluster_of(found), found.parts["pool"])
        return output.render(wire.pool_body(pool, version=self._version))

    def _list_pools(self, found: Route, request: Request) -> dict[str, Any]:
        output = _Output(request, "ListNodePoolsResponse")
        pools = self._world.pools(cluster_of(found))
        if output.mask and "nodePools" not in output.mask:
            return {}
        mask = output.mask.get("nodePools", {})
        bodies = [wire.masked_pool(pool, version=self._version, mask=mask, mask_key=output.mask_text) for pool in pools]
        return output.encode({"nodePools": bodies} if bodies else {})

    def _delete_pool(self, found: Route, request: Request) -> dict[str, Any]:
        output = _Output(request, "Operation")
        operation = self._world.delete_pool(cluster_of(found), found.parts["pool"])
        return output.render(wire.operation_body(operation))

    # -- clusters ------------------------------------------------------------------------------------------------

    def _get_cluster(self, found: Route, request: Request) -> dict[str, Any]:
        output = _Output(request, "Cluster")
        return output.render(self._cluster_body(cluster_of(found)))

    def _list_clusters(self, found: Route, request: Request) -> dict[str, Any]:
        output = _Output(request, "ListClustersResponse")
        clusters = self._world.clusters(found.parts["project"], found.parts["location"])
        return output.render({"clusters": [self._cluster_body(item.name) for item in clusters]} if clusters else {})

    def _cluster_body(self, name: ClusterName) -> dict[str, Any]:
        body = wire.cluster_body(
            self._world.cluster(name),
            settings=self._world.settings,
            ca_certificate=self._ca_certificate,
            endpoint=self._endpoint,
        )
        body["nodePools"] = [wire.pool_body(pool, version=self._version) for pool in self._world.pools(name)]
        return body

    # -- operations ----------------------------------------------------------------------------------------------

    def _get_operation(self, found: Route, request: Request) -> dict[str, Any]:
        output = _Output(request, "Operation")
        parts = found.parts
        operation = self._world.operation(parts["project"], parts["location"], parts["operation"])
        return output.render(wire.operation_body(operation))

    def _list_operations(self, found: Route, request: Request) -> dict[str, Any]:
        output = _Output(request, "ListOperationsResponse")
        operations = self._world.operations(found.parts["project"], found.parts["location"])
        bodies = [wire.operation_body(operation) for operation in operations]
        return output.render({"operations": bodies} if bodies else {})

    @property
    def _version(self) -> str:
        return self._world.settings.version

    # -- workload policies ---------------------------------------------------------------------------------------

    def _get_policy(self, found: Route, _request: Request) -> dict[str, Any]:
        return self._world.policy(_region(found), found.parts["policy"])

    def _insert_policy(self, found: Route, request: Request) -> dict[str, Any]:
        return self._world.insert_policy(_region(found), request.body)

    # -- reads before a create -----------------------------------------------------------------------------------

    def _get_reservation(self, found: Route, _request: Request) -> dict[str, Any]:
        return self._world.reservation(found.parts["project"], found.parts["zone"], found.parts["reservation"])

    def _test_project(self, found: Route, request: Request) -> dict[str, Any]:
        return self._world.test_project(found.parts["project"], request.body)

    def _test_account(self, found: Route, request: Request) -> dict[str, Any]:
        return permissions.on_account(request.body, found.parts["account"], self._world.settings)


def _region(found: Route) -> RegionName:
    return RegionName(found.parts["project"], found.parts["region"])


class _Output:
    """Format of the response. It is parsed before the call takes effect, so an invalid mask has no side effects."""

    def __init__(self, request: Request, message: str) -> None:
        query, headers = request.query, request.headers
        self._descriptor = schema.message(message)
        self.mask_text = query.get("fields") or query.get("$fields") or headers.get("x-goog-fieldmask", "")
        self.mask = parse(self.mask_text, self._descriptor) if self.mask_text else {}
        alt = query.get("$alt") or query.get("alt") or "json"
        self._numbers = alt == _ENUMS_AS_NUMBERS
        if alt not in ("json", _ENUMS_AS_NUMBERS):
            raise ApiError(
                "INVALID_ARGUMENT",
                f'Invalid value "{alt}" for parameter alt: the simulator supports json and {_ENUMS_AS_NUMBERS}.',
                violations=(FieldViolation(path="alt", description=alt),),
            )

    def render(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the requested part of the body in the requested format."""
        return self.encode(apply(self.mask, body))

    def encode(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body with its enums in the requested format."""
        return schema.numbered(self._descriptor, body) if self._numbers else body
