"""Tests of the kinds of failed writes, and of how long writes and calls remain open."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from provisioner.kube.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    Malformed,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    failure_of,
)
from provisioner.model.writes import OpenCall, OpenWrite, Proposed, WriteFailure, choose_writes, lost_calls


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (Conflict("changed", status=409), WriteFailure.CONFLICT),
        (NotFound("gone", status=404), WriteFailure.CONFLICT),
        (Forbidden("no right", status=403), WriteFailure.REFUSED),
        (Invalid("no such field", status=422), WriteFailure.REFUSED),
        (Unauthorized("who?", status=401), WriteFailure.UNAVAILABLE),
        (TooManyRequests("later"), WriteFailure.UNAVAILABLE),
        (Unavailable("no answer"), WriteFailure.UNAVAILABLE),
        (Malformed("no JSON"), WriteFailure.UNAVAILABLE),
    ],
)
def test_each_error_has_its_kind_of_failure(error: ClusterError, want: WriteFailure) -> None:
    """A conflict needs a new read, and a rejection a change by a user. Other errors may end without either."""
    assert want is failure_of(error)


@pytest.mark.parametrize(("age_seconds", "seen", "blocked"), [(9, "a", True), (10, "a", False), (9, "b", False)])
def test_write_is_decided_again_if_caches_show_it_or_after_ten_seconds(
    age_seconds: int, seen: str, *, blocked: bool
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    write = SimpleNamespace(key="a write")
    sent = OpenWrite(write=write, seen="a", since=now, answered_at=now - timedelta(seconds=age_seconds))
    proposals = [Proposed(write=write, seen=seen)]
    assert (choose_writes(proposals, {write.key: sent}, now)[0] == []) is blocked


def test_call_without_a_thread_is_lost_after_a_minute() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    ages = {"new": 59, "lost": 60, "live": 60}
    calls = {key: OpenCall(call="a call", since=now - timedelta(seconds=age)) for key, age in ages.items()}
    assert lost_calls(calls, frozenset({"live"}), now).keys() == {"lost"}
