"""Classification of Compute Engine's failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.google.errors import Answer, Call
from provisioner.model.capacity import FailureKind
from provisioner.nodegroups.compute.errors import GRANT_HELP, WorkError, failure_of_work, kind_of_answer

K = FailureKind
READ, CREATE, UPDATE, DELETE = Call.READ, Call.CREATE, Call.UPDATE, Call.DELETE


def answer(code: int, message: str, reason: str = "", *, from_google: bool = True) -> Answer:
    return Answer(
        code=code,
        message=message,
        status="",
        reasons=frozenset({reason}),
        retry_after_seconds=None,
        from_google=from_google,
    )


NOT_FOUND = answer(404, "The resource 'projects/p/zones/z/instances/a' was not found", "notFound")
IN_USE = answer(
    400,
    "The instance_template resource 'projects/p/global/instanceTemplates/a' is already being used by "
    "'projects/p/zones/z/instanceGroupManagers/b'",
    "resourceInUseByAnotherResource",
)


@pytest.mark.parametrize(
    ("given", "call", "want"),
    [
        pytest.param(NOT_FOUND, READ, K.NOT_FOUND, id="what is read is not there"),
        pytest.param(NOT_FOUND, DELETE, K.NOT_FOUND, id="what is deleted is not there"),
        pytest.param(NOT_FOUND, UPDATE, K.NOT_FOUND, id="what is changed is not there"),
        pytest.param(NOT_FOUND, CREATE, K.INVALID, id="what a create names is not there"),
        pytest.param(
            answer(409, "The resource 'projects/p/global/instanceTemplates/a' already exists", "alreadyExists"),
            CREATE,
            K.ALREADY_EXISTS,
            id="a name that is taken",
        ),
        pytest.param(IN_USE, DELETE, K.OPERATION_IN_THE_WAY, id="a template that a group uses"),
        pytest.param(
            answer(400, IN_USE.message), DELETE, K.OPERATION_IN_THE_WAY, id="a template in use, by its text alone"
        ),
        pytest.param(
            answer(400, "The resource 'x' is not ready", "resourceNotReady"),
            CREATE,
            K.OPERATION_IN_THE_WAY,
            id="a resource that is not ready yet",
        ),
        pytest.param(
            answer(412, "Supplied fingerprint does not match current metadata fingerprint.", "conditionNotMet"),
            UPDATE,
            K.OPERATION_IN_THE_WAY,
            id="metadata that somebody else changed",
        ),
        pytest.param(
            answer(412, "Constraint constraints/compute.vmExternalIpAccess violated for project 1.", "conditionNotMet"),
            CREATE,
            K.INVALID,
            id="an organisation policy that forbids it",
        ),
        pytest.param(
            answer(403, "Required 'compute.instanceTemplates.create' permission for 'projects/p'", "forbidden"),
            CREATE,
            K.PERMISSION,
            id="a permission that is missing",
        ),
        pytest.param(answer(401, "Invalid Credentials", "authError"), READ, K.PERMISSION, id="no valid token"),
        pytest.param(
            answer(403, "Rate Limit Exceeded", "rateLimitExceeded"), READ, K.UNAVAILABLE, id="too many requests"
        ),
        pytest.param(
            answer(403, "Quota exceeded for quota metric 'Read requests' of service", "rateLimitExceeded"),
            READ,
            K.UNAVAILABLE,
            id="the quota of requests is no quota of resources",
        ),
        pytest.param(
            answer(403, "Quota 'INSTANCE_TEMPLATES' exceeded.  Limit: 300.0 globally.", "quotaExceeded"),
            CREATE,
            K.QUOTA,
            id="a quota of resources",
        ),
        pytest.param(
            answer(400, "Invalid value for field 'resource.properties.machineType': 'x'.", "invalid"),
            CREATE,
            K.INVALID,
            id="a field that is wrong",
        ),
        pytest.param(
            answer(400, "Invalid value for field 'zone': 'us-nowhere1-z'. Unknown zone.", "invalid"),
            READ,
            K.NOT_FOUND,
            id="nothing is there to read in a zone that is none",
        ),
        pytest.param(
            answer(400, "Invalid value for field 'region': 'us-nowhere1'. Unknown region.", "invalid"),
            DELETE,
            K.NOT_FOUND,
            id="nothing is there to delete in a region that is none",
        ),
        pytest.param(
            answer(400, "Invalid value for field 'zone': 'us-nowhere1-z'. Unknown zone.", "invalid"),
            CREATE,
            K.INVALID,
            id="nothing can be created in a zone that is none",
        ),
        pytest.param(
            answer(400, "Invalid value for field 'requestId': 'x'. Must be a valid UUID", "invalid"),
            DELETE,
            K.INVALID,
            id="a request id that is refused says nothing of what is there",
        ),
        pytest.param(answer(503, "Backend Error", "backendError"), READ, K.UNAVAILABLE, id="a read in an outage"),
        pytest.param(
            answer(503, "Backend Error", "backendError"), DELETE, K.UNKNOWN_OUTCOME, id="a delete in an outage"
        ),
        pytest.param(answer(500, "x", "resourceNotReady"), CREATE, K.UNKNOWN_OUTCOME, id="a 500 whatever it says"),
        pytest.param(
            answer(404, "Not found", from_google=False), DELETE, K.UNAVAILABLE, id="a 404 of a proxy means nothing"
        ),
    ],
)
def test_error_response_is_classified_by_text_reason_and_code(given: Answer, call: Call, want: FailureKind) -> None:
    assert kind_of_answer(given, call, ()) is want


def test_names_that_users_chose_do_not_affect_the_kind_of_failure() -> None:
    name = "quota-exceeded-is-already-being-used-by"
    refused = answer(400, f"Invalid value for field 'resource.name': '{name}'.", "invalid")
    assert kind_of_answer(refused, CREATE, (name,)) is K.INVALID


@pytest.mark.parametrize(
    ("code", "message", "call", "want"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "The zone does not have enough resources", CREATE, K.STOCKOUT),
        ("QUOTA_EXCEEDED", "Quota 'TPUS_PER_TPU_FAMILY' exceeded.", CREATE, K.QUOTA),
        ("RESOURCE_NOT_FOUND", "The resource 'x' was not found", DELETE, K.NOT_FOUND),
        ("RESOURCE_NOT_FOUND", "The resource 'x' was not found", CREATE, K.INVALID),
        ("RESOURCE_ALREADY_EXISTS", "", CREATE, K.ALREADY_EXISTS),
        ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "", DELETE, K.OPERATION_IN_THE_WAY),
        ("CONDITION_NOT_MET", "Constraint constraints/x violated for project 1", CREATE, K.INVALID),
        ("CONDITION_NOT_MET", "Constraint constraints/x violated for project 1", UPDATE, K.INVALID),
        ("CONDITION_NOT_MET", "Supplied fingerprint does not match", UPDATE, K.OPERATION_IN_THE_WAY),
        ("CONDITION_NOT_MET", "words that nobody has seen", CREATE, K.INVALID),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", "", CREATE, K.UNAVAILABLE),
        ("PERMISSIONS_ERROR", "Required 'compute.disks.create' permission for 'x'", CREATE, K.PERMISSION),
        ("INVALID_FIELD_VALUE", "", CREATE, K.INVALID),
        ("SOMETHING_NEW", "The zone does not have enough resources available", CREATE, K.STOCKOUT),
        ("SOMETHING_NEW", "words that nobody has seen", CREATE, K.UNAVAILABLE),
        ("", "", CREATE, K.UNAVAILABLE),
    ],
)
def test_error_of_an_operation_is_classified_by_code_and_text(
    code: str, message: str, call: Call, want: FailureKind
) -> None:
    assert failure_of_work([WorkError(code, message)], call).kind is want


@pytest.mark.parametrize(
    ("http_code", "want"),
    [(400, K.INVALID), (403, K.PERMISSION), (404, K.INVALID), (409, K.ALREADY_EXISTS), (408, K.UNAVAILABLE)]
    + [(code, K.UNAVAILABLE) for code in (0, 200, 500, 503)],
)
def test_failed_operation_without_errors_is_classified_by_its_http_code(http_code: int, want: FailureKind) -> None:
    """The outcome of a completed operation is always known."""
    assert failure_of_work([], CREATE, http_code=http_code).kind is want


def test_first_known_error_decides_and_the_message_has_all() -> None:
    errors = [WorkError("SOMETHING_NEW", "hm"), WorkError("QUOTA_EXCEEDED", "Quota 'X' exceeded.")]
    found = failure_of_work(errors, CREATE)
    assert found.kind is K.QUOTA
    assert found.message == "SOMETHING_NEW: hm; QUOTA_EXCEEDED: Quota 'X' exceeded."


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        pytest.param("Required 'compute.disks.create' permission", GRANT_HELP, id="a role on the project"),
        pytest.param(
            "The user does not have access to service account 'a@p.iam.gserviceaccount.com'",
            "roles/iam.serviceAccountUser",
            id="a role on the service account",
        ),
    ],
)
def test_missing_permission_is_reported_with_the_role_to_grant(message: str, advice: str) -> None:
    assert advice in failure_of_work([WorkError("PERMISSIONS_ERROR", message)], CREATE).message


def test_long_message_is_cut() -> None:
    assert len(failure_of_work([WorkError("INTERNAL_ERROR", "x" * 100_000)], CREATE).message) == 2000


_WORDS = st.text(max_size=30) | st.sampled_from(
    ["notFound", "rateLimitExceeded", "quotaExceeded", "resourceNotReady", "Quota 'X' exceeded.", "is not ready"]
)
_ANSWERS = st.builds(
    Answer,
    code=st.integers(300, 599),
    message=_WORDS,
    status=st.sampled_from(["", "ABORTED", "FAILED_PRECONDITION"]),
    reasons=st.frozensets(_WORDS, max_size=2),
    retry_after_seconds=st.none(),
    from_google=st.booleans(),
)


@given(_ANSWERS, st.sampled_from(Call), st.lists(_WORDS, max_size=2))
def test_outcome_is_unknown_only_for_changes_that_the_server_may_have_made(
    given_answer: Answer, call: Call, values: list[str]
) -> None:
    """The outcome of a read is never unknown. That of a change is if the server failed."""
    kind = kind_of_answer(given_answer, call, values)
    assert not (call is READ and kind is K.UNKNOWN_OUTCOME)
    if given_answer.code >= 500 and given_answer.code != 501 and call is not READ:
        assert kind is K.UNKNOWN_OUTCOME
    if not given_answer.from_google and given_answer.code < 500:
        # A proxy does not know which resources exist.
        assert kind in (K.PERMISSION, K.UNAVAILABLE)


@given(
    st.lists(st.builds(WorkError, _WORDS, _WORDS), max_size=3),
    st.sampled_from(Call),
    st.integers(0, 599),
)
def test_failed_operation_always_has_a_message_and_a_known_outcome(
    errors: list[WorkError], call: Call, http_code: int
) -> None:
    found = failure_of_work(errors, call, http_code=http_code)
    assert found.kind is not K.UNKNOWN_OUTCOME
    assert 0 < len(found.message) <= 2000
