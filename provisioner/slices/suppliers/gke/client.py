"""GKE itself, or a simulator of it, over REST; it never retries and never waits."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from google.auth import credentials as auth_credentials
from google.auth import exceptions as auth_exceptions

from provisioner.google import failures
from provisioner.google.errors import Call, remedy_of
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
from provisioner.settings.forms import region_of
from provisioner.slices.suppliers.gke import translate
from provisioner.slices.suppliers.gke.errors import GkeError, kind_of_answer
from provisioner.slices.suppliers.gke.translate import Cluster, Reservation

GKE_ADDRESS = "https://container.googleapis.com"
COMPUTE_ADDRESS = "https://compute.googleapis.com"
RESOURCE_MANAGER_ADDRESS = "https://cloudresourcemanager.googleapis.com"
IAM_ADDRESS = "https://iam.googleapis.com"
_READ_SECONDS = 10.0
_LIST_SECONDS = 20.0
#: No longer than the controller wants to have of its lease (`provisioner.slices.act.CALL_TIMEOUT_SECONDS`).
_CHANGE_SECONDS = 10.0
#: Where the service accounts of nodes are named.
_ACCOUNTS = "GCP_NODE_SERVICE_ACCOUNT or the pod's annotation"
_POLICY_GRANT_HELP = (
    "Grant the provisioner's identity the optional role with compute.resourcePolicies.get and "
    "compute.resourcePolicies.create on the project of the cluster."
)
#: After a restart, or for older ones, only names that GKE or the provisioner made are known for what they are.
_REMEMBERED_CREATES = 1024
#: A documented header of Google's APIs; field paths in JSON spelling.
_FIELD_MASK_HEADER = "X-Goog-FieldMask"
#: The last: an answer with a good status that is not what Google answers.
_ERRORS: tuple[type[Exception], ...] = (*failures.SDK_ERRORS, ValueError)
_T = TypeVar("_T")

GRANT_HELP = "Grant the provisioner's identity the permission named here on the project of the cluster."


def to_gke_error(
    error: Exception, subject: str, *, call: Call, grant_help: str = GRANT_HELP, values: Iterable[str] = ()
) -> GkeError:
    """Return what an exception of Google's libraries means for the call that the subject names.

    `grant_help` tells which role a refused identity lacks; `values` are words of the call that may be a user's.
    """
    values = tuple(values)
    api = failures.Api(
        name="GKE",
        address_option="GKE_ENDPOINT",
        kind_of_answer=lambda answer: kind_of_answer(answer, call, values),
        help_of=lambda words: remedy_of(words, accounts=_ACCOUNTS, again="create is retried", otherwise=grant_help),
    )
    found = failures.read(error, api, call)
    return GkeError(found.failure, subject, code=found.code)


class GkeClient:
    """The node pools of one cluster, the workload policies of its region, and what a start is checked by.

    Safe to call from many threads; raises `GkeError` alone. What a start is checked by may need an API or a permission
    that the work itself does not: PERMISSION says nothing of the answer.
    """

    def __init__(
        self,
        cluster: ClusterName,
        *,
        endpoint: str | None = None,
        credentials: auth_credentials.Credentials | None = None,
    ) -> None:
        """Resolve the credentials, once, except for an endpoint, which gets none; raise GkeError without any."""
        self._cluster = cluster
        gke_url, compute_url, self._resource_manager_url, self._iam_url = (
            (endpoint or address).rstrip("/")
            for address in (GKE_ADDRESS, COMPUTE_ADDRESS, RESOURCE_MANAGER_ADDRESS, IAM_ADDRESS)
        )
        self._location_url = f"{gke_url}/v1/{quote(cluster.location_path)}"
        self._cluster_url = f"{gke_url}/v1/{quote(cluster.path)}"
        self._compute_projects_url = f"{compute_url}/compute/v1/projects"
        region = f"{cluster.project}/regions/{region_of(cluster.location)}"
        self._policies_url = f"{self._compute_projects_url}/{quote(region)}/resourcePolicies"
        if credentials is None:
            credentials = auth_credentials.AnonymousCredentials() if endpoint else default_credentials()  # type: ignore[no-untyped-call]
        self._session = ApiSession(credentials, base_url=gke_url)
        #: What the creates said whose operations may be read, the latest last.
        self._said: OrderedDict[OperationName, tuple[str, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all connections."""
        self._session.close()  # type: ignore[no-untyped-call]

    def get_cluster(self) -> Cluster:
        """Return the cluster itself."""
        subject = f"get of cluster {self._cluster.cluster!r}"
        return self._read(subject, self._cluster_url, translate.cluster_of, mask=translate.CLUSTER_FIELDS)

    def list_node_pools(self) -> tuple[NodePool, ...]:
        """Return all node pools of the cluster, ours or not, in one call: see `Supplier.list_pools`."""
        return self._read(
            f"list of node pools of cluster {self._cluster.cluster!r}",
            f"{self._cluster_url}/nodePools",
            translate.node_pools_of,
            mask=translate.LIST_FIELDS,
            seconds=_LIST_SECONDS,
        )

    def get_node_pool(self, name: PoolName) -> NodePool:
        """Return one node pool: see `Supplier.get_pool`."""
        return self._read(
            f"get of node pool {name!r}",
            self._pool_url(name),
            translate.node_pool_of,
            mask=translate.NODE_POOL_FIELDS,
            values=(name,),
        )

    def create_node_pool(self, request: NodePoolRequest) -> OperationName:
        """Submit the creation of a node pool: see `Supplier.create_pool`."""
        body = translate.create_request_json(self._cluster.path, request)
        said = translate.said_by(body["nodePool"])
        subject, url = f"create of node pool {request.name!r}", f"{self._cluster_url}/nodePools"
        if request.idle_maintenance_seconds:
            # v1 has no hostMaintenancePolicy, and rejects fields that it does not have.
            url = url.replace("/v1/", "/v1beta1/", 1)
        operation = self._send(subject, Call.CREATE, "POST", url, _name_of_operation, json=body, values=said)
        with self._lock:
            self._said[operation] = said
            while len(self._said) > _REMEMBERED_CREATES:
                self._said.popitem(last=False)
        return operation

    def delete_node_pool(self, name: PoolName) -> OperationName:
        """Submit the deletion of a node pool with all its nodes: see `Supplier.delete_pool`."""
        subject, url = f"delete of node pool {name!r}", self._pool_url(name)
        return self._send(subject, Call.DELETE, "DELETE", url, _name_of_operation, values=(name,))

    def get_operation(self, name: OperationName) -> Operation:
        """Return an operation: see `Supplier.get_operation`; how long GKE remembers it is not documented."""
        url = f"{self._location_url}/operations/{quote(name, safe='')}"
        said = self._said.get(name, ())
        return self._read(f"get of operation {name!r}", url, lambda body: translate.operation_of(body, said))

    def get_workload_policy(self, name: str) -> WorkloadPolicy:
        """Return a resource policy of the cluster's project and region. PERMISSION: it may be there all the same."""
        return self._read(
            f"get of workload policy {name!r}",
            f"{self._policies_url}/{quote(name, safe='')}",
            translate.workload_policy_of,
            grant_help=_POLICY_GRANT_HELP,
            values=(name,),
        )

    def create_workload_policy(self, policy: WorkloadPolicy) -> None:
        """Submit the creation of a workload policy, which may be used once `get_workload_policy` calls it READY."""
        self._send(
            f"create of workload policy {policy.name!r}",
            Call.CREATE,
            "POST",
            self._policies_url,
            _name_of_operation,
            json={
                "name": policy.name,
                "workloadPolicy": {"type": policy.type, "acceleratorTopology": policy.topology},
            },
            grant_help=_POLICY_GRANT_HELP,
            values=(policy.name,),
        )

    def test_project_permissions(self, permissions: Sequence[str]) -> frozenset[str]:
        """Return those of the permissions that the identity has on the project of the cluster."""
        url = f"{self._resource_manager_url}/v1/projects/{quote(self._cluster.project, safe=':')}:testIamPermissions"
        return self._test_permissions(f"test of permissions on project {self._cluster.project!r}", url, permissions)

    def test_account_permissions(self, account: str, permissions: Sequence[str]) -> frozenset[str]:
        """Return those of the permissions that the identity has on a service account; NOT_FOUND: there is none."""
        url = f"{self._iam_url}/v1/projects/-/serviceAccounts/{quote(account, safe='@')}:testIamPermissions"
        return self._test_permissions(f"test of permissions on service account {account!r}", url, permissions)

    def _test_permissions(self, subject: str, url: str, permissions: Sequence[str]) -> frozenset[str]:
        def granted(body: dict[str, Any]) -> frozenset[str]:
            return frozenset(permissions) & frozenset(body.get("permissions") or ())

        # The test itself needs no permission; a refusal has other reasons, which its words tell.
        json = {"permissions": list(permissions)}
        return self._send(subject, Call.READ, "POST", url, granted, json=json, grant_help="")

    def get_reservation(self, *, project: str, zone: str, name: str) -> Reservation:
        """Return a reservation of any project; with an empty one, of that of the cluster."""
        project = project or self._cluster.project
        path = f"{quote(project, safe=':')}/zones/{quote(zone, safe='')}/reservations/{quote(name, safe='')}"
        subject, url = f"get of reservation {name!r} in {zone}", f"{self._compute_projects_url}/{path}"
        return self._read(subject, url, translate.reservation_of, grant_help="", values=(name,))

    def _pool_url(self, name: PoolName) -> str:
        return f"{self._cluster_url}/nodePools/{quote(name, safe='')}"

    def _read(self, subject: str, url: str, parse: Callable[[dict[str, Any]], _T], **options: Any) -> _T:
        return self._send(subject, Call.READ, "GET", url, parse, **options)

    def _send(
        self,
        subject: str,
        call: Call,
        method: str,
        url: str,
        parse: Callable[[dict[str, Any]], _T],
        *,
        json: dict[str, Any] | None = None,
        mask: Sequence[str] = (),
        seconds: float = _READ_SECONDS,
        grant_help: str = GRANT_HELP,
        values: Sequence[str] = (),
    ) -> _T:
        """Send one request, and read its answer; raise GkeError where either fails."""
        headers = {_FIELD_MASK_HEADER: ",".join(mask)} if mask else {}
        timeout = seconds if call is Call.READ else _CHANGE_SECONDS
        try:
            response = self._session.request(method, url, headers=headers, json=json, timeout=timeout)
            return parse(_object_of(response.content))
        except _ERRORS as error:
            raise to_gke_error(error, subject, call=call, grant_help=grant_help, values=values) from error


def _object_of(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ValueError("The answer is not a JSON object; is GKE_ENDPOINT the address of GKE?")  # noqa: TRY004 - not ours
    return answer


def _name_of_operation(body: dict[str, Any]) -> OperationName:
    return OperationName(str(body.get("name", "")))


def default_credentials() -> auth_credentials.Credentials:
    """Find the application-default credentials; raise GkeError, with what to do, where there are none."""
    try:
        return find_credentials()
    except auth_exceptions.GoogleAuthError as error:
        raise to_gke_error(error, "start of the GKE client", call=Call.READ) from error
