"""Waits after consecutive failures, and limits of rates."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

#: Maximum number of doublings, after which any first wait exceeds any cap.
_MOST_DOUBLINGS = 30
#: Maximum share by which a wait is shortened, so that waits of several keys end at different times.
_SPREAD = 0.2


def doubled_seconds(first_seconds: float, cap_seconds: float, failures: int, key: str) -> float:
    """Return the wait after consecutive failures: doubled by each up to a cap, and up to a fifth shorter by key."""
    doubled = min(cap_seconds, first_seconds * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
    return float(doubled * (1 - _SPREAD * share_of(f"{key}/{failures}")))


def share_of(key: str) -> float:
    """Return a pseudo-random number in [0, 1) that depends only on the key."""
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) / 2**32


def after(moment: datetime, seconds: float) -> datetime:
    """Return a later time, or the maximum on overflow, because users may write any time."""
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


@dataclass(slots=True)
class Budget:
    """Token bucket: `burst` units, refilled with `per_second`. The caller passes the time."""

    burst: float
    per_second: float
    filled_at: float
    left: float = float("inf")

    def fill(self, now: float) -> float:
        """Return the number of available units."""
        self.left = min(self.burst, self.left + (now - self.filled_at) * self.per_second)
        self.filled_at = now
        return self.left

    def spend(self, now: float) -> bool:
        """Take one unit; return whether one was available."""
        if self.fill(now) < 1:
            return False
        self.left -= 1
        return True
