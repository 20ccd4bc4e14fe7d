"""Reviews of both versions, and any other body that may be posted: the response is always valid."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from provisioner.admission.hooks import Hook, begin_of
from provisioner.admission.review import Answer, Deferred, Operation, Request, parse_review, pointer
from tests.support.patches import apply_patch
from tests.support.reviews import answer_of

VERSIONS = ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"]


class Counted:
    """Keeps the observed outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def reviewed(self, hook: str, outcome: str, seconds: float) -> None:
        assert hook == "pods"
        assert seconds >= 0
        self.outcomes.append(outcome)


def review(version: str = VERSIONS[0], **request: Any) -> dict[str, Any]:
    request = {"uid": "u-1", "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "ml", "object": {}, **request}
    return {"apiVersion": version, "kind": "AdmissionReview", "request": request}


def post(
    body: object,
    answer: Answer | Exception | Deferred = Answer(),  # noqa: B008
    *,
    strict: bool = False,
) -> tuple[int, Any, list[str]]:
    counted = Counted()

    def respond(_request: Request) -> Answer | Deferred:
        if isinstance(answer, Exception):
            raise answer
        return answer

    begin = begin_of(Hook(name="pods", path="/mutate", answer=respond, strict=strict), counted.reviewed)
    content = answer_of(begin, body if isinstance(body, bytes) else json.dumps(body).encode())
    return content.status_code, json.loads(content.body), counted.outcomes


def test_a_denial_has_a_reason_and_no_patch():
    patch = (Operation(op="remove", path="/b"),)
    _, answer, outcomes = post(review(), Answer(denied="no such topology", patch=patch))
    assert outcomes == ["denied"]
    status = answer["response"]["status"]
    assert (answer["response"]["allowed"], status["code"], status["message"]) == (False, 403, "no such topology")
    assert "patch" not in answer["response"]


def test_warnings_are_unique_and_cut_to_the_limits_of_the_api_server():
    _, answer, outcomes = post(
        review(), Answer(warnings=("a\nb", "a b", "x" * 5000, *(f"{n}" * 900 for n in range(9))))
    )
    assert outcomes == ["warned"]
    warnings = answer["response"]["warnings"]
    assert warnings[0] == "a b"
    assert warnings[-1] == "there are more warnings than can be shown"
    assert sum(map(len, warnings)) <= 4096


@pytest.mark.parametrize(
    "answer", [Answer(warnings=("a\x1b[31m\x00b\nc \ud800\u202e",)), Answer(denied="a\x1b[31m\x00b\nc \ud800\u202e")]
)
def test_control_characters_in_answers_are_replaced(answer: Answer):
    _, found, _ = post(review(), answer)
    text = found["response"].get("warnings", [""])[0] or found["response"]["status"]["message"]
    assert text == "a\ufffd[31m\ufffdb c \ufffd\ufffd"


def test_deferred_review_is_answered_later():
    status, answer, outcomes = post(review(), lambda _bytes: Answer(warnings=("at last",)))
    assert (status, outcomes) == (200, ["warned"])
    assert answer["response"]["warnings"] == ["at last"]

    def boom(_bytes: int) -> Answer:
        raise ValueError("boom")

    begin = begin_of(Hook(name="pods", path="/mutate", answer=lambda _: boom), Counted().reviewed)
    assert callable(begin(json.dumps(review()).encode(), 0.0))
    _, answer, outcomes = post(review(), boom)
    assert outcomes == ["failed"]
    assert answer["response"]["warnings"] == [
        "tpu-provisioner: the webhook pods failed, see its log; nothing was changed"
    ]


def test_duration_of_a_review_starts_when_its_body_has_arrived():
    seen = []

    def reviewed(_hook: str, _outcome: str, seconds: float) -> None:
        seen.append(seconds)

    hook = Hook(name="pods", path="/mutate", answer=lambda _: Answer())
    begin = begin_of(hook, reviewed, clock=lambda: 12.0)
    begin(json.dumps(review()).encode(), 9.5)
    begin(b"[]", 9.0)
    assert seen == [2.5, 3.0]


@pytest.mark.parametrize("body", [b"{}," * 250_000, b"1," * 500_000], ids=["objects", "numbers"])
def test_body_with_too_many_values_is_not_decoded(body: bytes):
    _, answer, outcomes = post(b"[" + body + b"1]")
    assert outcomes == ["malformed"]
    assert "500,001 values" in answer["response"]["status"]["message"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("annotation", ["," * 500_000, "\ud800"], ids=["too many values", "invalid UTF-8"])
def test_pod_whose_review_is_not_read_is_denied_if_the_hook_is_strict(version: str, annotation: str):
    """The API server applies failurePolicy, which may be Ignore, to an answer with another status, UID or version."""
    request = {"uid": "u-1", "kind": {}, "userInfo": {"uid": "0"}, "object": {"uid": "2", "annotations": annotation}}
    body = {"kind": "AdmissionReview", "apiVersion": version, "request": request}
    for separators in ((",", ":"), (", ", ": ")):
        encoded = json.dumps(body, ensure_ascii=False, separators=separators).encode(errors="surrogatepass")
        status, answer, outcomes = post(encoded, strict=True)
        assert (status, outcomes, answer["apiVersion"]) == (200, ["malformed"], version)
        assert (answer["response"]["uid"], answer["response"]["allowed"]) == ("u-1", False)
        assert "the body" in answer["response"]["status"]["message"]
        assert post(encoded)[0] == 400


def test_body_without_a_uid_is_answered_400_even_if_the_hook_is_strict():
    assert post(b"{", strict=True)[0] == 400


def test_number_beyond_the_range_of_floats_is_decoded():
    assert "JSON" not in post(b"[1e999]")[1]["response"]["status"]["message"]


def test_answer_that_cannot_be_encoded_counts_as_failed():
    patch = (Operation(op="add", path="/a", value="\ud800"),)
    status, answer, outcomes = post(review(), Answer(patch=patch))
    assert (status, outcomes) == (200, ["failed"])
    assert answer["response"]["uid"] == "u-1"
    assert "patch" not in answer["response"]


def test_failed_review_admits_with_a_warning_or_denies_if_strict():
    _, answer, outcomes = post(review(), ValueError("boom"))
    assert (outcomes, answer["response"]["allowed"]) == (["failed"], True)
    assert "the webhook pods failed" in answer["response"]["warnings"][0]
    _, answer, _ = post(review(), ValueError("boom"), strict=True)
    assert answer["response"]["allowed"] is False
    assert answer["response"]["uid"] == "u-1"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        [],
        None,
        "x",
        {},
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v2", "request": {}},
        {"kind": "AdmissionReview", "apiVersion": VERSIONS[0]},
        {"kind": "AdmissionReview", "apiVersion": VERSIONS[0], "request": 5},
        {"kind": "Pod", "apiVersion": VERSIONS[0], "request": {}},
    ],
    ids=lambda body: repr(body)[:40],
)
def test_invalid_review_is_denied_with_status_400(body: object):
    status, answer, outcomes = post(body)
    assert (status, outcomes) == (400, ["malformed"])
    assert answer["kind"] == "AdmissionReview"
    assert answer["response"]["allowed"] is False
    message = answer["response"]["status"]["message"]
    assert "AdmissionReview" in message or "JSON" in message


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(_JSON)
def test_any_json_gets_a_valid_answer(body: object):
    status, answer, _ = post(body)
    assert status == 400
    assert answer["response"]["uid"] == ""


