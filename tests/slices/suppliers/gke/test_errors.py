"""What each failure of GKE means."""

from __future__ import annotations

import json

import pytest
import requests
import urllib3.exceptions
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from provisioner.google.errors import Call
from provisioner.google.failures import SDK_ERRORS
from provisioner.model.capacity import Failure, FailureKind, Network, NodePoolRequest, PoolName, Zone
from provisioner.slices.suppliers.gke.client import to_gke_error
from provisioner.slices.suppliers.gke.errors import GkeError, classify_message, says_missing
from provisioner.slices.suppliers.gke.translate import said_by_request

K = FailureKind

# Quoted by the project's collection of facts, with their sources there.
MESSAGES = [
    pytest.param(
        None,
        "Google Compute Engine: Not all instances running in IGM after 35m4.03s. Expected 5, running 2, "
        "transitioning 3. Current errors: [GCE_STOCKOUT]: Instance 'a' creation failed: The zone "
        "'projects/P/zones/Z' does not have enough resources available to fulfill the request. "
        "'(resource type:compute)'.",
        K.STOCKOUT,
        id="an instance group that cannot be filled is a stockout",
    ),
    pytest.param(
        None, "Atomic resize failed with [GCE_STOCKOUT]", K.STOCKOUT, id="a slice that cannot be had is a stockout"
    ),
    pytest.param(
        None,
        "Try a different location, or try again later: Google Compute Engine does not have enough resources "
        "available to fulfill request: us-central1-a.",
        K.STOCKOUT,
        id="the advice to try again later beside missing resources is a stockout",
    ),
    *(
        pytest.param(8, f"[{code}] no luck", K.STOCKOUT, id=f"{code} is a stockout")
        for code in (
            "RESOURCE_POOL_EXHAUSTED",
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "INSUFFICIENT_CAPACITY",
            "INVALID_RESERVATION",
        )
    ),
    pytest.param(None, "lack of capacity", K.STOCKOUT, id="lack of capacity is a stockout"),
    pytest.param(
        None, "Requested resource is exhausted", K.STOCKOUT, id="an exhausted requested resource is a stockout"
    ),
    pytest.param(8, "[GCE_QUOTA_EXCEEDED] TPU chips", K.QUOTA, id="GCE_QUOTA_EXCEEDED is a quota"),
    pytest.param(None, "QUOTA_EXCEEDED", K.QUOTA, id="QUOTA_EXCEEDED is a quota"),
    pytest.param(
        None,
        "Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 4.0 in region us-east5.",
        K.QUOTA,
        id="a named quota that is exceeded is a quota",
    ),
    pytest.param(
        None,
        "Atomic resize failed with [IP_SPACE_EXHAUSTED_WITH_DETAILS]: IP space of 'subnetworks/default' is exhausted",
        K.QUOTA,
        id="addresses that ran out are a quota",
    ),
    pytest.param(
        3,
        'The network "default" does not have available private IP space in 10.0.0.0/8',
        K.QUOTA,
        id="a network without addresses is a quota",
    ),
    pytest.param(
        3,
        "Cannot find pod range with enough available IPs for nodepool",
        K.QUOTA,
        id="a pod range without addresses is a quota",
    ),
    pytest.param(3, "Cluster byte size limit reached", K.QUOTA, id="a full cluster object is a quota"),
    pytest.param(
        3,
        "Google Compute Engine: Invalid value for field 'resource.resizeBy': '16'. Requested invalid target size '16' "
        "for a Managed Instance Group in the gang mode of size '8'. Should be equal to the gang size.",
        K.INVALID,
        id="a size that is not the gang's is invalid",
    ),
    pytest.param(
        None,
        "Creation of a managed instance group with tpu7x-standard-4t machine type with placement policy is not "
        "supported. Use workload policy instead.",
        K.INVALID,
        id="COMPACT placement of tpu7x is invalid even without a code",
    ),
    pytest.param(
        None,
        "Required field 'resource.requestedRunDuration' not specified",
        K.INVALID,
        id="a missing run duration is invalid",
    ),
    pytest.param(
        None,
        "Maximum node count 0 is not a valid size of TPU pod slice with topology 2x2x2",
        K.INVALID,
        id="a size that is none of the topology's is invalid",
    ),
    pytest.param(
        None,
        "The interval is incorrect for the requested resources",
        K.INVALID,
        id="a wrong maintenance interval is invalid",
    ),
    pytest.param(
        None,
        "Cluster is running incompatible operation operation-1-a.",
        K.OPERATION_IN_THE_WAY,
        id="an incompatible operation is in the way",
    ),
    pytest.param(
        None,
        'Too many operations: cluster "X" hits the concurrent operations quota 5, please try again later.',
        K.TOO_MANY_OPERATIONS,
        id="the quota of concurrent operations is no quota of resources",
    ),
    pytest.param(
        None,
        "The reservation projects/p/reservations/r does not have sufficient capacity",
        K.STOCKOUT,
        id="a reservation that is used up is a stockout",
    ),
    *(
        pytest.param(None, text, K.STOCKOUT, id=f"a reservation that cannot serve now is a stockout: {text}")
        for text in (
            "Specified reservation 'r' does not have available resources for the request.",
            "No available resources in specified reservations",
            "[RESERVATION_CAPACITY_EXCEEDED] no luck",
            "Reservation does not have enough resources for the request",
            "Creation requires reservation to be in READY state",
            "Zone does not currently have sufficient capacity for the requested resources.",
        )
    ),
    pytest.param(
        9,
        "Constraint constraints/compute.requireShieldedVm violated for project p. Please wait.",
        K.INVALID,
        id="a constraint that is violated does not pass by itself",
    ),
    pytest.param(
        7,
        "Operation denied by org policy on resource 'projects/p'",
        K.INVALID,
        id="what a policy of the organisation denies is refused",
    ),
    pytest.param(
        3,
        'Service account "a@p.iam.gserviceaccount.com" does not exist.',
        K.PERMISSION,
        id="a node service account that does not exist yet is a permission",
    ),
    pytest.param(
        None,
        "The reservation projects/p/reservations/r was not found in zone us-east5-a",
        K.INVALID,
        id="a reservation that does not exist is invalid",
    ),
    pytest.param(
        None,
        "[NODE_SERVICE_ACCOUNT_MISSING_PERMISSIONS] see the documentation",
        K.PERMISSION,
        id="a node service account without permissions is a permission",
    ),
    *(
        pytest.param(code, "no text that we know", kind, id=f"code {code} without a known text is {kind.value}")
        for code, kind in (
            (1, K.UNAVAILABLE),
            (2, K.UNAVAILABLE),
            (3, K.INVALID),
            (4, K.UNAVAILABLE),
            (5, K.INVALID),
            (6, K.ALREADY_EXISTS),
            (7, K.PERMISSION),
            (8, K.QUOTA),
            (9, K.INVALID),
            (10, K.UNAVAILABLE),
            (11, K.INVALID),
            (12, K.INVALID),
            (13, K.UNAVAILABLE),
            (14, K.UNAVAILABLE),
            (15, K.UNAVAILABLE),
            (16, K.PERMISSION),
            (None, K.UNAVAILABLE),
            (99, K.UNAVAILABLE),
        )
    ),
    pytest.param(
        9, "The moon is in the way, please wait", K.OPERATION_IN_THE_WAY, id="a precondition to wait for is in the way"
    ),
]


