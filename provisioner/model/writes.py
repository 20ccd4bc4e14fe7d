"""What a controller has decided on and is not over: writes to Kubernetes until the caches show them, and calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Generic, Protocol, TypeVar

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind


class WriteFailure(Enum):
    """Why a write failed, as far as it makes a difference."""

    #: The object has changed, is another one, or is gone: the next snapshot shows it as it is.
    CONFLICT = "conflict"
    #: 429 of an eviction: a disruption budget allows none now.
    NOT_NOW = "not_now"
    #: Forbidden, or invalid: somebody has to change something.
    REFUSED = "refused"
    #: The outcome is not known either.
    UNAVAILABLE = "unavailable"


class Keyed(Protocol):
    """A write, or a call; writes of one object have one key."""

    @property
    def key(self) -> str:
        """Names what is written, or the call: equal while it is the same one."""
        ...


#: A product's writes, and its calls.
WriteT = TypeVar("WriteT", bound=Keyed)
CallT = TypeVar("CallT", bound=Keyed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Generic[WriteT]):
    """How a write ended."""

    write: WriteT
    at: datetime
    #: None: it is done.
    failure: WriteFailure | None = None
    #: The API server's words on a failure.
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCall(Generic[CallT]):
    """How a call ended."""

    call: CallT
    #: When the request was sent, and when it was answered.
    asked_at: datetime
    at: datetime
    #: None: it is done.
    failure: Failure | None = None
    #: Of a delete that was not sent: what keeps the resource, in words.
    kept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWrite(Generic[WriteT]):
    """A write that is not answered, that the caches may not show yet, or that failed."""

    write: WriteT
    #: How the object looked that it was decided on: done, and another look, means shown.
    seen: str
    since: datetime
    answered_at: datetime | None = None
    failure: WriteFailure | None = None
    failures: int = 0
    message: str = ""
    #: Not before this again.
    retry_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall(Generic[CallT]):
    """A call that is not answered."""

    call: CallT
    since: datetime


#: The caches show a write after milliseconds; where they have not for so long, it is decided anew.
_SHOWN_SECONDS = 10.0
#: A write or call that nobody makes is given up so long after it was decided: then it is surely not about to be sent.
LOST_SECONDS = 60.0
#: A failure is forgotten so long after it.
_FORGOTTEN_SECONDS = 600.0
#: The first wait after a failure, and the longest.
_RETRIES: Mapping[WriteFailure, tuple[float, float]] = {
    WriteFailure.CONFLICT: (0.5, 10.0),
    # A budget allows another eviction as soon as another pod runs elsewhere; kubectl asks every 5 s.
    WriteFailure.NOT_NOW: (5.0, 30.0),
    WriteFailure.REFUSED: (10.0, 300.0),
    WriteFailure.UNAVAILABLE: (1.0, 60.0),
}


#: How a call ends that nobody makes.
LOST = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message="The call was lost inside the provisioner.")


def lost_calls(calls: Mapping[str, OpenCall[CallT]], live: frozenset[str], now: datetime) -> dict[str, OpenCall[CallT]]:
    """Return the calls that should be under way, and that nobody makes: nobody knows their outcome."""
    limit = now - timedelta(seconds=LOST_SECONDS)
    return {key: each for key, each in sorted(calls.items()) if each.since <= limit and key not in live}


def opened(writes: Mapping[str, OpenWrite[WriteT]], write: WriteT, seen: str, now: datetime) -> OpenWrite[WriteT]:
    """Return what is remembered of a write that is about to be made; `seen` as `OpenWrite.seen`."""
    before = writes.get(write.key)
    failures = before.failures if before is not None and before.failure is not None else 0
    return OpenWrite(write=write, seen=seen, since=now, failures=failures)


def blocked_until(
    write: OpenWrite[WriteT] | None, seen: str, now: datetime, pause_seconds: float = 0.0
) -> datetime | None:
    """Return before when an object that looks like `seen` must not be written again; None: it may be written now.

    `pause_seconds`, up to 10, is the minimum interval after the last write.
    """
    if write is None:
        return None
    if write.answered_at is None:
        # It may wait for a thread for minutes, and would be made twice. `still_open` forgets what nobody makes.
        lost_at, soon = write.since + timedelta(seconds=LOST_SECONDS), now + timedelta(seconds=_SHOWN_SECONDS)
        until: datetime | None = lost_at if lost_at > now else soon
    elif write.failure is None:
        until = write.answered_at + timedelta(seconds=_SHOWN_SECONDS if write.seen == seen else pause_seconds)
    else:
        until = write.retry_at
    return until if until is not None and until > now else None


def with_answer(writes: Mapping[str, OpenWrite[WriteT]], answer: Answered[WriteT]) -> Mapping[str, OpenWrite[WriteT]]:
    """Return what is remembered of writes, by key, after the answer to one of them; to any other it stays the same."""
    key = answer.write.key
    if key not in writes:
        return writes
    failures, message, retry_at = 0, "", None
    if answer.failure is not None:
        failures, message = writes[key].failures + 1, answer.message
        retry_at = waits.after(answer.at, waits.doubled_seconds(*_RETRIES[answer.failure], failures, key))
    known = replace(
        writes[key],
        answered_at=answer.at,
        failure=answer.failure,
        failures=failures,
        message=message,
        retry_at=retry_at,
    )
    return {**writes, key: known}


def still_open(
    writes: Mapping[str, OpenWrite[WriteT]], live: frozenset[str], now: datetime
) -> dict[str, OpenWrite[WriteT]]:
    """Return the writes without those that are over, and those that nobody makes."""
    return {key: write for key, write in writes.items() if not _is_over(write, now, live=key in live)}


def _is_over(write: OpenWrite[WriteT], now: datetime, *, live: bool) -> bool:
    if write.answered_at is None:
        return not live and (now - write.since).total_seconds() >= LOST_SECONDS
    age = (now - write.answered_at).total_seconds()
    return age >= (_SHOWN_SECONDS if write.failure is None else _FORGOTTEN_SECONDS)
