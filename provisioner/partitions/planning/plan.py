"""What one decision comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.calls import Call, Write
from provisioner.partitions.planning.memory import Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that people are told of a pod once, when it happens."""

    pod: Pod
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A pod that has no active partition yet."""

    pod: Pod
    #: Its place among those that wait; 1 is the first.
    place: int
    #: What it waits for, as a sentence.
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A pod that gets no partition as it is."""

    pod: Pod
    #: As a sentence.
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A partition that is ours: in the ledger, or an orphan."""

    id: str
    server: str
    allocation: str
    size: int
    #: As namespace/name; empty of an orphan.
    pod: str
    #: wanted, creating, active, broken, misplaced, lost, withdrawn, releasing, gone or orphan.
    phase: str
    since: datetime
    #: What is in its way, as a sentence; empty: nothing is.
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The IPUs of one allocation; where `total` is None the server does not tell."""

    server: str
    allocation: str
    total: int | None
    ours: int
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What people and metrics are shown of a decision."""

    waiting: tuple[Waiting, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    holdings: tuple[Holding, ...] = ()
    supply: tuple[Supply, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that could not be decided about, because of a mistake in this program; nothing else was held up."""

    #: The pod, the entry or the server.
    subject: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything to do, to say and to remember. What is to be done is already remembered as being under way."""

    memory: Memory
    #: Most urgent first.
    calls: tuple[Call, ...] = ()
    writes: tuple[Write, ...] = ()
    events: tuple[Event, ...] = ()
    view: View = field(default_factory=View)
    faults: tuple[Fault, ...] = ()
    #: When to decide again at the latest, without any event; None: whenever something happens.
    wake_at: datetime | None = None