@pytest.mark.parametrize(("code", "text", "want"), MESSAGES)
def test_message_of_operation_or_pool(code: int | None, text: str, want: FailureKind) -> None:
    """A text of GKE decides, and its code where the text says nothing."""
    assert classify_message(code, text) is want


REQUEST = NodePoolRequest(
    name=PoolName("quota-exceeded-0123456789"),
    zone=Zone("us-east5-b"),
    machine_type="ct5p-hightpu-4t",
    hosts=1,
    topology="2x2x1",
    policy_name="rate-limit-exceeded",
    reservation="projects/too-many/reservations/lack-of-capacity",
    labels={"GCE_STOCKOUT": "RESOURCE_POOL_EXHAUSTED", "team": "quota", "part": "exceeded", "e": "e"},
    service_account="insufficient-quota@permission-denied.iam.gserviceaccount.com",
    additional_networks=(
        Network(network="quota-not-exceeded", subnetwork="projects/p/regions/r/subnetworks/INVALID_QUOTA"),
    ),
)
STEERED = [
    pytest.param("Network 'quota-not-exceeded' is not right.", id="a network"),
    pytest.param("The resource projects/p/global/networks/GCE_STOCKOUT is odd.", id="a label key in a path"),
    pytest.param("Subnetwork 'INVALID_QUOTA' is odd.", id="a subnetwork whose path was given"),
    pytest.param("Label value RESOURCE_POOL_EXHAUSTED is odd.", id="a label value"),
    pytest.param("Labels 'quota' and 'exceeded' are odd.", id="two label values together"),
    pytest.param('Node pool "quota-exceeded-0123456789" is odd.', id="the pool itself"),
    pytest.param("Instance 'gke-c-quota-exceeded-01-ab12' is odd.", id="an instance with a part of its name"),
    pytest.param("See node pool rate-limit-exceeded-abcdef0123 of another user.", id="somebody else's pool"),
    pytest.param("Policy rate-limit-exceeded is odd.", id="a workload policy"),
    pytest.param("Service account insufficient-quota is odd.", id="a part of a service account"),
]


