"""State of a simulated V-IPU server: allocations and partitions, and the operations on them.

No method of `World` waits: `create` and `remove` begin a change and return its number; `outcome` returns the time and
the result of that change. A rejected call raises VipuRefusalError.

Partitions are placed as in a buddy system: on contiguous IPUs of one allocation, aligned to their size.
"""

from __future__ import annotations

import hmac
import itertools
import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rehearsal.simulators.http.world import BaseWorld, Clock
from rehearsal.simulators.vipu import faults
from rehearsal.simulators.vipu.faults import Fault, FaultKind, Target
from rehearsal.simulators.vipu.records import (
    ANYBODY,
    AllocationView,
    Asked,
    Caller,
    Outcome,
    PartitionView,
    Phase,
    VipuRefusalError,
    invalid,
)
from rehearsal.simulators.vipu.settings import FIRST, IPUS_OF_AGENT, VipuSettings

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
#: Text that lists show for each phase. Only the text ACTIVE is known from the real server.
_STATES = {
    Phase.CREATING: "PENDING",
    Phase.ACTIVE: "ACTIVE",
    Phase.REMOVING: "REMOVING",
    Phase.BROKEN: "ERROR",
}
_OUTCOMES_KEPT = 10_000


Ipu = tuple[str, int]


def is_power_of_two(number: int) -> bool:
    """Return whether a partition can have this number of IPUs."""
    return number >= 1 and number & (number - 1) == 0


def places(ipus: Sequence[Ipu], taken: Collection[Ipu], size: int) -> list[int]:
    """Return the positions in an allocation's IPUs at which a partition of that size fits, lowest first."""
    return [
        start
        for start in range(0, len(ipus) - size + 1, size)
        if all(ipu not in taken for ipu in ipus[start : start + size])
    ]


@dataclass
class _Allocation:
    name: str
    cluster: str
    agents: tuple[str, ...]
    ipus: tuple[Ipu, ...]


@dataclass
class _Partition:
    asked: Asked
    number: int
    allocation: _Allocation
    user: str
    created_at: datetime
    ipus: tuple[Ipu, ...]
    phase: Phase = Phase.CREATING
    #: ID of the fault that delays the creation; empty if none.
    stuck_by: str = ""
    #: Number of the change in progress; 0 if none.
    change: int = 0


