"""Computes waits after consecutive failures, and limits rates. Pure, except for `TokenBucket`."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from provisioner.model.capacity import Failure, FailureKind

#: Maximum number of doublings, which prevents an overflow. Every wait reaches its cap after fewer doublings.
_MAX_DOUBLINGS = 30
#: Maximum share by which a wait is shortened, so that waits with different keys end at different times.
_SPREAD = 0.2


def doubled_seconds(first_seconds: float, cap_seconds: float, failures: int, key: str) -> float:
    """Return the wait in seconds: the first, doubled by each further failure up to the cap, then cut by up to 20 %."""
    doubled = min(cap_seconds, first_seconds * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
    return float(doubled * (1 - _SPREAD * share_of(f"{key}/{failures}")))


#: First and maximum wait in seconds after a failed call of the controllers of partitions and node groups.
DELAYS: Mapping[FailureKind, tuple[float, float]] = {
    FailureKind.STOCKOUT: (30, 600),
    FailureKind.QUOTA: (60, 900),
    FailureKind.OPERATION_IN_THE_WAY: (2, 30),
    FailureKind.TOO_MANY_OPERATIONS: (1, 30),
    FailureKind.UNKNOWN_OUTCOME: (1, 60),
    FailureKind.ALREADY_EXISTS: (1, 60),
    FailureKind.UNAVAILABLE: (1, 60),
    # These calls are also repeated, because users may correct the cause and no event reports that.
    FailureKind.INVALID: (30, 600),
    FailureKind.PERMISSION: (30, 600),
    FailureKind.NOT_FOUND: (10, 600),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Consecutive failures of a call, which is usually not repeated before `until`."""

    failure: Failure
    failures: int
    #: Time of the last failure.
    at: datetime
    until: datetime
    #: Whether the API accepted the call, but the resulting operation failed.
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
    """Return `before` with one more failure. `delay` has first and maximum seconds, which `min_seconds` may exceed."""
    failures = before.failures + 1 if before is not None else 1
    seconds = max(doubled_seconds(*delay, failures, key), min_seconds)
    return Backoff(failure=failure, failures=failures, at=now, until=after(now, seconds))


def share_of(key: str) -> float:
    """Return a pseudo-random number in [0, 1) that depends only on the key."""
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) / 2**32


def after(moment: datetime, seconds: float) -> datetime:
    """Return `moment` plus `seconds`; the latest possible time on overflow, which times from users can cause."""
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


@dataclass(slots=True)
class TokenBucket:
    """Token bucket that starts full, with `burst` units, and gains `per_second` units. Times are in seconds."""

    burst: float
    per_second: float
    filled_at: float
    available: float = float("inf")

    def fill(self, now: float) -> float:
        """Add the units since the last call; return the number of available units."""
        self.available = min(self.burst, self.available + (now - self.filled_at) * self.per_second)
        self.filled_at = now
        return self.available

    def spend(self, now: float) -> bool:
        """Take one unit; return whether one was available."""
        if self.fill(now) < 1:
            return False
        self.available -= 1
        return True