@settings(max_examples=40)
@given(st.fixed_dictionaries(dict.fromkeys(("uid", "kind", "operation", "namespace", "object", "oldObject"), _JSON)))
def test_any_request_is_read(request: dict[str, Any]):
    status, answer, _ = post(review(**request))
    assert status == 200
    assert isinstance(answer["response"]["uid"], str)


def test_texts_of_a_review_are_cut_to_the_length_of_names():
    """Any client that reaches the port writes these texts, and Events and the log contain them."""
    request = {"kind": {"kind": "x" * 9999}, **dict.fromkeys(("subResource", "namespace", "name"), "x" * 9999)}
    read = parse_review(json.dumps(review(**request)).encode())
    assert [len(text) for text in (read.kind, read.subresource, read.name, read.namespace)] == [253, 253, 253, 63]


def test_a_patch_is_applied_as_the_api_server_does():
    before = {"a": {"b/c": [1, 3]}, "d~e": 5, "f": None}
    patch = (
        Operation(op="add", path=pointer("a", "b/c", 1), value=2),
        Operation(op="add", path=pointer("a", "b/c", "-"), value=4),
        Operation(op="replace", path=pointer("d~e"), value=6),
        Operation(op="remove", path=pointer("f")),
    )
    assert apply_patch(before, patch) == {"a": {"b/c": [1, 2, 3, 4]}, "d~e": 6}
    assert before["d~e"] == 5


def test_repeated_failure_is_logged_once_and_each_review_is_answered():
    def respond(request: Request) -> Answer:
        raise KeyError(request.uid)

    counted = Counted()
    begin = begin_of(Hook(name="pods", path="/mutate", answer=respond), counted.reviewed)
    with capture_logs() as lines:
        for number in range(200):
            content = answer_of(begin, json.dumps(review(uid=str(number))).encode())
            assert json.loads(content.body)["response"]["uid"] == str(number)
    assert counted.outcomes == ["failed"] * 200
    (line,) = lines
    assert (line["event"], line["hook"], line["kind"], line["left_out"]) == ("webhook.failed", "pods", "Pod", 0)
    assert isinstance(line["exc_info"], KeyError)
