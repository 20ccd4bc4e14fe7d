"""What is remembered between decisions.

The truth is in the ledger, in the pods and on the servers. This is what calls have taught, and what caches do not show
yet. Losing all of it is safe: partitions are made again under the same ids, and removed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from provisioner.model.capacity import Failure
from provisioner.model.writes import OpenWrite
from provisioner.partitions.planning.calls import Call, Write

#: A server (HOST:PORT) and the name of an allocation on it: where a partition can be.
Site = tuple[str, str]
_MOST_IN_VAIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The same is not tried again before `until`."""

    failure: Failure
    failures: int
    #: When it failed last.
    at: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMemory:
    """One entry of the ledger."""

    #: Where it is and when it was recorded, as a text: another mark, another entry.
    mark: str
    #: When it was first seen in the ledger.
    since: datetime
    #: When a call of ours that changes it was last answered: a reading asked for before says nothing of it.
    changed_at: datetime | None = None
    #: When it was last seen active.
    active_at: datetime | None = None
    #: A create was refused here, and the server is to show that there is no partition.
    refused: bool = False
    #: Of creates, until the partition is listed.
    backoff: Backoff | None = None
    #: Of removes.
    removing: Backoff | None = None
    #: Since when its pod has been seen to have it and no node; None: it is not so.
    unscheduled_since: datetime | None = None
    #: Why the last remove was not sent; empty: it was.
    kept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayMemory:
    """A partition with our prefix where the ledger has none."""

    #: When it was first listed.
    since: datetime
    #: When a remove was last answered.
    changed_at: datetime | None = None
    backoff: Backoff | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An allocation where a pod's partition could not be made."""

    backoff: Backoff
    #: When it was refused there first.
    since: datetime
    #: There was no place for it beside these: there may be one as soon as one of them is gone. None: another reason.
    listed: frozenset[str] | None = None
    #: How often there was no place for it although nothing was there.
    in_vain: int = 0

    @property
    def never_fits(self) -> bool:
        """Whether there may never be a place for it: nobody is held up for it any more."""
        return self.in_vain >= _MOST_IN_VAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A pod that is being deleted."""

    #: Its deletionTimestamp as a text: with another one, its grace is another one.
    mark: str
    #: When it was first seen so.
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call that is not answered."""

    call: Call
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All of it. Replaced as a whole by each decision and each answer."""

    #: By id.
    partitions: Mapping[str, PartitionMemory] = field(default_factory=dict)
    #: By the pod's UID.
    refusals: Mapping[str, Mapping[Site, Refusal]] = field(default_factory=dict)
    #: By server: of readings.
    servers: Mapping[str, Backoff] = field(default_factory=dict)
    #: By server and id.
    strays: Mapping[tuple[str, str], StrayMemory] = field(default_factory=dict)
    #: By the pod's UID. What it has had of its grace is counted here: its deletionTimestamp is by another clock.
    ending: Mapping[str, Ending] = field(default_factory=dict)
    #: By key.
    calls: Mapping[str, OpenCall] = field(default_factory=dict)
    writes: Mapping[str, OpenWrite[Write]] = field(default_factory=dict)
    #: By the pod's UID: what its people have been told.
    told: Mapping[str, frozenset[str]] = field(default_factory=dict)
