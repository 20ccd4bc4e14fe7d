"""Tests how messages of the `vipu` command are read; the messages are assumed, because only one is documented."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model.capacity import FailureKind
from provisioner.partitions.vipu import errors
from provisioner.partitions.vipu.errors import Verb

READ, GET, CREATE, REMOVE = Verb.READ, Verb.GET, Verb.CREATE, Verb.REMOVE
WORDS = st.sampled_from(
    [
        *("partition", "p1", "not found", "not", "enough", "IPUs"),
        *("code = NotFound", "timed out", "already exists", "\n", "("),
    ]
)


def _grpc(code: str, words: str = "something") -> str:
    return f"create partition (p1): failed: rpc error: code = {code} desc = {words}"


@pytest.mark.parametrize(
    ("verb", "said", "kind"),
    [
        # --- known messages
        (CREATE, "partition 'p1' already exists", FailureKind.ALREADY_EXISTS),
        (REMOVE, "the snapshot already exists", FailureKind.UNKNOWN_OUTCOME),
        (REMOVE, "partition 'p1' not found", FailureKind.NOT_FOUND),
        (REMOVE, "no such partition: p1", FailureKind.NOT_FOUND),
        (GET, "partition p1 does not exist", FailureKind.NOT_FOUND),
        (READ, "partition p1 does not exist", FailureKind.UNAVAILABLE),
        (CREATE, "partition p1 does not exist", FailureKind.UNKNOWN_OUTCOME),
        (CREATE, "allocation 'a' not found", FailureKind.INVALID),
        (REMOVE, "user 'us' not found", FailureKind.INVALID),
        (CREATE, "not enough IPUs available", FailureKind.STOCKOUT),
        (CREATE, "insufficient free resources", FailureKind.STOCKOUT),
        (CREATE, "IPUs are not available", FailureKind.STOCKOUT),
        (CREATE, "unable to find 4 IPUs in one piece", FailureKind.STOCKOUT),
        (REMOVE, "not enough IPUs available", FailureKind.UNKNOWN_OUTCOME),
        (CREATE, "not enough memory", FailureKind.UNKNOWN_OUTCOME),
        (CREATE, "size must be a power of two", FailureKind.INVALID),
        (CREATE, "unknown flag: --reconfigurable", FailureKind.INVALID),
        (CREATE, "another operation is in progress", FailureKind.OPERATION_IN_THE_WAY),
        (REMOVE, "allocation 'a': partition 'p1' not found", FailureKind.NOT_FOUND),
        (REMOVE, "partition 'p1' not found in allocation 'a'", FailureKind.NOT_FOUND),
        (CREATE, "agent ag0 not found", FailureKind.UNKNOWN_OUTCOME),
        (READ, "permission denied for user us", FailureKind.PERMISSION),
        (CREATE, "open ~/.ipuof.conf.d/p1.conf: permission denied", FailureKind.UNKNOWN_OUTCOME),
        (CREATE, _grpc("PermissionDenied", "permission denied"), FailureKind.PERMISSION),
        (READ, "invalid user id or access key", FailureKind.PERMISSION),
        # --- connection to the server
        (CREATE, _grpc("Unavailable", "dial tcp 10.0.0.1:8090: connect: connection refused"), FailureKind.UNAVAILABLE),
        (CREATE, _grpc("Unavailable", "dial tcp 10.0.0.1:8090: i/o timeout"), FailureKind.UNAVAILABLE),
        (CREATE, "dial tcp: lookup vipu: no such host", FailureKind.UNAVAILABLE),
        (CREATE, _grpc("Unavailable", "transport is closing"), FailureKind.UNKNOWN_OUTCOME),
        (CREATE, _grpc("Unavailable", "error reading from server: EOF"), FailureKind.UNKNOWN_OUTCOME),
        (REMOVE, _grpc("Unavailable", "connection reset by peer"), FailureKind.UNKNOWN_OUTCOME),
        (CREATE, _grpc("DeadlineExceeded", "context deadline exceeded"), FailureKind.UNKNOWN_OUTCOME),
        (READ, _grpc("DeadlineExceeded", "context deadline exceeded"), FailureKind.UNAVAILABLE),
        (REMOVE, "operation timed out", FailureKind.UNKNOWN_OUTCOME),
        # --- gRPC codes of unknown messages
        (CREATE, _grpc("AlreadyExists"), FailureKind.ALREADY_EXISTS),
        (CREATE, _grpc("ResourceExhausted"), FailureKind.STOCKOUT),
        (READ, _grpc("ResourceExhausted"), FailureKind.UNAVAILABLE),
        (REMOVE, _grpc("NotFound"), FailureKind.NOT_FOUND),
        (REMOVE, _grpc("NotFound", "allocation 'a' not found"), FailureKind.INVALID),
        (CREATE, _grpc("NotFound"), FailureKind.UNKNOWN_OUTCOME),
        (CREATE, _grpc("InvalidArgument"), FailureKind.INVALID),
        (CREATE, _grpc("FailedPrecondition"), FailureKind.OPERATION_IN_THE_WAY),
        (CREATE, _grpc("Aborted"), FailureKind.OPERATION_IN_THE_WAY),
        (CREATE, _grpc("Unauthenticated"), FailureKind.PERMISSION),
        (READ, _grpc("PermissionDenied"), FailureKind.PERMISSION),
        (CREATE, _grpc("Internal"), FailureKind.UNKNOWN_OUTCOME),
        (CREATE, _grpc("Unknown"), FailureKind.UNKNOWN_OUTCOME),
        (CREATE, _grpc("Unavailable"), FailureKind.UNKNOWN_OUTCOME),
        (READ, _grpc("Internal"), FailureKind.UNAVAILABLE),
        # --- unknown messages
        (CREATE, "", FailureKind.UNKNOWN_OUTCOME),
        (REMOVE, "panic: runtime error", FailureKind.UNKNOWN_OUTCOME),
        (READ, "panic: runtime error", FailureKind.UNAVAILABLE),
    ],
)
def test_message_has_the_kind_of_failure_of_its_call(verb: Verb, said: str, kind: FailureKind) -> None:
    assert errors.failure_of(verb, said).kind is kind


@pytest.mark.parametrize("name", ["not-found", "already exists", "connection refused", "not enough IPUs"])
def test_name_in_a_message_does_not_affect_the_kind(name: str) -> None:
    failure = errors.failure_of(CREATE, f"partition in allocation '{name}' broke", [name])
    assert failure.kind is FailureKind.UNKNOWN_OUTCOME
    assert name in failure.message


@given(st.sampled_from(list(Verb)), st.lists(WORDS).map(" ".join), st.lists(WORDS, max_size=2))
def test_any_message_has_a_kind_that_fits_the_call(verb: Verb, said: str, asked: list[str]) -> None:
    failure = errors.failure_of(verb, said, asked)
    assert len(failure.message) <= 500
    assert "\n" not in failure.message
    if failure.kind is FailureKind.UNKNOWN_OUTCOME:
        assert verb in (Verb.CREATE, Verb.REMOVE)
    if failure.kind in (FailureKind.STOCKOUT, FailureKind.ALREADY_EXISTS):
        assert verb is CREATE


@given(st.text("abcxyz ", max_size=60))
def test_unknown_message_of_a_change_has_an_unknown_outcome(said: str) -> None:
    assert errors.failure_of(CREATE, said).kind is FailureKind.UNKNOWN_OUTCOME
    assert errors.failure_of(REMOVE, said).kind is FailureKind.UNKNOWN_OUTCOME


@pytest.mark.parametrize(
    ("said", "is_success"),
    [
        ("create partition (p1): success.", True),
        ("Warning: old client\nremove partition (p1): success.\n", True),
        ("create partition (p1): failed: not a success", False),
        ("create partition (p1): success. But it failed.", False),
        ("success", False),
        ("", False),
    ],
)
def test_success_requires_its_message_without_a_failure(said: str, is_success: bool) -> None:
    assert errors.is_success(said) is is_success


def test_message_is_one_printable_line_of_bounded_length() -> None:
    assert errors.message_of("a\x1b[31m b\r\n\tc\x00") == "a [31m b c"
    assert len(errors.message_of("x" * 100_000)) == 500