@pytest.mark.parametrize("text", STEERED)
def test_words_of_users_do_not_decide(text: str) -> None:
    """What the request says of itself is taken out before the text is read, and the message is kept whole."""
    assert classify_message(3, text, said_by_request(REQUEST)) is K.INVALID
    refused = google(400, "INVALID_ARGUMENT", text)
    failure = to_gke_error(refused, "it", call=Call.CREATE, values=said_by_request(REQUEST)).failure
    assert failure == Failure(kind=K.INVALID, message=text)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("Quota 'TPUS' exceeded. Limit: 4.0 in region r.", K.QUOTA, id="a quota"),
        pytest.param("Insufficient regional quota to satisfy request", K.QUOTA, id="a quota in small letters"),
        pytest.param("[GCE_QUOTA_EXCEEDED] TPU chips", K.QUOTA, id="the code of a quota"),
        pytest.param(
            "The zone 'projects/P/zones/us-east5-b' does not have enough resources available to fulfill the request.",
            K.STOCKOUT,
            id="a stockout in the zone that was asked for",
        ),
        pytest.param(
            "The reservation projects/too-many/reservations/lack-of-capacity was not found.",
            K.INVALID,
            id="a reservation",
        ),
        pytest.param(
            "Operation operation-1700000000000-0123456789 is currently creating a node pool. Please wait.",
            K.OPERATION_IN_THE_WAY,
            id="an operation whose name is like a pool's",
        ),
    ],
)
def test_words_of_google_decide_though_users_use_them_too(text: str, want: FailureKind) -> None:
    """A plain word is taken out only where it is quoted or in a path."""
    assert classify_message(None, text, said_by_request(REQUEST)) is want


@pytest.mark.parametrize("code", [401, 404, 500, 503])
def test_the_text_of_other_answers_is_not(code: int) -> None:
    """They mean one thing only, or nothing for sure."""
    said = google(code, "", "Cluster is running incompatible operation operation-1-a.")
    assert to_gke_error(said, "it", call=Call.CREATE).failure.kind is not K.OPERATION_IN_THE_WAY


def test_a_long_text_of_hyphens_is_read_in_time() -> None:
    """Nothing in it makes the search try again from each letter."""
    assert classify_message(3, "a-" * 500_000, ["b-c-d-e"]) is K.INVALID


def test_a_policy_is_blamed_by_its_name_alone() -> None:
    """Not by a word that the name is a part of."""
    failure = Failure(kind=K.INVALID, message="Node pool is not found.")
    assert not says_missing(failure, "pool-policy")
    assert not says_missing(failure, "po")
    assert says_missing(Failure(kind=K.INVALID, message="resourcePolicies/po not found"), "po")


