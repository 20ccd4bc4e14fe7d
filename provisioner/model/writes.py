"""Decided actions that are not complete: writes to Kubernetes that caches do not show yet, and calls.

A controller's memory has them as `OpenActions`. A decision opens them, responses close them, and actions that no
thread performs any more count as lost.
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

    #: The object was changed, recreated or deleted; the next snapshot shows it.
    CONFLICT = "conflict"
    #: Response 429 to an eviction: a disruption budget does not allow it now.
    NOT_NOW = "not_now"
    #: The write is forbidden or invalid: an administrator or user has to change something.
    REFUSED = "refused"
    #: Any other error; the write may have taken effect.
    UNAVAILABLE = "unavailable"


class Keyed(Protocol):
    """A write or call. Writes of one object have the same key."""

    @property
    def key(self) -> str:
        """Identity of the written object or of the call."""
        ...


#: Type of a product's writes, and of its calls.
WriteT = TypeVar("WriteT", bound=Keyed)
CallT = TypeVar("CallT", bound=Keyed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredWrite(Generic[WriteT]):
    """Result of a write."""

    write: WriteT
    at: datetime
    #: None if the write succeeded.
    failure: WriteFailure | None = None
    #: Message of the API server if it failed.
    message: str = ""
    #: Result that the product's write defines; None if it failed.
    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCall(Generic[CallT]):
    """Result of a call."""

    call: CallT
    #: Times of the request and of its response.
    asked_at: datetime
    at: datetime
    #: None if the call succeeded.
    failure: Failure | None = None
    #: Reason why a delete was not sent; empty if it was.
    kept: str = ""
    #: Result that the product's call defines; None if it failed, or the resource does not exist.
    result: Any = None
    #: Pause in seconds that the supplier requested; None if it requested no pause.
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWrite(Generic[WriteT]):
    """A write that has no response yet, that the caches may not show yet, or that failed."""

    write: WriteT
    #: State of the object at the decision. If the object differs after a success, the caches show the write.
    seen: str
    since: datetime
    answered_at: datetime | None = None
    failure: WriteFailure | None = None
    failures: int = 0
    message: str = ""
    #: Earliest time of the next attempt; None if there is no wait.
    retry_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall(Generic[CallT]):
    """A call without a response."""

    call: CallT
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed(Generic[WriteT]):
    """A write that a decision proposes."""

    write: WriteT
    #: State of the object that the write is based on, such as its resource version. Another state shows the effect.
    seen: str
    #: Minimum interval in seconds after the last write of the object, up to 10.
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenActions(Generic[CallT, WriteT]):
    """Base of a controller's memory: its open calls and writes by key."""

    calls: Mapping[str, OpenCall[CallT]] = field(default_factory=dict)
    writes: Mapping[str, OpenWrite[WriteT]] = field(default_factory=dict)


#: Types of a product's memory and of its proposals.
MemoryT = TypeVar("MemoryT", bound=OpenActions[Any, Any])
ProposedT = TypeVar("ProposedT", bound=Proposed[Any])

#: Seconds after which a successful write that the caches do not show is decided again. Usually, milliseconds suffice.
_SHOWN_SECONDS = 10.0
#: Seconds after the decision at which a write or call that no thread makes counts as lost; it is not sent later.
LOST_SECONDS = 60.0
#: Seconds after which a failure is forgotten.
_FORGOTTEN_SECONDS = 600.0
#: First and maximum wait after a failure, in seconds.
_RETRIES: Mapping[WriteFailure, tuple[float, float]] = {
    WriteFailure.CONFLICT: (0.5, 10.0),
    # A budget allows the next eviction as soon as another pod runs elsewhere. kubectl retries every 5 s.
    WriteFailure.NOT_NOW: (5.0, 30.0),
    WriteFailure.REFUSED: (10.0, 300.0),
    WriteFailure.UNAVAILABLE: (1.0, 60.0),
}


#: Result of a call that no thread makes.
LOST = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message="The call was lost inside the provisioner.")


