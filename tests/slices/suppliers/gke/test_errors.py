"""Tests of the classification of GKE's failures."""

from __future__ import annotations

import json
import ssl

import pytest
import requests
import urllib3.exceptions
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud import container_v1
from google.protobuf import json_format

from provisioner.google.errors import Call
from provisioner.model.capacity import Failure, FailureKind, Network, NodePoolRequest, PoolName, Zone
from provisioner.slices.suppliers.gke import client
from provisioner.slices.suppliers.gke.client import to_gke_error
from provisioner.slices.suppliers.gke.errors import GkeError, classify_message, says_missing
from provisioner.slices.suppliers.gke.translate import create_request_json, user_texts_of

K = FailureKind

#: Error texts by the kind that they mean; some are made up from the words of real texts.
TEXTS = {
    K.STOCKOUT: (
        (
            "Google Compute Engine: Not all instances running in IGM after 35m4.03s. Expected 5, running 2, "
            "transitioning 3. Current errors: [GCE_STOCKOUT]: Instance 'a' creation failed: The zone "
            "'projects/P/zones/Z' does not have enough resources available to fulfill the request. "
            "'(resource type:compute)'."
        ),
        "Atomic resize failed with [GCE_STOCKOUT]",
        (
            "Try a different location, or try again later: Google Compute Engine does not have enough resources "
            "available to fulfill request: us-central1-a."
        ),
        "[RESOURCE_POOL_EXHAUSTED] no luck",
        "[ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS] no luck",
        "[INSUFFICIENT_CAPACITY] no luck",
        "[INVALID_RESERVATION] no luck",
        "[RESERVATION_CAPACITY_EXCEEDED] no luck",
        "lack of capacity",
        "Requested resource is exhausted",
        "The reservation projects/p/reservations/r does not have sufficient capacity",
        "Specified reservation 'r' does not have available resources for the request.",
        "No available resources in specified reservations",
        "Reservation does not have enough resources for the request",
        "Creation requires reservation to be in READY state",
        "Zone does not currently have sufficient capacity for the requested resources.",
    ),
    K.QUOTA: (
        "[GCE_QUOTA_EXCEEDED] TPU chips",
        "QUOTA_EXCEEDED",
        "Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 4.0 in region us-east5.",
        'Insufficient regional quota to satisfy request: resource "CPUS"',
        "Atomic resize failed with [IP_SPACE_EXHAUSTED_WITH_DETAILS]: IP space of 'subnetworks/default' is exhausted",
        'The network "default" does not have available private IP space in 10.0.0.0/8',
        "Cannot find pod range with enough available IPs for nodepool",
        "Cluster byte size limit reached",
    ),
    K.INVALID: (
        'Service account "a@p.iam.gserviceaccount.com" does not exist.',
        (
            "Google Compute Engine: Invalid value for field 'resource.resizeBy': '16'. Requested invalid target size "
            "'16' for a Managed Instance Group in the gang mode of size '8'. Should be equal to the gang size."
        ),
        (
            "Creation of a managed instance group with tpu7x-standard-4t machine type with placement policy is not "
            "supported. Use workload policy instead."
        ),
        "Required field 'resource.requestedRunDuration' not specified",
        "Maximum node count 0 is not a valid size of TPU pod slice with topology 2x2x2",
        "The interval is incorrect for the requested resources",
        "Operation denied by org policy on resource 'projects/p'",
        "Constraint constraints/compute.requireShieldedVm violated for project p.",
        "The reservation projects/p/reservations/r was not found in zone us-east5-a",
        (
            "TPU topology can't be specified with single-host TPU slice pool; please remove the tpu_topology from the "
            "node pool creation request if the node pool is intented to run with single-host TPU slice nodes."
        ),
        "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?)' (only lowercase alphanumerics and '-').",
    ),
    K.PERMISSION: ("[NODE_SERVICE_ACCOUNT_MISSING_PERMISSIONS] see the documentation",),
    K.OPERATION_IN_THE_WAY: (
        "Cluster is running incompatible operation operation-1-a.",
        "Operation operation-1-a is currently creating a node pool for cluster c. Please wait and try again once done.",
        "Cluster is currently being created, deleted, updated or repaired and cannot be updated.",
    ),
    K.TOO_MANY_OPERATIONS: (
        'Too many operations: cluster "X" hits the concurrent operations quota 5, please try again later.',
    ),
    K.UNAVAILABLE: (
        "Quota exceeded for quota metric 'API requests' and limit 'API requests per minute' of service 'container'.",
    ),
}