def test_the_password_of_a_proxy_is_not_shown() -> None:
    """Though a library may say the whole address."""
    error = requests.exceptions.InvalidProxyURL("Failed to parse: http://me:secret@proxy:1")
    assert "secret" not in to_gke_error(error, "it", call=Call.CREATE).failure.message


def answer(code: int, body: object, headers: dict[str, str] | None = None) -> api.GoogleAPICallError:
    """Return the exception of an error answer."""
    response = requests.Response()
    response.status_code = code
    response._content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response.headers.update(headers or {})
    return api.from_http_status(code, "", response=response)


def google(code: int, status: str, message: str, reason: str = "") -> api.GoogleAPICallError:
    """Return the exception of an error answer in Google's form."""
    errors = [{"message": message, "domain": "global", "reason": reason}]
    return answer(code, {"error": {"code": code, "status": status, "message": message, "errors": errors}})


ANSWERS = [
    # code, status, message, reason, kind for read, create, delete
    pytest.param(
        400,
        "INVALID_ARGUMENT",
        'Invalid value for field "node_pool.name": "X". Must be a match of regex '
        "'(?:[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?)' (only lowercase alphanumerics and '-' allowed).",
        "badRequest",
        (K.INVALID, K.INVALID, K.INVALID),
        id="a bad name is invalid",
    ),
    pytest.param(
        400,
        "INVALID_ARGUMENT",
        "TPU topology can't be specified with single-host TPU slice pool; please remove the tpu_topology from the "
        "node pool creation request if the node pool is intented to run with single-host TPU slice nodes.",
        "badRequest",
        (K.INVALID, K.INVALID, K.INVALID),
        id="a topology on a single host is invalid",
    ),
    pytest.param(
        400,
        "FAILED_PRECONDITION",
        "Cluster is running incompatible operation operation-1700000000000-ab.",
        "failedPrecondition",
        (K.OPERATION_IN_THE_WAY,) * 3,
        id="an incompatible operation is in the way",
    ),
    pytest.param(
        400,
        "FAILED_PRECONDITION",
        "Operation operation-1-a is currently creating a node pool for cluster c. Please wait and try again once it "
        "is done.",
        "failedPrecondition",
        (K.OPERATION_IN_THE_WAY,) * 3,
        id="an operation that is currently creating is in the way",
    ),
    pytest.param(
        400,
        "",
        "Operation operation-1-a is currently upgrading cluster c. Please wait and try again once it is done.",
        "failedPrecondition",
        (K.OPERATION_IN_THE_WAY,) * 3,
        id="an operation that is currently upgrading is in the way by its reason alone",
    ),
    pytest.param(
        400,
        "FAILED_PRECONDITION",
        "Cluster is currently being created, deleted, updated or repaired and cannot be updated.",
        "failedPrecondition",
        (K.OPERATION_IN_THE_WAY,) * 3,
        id="a cluster under repair is in the way",
    ),
    pytest.param(
        400,
        "FAILED_PRECONDITION",
        "The cluster has a release channel.",
        "failedPrecondition",
        (K.INVALID,) * 3,
        id="a precondition that does not pass by itself is invalid",
    ),
    pytest.param(
        429,
        "RESOURCE_EXHAUSTED",
        'Too many operations: cluster "X" hits the concurrent operations quota 5, please try again later.',
        "rateLimitExceeded",
        (K.TOO_MANY_OPERATIONS,) * 3,
        id="too many operations are told from a rate limit",
    ),
    pytest.param(
        429,
        "RESOURCE_EXHAUSTED",
        "Quota exceeded for quota metric 'API requests' and limit 'API requests per minute' of service "
        "'container.googleapis.com' for consumer 'project_number:1'.",
        "rateLimitExceeded",
        (K.UNAVAILABLE,) * 3,
        id="a rate limit passes by itself",
    ),
    pytest.param(
        429,
        "RESOURCE_EXHAUSTED",
        "Quota exceeded for quota group 'default'",
        "rateLimitExceeded",
        (K.UNAVAILABLE,) * 3,
        id="a rate limit in the words of a quota is known by its reason",
    ),
    pytest.param(
        429,
        "RESOURCE_EXHAUSTED",
        "Quota exceeded for quota metric 'API requests' and limit 'API requests per minute'",
        "",
        (K.UNAVAILABLE,) * 3,
        id="a rate limit is known by its text alone",
    ),
    pytest.param(
        429,
        "RESOURCE_EXHAUSTED",
        "Reservation does not have enough resources for the request",
        "rateLimitExceeded",
        (K.STOCKOUT,) * 3,
        id="a full reservation is a stockout, though its reason is that of a rate limit",
    ),
    pytest.param(
        412,
        "FAILED_PRECONDITION",
        "Constraint constraints/compute.vmExternalIpAccess violated for project p. Please try again later.",
        "conditionNotMet",
        (K.INVALID,) * 3,
        id="412 that names a constraint is a refusal",
    ),
    pytest.param(
        412, "", "Etag mismatch", "conditionNotMet", (K.OPERATION_IN_THE_WAY,) * 3, id="412 without one is an etag"
    ),
    pytest.param(
        400, "INVALID_ARGUMENT", "Cluster byte size limit reached", "", (K.QUOTA,) * 3, id="a full cluster is a quota"
    ),
    *(
        pytest.param(code, "", "No.", "", kinds, id=f"{code} without a known text")
        for code, kinds in (
            (300, (K.UNAVAILABLE,) * 3),
            (399, (K.UNAVAILABLE,) * 3),
            (400, (K.INVALID,) * 3),
            (401, (K.PERMISSION,) * 3),
            (403, (K.PERMISSION,) * 3),
            (404, (K.NOT_FOUND, K.INVALID, K.NOT_FOUND)),
            (408, (K.UNAVAILABLE, K.UNKNOWN_OUTCOME, K.UNKNOWN_OUTCOME)),
            (409, (K.UNAVAILABLE, K.ALREADY_EXISTS, K.OPERATION_IN_THE_WAY)),
            (412, (K.OPERATION_IN_THE_WAY,) * 3),
            (418, (K.INVALID,) * 3),
            (429, (K.UNAVAILABLE,) * 3),
            (499, (K.UNAVAILABLE, K.UNKNOWN_OUTCOME, K.UNKNOWN_OUTCOME)),
            (500, (K.UNAVAILABLE, K.UNKNOWN_OUTCOME, K.UNKNOWN_OUTCOME)),
            (501, (K.INVALID,) * 3),
            (599, (K.UNAVAILABLE, K.UNKNOWN_OUTCOME, K.UNKNOWN_OUTCOME)),
        )
    ),
    *(
        pytest.param(
            code,
            "",
            "Too many operations: the cluster hits the concurrent operations quota 5.",
            "",
            (K.TOO_MANY_OPERATIONS,) * 3,
            id=f"the text of a {code} decides",
        )
        for code in (400, 403, 409, 412, 429)
    ),
    pytest.param(
        403, "", "Rate Limit Exceeded", "rateLimitExceeded", (K.UNAVAILABLE,) * 3, id="403 for the rate is not"
    ),
    pytest.param(403, "", "Daily limit", "quotaExceeded", (K.QUOTA,) * 3, id="403 for a quota is not"),
    pytest.param(
        403,
        "PERMISSION_DENIED",
        'Insufficient regional quota to satisfy request: resource "CPUS"',
        "forbidden",
        (K.QUOTA,) * 3,
        id="403 that speaks of a quota is a quota",
    ),
    pytest.param(
        404,
        "NOT_FOUND",
        'nodePool "projects/p/zones/z/clusters/c/nodePools/X" not found',
        "notFound",
        (K.NOT_FOUND, K.INVALID, K.NOT_FOUND),
        id="404 of a create is about what the request names",
    ),
    pytest.param(
        409,
        "ALREADY_EXISTS",
        "Already exists: projects/p/zones/z/clusters/c/nodePools/X.",
        "alreadyExists",
        (K.UNAVAILABLE, K.ALREADY_EXISTS, K.OPERATION_IN_THE_WAY),
        id="409 of a create means that the pool exists",
    ),
    pytest.param(409, "ABORTED", "conflict", "", (K.OPERATION_IN_THE_WAY,) * 3, id="an aborted call was in conflict"),
    *(
        pytest.param(
            code,
            "INTERNAL",
            "[GCE_STOCKOUT] or whatever",
            "backendError",
            (K.UNAVAILABLE, K.UNKNOWN_OUTCOME, K.UNKNOWN_OUTCOME),
            id=f"{code} leaves the outcome of a change unknown, whatever it says",
        )
        for code in (408, 499, 500, 502, 503, 504, 599)
    ),
]


