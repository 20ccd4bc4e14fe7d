"""Records why a slice waits: the cause with its facts. `slices/messages/waits.py` has the texts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple

from provisioner.model.capacity import Failure, FailureKind, PoolName
from provisioner.model.choices import CapacityChoice, CapacityKey
from provisioner.model.workloads import Workload
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.contention.usage import LimitScope
from provisioner.slices.planning.memory.state import Backoff, Hold

#: Maximum number of units in `WaitsFor.ahead`, and of workloads in `WaitsFor.users`.
_MAX_NAMED = 3
#: Failures that usually end within `_QUIET_SECONDS`. If only they block, the Event comes later and is no warning.
_QUIET = frozenset({FailureKind.OPERATION_IN_THE_WAY, FailureKind.TOO_MANY_OPERATIONS, FailureKind.UNAVAILABLE})
_QUIET_SECONDS = 60.0


class WaitKind(Enum):
    """Cause for which no pool is created for a slice."""

    #: The pods cannot use a PersistentVolumeClaim now.
    VOLUME = "volume"
    #: Machine types of the cluster have not been read yet, and the pods may select one of them.
    CATALOGUE = "catalogue"
    #: The slice cannot be served as requested (`UnmeetableError`).
    REQUEST = "request"
    PAUSE = "pause"
    #: Too many creates of the workload or of its namespace failed.
    FAILURES = "failures"
    #: Another workload whose slices start together holds the accelerator or is ahead in its queue, or a pause lasts.
    HOLD = "queue"
    #: The slice could have a pool now, but not all slices that start together with it could, or another is tried first.
    TOGETHER = "together"
    LIMIT = "limit"
    #: Each possible choice of capacity is blocked after a failure, or other slices try it first.
    CHOICES = "choices"
    #: Another pool still has the labels of the slice.
    LABELS = "relabelling"
    #: The create is delayed for some seconds, because pods that appear in this time can share the pool.
    BURST = "burst"
    #: The maximum number of concurrent operations or calls is reached (`contention.operations`).
    OPERATIONS = "operations"


class ChoiceBlocker(NamedTuple):
    """Cause that blocks one choice of capacity."""

    choice: CapacityChoice
    last: Backoff
    #: Capacity that failed before, and that other slices try first; None if the choice waits until its back-off ends.
    probed: CapacityKey | None = None
    #: Place, from 1, among the `of` slices that wait for `probed`; both are 0 without `probed`.
    position: int = 0
    of: int = 0

    @property
    def until(self) -> datetime | None:
        """Earliest time at which the choice is retried; None if other slices try it first."""
        return None if self.probed else self.last.until

    @property
    def rejected(self) -> bool:
        """Whether the supplier rejected the slice's request as invalid."""
        return self.last.slice_id is not None


class Limit(NamedTuple):
    """One limit, and the amount that slices request. Fields after `requested` are set only in a refusal."""

    setting: str
    scope: LimitScope
    maximum: int
    requested: int
    slices: int = 1
    used: int = 0
    #: Part of `used` that will soon be free.
    going: int = 0
    #: Amount that is withheld for slices of higher priority.
    kept: int = 0


class WaitsFor(NamedTuple):
    """Why no pool is created for a slice now. Events, statuses, the web page and `explain` show this reason."""

    kind: WaitKind
    #: Name of the pool that would be created; empty until `Launches` sets it.
    pool: PoolName = PoolName("")
    #: Workload of the slice if `Launches._refusals_of_gangs` found the cause; otherwise None.
    together: Workload | None = None
    #: Clauses on the problem of the request, of a volume, or of slices that start together; empty if none.
    problem: tuple[str, ...] = ()
    blockers: tuple[ChoiceBlocker, ...] = ()
    limit: Limit | None = None
    #: Hold or pause of the accelerator, if `kind` is HOLD; None if other workloads are only ahead in the queue.
    hold: Hold | None = None
    accelerator: str = ""
    #: Last of the failed creates of the workload or the namespace; None unless `kind` is FAILURES.
    failure: Failure | None = None
    #: Slice of the same workload that is tried first, because its request was rejected before; None otherwise.
    first: Slice | None = None
    #: Another pool that still has the labels of the slice; empty unless `kind` is LABELS.
    other: PoolName = PoolName("")
    #: Place of the slice, from 1, among the `of` units in the queue that it waits in; both are 0 without a queue.
    position: int = 0
    of: int = 0
    ahead: tuple[SliceId, ...] = ()
    #: Workloads with the largest use of the limit, each with the number of its chips or pools.
    users: tuple[tuple[str, int], ...] = ()
    other_users: int = 0
    #: Time at which the wait may end without a change in the cluster; None if unknown.
    until: datetime | None = None
    warning: bool = True
    #: Whether no Event is sent yet, because the wait usually ends soon.
    silent: bool = False
    #: Whether a ProvisioningRequest that waits for this cause is reported as failed.
    failed: bool = False
    #: Whether the wait usually ends only if the request, a setting, or an object that the request names is changed.
    final: bool = False

    @property
    def scope(self) -> LimitScope | None:
        """Scope of the limit that refuses the slice; None for other causes."""
        return self.limit.scope if self.limit is not None else None

    @property
    def causes(self) -> tuple[str, ...]:
        """Setting that refuses the slice, or kinds of failures if its capacity choices may recover; otherwise empty."""
        if self.kind is WaitKind.PAUSE:
            return ("PAUSE_CREATION",)
        if self.limit is not None:
            return (self.limit.setting,)
        return () if self.final else tuple(sorted({blocker.last.failure.kind.value for blocker in self.blockers}))

    def in_line(self, position: int, line: Sequence[SliceId], users: Sequence[tuple[str, int]] = ()) -> WaitsFor:
        """Return this reason with the place of the slice in `line`, and with the largest of the sorted `users`."""
        return self._replace(
            position=position,
            of=len(line),
            ahead=tuple(line[: min(position - 1, _MAX_NAMED)]),
            users=tuple(users[:_MAX_NAMED]),
            other_users=max(0, len(users) - _MAX_NAMED),
        )


def distinct(blockers: Sequence[ChoiceBlocker]) -> list[ChoiceBlocker]:
    """Return the first blocker of each combination of failure, time of the next try, and probed capacity."""
    first: dict[Hashable, ChoiceBlocker] = {}
    for blocker in blockers:
        first.setdefault((blocker.last.failure, blocker.until, blocker.probed), blocker)
    return list(first.values())


def of_choices(blockers: Sequence[ChoiceBlocker], now: datetime) -> WaitsFor:
    """Return the wait of a slice whose choices of capacity are all blocked."""
    until = min((blocker.until for blocker in blockers if blocker.until is not None), default=None)
    passing = [blocker for blocker in distinct(blockers) if not blocker.rejected]
    if not passing:
        return WaitsFor(kind=WaitKind.CHOICES, blockers=tuple(blockers), until=until, failed=True, final=True)
    quiet = all(blocker.last.failure.kind in _QUIET for blocker in passing)
    lasts = now - min(blocker.last.since for blocker in passing) >= timedelta(seconds=_QUIET_SECONDS)
    line = next((blocker for blocker in blockers if blocker.probed), None)
    return WaitsFor(
        kind=WaitKind.CHOICES,
        blockers=tuple(blockers),
        position=line.position if line is not None else 0,
        of=line.of if line is not None else 0,
        until=until,
        warning=not quiet,
        silent=quiet and not lasts,
        # A slice in the queue has not failed: another slice may find that the capacity is available again.
        failed=line is None and not any(blocker.last.failure.kind in _QUIET for blocker in passing),
    )
