"""REST client of Compute Engine or its simulator. Google's library would take 1 s to import and 140 MB of memory."""

import json
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from google.auth import credentials as auth_credentials
from google.auth import exceptions as auth_exceptions

from provisioner.google import failures
from provisioner.google.errors import LOST, Call
from provisioner.google.session import ApiSession, find_credentials
from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.model.capacity import Failure, FailureKind, Operation, OperationName
from provisioner.nodegroups.api.types import Child, InstanceTemplate, Kind, ManagedInstanceGroup, WorkloadPolicy
from provisioner.nodegroups.compute import records, resources
from provisioner.nodegroups.compute.errors import help_of, kind_of_answer

COMPUTE_ADDRESS = "https://compute.googleapis.com"
ADDRESS_OPTION = "GCE_ENDPOINT"

_POLICIES = "resourcePolicies"
_TEMPLATES = "instanceTemplates"
_MANAGERS = "instanceGroupManagers"
_INSTANCES = "instances"
_OPERATIONS = "operations"


class _Sort(NamedTuple):
    collection: str
    fields: str
    read: Callable[[object], records.Resource]


class _Request(NamedTuple):
    method: str
    path: str
    params: dict[str, str]
    body: dict[str, Any] | None = None


_SORTS: Mapping[Kind, _Sort] = {
    Kind.WORKLOAD_POLICY: _Sort(_POLICIES, resources.POLICY_FIELDS, resources.policy_of),
    Kind.INSTANCE_TEMPLATE: _Sort(_TEMPLATES, resources.TEMPLATE_FIELDS, resources.template_of),
    Kind.MANAGED_INSTANCE_GROUP: _Sort(_MANAGERS, resources.MANAGER_FIELDS, resources.manager_of),
}
_NOUNS = {
    _POLICIES: "resource policy",
    _TEMPLATES: "instance template",
    _MANAGERS: "instance group manager",
    _INSTANCES: "instance",
    _OPERATIONS: "operation",
}
_READ_SECONDS = 10.0
_LIST_SECONDS = 20.0
_CHANGE_SECONDS = 10.0
#: Google's maximum page size. If a managed instance group has no pagination, one page has all its machines.
_PAGE_SIZE = 500
#: Page size of lists with metadata. A machine has up to 512 KB of metadata, and several threads may hold a page.
_METADATA_PAGE_SIZE = 8
#: Maximum number of pages of a list, enough for the largest group. A longer list raises ComputeError.
_MAX_PAGES = 1 + bounds.GROUP_NODES // _METADATA_PAGE_SIZE

_T = TypeVar("_T")


