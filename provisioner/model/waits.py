"""How long to wait after failures in a row, and how often something may be done."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

#: Doubled more often, no first wait is below any cap.
_MOST_DOUBLINGS = 30
#: By how much of a wait those of several keys are spread.
_SPREAD = 0.2


def doubled_seconds(first_seconds: float, cap_seconds: float, failures: int, key: str) -> float:
    """Return the wait after failures in a row: doubled by each up to a cap, and up to a fifth shorter, by the key."""
    doubled = min(cap_seconds, first_seconds * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
    return float(doubled * (1 - _SPREAD * share_of(f"{key}/{failures}")))


def share_of(key: str) -> float:
    """Return a number in [0, 1) that follows from a key, and looks like chance."""
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) / 2**32


def after(moment: datetime, seconds: float) -> datetime:
    """Return the moment so much later, or the last that there is: moments that users write may be any."""
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


@dataclass(slots=True)
class Budget:
    """So many at once, then so many a second, by a clock of the user's."""

    burst: float
    per_second: float
    filled_at: float
    left: float = float("inf")

    def fill(self, now: float) -> float:
        """Return how many there may be now."""
        self.left = min(self.burst, self.left + (now - self.filled_at) * self.per_second)
        self.filled_at = now
        return self.left

    def spend(self, now: float) -> bool:
        """Take one; return whether there was one."""
        if self.fill(now) < 1:
            return False
        self.left -= 1
        return True
