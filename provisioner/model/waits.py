"""Waits after consecutive failures, and limits of rates."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from provisioner.model.capacity import Failure

#: Maximum number of doublings, after which any first wait exceeds any cap.
_MOST_DOUBLINGS = 30
#: Maximum share by which a wait is shortened, so that waits of several keys end at different times.
_SPREAD = 0.2


def doubled_seconds(first_seconds: float, cap_seconds: float, failures: int, key: str) -> float:
    """Return the wait after consecutive failures: doubled by each up to a cap, and up to a fifth shorter by key."""
    doubled = min(cap_seconds, first_seconds * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
    return float(doubled * (1 - _SPREAD * share_of(f"{key}/{failures}")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Result of failed attempts: the call is not repeated before `until`."""

    failure: Failure
    failures: int
    #: Time of the last failure.
    at: datetime
    until: datetime
    #: Whether the request of a change was accepted and its operation failed.
    accepted: bool = False


def backed_off(
    before: Backoff | None,
    failure: Failure,
    key: str,
    now: datetime,
    delay: tuple[float, float],
    *,
    min_seconds: float = 0.0,
) -> Backoff:
    """Return the back-off after one more failure; `delay` has the first and the maximum wait in seconds."""
    failures = before.failures + 1 if before is not None else 1
    seconds = max(doubled_seconds(*delay, failures, key), min_seconds)
    return Backoff(failure=failure, failures=failures, at=now, until=after(now, seconds))


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
