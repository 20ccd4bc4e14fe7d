"""How long to wait after which failure of a V-IPU server.

A failure delays the one thing that failed. Nothing is given up: whatever the cause was, it may be gone by the next try,
which comes after a wait that has a cap.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind
from provisioner.partitions.planning.memory import Backoff


class Delay(NamedTuple):
    """First and longest wait."""

    first_seconds: float
    cap_seconds: float


DELAYS: Mapping[FailureKind, Delay] = {
    # The free IPUs are not in one place: another partition has to go first, and that is noticed at once.
    FailureKind.STOCKOUT: Delay(30, 300),
    FailureKind.OPERATION_IN_THE_WAY: Delay(2, 30),
    FailureKind.TOO_MANY_OPERATIONS: Delay(1, 30),
    FailureKind.UNKNOWN_OUTCOME: Delay(1, 60),
    FailureKind.ALREADY_EXISTS: Delay(1, 60),
    FailureKind.UNAVAILABLE: Delay(1, 60),
    # Somebody may change what is in the way of these at any time, and nothing tells us.
    FailureKind.QUOTA: Delay(30, 300),
    FailureKind.INVALID: Delay(30, 600),
    FailureKind.PERMISSION: Delay(30, 600),
    FailureKind.NOT_FOUND: Delay(10, 600),
}
#: Elsewhere there may be a server that makes it.
_IN_VAIN = Delay(300, 600)
#: A remove that was kept from being sent, because its pod is there.
_KEPT = Delay(2, 30)


def failed(before: Backoff | None, failure: Failure, key: str, now: datetime) -> Backoff:
    """Return the back-off after one more failure."""
    return _after(before, failure, DELAYS[failure.kind], key, now)


def in_vain(before: Backoff | None, failure: Failure, key: str, now: datetime) -> Backoff:
    """Return the back-off of a place in which creates have failed for long."""
    return _after(before, failure, _IN_VAIN, key, now)


def kept(before: Backoff | None, why: str, key: str, now: datetime) -> Backoff:
    """Return the back-off after one more remove that was not sent, for a reason in words."""
    return _after(before, Failure(kind=FailureKind.OPERATION_IN_THE_WAY, message=why), _KEPT, key, now)


def _after(before: Backoff | None, failure: Failure, delay: Delay, key: str, now: datetime) -> Backoff:
    failures = before.failures + 1 if before is not None else 1
    until = waits.after(now, waits.doubled_seconds(*delay, failures, key))
    return Backoff(failure=failure, failures=failures, at=now, until=until)
