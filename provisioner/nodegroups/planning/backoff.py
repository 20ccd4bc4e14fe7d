"""How long to wait after which failure of Compute Engine.

A failure delays the one thing that failed: this call for this object. Nothing is given up: whatever the cause was, it
may be gone by the next try, which comes after a wait that has a cap.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind
from provisioner.nodegroups.planning.memory import Backoff


class Delay(NamedTuple):
    """First and longest wait."""

    first_seconds: float
    cap_seconds: float


DELAYS: Mapping[FailureKind, Delay] = {
    FailureKind.STOCKOUT: Delay(30, 600),
    FailureKind.QUOTA: Delay(60, 900),
    FailureKind.OPERATION_IN_THE_WAY: Delay(2, 30),
    FailureKind.TOO_MANY_OPERATIONS: Delay(1, 30),
    FailureKind.UNKNOWN_OUTCOME: Delay(1, 60),
    # Read at once, to see whose it is; this is for one that no reading shows.
    FailureKind.ALREADY_EXISTS: Delay(2, 60),
    FailureKind.UNAVAILABLE: Delay(1, 60),
    # Somebody may change what is in the way of these at any time, and nothing tells us.
    FailureKind.INVALID: Delay(60, 600),
    FailureKind.PERMISSION: Delay(30, 600),
    FailureKind.NOT_FOUND: Delay(10, 600),
}
#: A delete that was kept from being sent, because the machines are in use.
_KEPT = Delay(2, 30)
#: Longest that Google's own wish is followed.
LONGEST_WISH_SECONDS = 600.0


def failed(
    before: Backoff | None, failure: Failure, key: str, now: datetime, wish_seconds: float | None = None
) -> Backoff:
    """Return the back-off after one more failure; `wish_seconds` is the pause that Google asked for."""
    failures = before.failures + 1 if before is not None else 1
    wait = waits.doubled_seconds(*DELAYS[failure.kind], failures, key)
    if wish_seconds is not None:
        wait = max(wait, min(wish_seconds, LONGEST_WISH_SECONDS))
    since = before.since if before is not None else now
    return Backoff(failure=failure, failures=failures, since=since, at=now, until=now + timedelta(seconds=wait))


def with_failure(
    backoffs: Mapping[str, Backoff],
    what: str,
    failure: Failure,
    key: str,
    now: datetime,
    *,
    wish_seconds: float | None = None,
) -> Mapping[str, Backoff]:
    """Return the back-offs after `what` failed once more."""
    return {**backoffs, what: failed(backoffs.get(what), failure, f"{what} {key}", now, wish_seconds)}


def without(backoffs: Mapping[str, Backoff], *what: str) -> Mapping[str, Backoff]:
    """Return the back-offs without those that a success has ended."""
    return {each: wait for each, wait in backoffs.items() if each not in what}


def kept(before: Backoff | None, reason: str, key: str, now: datetime) -> Backoff:
    """Return the back-off after one more delete that was not sent, for a reason in words."""
    failures = before.failures + 1 if before is not None else 1
    until = now + timedelta(seconds=waits.doubled_seconds(*_KEPT, failures, key))
    failure = Failure(kind=FailureKind.OPERATION_IN_THE_WAY, message=reason)
    return Backoff(failure=failure, failures=failures, since=before.since if before else now, at=now, until=until)