@pytest.mark.parametrize(("text", "want"), [(text, kind) for kind, texts in TEXTS.items() for text in texts])
def test_text_of_an_operation_or_pool_determines_its_kind(text: str, want: FailureKind) -> None:
    assert classify_message(3 if want is not K.INVALID else 8, text) is want
    assert classify_message(None, text) is want


@pytest.mark.parametrize(
    ("code", "want"),
    [
        *((code, K.UNAVAILABLE) for code in (1, 2, 4, 10, 13, 14, 15, 99, None)),
        *((code, K.INVALID) for code in (3, 5, 9, 11, 12)),
        *((code, K.PERMISSION) for code in (7, 16)),
        (6, K.ALREADY_EXISTS),
        (8, K.QUOTA),
    ],
)
def test_code_determines_the_kind_if_the_text_is_unknown(code: int | None, want: FailureKind) -> None:
    assert classify_message(code, "no text that we know") is want


def test_failed_precondition_that_may_pass_is_not_invalid() -> None:
    """A precondition that is known not to pass is INVALID although its text asks to wait."""
    assert classify_message(9, "The moon is in the way, please wait") is K.OPERATION_IN_THE_WAY
    assert classify_message(9, "Constraint constraints/compute.x violated for project p. Please wait.") is K.INVALID


REQUEST = NodePoolRequest(
    name=PoolName("quota-exceeded-0123456789"),
    zone=Zone("us-east5-b"),
    machine_type="ct5p-hightpu-4t",
    hosts=1,
    topology="2x2x1",
    policy_name="rate-limit-exceeded",
    reservation="projects/too-many/reservations/lack-of-capacity",
    labels={"GCE_STOCKOUT": "RESOURCE_POOL_EXHAUSTED", "team": "quota", "part": "exceeded", "e": "e"},
    node={
        "node_service_account": "insufficient-quota@permission-denied.iam.gserviceaccount.com",
        "node_additional_networks": (
            Network(network="quota-not-exceeded", subnetwork="projects/p/regions/r/subnetworks/INVALID_QUOTA"),
        ),
        "node_pod_range": "out-of-stock",
        "node_resource_labels": (("team", "resource-exhausted"),),
    },
)
SAID = user_texts_of(
    json_format.ParseDict(
        create_request_json("", REQUEST), container_v1.CreateNodePoolRequest.pb(container_v1.CreateNodePoolRequest())
    ).node_pool
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
    pytest.param("Range out-of-stock is odd.", id="a range of pods"),
    pytest.param("Label resource-exhausted is odd.", id="a resource label"),
]


@pytest.mark.parametrize("text", STEERED)
def test_words_of_users_do_not_determine_the_kind(text: str) -> None:
    """The user's words in a request are removed from the text before its classification; the message is kept."""
    assert classify_message(3, text, SAID) is K.INVALID
    refused = google(400, "INVALID_ARGUMENT", text)
    failure = to_gke_error(refused, "it", call=Call.CREATE, values=SAID).failure
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
def test_words_of_google_determine_the_kind_even_if_users_use_them(text: str, want: FailureKind) -> None:
    """A plain word of a request is removed from the text only if it is quoted or in a path."""
    assert classify_message(None, text, SAID) is want


