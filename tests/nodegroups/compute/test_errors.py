"""Classification of Compute Engine's failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.google.errors import Answer, Call
from provisioner.model.capacity import FailureKind
from provisioner.nodegroups.compute.errors import WorkError, failure_of_work, kind_of_answer

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


def _invalid(text: str) -> Answer:
    return answer(400, f"Invalid value for field {text}", "invalid")


OUTAGE = answer(503, "Backend Error", "backendError")
NO_SUCH_ZONE = _invalid("'zone': 'us-nowhere1-z'. Unknown zone.")
OTHER_FINGERPRINT = "Supplied fingerprint does not match current metadata fingerprint."
VIOLATED = "Constraint constraints/compute.vmExternalIpAccess violated for project 1."
MISSING_PERMISSION = "Required 'compute.instanceTemplates.create' permission for 'projects/p'"
TAKEN = "The resource 'projects/p/global/instanceTemplates/a' already exists"
READ_QUOTA = "Quota exceeded for quota metric 'Read requests' of service"
RESOURCE_QUOTA = "Quota 'INSTANCE_TEMPLATES' exceeded.  Limit: 300.0 globally."
#: Response, call, and expected kind of the failure, by case.
_ANSWERS: dict[str, tuple[Answer, Call, FailureKind]] = {
    "read resource does not exist": (NOT_FOUND, READ, K.NOT_FOUND),
    "deleted resource does not exist": (NOT_FOUND, DELETE, K.NOT_FOUND),
    "changed resource does not exist": (NOT_FOUND, UPDATE, K.NOT_FOUND),
    "resource that a create names does not exist": (NOT_FOUND, CREATE, K.INVALID),
    "name is taken": (answer(409, TAKEN, "alreadyExists"), CREATE, K.ALREADY_EXISTS),
    "template in use": (IN_USE, DELETE, K.OPERATION_IN_THE_WAY),
    "template in use, only in the text": (answer(400, IN_USE.message), DELETE, K.OPERATION_IN_THE_WAY),
    "resource is not ready": (
        answer(400, "The resource 'x' is not ready", "resourceNotReady"),
        CREATE,
        K.OPERATION_IN_THE_WAY,
    ),
    "metadata was changed": (answer(412, OTHER_FINGERPRINT, "conditionNotMet"), UPDATE, K.OPERATION_IN_THE_WAY),
    "organisation policy": (answer(412, VIOLATED, "conditionNotMet"), CREATE, K.INVALID),
    "missing permission": (answer(403, MISSING_PERMISSION, "forbidden"), CREATE, K.PERMISSION),
    "invalid token": (answer(401, "Invalid Credentials", "authError"), READ, K.PERMISSION),
    "too many requests": (answer(403, "Rate Limit Exceeded", "rateLimitExceeded"), READ, K.UNAVAILABLE),
    "quota of requests": (answer(403, READ_QUOTA, "rateLimitExceeded"), READ, K.UNAVAILABLE),
    "quota of resources": (answer(403, RESOURCE_QUOTA, "quotaExceeded"), CREATE, K.QUOTA),
    "invalid field": (_invalid("'resource.properties.machineType': 'x'."), CREATE, K.INVALID),
    "read in a zone that does not exist": (NO_SUCH_ZONE, READ, K.NOT_FOUND),
    "delete in a region that does not exist": (
        _invalid("'region': 'us-nowhere1'. Unknown region."),
        DELETE,
        K.NOT_FOUND,
    ),
    "create in a zone that does not exist": (NO_SUCH_ZONE, CREATE, K.INVALID),
    "invalid request ID of a delete": (_invalid("'requestId': 'x'. Must be a valid UUID"), DELETE, K.INVALID),
    "read in an outage": (OUTAGE, READ, K.UNAVAILABLE),
    "delete in an outage": (OUTAGE, DELETE, K.UNKNOWN_OUTCOME),
    "500 with any reason": (answer(500, "x", "resourceNotReady"), CREATE, K.UNKNOWN_OUTCOME),
    "404 of a proxy": (answer(404, "Not found", from_google=False), DELETE, K.UNAVAILABLE),
}


@pytest.mark.parametrize(("given", "call", "want"), _ANSWERS.values(), ids=_ANSWERS)
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
    """The operation has ended, so its outcome is known even if the code is 500."""
    assert failure_of_work([], CREATE, http_code=http_code).kind is want


def test_first_known_error_decides_and_the_message_has_all() -> None:
    errors = [WorkError("SOMETHING_NEW", "hm"), WorkError("QUOTA_EXCEEDED", "Quota 'X' exceeded.")]
    found = failure_of_work(errors, CREATE)
    assert found.kind is K.QUOTA
    assert found.message == "SOMETHING_NEW: hm; QUOTA_EXCEEDED: Quota 'X' exceeded."


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        pytest.param(
            "Required 'compute.disks.create' permission",
            "Grant the provisioner's identity compute.disks.create on the project of the group.",
            id="a role on the project",
        ),
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
    kind = kind_of_answer(given_answer, call, values)
    assert not (call is READ and kind is K.UNKNOWN_OUTCOME)
    if given_answer.code >= 500 and given_answer.code != 501 and call is not READ:
        assert kind is K.UNKNOWN_OUTCOME
    if not given_answer.from_google and given_answer.code < 500:
        # The response is from a proxy, which does not know whether the resource exists.
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