class World(BaseWorld[VipuSettings, Fault]):
    """State of a simulated V-IPU server."""

    def __init__(self, settings: VipuSettings, *, clock: Clock, rng: random.Random | None = None) -> None:
        super().__init__(settings, clock=clock, rng=rng)
        self._allocations = _allocations_of(settings)
        self._partitions: dict[str, _Partition] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._numbers = itertools.count(1)
        self._down_until: datetime | None = None

    # -- calls of users --------------------------------------------------------------------------------------------

    def allocations(self, caller: Caller = ANYBODY) -> tuple[AllocationView, ...]:
        """Return the allocations that the caller may use."""
        with self._lock:
            self._answer(Target(method=faults.LIST_ALLOCATIONS))
            return tuple(self._view_of_allocation(item) for item in self._usable(caller))

    def ipus(self, caller: Caller = ANYBODY) -> tuple[Ipu, ...]:
        """Return the IPUs of the caller's allocations, as agent and index."""
        with self._lock:
            self._answer(Target(method=faults.LIST_IPUS))
            return tuple(dict.fromkeys(ipu for item in self._usable(caller) for ipu in item.ipus))

    def partitions(self, caller: Caller = ANYBODY) -> tuple[PartitionView, ...]:
        """Return the partitions of all users in the caller's allocations."""
        with self._lock:
            self._answer(Target(method=faults.LIST_PARTITIONS))
            usable = self._usable(caller)
            return tuple(self._view_of(item) for item in self._partitions.values() if item.allocation in usable)

    def partition(self, partition_id: str, caller: Caller = ANYBODY) -> PartitionView:
        """Return one partition in one of the caller's allocations."""
        with self._lock:
            self._answer(Target(method=faults.GET, name=partition_id))
            return self._view_of(self._visible(partition_id, caller))

    def create(self, asked: Asked, caller: Caller = ANYBODY) -> int:
        """Begin to create a partition; its IPUs are taken immediately. Return the number for `outcome`."""
        with self._lock:
            now = self._answer(Target(method=faults.CREATE, name=asked.id))
            usable = self._usable(caller)
            self._check(asked)
            allocation, ipus = self._place(asked, usable)
            number = next(self._numbers)
            user = caller.user if self._settings.secure else ""
            made = _Partition(
                asked=asked, number=number, allocation=allocation, user=user, created_at=now, ipus=ipus, change=number
            )
            self._partitions[asked.id] = made
            self._make(made, now)
            return number

    def remove(self, partition_id: str, caller: Caller = ANYBODY) -> int:
        """Begin to remove a partition, even a broken one. Return the number for `outcome`."""
        with self._lock:
            now = self._answer(Target(method=faults.REMOVE, name=partition_id))
            found = self._visible(partition_id, caller)
            if found.change:
                raise VipuRefusalError(
                    "FailedPrecondition", f"another operation on partition '{partition_id}' is in progress"
                )
            number = next(self._numbers)
            found.change = number
            self._unmake(found, now)
            return number

    def outcome(self, number: int) -> Outcome:
        """Return the result of a create or remove, or the time at which it will end."""
        with self.moment():
            return self._outcomes[number]

    # -- access for rehearsals -------------------------------------------------------------------------------------

    def all_partitions(self) -> tuple[PartitionView, ...]:
        """Return all partitions in their current state, even while the server is down."""
        with self.moment():
            return tuple(self._view_of(item) for item in self._partitions.values())

    def all_allocations(self) -> tuple[AllocationView, ...]:
        """Return all allocations, even while the server is down."""
        with self.moment():
            return tuple(self._view_of_allocation(item) for item in self._allocations.values())

    def release(self) -> None:
        """Resume creates that were delayed by faults that are no longer active."""
        with self.moment() as now:
            in_force = {fault.fault_id for fault in self.faults.all()}
            for item in self._partitions.values():
                if item.stuck_by and item.stuck_by not in in_force:
                    item.stuck_by = ""
                    self._finish(item, now, Phase.ACTIVE)

    def spoil(self, partition_id: str) -> None:
        """Make a partition broken."""
        with self.moment():
            self._partitions[partition_id].phase = Phase.BROKEN

    def vanish(self, partition_id: str) -> bool:
        """Delete a partition without a remove by a user; return False if the partition does not exist."""
        with self.moment() as now:
            found = self._partitions.pop(partition_id, None)
            if found is None:
                return False
            self._end(found, now, "the partition is gone")
            return True

    def restart(self, *, keeps_partitions: bool = True, down_seconds: float = 0.0) -> None:
        """Restart the server, which then cannot be reached for `down_seconds`.

        Partitions with an unfinished change are broken. Unless `keeps_partitions` is set, all partitions are lost.
        """
        with self.moment() as now:
            for item in list(self._partitions.values()):
                if item.change:
                    item.phase, item.stuck_by = Phase.BROKEN, ""
                    self._end(item, now, "the server is restarting")
            if not keeps_partitions:
                self._partitions.clear()
            self._down_until = now + timedelta(seconds=down_seconds)

    # -- implementation ----------------------------------------------------------------------------------------------

    def _answer(self, target: Target) -> datetime:
        now = self.now()
        if self._down_until is not None and now < self._down_until:
            raise VipuRefusalError("Unavailable", "connection refused")
        fault = self.faults.take((FaultKind.REFUSED,), target)
        if fault is not None:
            raise VipuRefusalError(fault.grpc_code, fault.message or "internal error")
        return now

    def _usable(self, caller: Caller) -> list[_Allocation]:
        if not self._settings.secure:
            return list(self._allocations.values())
        user = self._settings.users.get(caller.user)
        if user is None or not hmac.compare_digest(str(user["key"]).encode(), caller.key.encode()):
            raise VipuRefusalError("Unauthenticated", "invalid user id or access key")
        names: Any = user["allocations"]
        return [self._allocations[name] for name in names if name in self._allocations]

    def _visible(self, partition_id: str, caller: Caller) -> _Partition:
        usable = self._usable(caller)
        found = self._partitions.get(partition_id)
        if found is None or found.allocation not in usable:
            raise VipuRefusalError("NotFound", f"partition '{partition_id}' not found")
        return found

    def _check(self, asked: Asked) -> None:
        if _ID.fullmatch(asked.id) is None or len(asked.id) > self._settings.longest_id:
            raise invalid(f"invalid partition id '{asked.id}'")
        if not is_power_of_two(asked.size):
            raise invalid(f"partition size {asked.size} is not a power of 2")
        if asked.size > self._settings.largest_size:
            raise invalid(f"partition size {asked.size} is not supported")
        if asked.id in self._partitions:
            raise VipuRefusalError("AlreadyExists", f"partition '{asked.id}' already exists")

    def _place(self, asked: Asked, usable: list[_Allocation]) -> tuple[_Allocation, tuple[Ipu, ...]]:
        candidates = [item for item in usable if asked.allocation in ("", item.name)]
        candidates = [item for item in candidates if asked.cluster in ("", item.cluster)]
        if not candidates:
            # The error is the same for a missing allocation and for an allocation of other users.
            raise VipuRefusalError("NotFound", f"allocation '{asked.allocation}' not found")
        if len(candidates) > 1 and not self._settings.picks_allocation:
            raise invalid("an allocation must be specified, since there are several")
        taken = {ipu for item in self._partitions.values() for ipu in item.ipus}
        for allocation in candidates:
            starts = places(allocation.ipus, taken, asked.size)
            if starts:
                start = starts[0] if self._settings.placement == FIRST else self._rng.choice(starts)
                return allocation, allocation.ipus[start : start + asked.size]
        where = ", ".join(item.name for item in candidates)
        text = f"not enough IPUs available in {where} for a partition of size {asked.size}"
        raise VipuRefusalError("ResourceExhausted", text)

    def _make(self, made: _Partition, now: datetime) -> None:
        settings = self._settings
        seconds = settings.create_seconds + self._rng.uniform(0, settings.create_jitter_seconds)
        fault = self.faults.take(faults.CREATE_FAULTS, Target(method=faults.CREATE, name=made.asked.id))
        at = now + timedelta(seconds=seconds)
        kind = None if fault is None else fault.kind
        if fault is not None and kind is FaultKind.CREATE_STUCK:
            made.stuck_by = fault.fault_id
            self._expect(made, None)
            return
        self._expect(made, at)
        number, message = made.number, _words(fault, "failed to configure the IPUs of the partition")

        def due(when: datetime) -> None:
            if made.change != number:
                return
            if kind is FaultKind.CREATE_FAILS:
                self._drop(made)
                self._end(made, when, message)
            elif kind is FaultKind.CREATE_LEAKS:
                self._finish(made, when, Phase.BROKEN, message)
            elif fault is not None:
                self._end(made, when)
                self.timeline.at(when + timedelta(seconds=fault.seconds), lambda _when: self._activate(made))
            else:
                self._finish(made, when, Phase.ACTIVE)

        self.timeline.at(at, due)

    def _unmake(self, found: _Partition, now: datetime) -> None:
        fault = self.faults.take(faults.REMOVE_FAULTS, Target(method=faults.REMOVE, name=found.asked.id))
        at = now + timedelta(seconds=self._settings.remove_seconds)
        number = found.change
        if fault is None or fault.kind is not FaultKind.REMOVE_LATE:
            found.phase = Phase.REMOVING
        self._expect(found, at)

        def due(when: datetime) -> None:
            if found.change != number:
                return
            if fault is None:
                self._drop(found)
                self._end(found, when)
            elif fault.kind is FaultKind.REMOVE_LEAKS:
                self._finish(found, when, Phase.BROKEN, _words(fault, "failed to reset the IPUs of the partition"))
            else:
                self._end(found, when)
                self.timeline.at(when + timedelta(seconds=fault.seconds), lambda _when: self._drop(found))

        self.timeline.at(at, due)

    def _activate(self, made: _Partition) -> None:
        if made.phase is Phase.CREATING:
            made.phase = Phase.ACTIVE

    def _drop(self, gone: _Partition) -> None:
        if self._partitions.get(gone.asked.id) is gone:
            del self._partitions[gone.asked.id]

    def _finish(self, changed: _Partition, now: datetime, phase: Phase, failure: str = "") -> None:
        changed.phase = phase
        self._end(changed, now, failure)

    def _expect(self, changed: _Partition, at: datetime | None) -> None:
        self._outcomes[changed.change] = Outcome(at=at, done=False)
        if len(self._outcomes) > _OUTCOMES_KEPT:
            del self._outcomes[next(iter(self._outcomes))]

    def _end(self, changed: _Partition, now: datetime, failure: str = "") -> None:
        if changed.change:
            self._outcomes[changed.change] = Outcome(at=now, done=True, failure=failure)
        changed.change = 0

    def _view_of(self, item: _Partition) -> PartitionView:
        return PartitionView(
            id=item.asked.id,
            number=item.number,
            size=item.asked.size,
            allocation=item.allocation.name,
            cluster=item.allocation.cluster,
            reconfigurable=item.asked.reconfigurable,
            user=item.user,
            phase=item.phase,
            state=_STATES[item.phase],
            created_at=item.created_at,
            ipus=item.ipus,
        )

    def _view_of_allocation(self, item: _Allocation) -> AllocationView:
        taken = {ipu for partition in self._partitions.values() for ipu in partition.ipus}
        free = sum(1 for ipu in item.ipus if ipu not in taken)
        return AllocationView(name=item.name, cluster=item.cluster, agents=item.agents, free=free)


def _words(fault: Fault | None, usual: str) -> str:
    return fault.message if fault is not None and fault.message else usual


def _allocations_of(settings: VipuSettings) -> dict[str, _Allocation]:
    found: dict[str, _Allocation] = {}
    numbers = itertools.count()
    for name, raw in settings.allocations.items():
        listed: Any = raw["agents"]
        agents = tuple(f"ag{next(numbers)}" for _ in range(listed)) if isinstance(listed, int) else tuple(listed)
        ipus = tuple((agent, index) for agent in agents for index in range(IPUS_OF_AGENT))
        found[name] = _Allocation(name=name, cluster=str(raw["cluster"]), agents=agents, ipus=ipus)
    return found