@pytest.mark.parametrize("code", [401, 404, 500, 503])
def test_text_of_other_statuses_does_not_determine_the_kind(code: int) -> None:
    """These statuses have a fixed kind or leave the outcome unknown, so the text must not change the kind."""
    said = google(code, "", "Cluster is running incompatible operation operation-1-a.")
    assert to_gke_error(said, "it", call=Call.CREATE).failure.kind is not K.OPERATION_IN_THE_WAY


def test_long_text_of_hyphens_is_classified_in_time() -> None:
    """The time of the search must not grow with the square of the length."""
    assert classify_message(3, "a-" * 500_000, ["b-c-d-e"]) is K.INVALID


def test_policy_is_missing_only_if_the_text_has_its_whole_name() -> None:
    failure = Failure(kind=K.INVALID, message="Node pool is not found.")
    assert not says_missing(failure, "pool-policy")
    assert not says_missing(failure, "po")
    assert says_missing(Failure(kind=K.INVALID, message="resourcePolicies/po not found"), "po")


def test_the_password_of_a_proxy_is_not_shown() -> None:
    """A library's message may contain the whole address of the proxy."""
    error = requests.exceptions.InvalidProxyURL("Failed to parse: http://me:secret@proxy:1")
    assert "secret" not in to_gke_error(error, "it", call=Call.CREATE).failure.message


def answer(code: int, body: object, headers: dict[str, str] | None = None) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = code
    response._content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response.headers.update(headers or {})
    return requests.HTTPError(response=response)


def google(code: int, status: str, message: str, reason: str = "") -> requests.HTTPError:
    errors = [{"message": message, "domain": "global", "reason": reason}]
    return answer(code, {"error": {"code": code, "status": status, "message": message, "errors": errors}})


_TOO_MANY = 'Too many operations: cluster "X" hits the concurrent operations quota 5, please try again later.'
_LOST = (K.UNAVAILABLE, K.UNKNOWN_OUTCOME, K.UNKNOWN_OUTCOME)
#: Code, status, message and reason; then the kind, or the kinds for a read, a create and a delete.
ANSWERS: list[tuple[int, str, str, str, FailureKind | tuple[FailureKind, FailureKind, FailureKind]]] = [
    *((code, "", "No.", "", K.UNAVAILABLE) for code in (300, 399, 429)),
    *((code, "", "No.", "", K.INVALID) for code in (400, 418, 501)),
    *((code, "", "No.", "", K.PERMISSION) for code in (401, 403)),
    (404, "", "No.", "", (K.NOT_FOUND, K.INVALID, K.NOT_FOUND)),
    (409, "", "No.", "", (K.UNAVAILABLE, K.ALREADY_EXISTS, K.OPERATION_IN_THE_WAY)),
    # GKE responds 412 if an etag does not match.
    (412, "", "No.", "", K.OPERATION_IN_THE_WAY),
    # The text of a response with one of the next statuses is ignored.
    *((code, "INTERNAL", "[GCE_STOCKOUT] or", "backendError", _LOST) for code in (408, 499, 500, 502, 503, 504, 599)),
    # The text of a response with one of the next statuses determines the kind.
    *((code, "", _TOO_MANY, "", K.TOO_MANY_OPERATIONS) for code in (400, 403, 409, 412, 429)),
    (400, "", "Operation o is currently upgrading. Please wait.", "failedPrecondition", K.OPERATION_IN_THE_WAY),
    (400, "FAILED_PRECONDITION", "The moon is in the way, please wait", "", K.OPERATION_IN_THE_WAY),
    (400, "FAILED_PRECONDITION", "The cluster has a release channel.", "failedPrecondition", K.INVALID),
    (412, "FAILED_PRECONDITION", "Constraint constraints/x violated. Please try again later.", "", K.INVALID),
    (409, "ABORTED", "conflict", "", K.OPERATION_IN_THE_WAY),
    # The reason distinguishes quotas of requests from quotas of resources, unless the text has another known meaning.
    (429, "RESOURCE_EXHAUSTED", _TOO_MANY, "rateLimitExceeded", K.TOO_MANY_OPERATIONS),
    (429, "", "Reservation does not have enough resources for it", "rateLimitExceeded", K.STOCKOUT),
    (429, "RESOURCE_EXHAUSTED", "Quota exceeded for quota group 'default'", "rateLimitExceeded", K.UNAVAILABLE),
    (429, "", "Quota exceeded for quota metric 'API requests' and limit 'x'", "", K.UNAVAILABLE),
    (403, "", "No.", "rateLimitExceeded", K.UNAVAILABLE),
    (403, "", "Daily limit", "quotaExceeded", K.QUOTA),
    (403, "PERMISSION_DENIED", "Insufficient regional quota to satisfy request", "forbidden", K.QUOTA),
]