@pytest.mark.parametrize(("code", "status", "message", "reason", "want"), ANSWERS)
def test_answer(
    code: int, status: str, message: str, reason: str, want: tuple[FailureKind, FailureKind, FailureKind]
) -> None:
    """An error answer in Google's form means what the table says, for each kind of call."""
    got = tuple(
        to_gke_error(google(code, status, message, reason), "it", call=call).failure
        for call in (Call.READ, Call.CREATE, Call.DELETE)
    )
    assert tuple(one.kind for one in got) == want
    assert all(one.message.startswith(message) for one in got)


@pytest.mark.parametrize(
    ("code", "text", "remedy"),
    [
        pytest.param(
            400,
            'The user does not have access to service account "nodes@p.iam.gserviceaccount.com". Ask a project owner '
            "to grant you the iam.serviceAccountUser role on the service account",
            "Grant the provisioner's identity roles/iam.serviceAccountUser on that service account;",
            id="it may not act as the account",
        ),
        pytest.param(
            403,
            "Permission 'iam.serviceAccounts.actAs' denied on service account nodes@p.iam.gserviceaccount.com",
            "Grant the provisioner's identity roles/iam.serviceAccountUser on that service account;",
            id="so in the words of a 403",
        ),
        pytest.param(
            400,
            'Service account "nodes@p.iam.gserviceaccount.com" does not exist.',
            "Create it, or name another in GCP_NODE_SERVICE_ACCOUNT",
            id="there is no such account",
        ),
    ],
)
def test_a_node_service_account_that_may_not_be_used_is_a_permission_with_its_remedy(
    code: int, text: str, remedy: str
) -> None:
    """It is tried again, for somebody may grant the role at any time; the account's name does not hide the text."""
    said = google(code, "", text, "badRequest")
    values = ("nodes@p.iam.gserviceaccount.com",)
    failure = to_gke_error(said, "it", call=Call.CREATE, values=values).failure
    assert failure.kind is K.PERMISSION
    assert failure.message.startswith(f"{text} {remedy}")
    assert "the permission named here" not in failure.message


