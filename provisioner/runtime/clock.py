"""The time of day for the whole controller: one clock, which goes on steadily when somebody sets the machine's."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

#: The time of day and the monotonic clock part by less than this from look to look, or somebody set the clock.
_SET_SECONDS = 1.0


def wall_clock() -> datetime:
    """Return the machine's time of day."""
    return datetime.now(tz=UTC)


class FollowedClock:
    """The time of day as it was at the last `follow`, and what has passed since.

    So everything that is stamped between two looks is stamped by the same clock, and can be moved along as a whole.
    """

    def __init__(
        self, wall: Callable[[], datetime] = wall_clock, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._offset_seconds = self._offset()

    def __call__(self) -> datetime:
        """Return the time of day."""
        return datetime.fromtimestamp(self._monotonic() + self._offset_seconds, tz=UTC)

    def follow(self) -> timedelta:
        """Go by the machine's clock again; return by how much it was set since the last look, zero where it was not."""
        before, self._offset_seconds = self._offset_seconds, self._offset()
        by = self._offset_seconds - before
        return timedelta(seconds=by) if abs(by) >= _SET_SECONDS else timedelta()

    def _offset(self) -> float:
        return self._wall().timestamp() - self._monotonic()
