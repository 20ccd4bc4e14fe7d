"""Writes that are not done, or that the caches do not show yet: the same object is not written meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from provisioner.model import waits
from provisioner.partitions.planning.calls import WriteAnswer, WriteFailure
from provisioner.partitions.planning.memory import OpenWrite

#: The caches show a write after milliseconds; where they have not for so long, it is decided anew.
SHOWN_SECONDS = 10.0
#: A write that nobody makes is given up so long after it was decided.
LOST_SECONDS = 60.0
#: A failure is forgotten so long after it.
_FORGOTTEN_SECONDS = 600.0
_RETRIES: Mapping[WriteFailure, tuple[float, float]] = {
    WriteFailure.CONFLICT: (0.5, 10.0),
    WriteFailure.REFUSED: (10.0, 300.0),
    WriteFailure.UNAVAILABLE: (1.0, 60.0),
}


def blocked_until(write: OpenWrite | None, seen: str, now: datetime) -> datetime | None:
    """Return before when the object must not be written again; None: it may be written now.

    `seen` is the resource version that is seen of it now.
    """
    if write is None:
        return None
    if write.answered_at is None:
        until: datetime | None = write.since + timedelta(seconds=LOST_SECONDS)
    elif write.failure is None:
        until = write.answered_at + timedelta(seconds=SHOWN_SECONDS) if write.seen == seen else None
    else:
        until = write.retry_at
    return until if until is not None and until > now else None


def answered(write: OpenWrite, answer: WriteAnswer) -> OpenWrite:
    """Return what is remembered of a write after its answer."""
    if answer.failure is None:
        return replace(write, answered_at=answer.at, failure=None, failures=0, message="", retry_at=None)
    failures = write.failures + 1
    wait = waits.doubled_seconds(*_RETRIES[answer.failure], failures, answer.write.key)
    return replace(
        write,
        answered_at=answer.at,
        failure=answer.failure,
        failures=failures,
        message=answer.message,
        retry_at=waits.after(answer.at, wait),
    )


def still_open(writes: Mapping[str, OpenWrite], live: frozenset[str], now: datetime) -> dict[str, OpenWrite]:
    """Return the writes without those that are over, and those that nobody makes."""
    return {key: write for key, write in writes.items() if not _is_over(write, now, live=key in live)}


def _is_over(write: OpenWrite, now: datetime, *, live: bool) -> bool:
    if write.answered_at is None:
        return not live and (now - write.since).total_seconds() >= LOST_SECONDS
    age = (now - write.answered_at).total_seconds()
    return age >= (SHOWN_SECONDS if write.failure is None else _FORGOTTEN_SECONDS)
