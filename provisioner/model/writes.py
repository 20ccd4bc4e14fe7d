"""Tracks API calls and writes to Kubernetes in the memory of the controllers of partitions and node groups. Pure.

A decision adds calls and writes (`with_open`). A response removes a call. Successful writes are kept for 10 s, in which
the caches should show them, failed writes for 10 minutes. Calls and writes that can get no result are lost after 60 s.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind


class WriteFailure(Enum):
    """Kind of a failed write, which determines the retry."""

    #: The object was created, changed or deleted since the snapshot. A later snapshot shows this.
    CONFLICT = "conflict"
    #: An eviction was rejected with 429, usually because a disruption budget does not allow it now.
    NOT_NOW = "not_now"
    #: The write is not allowed or invalid: an administrator or user has to change something.
    REFUSED = "refused"
    #: Any other error; the write may have taken effect.
    UNAVAILABLE = "unavailable"


class Keyed(Protocol):
    """A write or a call, with a key. At most one write and one call with the same key are open."""

    @property
    def key(self) -> str:
        """Identity of the object that is written, or of the call."""
        ...


WriteT = TypeVar("WriteT", bound=Keyed)
CallT = TypeVar("CallT", bound=Keyed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredWrite(Generic[WriteT]):
    """Completed write with its result."""

    write: WriteT
    at: datetime
    failure: WriteFailure | None = None
    message: str = ""
    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCall(Generic[CallT]):
    """Completed call with its result."""

    call: CallT
    #: Time of the request; `at` is the time of the response.
    asked_at: datetime
    at: datetime
    failure: Failure | None = None
    #: Reason why a live check prevented a delete; otherwise empty.
    kept: str = ""
    #: Result, of a type that depends on the call; None if the call failed, or if the resource does not exist.
    result: Any = None
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWrite(Generic[WriteT]):
    """Write without a response, write that the caches may not show yet, or failed write that may be retried."""

    write: WriteT
    #: `Proposed.seen` of the write. While later proposals have the same value, the caches do not show the write.
    seen: str
    since: datetime
    answered_at: datetime | None = None
    failure: WriteFailure | None = None
    failures: int = 0
    message: str = ""
    retry_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall(Generic[CallT]):
    """Call without a response."""

    call: CallT
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed(Generic[WriteT]):
    """Write that a decision proposes."""

    write: WriteT
    #: State of the object that the write is based on, such as its resource version. A successful write changes it.
    seen: str
    #: Minimum seconds since the last successful write of the object; at most 10, because writes are kept for 10 s.
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenActions(Generic[CallT, WriteT]):
    """Base class of a controller's memory, with its open calls and writes by key."""

    calls: Mapping[str, OpenCall[CallT]] = field(default_factory=dict)
    writes: Mapping[str, OpenWrite[WriteT]] = field(default_factory=dict)


MemoryT = TypeVar("MemoryT", bound=OpenActions[Any, Any])
ProposedT = TypeVar("ProposedT", bound=Proposed[Any])

#: Seconds after which a successful write may be repeated if the caches do not show it. They usually take milliseconds.
_SHOWN_SECONDS = 10.0
#: Seconds after the decision at which a write or call that can get no result counts as lost.
LOST_SECONDS = 60.0
#: Seconds after which a failed write is forgotten, so that the next wait is short again.
_FORGOTTEN_SECONDS = 600.0
#: First and maximum wait in seconds after a failed write.
_RETRIES: Mapping[WriteFailure, tuple[float, float]] = {
    WriteFailure.CONFLICT: (0.5, 10.0),
    # The disruption budget may allow the eviction when another pod is ready. kubectl retries every 5 s.
    WriteFailure.NOT_NOW: (5.0, 30.0),
    WriteFailure.REFUSED: (10.0, 300.0),
    WriteFailure.UNAVAILABLE: (1.0, 60.0),
}


LOST = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message="The call was lost inside the provisioner.")


def lost_calls(calls: Mapping[str, OpenCall[CallT]], live: frozenset[str], now: datetime) -> dict[str, OpenCall[CallT]]:
    """Return the lost calls by key; `live` has the keys of calls and writes whose results are not processed yet."""
    limit = now - timedelta(seconds=LOST_SECONDS)
    return {key: call for key, call in sorted(calls.items()) if call.since <= limit and key not in live}