class ComputeClient:
    """Calls Compute Engine for the resources of a node group. Thread-safe. Request ids are UUIDs.

    - A method makes one request (or reads one list), never waits for an operation, retries only after a 401 (expired
      credentials), and raises only `ComputeError`.
    - A change that is repeated with the same request id has one effect, and returns the operation of the first request.
      Google guarantees this for at least some minutes.
    - An insert of an existing name fails with ALREADY_EXISTS, a delete of a missing name with NOT_FOUND.
    - After UNKNOWN_OUTCOME, the change may have taken effect or may take effect later. Other failures changed nothing.
    - Usually, INVALID and PERMISSION last until a user changes something, and OPERATION_IN_THE_WAY ends automatically.
    """

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        credentials: auth_credentials.Credentials | None = None,
        change_seconds: float = _CHANGE_SECONDS,
    ) -> None:
        """Find credentials unless `endpoint` or `credentials` is set. Raises ComputeError if no credentials exist."""
        self._base_url = (endpoint or COMPUTE_ADDRESS).rstrip("/")
        self._change_seconds = change_seconds
        if credentials is None:
            credentials = auth_credentials.AnonymousCredentials() if endpoint else _own_credentials()  # type: ignore[no-untyped-call]
        self._session = ApiSession(credentials, base_url=self._base_url)
        #: Lets one thread at a time parse, because parsing takes up to eight times the memory of the response.
        self._reading = threading.Lock()

    def close(self) -> None:
        """Close all connections."""
        self._session.close()  # type: ignore[no-untyped-call]

    def get(self, kind: Kind, scope: records.Scope, name: str) -> records.Resource:
        """Return a policy (regional scope), a template (global or regional) or a managed instance group (zonal)."""
        of = _SORTS[kind]
        return self._get(scope, of.collection, name, of.fields, of.read)

    def insert(self, scope: records.Scope, child: Child, mark: str, *, request_id: str) -> Operation:
        """Submit the creation of a child's resource. A policy is usable only when its status is READY."""
        collection, name = _SORTS[child.kind].collection, child.meta.name
        subject = f"insert of {_NOUNS[collection]} {name!r}"
        self._path(scope, collection, name, subject, Call.CREATE)
        body = resources.insert_body(child, mark)
        request = _Request("POST", f"{scope.path}/{collection}", {"requestId": request_id}, body)
        return self._change(subject, Call.CREATE, request, said=(name, *_said(child)))

    def delete(self, kind: Kind, scope: records.Scope, name: str, *, request_id: str) -> Operation:
        """Submit the delete of a resource and its machines. Fails with OPERATION_IN_THE_WAY if it is in use."""
        collection = _SORTS[kind].collection
        subject = f"delete of {_NOUNS[collection]} {name!r}"
        path = self._path(scope, collection, name, subject, Call.DELETE)
        request = _Request("DELETE", path, {"requestId": request_id})
        return self._change(subject, Call.DELETE, request, said=(name,))

    def list_managers(self, scope: records.Scope) -> tuple[records.Manager, ...]:
        """Return the managed instance groups of a project, in all zones, that have any cluster's ownership mark."""
        subject = f"list of instance group managers of {scope.project!r}"
        self._path(scope, _MANAGERS, "aggregated", subject, Call.READ)
        params = {"fields": resources.MANAGERS_FIELDS, "filter": resources.MARKED}
        request = _Request("GET", f"projects/{scope.project}/aggregated/{_MANAGERS}", params)
        return tuple(self._pages(subject, request, resources.managers_of, said=()))

    def list_managed_instances(self, scope: records.Scope, name: str) -> tuple[records.ManagedInstance, ...]:
        """Return all machines and placeholders of a managed instance group. Fails with NOT_FOUND if it is missing."""
        subject = f"list of instances of instance group manager {name!r}"
        path = f"{self._path(scope, _MANAGERS, name, subject, Call.READ)}/listManagedInstances"
        params = {"fields": resources.MANAGED_INSTANCES_FIELDS, "maxResults": str(_PAGE_SIZE)}
        read = partial(resources.managed_instances_of, scope=scope)
        machines = {
            machine.name: machine
            for machine in self._pages(subject, _Request("POST", path, params), read, said=(name,))
        }
        return tuple(machines[key] for key in sorted(machines))

    def list_instances(self, scope: records.Scope, names: Collection[str]) -> tuple[records.Instance, ...]:
        """Return the machines with these names in a zone, with their metadata. Missing machines are left out."""
        wanted = sorted({name for name in names if not records.address_problem(scope, name)})
        subject = f"list of instances {wanted[0] if wanted else next(iter(names), '')!r} and others"
        if not wanted:
            self._path(scope, _INSTANCES, next(iter(names), ""), subject, Call.READ)
        params = {
            "fields": resources.INSTANCES_FIELDS,
            "maxResults": str(_METADATA_PAGE_SIZE),
            "filter": f'name eq "{os.path.commonprefix(wanted)}.*"',  # noqa: RUF071 - of names, not of paths
        }
        shared: dict[str, str] = {}
        read = partial(resources.instances_of, shared=shared)
        pages = self._pages(subject, _Request("GET", f"{scope.path}/{_INSTANCES}", params), read, said=wanted)
        instances = {instance.name: instance for instance in pages if instance.name in wanted}
        return tuple(instances[key] for key in sorted(instances))

    def set_metadata(
        self, scope: records.Scope, name: str, items: Mapping[str, str], *, fingerprint: str, request_id: str
    ) -> Operation:
        """Replace a machine's metadata. Fails with OPERATION_IN_THE_WAY if the metadata has another fingerprint."""
        subject = f"change of metadata of instance {name!r}"
        path = f"{self._path(scope, _INSTANCES, name, subject, Call.UPDATE)}/setMetadata"
        request = _Request("POST", path, {"requestId": request_id}, resources.metadata_body(items, fingerprint))
        return self._change(subject, Call.UPDATE, request, said=(name, *items))

    def get_operation(self, scope: records.Scope, name: OperationName) -> Operation:
        """Return an operation, which may have failed. After NOT_FOUND, the operation's outcome is unknown."""
        return self._get(scope, _OPERATIONS, name, resources.OPERATION_FIELDS, resources.operation_of)

    def _pages(
        self,
        subject: str,
        request: _Request,
        read: Callable[[object], tuple[tuple[_T, ...], str]],
        *,
        said: Sequence[str],
    ) -> Iterator[_T]:
        token = ""
        for _ in range(_MAX_PAGES):
            asked = request._replace(params=request.params | ({"pageToken": token} if token else {}))
            page, token = self._call(subject, Call.READ, asked, read, seconds=_LIST_SECONDS, said=said)
            yield from page
            if not token:
                return
        raise _unreadable(subject, Call.READ, f"The list has more than {_MAX_PAGES} pages.")

    def _get(self, scope: records.Scope, collection: str, name: str, mask: str, read: Callable[[object], _T]) -> _T:
        subject = f"get of {_NOUNS[collection]} {name!r}"
        request = _Request("GET", self._path(scope, collection, name, subject, Call.READ), {"fields": mask})
        return self._call(subject, Call.READ, request, read, seconds=_READ_SECONDS, said=(name,), named=name)

    def _change(self, subject: str, call: Call, request: _Request, *, said: Sequence[str]) -> Operation:
        request = request._replace(params=request.params | {"fields": resources.OPERATION_FIELDS})
        started = self._call(subject, call, request, resources.operation_of, seconds=self._change_seconds, said=said)
        if not started.name:
            raise _unreadable(subject, call, "The answer is not an operation.")
        return started

    def _path(self, scope: records.Scope, collection: str, name: str, subject: str, call: Call) -> str:
        problem = records.address_problem(scope, name, operation=collection == _OPERATIONS)
        if problem:
            kind = FailureKind.INVALID if call is Call.CREATE else FailureKind.NOT_FOUND
            raise records.ComputeError(Failure(kind=kind, message=f"{problem}; nothing was sent"), subject)
        return f"{scope.path}/{collection}/{name}"

    def _send(self, request: _Request, seconds: float) -> bytes:
        body = request.body
        response = self._session.request(
            request.method,
            f"{self._base_url}/compute/v1/{quote(request.path, safe='/:')}",
            data=None if body is None else json.dumps(body, sort_keys=True).encode(),
            headers={} if body is None else {"Content-Type": "application/json"},
            params=request.params,
            timeout=seconds,
        )
        return response.content

    def _call(
        self,
        subject: str,
        call: Call,
        request: _Request,
        read: Callable[[object], _T],
        *,
        seconds: float,
        said: Sequence[str],
        named: str = "",
    ) -> _T:
        try:
            content = self._send(request, seconds)
        except failures.SDK_ERRORS as error:
            raise failures.error_of(error, _api(call, said), call, subject) from error
        with self._reading:
            try:
                body = json.loads(content)
            except (ValueError, RecursionError) as error:
                raise _unreadable(subject, call, "The answer is not JSON.") from error
            if not isinstance(body, dict) or (named and fields.text(body.get("name")) != named):
                raise _unreadable(subject, call, "The answer is about something else.")
            return read(body)