@pytest.mark.parametrize(
    ("code", "want"),
    [
        pytest.param(404, K.UNAVAILABLE, id="a 404 that is not from Google says nothing about a pool"),
        pytest.param(403, K.PERMISSION, id="a proxy's 403 is a permission"),
        pytest.param(429, K.UNAVAILABLE, id="a proxy's 429 passes"),
        pytest.param(502, K.UNKNOWN_OUTCOME, id="a front end's 502 leaves the outcome unknown"),
    ],
)
@pytest.mark.parametrize("body", [b"<html>oops</html>", b"", b'"text"', b'{"error": "invalid_grant"}', b"[]", b"[1]"])
def test_answer_that_is_not_from_google(code: int, want: FailureKind, body: bytes) -> None:
    """An answer of another form is read without a crash and trusted with little."""
    assert to_gke_error(answer(code, body), "delete", call=Call.DELETE).failure.kind is want


def test_proxy_is_not_mended_by_grants() -> None:
    """A proxy that wants a password is not answered with advice on Google's permissions."""
    failure = to_gke_error(answer(407, b"who are you?"), "it", call=Call.READ).failure
    assert failure == Failure(kind=K.PERMISSION, message="who are you?")


def test_odd_bodies_of_google() -> None:
    """Fields of unexpected types in an error body do not hide its code."""
    body = {"error": {"message": None, "errors": ["x"], "details": [None, {"reason": "rateLimitExceeded"}]}}
    assert to_gke_error(answer(403, body), "it", call=Call.READ).failure.kind is K.UNAVAILABLE


