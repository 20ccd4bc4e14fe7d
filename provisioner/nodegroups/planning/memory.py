"""What is remembered between rounds.

The truth is in Compute Engine and in the objects' status. This is what was last read of the one, and what the caches of
the other do not show yet. Losing all of it is safe: it is read again, and requests have the same ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from provisioner.model.capacity import Failure
from provisioner.model.writes import OpenWrite
from provisioner.nodegroups.api.statuses import OperationRef
from provisioner.nodegroups.compute.records import Instance, ManagedInstance, Resource
from provisioner.nodegroups.planning.actions import Call, Write

#: Before everything, and still a moment that can be moved when the clock is set.
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The same is not tried again before `until`."""

    failure: Failure
    failures: int
    #: When it failed last.
    at: datetime
    until: datetime
    #: Of a change: the request was accepted, and its operation failed.
    accepted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was last read of a resource."""

    #: When the request was sent.
    asked_at: datetime
    #: None: it is not there.
    resource: Resource | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What was last read of the machines of a managed instance group; none where it is not there."""

    asked_at: datetime
    machines: tuple[ManagedInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceMemory:
    """One resource. Operation and attempts begin as the object's status has them, and go there when they change."""

    operation: OperationRef | None = None
    #: When the operation was last asked for.
    polled_at: datetime | None = None
    #: How often it was.
    polls: int = 0
    attempts: int = 0
    reading: Reading | None = None
    listing: Listing | None = None
    #: What was asked for before this is out of date: something has changed since.
    changed_at: datetime = LONG_AGO
    #: When an insert may last have been sent of which nobody knows whether it arrives.
    unsure_at: datetime | None = None
    #: By what was tried in vain (`answers.READ` and those below it).
    backoffs: Mapping[str, Backoff] = field(default_factory=dict)
    #: The last delete was not sent: its proof failed.
    kept: Backoff | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineMemory:
    """The metadata of one machine, by its provider id."""

    #: Number of the machine: another one under the same name starts anew.
    id: str
    asked_at: datetime | None = None
    #: None: not read, or not there when it was.
    instance: Instance | None = None
    #: All items as they were last set, and when; None: not set, or nobody knows.
    sent: Mapping[str, str] | None = field(default=None, repr=False)
    sent_at: datetime | None = None
    backoff: Backoff | None = None
    #: The back-off began with a change, so that only a change that succeeds ends it: the machine is read before each.
    change_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A machine that is lost."""

    since: datetime
    #: Since when nothing can run on it; None: only chips of it are gone.
    stopped_since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call that is not answered."""

    call: Call
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many calls of one sort to Compute Engine may be made at once, and since when."""

    spare: float
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A group with its children, or a child alone, that could not be decided on: a mistake of ours."""

    failures: int
    #: Not before this again, as long as its objects have these resource versions.
    until: datetime
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All of it. Replaced as a whole by each decision and each answer."""

    #: When the first decision was made; what was sent before, nobody knows.
    began_at: datetime | None = None
    #: By the UID of the object (`Target.uid`).
    resources: Mapping[str, ResourceMemory] = field(default_factory=dict)
    #: By provider id.
    machines: Mapping[str, MachineMemory] = field(default_factory=dict)
    #: By key.
    calls: Mapping[str, OpenCall] = field(default_factory=dict)
    writes: Mapping[str, OpenWrite[Write]] = field(default_factory=dict)
    #: By what Compute Engine counts together (`decide.bucket_of`); as much as there can be where there is none.
    pace: Mapping[str, Pace] = field(default_factory=dict)
    #: Machines that are lost, by the UID of the group and their names; "" stands for those that have none.
    lost: Mapping[str, Mapping[str, Lost]] = field(default_factory=dict)
    #: By the key of the unit (`units.Unit.key`).
    crashes: Mapping[str, Crash] = field(default_factory=dict)
    #: By project: Compute Engine asked for a pause of all calls until then.
    paused: Mapping[str, datetime] = field(default_factory=dict)