@pytest.mark.parametrize(("code", "status", "message", "reason", "want"), ANSWERS)
def test_error_response_has_the_kind_of_its_status_and_text(
    code: int,
    status: str,
    message: str,
    reason: str,
    want: FailureKind | tuple[FailureKind, FailureKind, FailureKind],
) -> None:
    error = google(code, status, message, reason)
    # The library's exception for the same response must have the same meaning as the HTTP error.
    for raised in (error, api.from_http_status(code, "other words", response=error.response)):
        got = tuple(to_gke_error(raised, "it", call=call).failure for call in (Call.READ, Call.CREATE, Call.DELETE))
        assert tuple(one.kind for one in got) == (want if isinstance(want, tuple) else (want,) * 3)
        assert all(one.message.startswith(message) for one in got)


def test_exception_of_the_library_without_a_response_maps_by_code_and_text() -> None:
    for call, want in ((Call.READ, K.NOT_FOUND), (Call.CREATE, K.INVALID)):
        assert to_gke_error(api.NotFound("no such pool"), "it", call=call).failure == Failure(
            kind=want, message="no such pool"
        )
    error = to_gke_error(api.ResourceExhausted(_TOO_MANY), "it", call=Call.CREATE)
    assert (error.failure.kind, error.code) == (K.TOO_MANY_OPERATIONS, 429)


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
    ],
)
def test_unusable_node_service_account_is_a_permission_failure_with_its_remedy(
    code: int, text: str, remedy: str
) -> None:
    """The create is retried, because the role may be granted at any time."""
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
def test_response_of_a_proxy_has_the_kind_of_its_status(code: int, want: FailureKind, body: bytes) -> None:
    assert to_gke_error(answer(code, body), "delete", call=Call.DELETE).failure.kind is want


def test_proxy_that_requires_credentials_gets_no_advice_on_grants() -> None:
    failure = to_gke_error(answer(407, b"who are you?"), "it", call=Call.READ).failure
    assert failure == Failure(kind=K.PERMISSION, message="who are you?")


def test_malformed_error_body_is_classified_by_its_valid_parts() -> None:
    body = {"error": {"message": None, "errors": ["x"], "details": [None, {"reason": "rateLimitExceeded"}]}}
    assert to_gke_error(answer(403, body), "it", call=Call.READ).failure.kind is K.UNAVAILABLE


@pytest.mark.parametrize(
    ("headers", "details", "want"),
    [
        pytest.param({"Retry-After": "7"}, [], 7.0, id="the header gives the delay"),
        pytest.param({}, [{"retryDelay": "1.5s"}], 1.5, id="RetryInfo gives the delay"),
        pytest.param({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, [], None, id="a date is not used"),
        pytest.param({"Retry-After": "nan"}, [], None, id="nonsense is not used"),
        pytest.param({}, [], None, id="no wish is None"),
    ],
)
def test_retry_delay_is_read_from_the_header_or_the_details(
    headers: dict[str, str], details: list[object], want: float | None
) -> None:
    body = {"error": {"code": 429, "message": "API requests", "details": details}}
    assert to_gke_error(answer(429, body, headers), "it", call=Call.READ).retry_after_seconds == want


def test_exceptions_that_cause_each_other_are_classified() -> None:
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
        requests.exceptions.SSLError(
            urllib3.exceptions.MaxRetryError(None, "/", ssl.SSLCertVerificationError("self-signed"))  # type: ignore[arg-type]
        ),
        (K.UNAVAILABLE, K.UNAVAILABLE),
        id="a peer that cannot be verified was sent nothing",
    ),
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
]


