"""Calls GKE, or a simulator, through Google's client library; GKE's v1beta1 and Google's other APIs by plain REST.

No other module of the provisioner imports the library. A call blocks, and is repeated only after a 401.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import quote

import requests
from google.api_core.exceptions import AsyncRestUnsupportedParameterError, GoogleAPIError
from google.api_core.gapic_v1.client_info import ClientInfo
from google.auth import credentials as auth_credentials
from google.cloud import container_v1
from google.cloud.container_v1.services.cluster_manager.transports.rest import ClusterManagerRestTransport
from google.protobuf import json_format  # type: ignore[import-untyped]

from provisioner.google import failures
from provisioner.google.errors import PERMISSION, Call, remedy_of
from provisioner.google.session import ApiSession, find_credentials
from provisioner.model.capacity import (
    ClusterName,
    Failure,
    FailureKind,
    NodePool,
    NodePoolRequest,
    Operation,
    OperationName,
    PoolName,
    PoolStatus,
    WorkloadPolicy,
)
from provisioner.settings.forms import region_of
from provisioner.slices.suppliers.gke import translate
from provisioner.slices.suppliers.gke.errors import GkeError, kind_of_answer
from provisioner.slices.suppliers.gke.translate import Cluster, Json, Message, Reservation

_READ_SECONDS = 10.0
_LIST_SECONDS = 20.0
#: Time-out in seconds of a create or delete, which begins only if the Lease lasts longer (`CALL_TIMEOUT_SECONDS`).
_CHANGE_SECONDS = 10.0
_ACCOUNTS = "GCP_NODE_SERVICE_ACCOUNT or the pod's annotation"
_POLICY_GRANT_HELP = (
    "Grant the provisioner's identity the optional role with compute.resourcePolicies.get and "
    "compute.resourcePolicies.create on the project of the cluster."
)
#: Maximum number of creates whose user-written texts are remembered: the texts must not classify a later failure.
_MAX_REMEMBERED_CREATES = 1024
#: Header of Google's APIs that limits a response to some fields, whose paths are in JSON spelling.
_FIELD_MASK_HEADER = "X-Goog-FieldMask"
#: Pattern of names of pools and operations. With other names, the library calls wrong paths or raises useless errors.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
#: Exceptions of a call, such as ValueError if the response is no JSON object, json_format.Error if it is invalid.
_ERRORS = (*failures.SDK_ERRORS, GoogleAPIError, AsyncRestUnsupportedParameterError, ValueError, json_format.Error)
_IDENTITY = "the provisioner's identity"
GRANT_HELP = f"Grant {_IDENTITY} {PERMISSION} on the project of the cluster."


def grant_help(identity: str, project: str) -> str:
    """Return what to do about a missing permission. `identity` is named only if it is an e-mail address."""
    return f"Grant {identity if '@' in identity else _IDENTITY} {PERMISSION} on project {project}."


def to_gke_error(
    error: Exception, subject: str, *, call: Call, grant_help: str = GRANT_HELP, values: Sequence[str] = ()
) -> GkeError:
    """Return the GkeError for an exception of Google's libraries in the call that `subject` describes.

    `grant_help` is the advice if the identity lacks a permission; `values` are texts that users may have written.
    """
    api = failures.Api(
        error=GkeError,
        name="GKE",
        address_option="GKE_ENDPOINT",
        kind_of_answer=lambda answer: kind_of_answer(answer, call, values),
        help_of=lambda text: remedy_of(text, accounts=_ACCOUNTS, again="create is retried", otherwise=grant_help),
        login_in_cluster="bind the provisioner's Kubernetes service account by Workload Identity",
    )
    return failures.error_of(error, api, call, subject)


class _Session(ApiSession):
    """Session of all calls. It requests names of enum values instead of the numbers that the library requests.

    It keeps the JSON of each thread's last response, because the library drops enum names that it does not know.
    """

    def __init__(self, credentials: auth_credentials.Credentials, *, base_url: str) -> None:
        super().__init__(credentials, base_url=base_url)
        self._last = threading.local()

    def request(self, method: str, url: str, **options: Any) -> requests.Response:  # type: ignore[override]
        """Send a request. Raises ValueError if the response is no JSON object; the library would read it as empty."""
        if "params" in options:
            options["params"] = [(key, "json" if key == "$alt" else value) for key, value in options["params"]]
        response = super().request(method, url, **options)
        self._last.body = None
        with suppress(ValueError):
            self._last.body = json.loads(response.content)
        if not isinstance(self._last.body, dict):
            raise ValueError("The answer is not a JSON object; is GKE_ENDPOINT the address of GKE?")  # noqa: TRY004 - not ours
        return response

    def take_body(self) -> Json:
        """Return the JSON of this thread's last response, and forget it."""
        return self._last.__dict__.pop("body")  # type: ignore[no-any-return]


