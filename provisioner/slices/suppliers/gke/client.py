"""GKE itself, or a simulator of it, over REST.

One client serves the whole process and all its threads. It never retries and never waits: see `decorators` for
retries of reads. Between GKE and a simulator only address and credentials differ.

What Google's libraries raise in calls of GKE, as a `GkeError`.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import quote

from google.api_core.gapic_v1.client_info import ClientInfo
from google.auth import credentials as auth_credentials
from google.auth import exceptions as auth_exceptions
from google.cloud import container_v1
from google.cloud.container_v1.services.cluster_manager.transports.rest import ClusterManagerRestTransport
from google.protobuf import json_format  # type: ignore[import-untyped]

import provisioner
from provisioner.google import failures
from provisioner.google.errors import Call
from provisioner.google.session import ApiSession, find_credentials
from provisioner.model.capacity import (
    ClusterName,
    NodePool,
    NodePoolRequest,
    Operation,
    OperationName,
    PoolName,
    WorkloadPolicy,
)
from provisioner.settings import region_of
from provisioner.slices.suppliers.gke import echoes, translate
from provisioner.slices.suppliers.gke.errors import GkeError, kind_of_answer, remedy_of
from provisioner.slices.suppliers.gke.protocol import Cluster, Reservation

GKE_ADDRESS = "https://container.googleapis.com"
COMPUTE_ADDRESS = "https://compute.googleapis.com"
RESOURCE_MANAGER_ADDRESS = "https://cloudresourcemanager.googleapis.com"
IAM_ADDRESS = "https://iam.googleapis.com"
#: So many threads can call at once without opening connections anew.
_CONNECTIONS = 32
_READ_SECONDS = 10.0
_LIST_SECONDS = 20.0
#: No longer than the controller wants to have of its lease (`provisioner.slices.act.CALL_TIMEOUT_SECONDS`).
_CHANGE_SECONDS = 10.0
_POLICY_GRANT_HELP = (
    "Grant the provisioner's identity the optional role with compute.resourcePolicies.get and "
    "compute.resourcePolicies.create on the project of the cluster."
)
#: After a restart, or for older ones, only names that GKE or the provisioner made are known for what they are.
_REMEMBERED_CREATES = 1024
#: Of a count; no reservation has more.
_MOST_DIGITS = 10
#: A documented header of Google's APIs; field paths in JSON spelling.
_FIELD_MASK_HEADER = "X-Goog-FieldMask"


GRANT_HELP = "Grant the provisioner's identity the permission named here on the project of the cluster."


def to_gke_error(
    error: Exception, subject: str, *, call: Call, grant_help: str = GRANT_HELP, values: Iterable[str] = ()
) -> GkeError:
    """Return what an exception of Google's libraries means for this call.

    The subject names call and object for the reader, such as "delete of node pool 'a'"; `grant_help` tells which role
    a refused identity lacks; `values` are what the call says in words that may be a user's (see `echoes`). Raise the
    result `from` the exception.
    """
    values = tuple(values)
    api = failures.Api(
        name="GKE",
        address_option="GKE_ENDPOINT",
        kind_of_answer=lambda answer: kind_of_answer(answer, call, values),
        help_of=lambda words: remedy_of(words, grant_help),
    )
    found = failures.read(error, api, call)
    return GkeError(found.failure, subject, retry_after_seconds=found.retry_after_seconds, code=found.code)


class GkeClient:
    """Implements the protocols `Gke` and `Inspector` over HTTP."""

    def __init__(
        self,
        cluster: ClusterName,
        *,
        endpoint: str | None = None,
        credentials: auth_credentials.Credentials | None = None,
        change_seconds: float = _CHANGE_SECONDS,
    ) -> None:
        """Resolve the credentials, once; raise GkeError where there are none.

        With an endpoint (http:// or https://) calls go there without credentials. A create or delete may take
        `change_seconds`.
        """
        self._cluster = cluster
        self._operations_path = f"{cluster.location_path}/operations"
        self._change_seconds = change_seconds
        #: The last list, by name: most pools are as they were, and to compare them is much cheaper than to parse them.
        self._listed: dict[str, tuple[dict[str, object], NodePool]] = {}
        self._base_url = (endpoint or GKE_ADDRESS).rstrip("/")
        # The library for Compute Engine costs a second at the start and 140 MB, for two calls.
        compute_url = (endpoint or COMPUTE_ADDRESS).rstrip("/")
        self._compute_projects_url = f"{compute_url}/compute/v1/projects"
        self._resource_manager_url = (endpoint or RESOURCE_MANAGER_ADDRESS).rstrip("/")
        self._iam_url = (endpoint or IAM_ADDRESS).rstrip("/")
        region = f"projects/{cluster.project}/regions/{region_of(cluster.location)}"
        self._policies_url = f"{compute_url}/compute/v1/{quote(region)}/resourcePolicies"
        if credentials is None:
            credentials = auth_credentials.AnonymousCredentials() if endpoint else default_credentials()  # type: ignore[no-untyped-call]
        user_agent = f"tpu-provisioner/{provisioner.__version__}"
        self._session = ApiSession(
            credentials,
            connections=_CONNECTIONS,
            user_agent=user_agent,
            base_url=self._base_url,
        )
        #: What the creates said whose operations may be read, the latest last.
        self._said: OrderedDict[OperationName, tuple[str, ...]] = OrderedDict()
        self._lock = threading.Lock()
        self._api = container_v1.ClusterManagerClient(
            transport=_Transport(self._session, host=self._base_url, user_agent=user_agent)
        )

    def close(self) -> None:
        """Close all connections."""
        self._session.close()  # type: ignore[no-untyped-call]

    def get_cluster(self) -> Cluster:
        """Implement `Gke.get_cluster`."""
        with self._call(f"get of cluster {self._cluster.cluster!r}", Call.READ):
            found = self._api.get_cluster(
                name=self._cluster.path,
                retry=None,
                timeout=_READ_SECONDS,
                metadata=_field_mask(translate.CLUSTER_FIELDS),
            )
        return translate.cluster_from_message(container_v1.Cluster.pb(found))

    def list_node_pools(self) -> tuple[NodePool, ...]:
        """Implement `Gke.list_node_pools`.

        Not through the library's own method, which parses the whole answer at once and fails on the first bad pool.
        """
        with self._call(f"list of node pools of cluster {self._cluster.cluster!r}", Call.READ):
            response = self._session.request(
                "GET",
                f"{self._base_url}/v1/{quote(self._cluster.path)}/nodePools",
                headers=dict(_field_mask(translate.LIST_FIELDS)),
                timeout=_LIST_SECONDS,
            )
            bodies = _node_pools_of(response.content)
        before, listed = self._listed, []
        for body in bodies:
            known = before.get(str(body["name"]))
            unchanged = known is not None and known[0] == body
            listed.append(known if known is not None and unchanged else (body, translate.node_pool_from_json(body)))
        self._listed = {str(body["name"]): (body, pool) for body, pool in listed}
        return tuple(pool for _, pool in listed)

    def get_node_pool(self, name: PoolName) -> NodePool:
        """Implement `Gke.get_node_pool`."""
        with self._call(f"get of node pool {name!r}", Call.READ, values=(name,)):
            found = self._api.get_node_pool(
                name=self._pool_path(name),
                retry=None,
                timeout=_READ_SECONDS,
                metadata=_field_mask(translate.NODE_POOL_FIELDS),
            )
        return translate.node_pool_from_message(container_v1.NodePool.pb(found))

    def create_node_pool(self, request: NodePoolRequest) -> OperationName:
        """Implement `Gke.create_node_pool`."""
        said = echoes.of_request(request)
        with self._call(f"create of node pool {request.name!r}", Call.CREATE, values=said):
            started = self._api.create_node_pool(
                parent=self._cluster.path,
                node_pool=translate.node_pool_message(request),
                retry=None,
                timeout=self._change_seconds,
            )
        operation = OperationName(started.name)
        self._remember(operation, said)
        return operation

    def delete_node_pool(self, name: PoolName) -> OperationName:
        """Implement `Gke.delete_node_pool`."""
        with self._call(f"delete of node pool {name!r}", Call.DELETE, values=(name,)):
            started = self._api.delete_node_pool(name=self._pool_path(name), retry=None, timeout=self._change_seconds)
        return OperationName(started.name)

    def get_operation(self, name: OperationName) -> Operation:
        """Implement `Gke.get_operation`."""
        with self._call(f"get of operation {name!r}", Call.READ):
            found = self._api.get_operation(name=f"{self._operations_path}/{name}", retry=None, timeout=_READ_SECONDS)
        return translate.operation_from_message(container_v1.Operation.pb(found), self._said.get(name, ()))

    def get_workload_policy(self, name: str) -> WorkloadPolicy:
        """Implement `Gke.get_workload_policy`."""
        with self._call(f"get of workload policy {name!r}", Call.READ, grant_help=_POLICY_GRANT_HELP, values=(name,)):
            response = self._session.request(
                "GET", f"{self._policies_url}/{quote(name, safe='')}", timeout=_READ_SECONDS
            )
            return translate.workload_policy_from_json(_object_of(response.content, "resource policy"))

    def create_workload_policy(self, policy: WorkloadPolicy) -> None:
        """Implement `Gke.create_workload_policy`."""
        with self._call(
            f"create of workload policy {policy.name!r}",
            Call.CREATE,
            grant_help=_POLICY_GRANT_HELP,
            values=(policy.name,),
        ):
            response = self._session.request(
                "POST",
                self._policies_url,
                json=translate.workload_policy_json(policy),
                timeout=self._change_seconds,
            )
            _object_of(response.content, "operation")

    def test_project_permissions(self, permissions: Sequence[str]) -> frozenset[str]:
        """Implement `Inspector.test_project_permissions`."""
        url = f"{self._resource_manager_url}/v1/projects/{quote(self._cluster.project, safe=':')}:testIamPermissions"
        return self._test_permissions(f"test of permissions on project {self._cluster.project!r}", url, permissions)

    def test_account_permissions(self, account: str, permissions: Sequence[str]) -> frozenset[str]:
        """Implement `Inspector.test_account_permissions`; the account may be of any project."""
        url = f"{self._iam_url}/v1/projects/-/serviceAccounts/{quote(account, safe='@')}:testIamPermissions"
        return self._test_permissions(f"test of permissions on service account {account!r}", url, permissions)

    def _test_permissions(self, subject: str, url: str, permissions: Sequence[str]) -> frozenset[str]:
        # The test itself needs no permission; a refusal has other reasons, which its words tell.
        with self._call(subject, Call.READ, grant_help=""):
            response = self._session.request(
                "POST", url, json={"permissions": list(permissions)}, timeout=_READ_SECONDS
            )
            granted = _object_of(response.content, "result of a test of permissions").get("permissions", [])
        return frozenset(each for each in permissions if isinstance(granted, list) and each in granted)

    def get_reservation(self, *, project: str, zone: str, name: str) -> Reservation:
        """Implement `Inspector.get_reservation`."""
        path = f"{quote(project, safe=':')}/zones/{quote(zone, safe='')}/reservations/{quote(name, safe='')}"
        with self._call(f"get of reservation {name!r} in {zone}", Call.READ, grant_help="", values=(name,)):
            response = self._session.request("GET", f"{self._compute_projects_url}/{path}", timeout=_READ_SECONDS)
            body = _object_of(response.content, "reservation")
        return _reservation_of(body)

    def _pool_path(self, name: PoolName) -> str:
        return f"{self._cluster.path}/nodePools/{name}"

    def _remember(self, operation: OperationName, said: tuple[str, ...]) -> None:
        with self._lock:
            self._said[operation] = said
            while len(self._said) > _REMEMBERED_CREATES:
                self._said.popitem(last=False)

    @contextmanager
    def _call(
        self, subject: str, call: Call, *, grant_help: str = GRANT_HELP, values: Sequence[str] = ()
    ) -> Iterator[None]:
        try:
            yield
        # The last two: an answer with a good status that is not what GKE answers.
        except (*failures.SDK_ERRORS, json_format.Error, _UnreadableAnswerError) as error:
            raise to_gke_error(error, subject, call=call, grant_help=grant_help, values=values) from error


class _Transport(ClusterManagerRestTransport):
    """The library's REST transport on a session of ours; its own has ten connections and no time budget."""

    def __init__(self, session: ApiSession, *, host: str, user_agent: str) -> None:
        self._given_session = session
        client_info = ClientInfo(user_agent=user_agent)  # type: ignore[no-untyped-call]
        super().__init__(host=host, credentials=session.credentials, client_info=client_info)

    def _prep_wrapped_messages(self, client_info: ClientInfo) -> None:
        # The last step of the parent's constructor, and the first that binds the session to the methods.
        self._session.close()  # type: ignore[no-untyped-call]
        self._session = self._given_session
        super()._prep_wrapped_messages(client_info)  # type: ignore[no-untyped-call]


class _UnreadableAnswerError(Exception):
    """An answer that is not the JSON that was asked for."""


def _object_of(body: bytes, what: str) -> dict[str, object]:
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise _UnreadableAnswerError("The answer is not JSON; is GKE_ENDPOINT the address of GKE?") from error
    if not isinstance(answer, dict):
        raise _UnreadableAnswerError(f"The answer is not a valid {what}; is GKE_ENDPOINT the address of GKE?")
    return answer


def _reservation_of(body: dict[str, object]) -> Reservation:
    """Read a reservation: of machines, or (up to v5) of chips of one family."""
    found = Reservation(name=str(body.get("name", "")), status=str(body.get("status", "")))
    specific, aggregate = body.get("specificReservation"), body.get("aggregateReservation")
    if isinstance(specific, dict):
        # What is 0 is left out.
        return replace(found, total=_whole(specific.get("count")), in_use=_whole(specific.get("inUseCount", 0)))
    if isinstance(aggregate, dict):
        total, in_use = (_chips_in(aggregate.get(each)) for each in ("reservedResources", "inUseResources"))
        return replace(found, total=total or None, in_use=in_use, unit="chips")
    return found


def _chips_in(resources: object) -> int:
    listed = (
        [each.get("accelerator") for each in resources if isinstance(each, dict)] if isinstance(resources, list) else []
    )
    return sum(_whole(each.get("acceleratorCount")) or 0 for each in listed if isinstance(each, dict))


def _whole(raw: object) -> int | None:
    """Read an int64, which JSON has as a text."""
    text = str(raw)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def _node_pools_of(body: bytes) -> list[dict[str, object]]:
    pools = _object_of(body, "list of node pools").get("nodePools", [])
    if not isinstance(pools, list):
        raise _UnreadableAnswerError("The answer is not a list of node pools; is GKE_ENDPOINT the address of GKE?")
    # A pool without a name could be neither matched nor deleted.
    return [pool for pool in pools if isinstance(pool, dict) and pool.get("name")]


def _field_mask(fields: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return ((_FIELD_MASK_HEADER, ",".join(fields)),)


def default_credentials() -> auth_credentials.Credentials:
    """Find the application-default credentials; raise GkeError, with what to do, where there are none."""
    try:
        return find_credentials()
    except auth_exceptions.GoogleAuthError as error:
        raise to_gke_error(error, "start of the GKE client", call=Call.READ) from error