@pytest.mark.parametrize(
    ("headers", "details", "want"),
    [
        pytest.param({"Retry-After": "7"}, [], 7.0, id="the header gives the delay"),
        pytest.param({}, [{"retryDelay": "1.5s"}], 1.5, id="RetryInfo gives the delay"),
        pytest.param({"Retry-After": "999999"}, [], 3600.0, id="a very long delay is cut"),
        pytest.param({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, [], None, id="a date is not used"),
        pytest.param({"Retry-After": "nan"}, [], None, id="nonsense is not used"),
        pytest.param({}, [], None, id="no wish is None"),
    ],
)
def test_retry_after(headers: dict[str, str], details: list[object], want: float | None) -> None:
    body = {"error": {"code": 429, "message": "API requests", "details": details}}
    assert to_gke_error(answer(429, body, headers), "it", call=Call.READ).retry_after_seconds == want


def test_exceptions_that_contain_each_other() -> None:
    """A chain of causes that closes on itself ends the search, too."""
    first, second = requests.ConnectionError("a"), requests.ConnectionError("b")
    first.__cause__, second.__cause__ = second, first
    assert to_gke_error(first, "it", call=Call.CREATE).failure.kind is K.UNKNOWN_OUTCOME


def _refused(reason: Exception) -> requests.ConnectionError:
    return requests.ConnectionError(urllib3.exceptions.MaxRetryError(None, "/", reason))  # type: ignore[arg-type]


TRANSPORT = [
    pytest.param(
        _refused(urllib3.exceptions.NewConnectionError(None, "refused")),  # type: ignore[arg-type]
        (K.UNAVAILABLE, K.UNAVAILABLE),
        id="a refused connection sent nothing",
    ),
    pytest.param(
        _refused(urllib3.exceptions.NameResolutionError("h", None, OSError())),  # type: ignore[arg-type]
        (K.UNAVAILABLE, K.UNAVAILABLE),
        id="a name that does not resolve sent nothing",
    ),
    pytest.param(requests.ConnectTimeout("slow"), (K.UNAVAILABLE, K.UNAVAILABLE), id="a connect time-out sent nothing"),
    pytest.param(
        requests.ConnectionError(urllib3.exceptions.ProtocolError("aborted", ConnectionResetError())),
        (K.UNAVAILABLE, K.UNKNOWN_OUTCOME),
        id="a connection that broke may have delivered",
    ),
    pytest.param(requests.ReadTimeout("slow"), (K.UNAVAILABLE, K.UNKNOWN_OUTCOME), id="a read time-out may have"),
    pytest.param(
        requests.exceptions.InvalidURL("no host"), (K.INVALID, K.INVALID), id="a bad address is the user's to change"
    ),
    pytest.param(
        requests.exceptions.SSLError("record layer failure"),
        (K.UNAVAILABLE, K.UNKNOWN_OUTCOME),
        id="a TLS failure in the middle may have delivered",
    ),
    pytest.param(OSError("no CA bundle"), (K.UNAVAILABLE, K.UNKNOWN_OUTCOME), id="an OSError tells nothing"),
    pytest.param(auth.DefaultCredentialsError("none"), (K.PERMISSION, K.PERMISSION), id="no credentials"),
    pytest.param(auth.RefreshError("invalid_grant: revoked"), (K.PERMISSION, K.PERMISSION), id="a revoked token"),
    pytest.param(
        auth.RefreshError("busy", retryable=True), (K.UNAVAILABLE, K.UNAVAILABLE), id="a refresh to be tried again"
    ),
    pytest.param(
        auth.RefreshError(auth.TransportError("Failed to retrieve http://metadata after 5 tries")),
        (K.UNAVAILABLE, K.UNAVAILABLE),
        id="a metadata server that is not up yet",
    ),
    pytest.param(
        auth.RefreshError(auth.TransportError("Failed to retrieve http://metadata. Status: 404 Response: no account")),
        (K.PERMISSION, K.PERMISSION),
        id="a metadata server that refuses the identity",
    ),
    pytest.param(auth.TransportError("down"), (K.UNAVAILABLE, K.UNAVAILABLE), id="a token server that is down"),
    pytest.param(
        api.RetryError("gave up", answer(503, {"error": {"message": "m"}})),
        (K.UNAVAILABLE, K.UNKNOWN_OUTCOME),
        id="an exhausted retry means what its cause means",
    ),
]


@pytest.mark.parametrize(("error", "want"), TRANSPORT)
def test_transport(error: Exception, want: tuple[FailureKind, FailureKind]) -> None:
    """A failure on the way leaves the outcome of a change unknown unless nothing can have been sent."""
    got = tuple(to_gke_error(error, "it", call=call).failure.kind for call in (Call.READ, Call.CREATE))
    assert got == want


def test_missing_credentials_say_what_to_run() -> None:
    """The user without credentials learns the command."""
    error = to_gke_error(auth.DefaultCredentialsError("none found"), "start", call=Call.READ)
    assert "gcloud auth application-default login --impersonate-service-account=SA" in str(error)
    assert str(error).startswith("start: ")


def test_an_api_of_tokens_that_is_off_is_named() -> None:
    """Whoever acts as a Google service account learns which API to enable."""
    refused = "IAM Service Account Credentials API has not been used in project 1 before or it is disabled."
    error = to_gke_error(auth.RefreshError("Unable to acquire impersonated credentials", refused), "x", call=Call.READ)
    assert error.failure.kind is FailureKind.PERMISSION
    assert "gcloud services enable iamcredentials.googleapis.com" in str(error)


def _tree(base: type[Exception]) -> list[type[Exception]]:
    return [base, *(sub for child in base.__subclasses__() for sub in _tree(child))]


_BASES = (api.GoogleAPIError, auth.GoogleAuthError, requests.RequestException, urllib3.exceptions.HTTPError)
_CLASSES = sorted({one for base in _BASES for one in _tree(base)}, key=lambda one: (one.__module__, one.__name__))


@pytest.mark.parametrize("kind", _CLASSES, ids=lambda one: f"{one.__module__}.{one.__name__}")
@pytest.mark.parametrize("call", Call)
def test_every_exception_of_the_libraries_maps(kind: type[Exception], call: Call) -> None:
    """Each exception class of Google's libraries and of those below them is caught and becomes a GkeError."""
    assert issubclass(kind, SDK_ERRORS)
    # Without the constructors, whose arguments differ, but with what those of call errors set.
    error = kind.__new__(kind)
    Exception.__init__(error, "message")
    wanted = {"_response": None, "message": "message", "_retryable": False, "_cause": None}
    wanted |= {"length": b"1", "partial": 0, "expected": 1}
    for name, value in wanted.items():
        error.__dict__.setdefault(name, value)
    if isinstance(error, api.GoogleAPICallError):
        error.__dict__.update(_errors=[], _details=[], _error_info=None)
    mapped = to_gke_error(error, "it", call=call)
    assert isinstance(mapped, GkeError)
    assert mapped.failure.message
    assert mapped.failure.kind not in (K.STOCKOUT, K.QUOTA)


def test_enough_classes_were_found() -> None:
    """The walk over the libraries finds what it is about."""
    assert len(_CLASSES) > 60
    assert {api.ServiceUnavailable, auth.RefreshError, requests.ReadTimeout} <= set(_CLASSES)


def test_the_status_of_an_answer_is_kept() -> None:
    """For the metric of calls; without an answer there is none."""
    assert to_gke_error(answer(429, {}), "it", call=Call.READ).code == 429
    assert to_gke_error(requests.exceptions.ReadTimeout(), "it", call=Call.READ).code == 0