class GkeClient:
    """Calls for the node pools of one cluster, for workload policies and reservations, and for checks.

    Safe to call from many threads; raises only `GkeError`. If a check fails with PERMISSION, its result is unknown: the
    check may need an API or a permission that creates and deletes do not need.
    """

    def __init__(
        self,
        cluster: ClusterName,
        *,
        endpoint: str | None = None,
        credentials: auth_credentials.Credentials | None = None,
    ) -> None:
        """Find credentials, unless `credentials` or `endpoint` is given. Raises GkeError if no credentials exist."""
        self._cluster = cluster
        self._endpoint = endpoint
        self._compute_projects_url = f"{self._url('compute')}/compute/v1/projects"
        region = f"{cluster.project}/regions/{region_of(cluster.location)}"
        self._policies_url = f"{self._compute_projects_url}/{quote(region)}/resourcePolicies"
        if credentials is None:
            credentials = auth_credentials.AnonymousCredentials() if endpoint else default_credentials()  # type: ignore[no-untyped-call]
        self._session = _Session(credentials, base_url=self._url())
        with _errors("start of the GKE client", Call.READ):
            self._gke = _library_client(self._session, self._url())
        #: Values of a create that users may have chosen, by operation, oldest first; ignored in GKE's error messages.
        self._user_texts: OrderedDict[OperationName, tuple[str, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all connections."""
        self._session.close()  # type: ignore[no-untyped-call]

    def get_cluster(self) -> Cluster:
        """Return facts about the cluster."""
        with self._errors(f"get of cluster {self._cluster.cluster!r}", Call.READ):
            answer = self._ask(self._gke.get_cluster, name=self._cluster.path, mask=translate.CLUSTER_FIELDS)
            return translate.cluster_of(*answer)

    def list_node_pools(self) -> tuple[NodePool, ...]:
        """Return all node pools of the cluster, including pools of other clients: see `Supplier.list_pools`."""
        ask = partial(self._ask, self._gke.list_node_pools, mask=translate.LIST_FIELDS, seconds=_LIST_SECONDS)
        with self._errors(f"list of node pools of cluster {self._cluster.cluster!r}", Call.READ):
            try:
                return translate.node_pools_of(*ask(parent=self._cluster.path))
            except json_format.Error:
                # One invalid field of one pool makes the library reject the whole list.
                return tuple(_pools_one_by_one(self._session.take_body()))

    def get_node_pool(self, name: PoolName) -> NodePool:
        """Return one node pool: see `Supplier.get_pool`."""
        ask = partial(self._ask, self._gke.get_node_pool, mask=translate.NODE_POOL_FIELDS)
        with self._errors(f"get of node pool {name!r}", Call.READ, values=(name,)):
            try:
                return translate.node_pool_of(*ask(name=self._pool_path(name)))
            except json_format.Error:
                return NodePool(name=name, status=PoolStatus.UNKNOWN)

    def create_node_pool(self, request: NodePoolRequest) -> OperationName:
        """Submit the creation of a node pool: see `Supplier.create_pool`."""
        # v1 lacks hostMaintenancePolicy. The library for v1beta1 is not used, because its import takes 14 MiB.
        beta = bool(request.node.get("idle_maintenance_seconds"))
        message = container_v1.CreateNodePoolRequest()
        body = translate.create_request_json(self._cluster.path, request)
        parsed = json_format.ParseDict(body, container_v1.CreateNodePoolRequest.pb(message), ignore_unknown_fields=beta)
        user_texts = translate.user_texts_of(parsed.node_pool)
        with self._errors(f"create of node pool {request.name!r}", Call.CREATE, values=user_texts):
            if not beta:
                operation, _ = self._ask(self._gke.create_node_pool, request=message, seconds=_CHANGE_SECONDS)
                name = OperationName(operation.name)
            else:
                url = f"{self._url()}/v1beta1/{quote(self._cluster.path)}/nodePools"
                name = OperationName(str(self._send("POST", url, json=body, seconds=_CHANGE_SECONDS).get("name", "")))
        with self._lock:
            self._user_texts[name] = user_texts
            while len(self._user_texts) > _MAX_REMEMBERED_CREATES:
                self._user_texts.popitem(last=False)
        return name

    def delete_node_pool(self, name: PoolName) -> OperationName:
        """Submit the deletion of a node pool with all its nodes: see `Supplier.delete_pool`."""
        with self._errors(f"delete of node pool {name!r}", Call.DELETE, values=(name,)):
            operation, _ = self._ask(self._gke.delete_node_pool, name=self._pool_path(name), seconds=_CHANGE_SECONDS)
            return OperationName(operation.name)

    def get_operation(self, name: OperationName) -> Operation:
        """Return an operation: see `Supplier.get_operation`. GKE forgets operations after an undocumented time."""
        with self._errors(f"get of operation {name!r}", Call.READ):
            path = f"{self._cluster.location_path}/operations/{_checked(name)}"
            return translate.operation_of(
                *self._ask(self._gke.get_operation, name=path), self._user_texts.get(name, ())
            )

    def get_workload_policy(self, name: str) -> WorkloadPolicy:
        """Return a workload policy of the cluster's project and region. Raises GkeError."""
        with _errors(f"get of workload policy {name!r}", Call.READ, _POLICY_GRANT_HELP, values=(name,)):
            return translate.workload_policy_of(self._send("GET", f"{self._policies_url}/{quote(name, safe='')}"))

    def create_workload_policy(self, policy: WorkloadPolicy) -> None:
        """Submit the creation of a workload policy. Pools can use the policy when its status is READY."""
        body = {"name": policy.name, "workloadPolicy": {"type": policy.type, "acceleratorTopology": policy.topology}}
        subject = f"create of workload policy {policy.name!r}"
        with _errors(subject, Call.CREATE, _POLICY_GRANT_HELP, values=(policy.name,)):
            self._send("POST", self._policies_url, json=body, seconds=_CHANGE_SECONDS)

    def test_project_permissions(self, permissions: Sequence[str]) -> frozenset[str]:
        """Return the subset of `permissions` that the identity has on the project of the cluster."""
        project = quote(self._cluster.project, safe=":")
        url = f"{self._url('cloudresourcemanager')}/v1/projects/{project}:testIamPermissions"
        return self._test_permissions(f"test of permissions on project {self._cluster.project!r}", url, permissions)

    def test_account_permissions(self, account: str, permissions: Sequence[str]) -> frozenset[str]:
        """Return the subset of `permissions` that the identity has on an existing service account."""
        url = f"{self._url('iam')}/v1/projects/-/serviceAccounts/{quote(account, safe='@')}:testIamPermissions"
        return self._test_permissions(f"test of permissions on service account {account!r}", url, permissions)

    def _test_permissions(self, subject: str, url: str, permissions: Sequence[str]) -> frozenset[str]:
        # A test of permissions needs no permission, so its errors do not advise to grant one.
        with _errors(subject, Call.READ, grant_help=""):
            granted = self._send("POST", url, json={"permissions": list(permissions)}).get("permissions") or ()
            return frozenset(permissions) & frozenset(granted)

    def get_reservation(self, *, project: str, zone: str, name: str) -> Reservation:
        """Return a reservation of any project; an empty `project` means the project of the cluster."""
        project = quote(project or self._cluster.project, safe=":")
        with _errors(f"get of reservation {name!r} in {zone}", Call.READ, grant_help="", values=(name,)):
            path = f"{project}/zones/{quote(zone, safe='')}/reservations/{quote(name, safe='')}"
            return translate.reservation_of(self._send("GET", f"{self._compute_projects_url}/{path}"))

    def _errors(self, subject: str, call: Call, *, values: Sequence[str] = ()) -> AbstractContextManager[None]:
        """Return a context that turns failures of GKE's API into GkeError; its advice names identity and project."""
        identity = str(getattr(self._session.credentials, "service_account_email", ""))
        return _errors(subject, call, grant_help(identity, self._cluster.project), values=values)

    def _url(self, service: str = "container") -> str:
        return (self._endpoint or f"https://{service}.googleapis.com").rstrip("/")

    def _pool_path(self, name: PoolName) -> str:
        return f"{self._cluster.path}/nodePools/{_checked(name)}"

    def _ask(
        self, method: Callable[..., Any], *, mask: Sequence[str] = (), seconds: float = _READ_SECONDS, **request: Any
    ) -> tuple[Message, Json]:
        """Call a method of the library once; return the raw protobuf message and the JSON of the response."""
        metadata = [(_FIELD_MASK_HEADER, ",".join(mask))] if mask else ()
        response = method(**request, retry=None, timeout=seconds, metadata=metadata)
        return type(response).pb(response), self._session.take_body()

    def _send(self, method: str, url: str, *, json: Json | None = None, seconds: float = _READ_SECONDS) -> Json:
        self._session.request(method, url, json=json, timeout=seconds)
        return self._session.take_body()


def _library_client(session: ApiSession, url: str) -> container_v1.ClusterManagerClient:
    scheme, _, host = url.partition("://")
    user_agent = str(session.headers["User-Agent"])
    info = ClientInfo(user_agent=user_agent, gapic_version=container_v1.__version__, grpc_version=None)  # type: ignore[no-untyped-call]
    transport = ClusterManagerRestTransport(
        credentials=session.credentials, host=host, url_scheme=scheme, client_info=info
    )
    # No argument replaces the transport's session, which follows redirects, renews credentials twice, repeats token
    # requests for minutes, keeps 10 connections, and uses proxies even for a local simulator.
    transport.close()  # type: ignore[no-untyped-call]
    transport._session = session  # noqa: SLF001
    transport._prep_wrapped_messages(info)  # type: ignore[no-untyped-call] # noqa: SLF001
    return container_v1.ClusterManagerClient(transport=transport, client_info=info)


@contextmanager
def _errors(subject: str, call: Call, grant_help: str = GRANT_HELP, *, values: Sequence[str] = ()) -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        raise to_gke_error(error, subject, call=call, grant_help=grant_help, values=values) from error


def _pools_one_by_one(body: Json) -> Iterator[NodePool]:
    """Yield the node pools of a list. A pool that the library rejects has only its name and status UNKNOWN."""
    bodies = body.get("nodePools")
    if not isinstance(bodies, list):
        raise ValueError(f"nodePools is {bodies!r:.100}")  # noqa: TRY004 - GKE's mistake, not a caller's
    for raw in bodies:
        if isinstance(raw, dict) and raw.get("name"):
            pool = container_v1.NodePool.pb(container_v1.NodePool())
            try:
                json_format.ParseDict(raw, pool, ignore_unknown_fields=True)
                yield translate.node_pool_of(pool, raw)
            except json_format.Error:
                yield NodePool(name=PoolName(str(raw["name"])), status=PoolStatus.UNKNOWN)


def _checked(name: str) -> str:
    """Return a name of a pool or operation unchanged. Raises GkeError (NOT_FOUND) if GKE can have no such name."""
    if not _NAME.fullmatch(name):
        raise GkeError(Failure(kind=FailureKind.NOT_FOUND, message="GKE has no such names."), f"call for {name!r}")
    return name


def default_credentials() -> auth_credentials.Credentials:
    """Find the application-default credentials. Raises GkeError with what to do if they are missing."""
    with _errors("start of the GKE client", Call.READ):
        return find_credentials()
