"""Repeats of a failure: the first is told, then one a minute with the number of those between."""

from __future__ import annotations

import pytest

from provisioner.runtime import repeats
from provisioner.runtime.repeats import Repeats, place_of


class Clock:
    """Stands still."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_flood_is_told_once_a_minute_with_its_count():
    clock = Clock()
    counted = Repeats(monotonic=clock)
    assert counted.left_out("a") == 0
    for _ in range(500):
        assert counted.left_out("a") is None
    # Another kind is news.
    assert counted.left_out("b") == 0
    clock.now = 59.9
    assert counted.left_out("a") is None
    clock.now = 60.0
    assert counted.left_out("a") == 501
    assert counted.left_out("a") is None
    clock.now = 200.0
    assert counted.left_out("a") == 1
    assert counted.left_out("b") == 0


def test_memory_is_bounded_and_nothing_is_hushed_for_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(repeats, "_MOST", 3)
    counted = Repeats(monotonic=Clock())
    for number in range(100):
        assert counted.left_out(number) == 0
    assert len(counted._told) == 3
    assert counted.left_out(99) is None
    assert counted.left_out(0) == 0


def test_a_failure_is_told_apart_by_its_type_and_its_line():
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