def without_lost(
    memory: MemoryT, live_keys: frozenset[str], now: datetime, fold: Callable[[MemoryT, AnsweredCall[Any]], MemoryT]
) -> MemoryT:
    """Return the memory without lost writes and outdated results. `fold` records the failure of a lost call."""
    for call in lost_calls(memory.calls, live_keys, now).values():
        answer = AnsweredCall(call=call.call, asked_at=call.since, at=now, failure=LOST)
        try:
            memory = fold(memory, answer)
        except Exception:  # noqa: BLE001 - one call must not affect the others
            memory = answered(memory, answer)
    writes = {key: write for key, write in memory.writes.items() if not _is_over(write, now, live=key in live_keys)}
    return replace(memory, writes=writes)


def answered(memory: MemoryT, answer: AnsweredCall[Any] | AnsweredWrite[Any]) -> MemoryT:
    """Return the memory with the result of a write, or without a completed call; unchanged if neither is open."""
    if isinstance(answer, AnsweredCall):
        return replace(memory, calls={key: call for key, call in memory.calls.items() if key != answer.call.key})
    key, failure = answer.write.key, answer.failure
    if key not in memory.writes:
        return memory
    write = replace(memory.writes[key], answered_at=answer.at, failure=failure, failures=0, message="", retry_at=None)
    if failure is not None:
        failures = memory.writes[key].failures + 1
        retry_at = waits.after(answer.at, waits.doubled_seconds(*_RETRIES[failure], failures, key))
        write = replace(write, failures=failures, message=answer.message, retry_at=retry_at)
    return replace(memory, writes={**memory.writes, key: write})


def with_open(
    memory: MemoryT, now: datetime, *, calls: Iterable[Any] = (), writes: Iterable[Proposed[Any]] = ()
) -> MemoryT:
    """Return the memory with additional open calls and writes, which must be sent only afterwards."""
    return replace(
        memory,
        calls={**memory.calls, **{call.key: OpenCall(call=call, since=now) for call in calls}},
        writes={**memory.writes, **{proposed.write.key: _opened(memory.writes, proposed, now) for proposed in writes}},
    )


def choose_writes(
    proposals: Iterable[ProposedT], writes: Mapping[str, OpenWrite[Any]], now: datetime
) -> tuple[list[ProposedT], list[datetime]]:
    """Return the first allowed proposal for each object, and the times until which blocked proposals must wait."""
    chosen: dict[str, ProposedT] = {}
    later = []
    for proposal in proposals:
        key = proposal.write.key
        if key in chosen:
            continue
        blocked_until = _blocked_until(writes.get(key), proposal, now)
        if blocked_until is None:
            chosen[key] = proposal
        else:
            later.append(blocked_until)
    return list(chosen.values()), later


def _opened(writes: Mapping[str, OpenWrite[WriteT]], proposal: Proposed[WriteT], now: datetime) -> OpenWrite[WriteT]:
    before = writes.get(proposal.write.key)
    failures = before.failures if before is not None and before.failure is not None else 0
    return OpenWrite(write=proposal.write, seen=proposal.seen, since=now, failures=failures)


def _blocked_until(write: OpenWrite[Any] | None, proposal: Proposed[Any], now: datetime) -> datetime | None:
    """Return the time until which `write`, of the same object, blocks a proposal; None if it does not."""
    if write is None:
        return None
    if write.answered_at is None:
        # A write that exists after LOST_SECONDS is still queued or in progress, so check again in 10 s.
        lost_at, soon = write.since + timedelta(seconds=LOST_SECONDS), now + timedelta(seconds=_SHOWN_SECONDS)
        until: datetime | None = lost_at if lost_at > now else soon
    elif write.failure is None:
        unseen = write.seen == proposal.seen
        until = write.answered_at + timedelta(seconds=_SHOWN_SECONDS if unseen else proposal.pause_seconds)
    else:
        until = write.retry_at
    return until if until is not None and until > now else None


def _is_over(write: OpenWrite[Any], now: datetime, *, live: bool) -> bool:
    if write.answered_at is None:
        return not live and (now - write.since).total_seconds() >= LOST_SECONDS
    age = (now - write.answered_at).total_seconds()
    return age >= (_SHOWN_SECONDS if write.failure is None else _FORGOTTEN_SECONDS)
