"""A clock that tests advance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

#: Time from which the times in objects of `tests.support.models` are counted.
NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


class FakeClock:
    """A monotonic clock and a wall clock that move together."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