@pytest.mark.parametrize(("error", "want"), TRANSPORT)
def test_transport_error_has_the_kind_of_its_outcome(error: Exception, want: tuple[FailureKind, FailureKind]) -> None:
    """After a transport failure, the outcome of a change is unknown unless the request cannot have been sent."""
    got = tuple(to_gke_error(error, "it", call=call).failure.kind for call in (Call.READ, Call.CREATE))
    assert got == want


def test_missing_credentials_name_the_command_to_run() -> None:
    error = to_gke_error(auth.DefaultCredentialsError("none found"), "start", call=Call.READ)
    assert "gcloud auth application-default login --impersonate-service-account=SA" in str(error)
    assert str(error).endswith("in a cluster bind the provisioner's Kubernetes service account by Workload Identity.")
    assert str(error).startswith("start: ")


def test_disabled_token_api_is_named() -> None:
    refused = "IAM Service Account Credentials API has not been used in project 1 before or it is disabled."
    error = to_gke_error(auth.RefreshError("Unable to acquire impersonated credentials", refused), "x", call=Call.READ)
    assert error.failure.kind is FailureKind.PERMISSION
    assert "gcloud services enable iamcredentials.googleapis.com" in str(error)


def _tree(base: type[Exception]) -> list[type[Exception]]:
    return [base, *(sub for child in base.__subclasses__() for sub in _tree(child))]


_BASES = (api.GoogleAPIError, auth.GoogleAuthError, requests.RequestException, urllib3.exceptions.HTTPError)
#: All exception classes of google.api_core's module, and subclasses of the base classes of the other libraries.
_FOUND = {
    *(one for one in vars(api).values() if isinstance(one, type) and issubclass(one, Exception)),
    *(one for base in _BASES for one in _tree(base)),
}
_CLASSES = sorted(_FOUND, key=lambda one: (one.__module__, one.__name__))


@pytest.mark.parametrize("kind", _CLASSES, ids=lambda one: f"{one.__module__}.{one.__name__}")
@pytest.mark.parametrize("call", Call)
def test_every_exception_of_the_libraries_maps(kind: type[Exception], call: Call) -> None:
    assert issubclass(kind, client._ERRORS)
    # The constructors have different arguments, so the attributes of call errors are set directly.
    error = kind.__new__(kind)
    Exception.__init__(error, "message")
    wanted = {"_retryable": False, "length": b"1", "partial": 0, "expected": 1, "_response": None}
    if isinstance(error, requests.RequestException):
        wanted["response"] = None
    if isinstance(error, api.GoogleAPIError):
        wanted |= {"message": "message", "_cause": None, "_errors": [], "_details": [], "_error_info": None}
    for name, value in wanted.items():
        error.__dict__.setdefault(name, value)
    mapped = to_gke_error(error, "it", call=call)
    assert isinstance(mapped, GkeError)
    assert mapped.failure.message
    assert mapped.failure.kind not in (K.STOCKOUT, K.QUOTA)


def test_exception_classes_of_the_libraries_are_found() -> None:
    assert len(_CLASSES) > 100
    assert {api.ServiceUnavailable, api.RetryError, auth.RefreshError, requests.ReadTimeout} <= set(_CLASSES)


def test_http_status_of_a_response_is_the_code_of_the_error() -> None:
    """The status is a label of the metric of calls."""
    assert to_gke_error(answer(429, {}), "it", call=Call.READ).code == 429
    assert to_gke_error(requests.exceptions.ReadTimeout(), "it", call=Call.READ).code == 0
