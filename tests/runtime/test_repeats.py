"""`Repeats` logs a repeated failure once a minute with its count, `FailureLog` once until its message changes."""

from __future__ import annotations

import pytest

from provisioner.runtime import repeats
from provisioner.runtime.repeats import FailureLog, Repeats, place_of
from tests.support.clock import FakeClock


def test_repeats_are_logged_once_a_minute_with_their_count():
    clock = FakeClock()
    counted = Repeats(monotonic=clock)
    assert counted.left_out("a") == 0
    for _ in range(500):
        assert counted.left_out("a") is None
    # A failure of another kind is logged.
    assert counted.left_out("b") == 0
    clock.advance(59.9)
    assert counted.left_out("a") is None
    clock.advance(0.1)
    assert counted.left_out("a") == 501
    assert counted.left_out("a") is None
    clock.advance(140)
    assert counted.left_out("a") == 1
    assert counted.left_out("b") == 0


def test_failures_of_arbitrary_kinds_are_logged_at_a_limited_rate(monkeypatch: pytest.MonkeyPatch):
    """A client can choose the kind of failure, such as the namespace of a review, and must not fill the log."""
    monkeypatch.setattr(repeats, "_MAX_KINDS", 3)
    clock = FakeClock()
    counted = Repeats(monotonic=clock)
    assert [counted.left_out(number) for number in range(100)] == [0, 0, 0, *[None] * 97]
    assert len(counted._logged) == 3
    clock.advance(60)
    assert [counted.left_out(number) for number in range(100, 200)] == [0, 0, 0, *[None] * 97]
    assert len(counted._logged) == 3


def test_kind_of_a_failure_is_its_type_and_line():
    def fails(kind: type[Exception]) -> None:
        raise kind("each time in other words")

    def caught(kind: type[Exception]) -> Exception:
        try:
            fails(kind)
        except Exception as error:  # noqa: BLE001
            return error
        raise AssertionError

    assert place_of(caught(ValueError)) == place_of(caught(ValueError))
    assert place_of(caught(ValueError)) != place_of(caught(KeyError))
    with pytest.raises(ValueError, match="invalid literal") as elsewhere:
        int("x")
    assert place_of(elsewhere.value) != place_of(caught(ValueError))
    assert place_of(ValueError("never raised")) == (ValueError, None)


def test_lasting_failure_is_logged_until_its_message_changes_or_it_ends() -> None:
    lasting = FailureLog()
    logged = [lasting.fails("read", words) for words in ("away", "away", "refused", "refused")]
    assert logged == [True, False, True, False]
    assert lasting.ended("read")
    assert not lasting.ended("read")
    assert lasting.fails("read", "refused")


def test_number_of_lasting_failures_is_limited() -> None:
    lasting = FailureLog()
    for number in range(repeats._MAX_LASTING + 1):
        lasting.fails(str(number), "away")
    assert [lasting.fails(key, "away") for key in ("0", str(repeats._MAX_LASTING))] == [True, False]