def lost_calls(calls: Mapping[str, OpenCall[CallT]], live: frozenset[str], now: datetime) -> dict[str, OpenCall[CallT]]:
    """Return the open calls that are older than LOST_SECONDS and that no thread makes: their outcome is unknown."""
    limit = now - timedelta(seconds=LOST_SECONDS)
    return {key: each for key, each in sorted(calls.items()) if each.since <= limit and key not in live}


def without_lost(
    memory: MemoryT, live: frozenset[str], now: datetime, fold: Callable[[MemoryT, AnsweredCall[Any]], MemoryT]
) -> MemoryT:
    """Return the memory without completed and lost writes, after `fold` has recorded each lost call as unknown."""
    for call in lost_calls(memory.calls, live, now).values():
        answer = AnsweredCall(call=call.call, asked_at=call.since, at=now, failure=LOST)
        try:
            memory = fold(memory, answer)
        except Exception:  # noqa: BLE001 - one call must not affect the others
            memory = answered(memory, answer)
    left = {key: each for key, each in memory.writes.items() if not _is_over(each, now, live=key in live)}
    return replace(memory, writes=left)


def answered(memory: MemoryT, answer: AnsweredCall[Any] | AnsweredWrite[Any]) -> MemoryT:
    """Return the memory with the result of a write, or without an answered call; unchanged if neither is open."""
    if isinstance(answer, AnsweredCall):
        return replace(memory, calls={key: each for key, each in memory.calls.items() if key != answer.call.key})
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
    """Return the memory in which calls and writes that are about to be sent are open."""
    return replace(
        memory,
        calls={**memory.calls, **{call.key: OpenCall(call=call, since=now) for call in calls}},
        writes={**memory.writes, **{proposed.write.key: _opened(memory.writes, proposed, now) for proposed in writes}},
    )


def choose_writes(
    proposals: Iterable[ProposedT], writes: Mapping[str, OpenWrite[Any]], now: datetime
) -> tuple[list[ProposedT], list[datetime]]:
    """Return the first write of each object that may be written now, and the times at which other objects may be."""
    chosen: dict[str, ProposedT] = {}
    later = []
    for each in proposals:
        key = each.write.key
        if key in chosen:
            continue
        until = _blocked_until(writes.get(key), each, now)
        if until is None:
            chosen[key] = each
        else:
            later.append(until)
    return list(chosen.values()), later


def _opened(writes: Mapping[str, OpenWrite[WriteT]], proposal: Proposed[WriteT], now: datetime) -> OpenWrite[WriteT]:
    before = writes.get(proposal.write.key)
    failures = before.failures if before is not None and before.failure is not None else 0
    return OpenWrite(write=proposal.write, seen=proposal.seen, since=now, failures=failures)


def _blocked_until(write: OpenWrite[Any] | None, proposal: Proposed[Any], now: datetime) -> datetime | None:
    """Return the time before which a proposed write must not be sent after `write`; None if it may be sent now."""
    if write is None:
        return None
    if write.answered_at is None:
        # The write may wait for a thread for minutes, so it must not be decided again. `without_lost` drops it if lost.
        lost_at, soon = write.since + timedelta(seconds=LOST_SECONDS), now + timedelta(seconds=_SHOWN_SECONDS)
        until: datetime | None = lost_at if lost_at > now else soon
    elif write.failure is None:
        unseen = write.seen == proposal.seen
        until = write.answered_at + timedelta(seconds=_SHOWN_SECONDS if unseen else proposal.pause_seconds)
    else:
        until = write.retry_at
    return until if until is not None and until > now else None


def _is_over(write: OpenWrite[Any], now: datetime, *, live: bool) -> bool:
    """Return whether a write is completed or lost; `live` if a thread makes it."""
    if write.answered_at is None:
        return not live and (now - write.since).total_seconds() >= LOST_SECONDS
    age = (now - write.answered_at).total_seconds()
    return age >= (_SHOWN_SECONDS if write.failure is None else _FORGOTTEN_SECONDS)