def _said(child: Child) -> Sequence[str]:
    """Return the texts that users chose, to remove them from error messages before their classification."""
    match child:
        case WorkloadPolicy(spec=policy):
            return (policy.accelerator_topology,)
        case InstanceTemplate(spec=template):
            config = template.config
            return (
                config.machine_type,
                config.reservation,
                config.subnetwork,
                config.image,
                config.disk_type,
                *config.network_tags,
                *config.metadata,
                *(account.email for account in config.service_accounts),
            )
        case ManagedInstanceGroup(spec=manager):
            return (manager.instance_template, manager.workload_policy)


def _own_credentials() -> auth_credentials.Credentials:
    try:
        return find_credentials()
    except auth_exceptions.GoogleAuthError as error:
        raise failures.error_of(error, _api(Call.READ), Call.READ, "start of the Compute Engine client") from error


def _api(call: Call, said: Sequence[str] = ()) -> failures.Api[records.ComputeError]:
    return failures.Api(
        error=records.ComputeError,
        name="Compute Engine",
        address_option=ADDRESS_OPTION,
        kind_of_answer=lambda answer: kind_of_answer(answer, call, said),
        help_of=help_of,
        login_in_cluster="mount the Secret tpu-node-group-credentials (docs/node-groups/install.md#credentials)",
    )


def _unreadable(subject: str, call: Call, what: str) -> records.ComputeError:
    message = f"{what} Is {ADDRESS_OPTION} the address of Compute Engine?"
    return records.ComputeError(Failure(kind=LOST.of(call), message=message), subject)
