"""Decides on a create for each slice that wants a pool and has none, or records why the slice waits.

First, each slice is examined separately: the result is a list of possible pools, or the reason to wait. Then the
creates are decided in the order of the queue, because operations and capacity that was out of stock are scarce.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from provisioner import constants
from provisioner.model.capacity import NodePoolRequest, PoolName, PoolStatus, Zone
from provisioner.model.choices import CapacityKey, capacity_key
from provisioner.model.sources import MACHINE_CONFIGS
from provisioner.model.workloads import WorkloadUid, pod_ref, workload_ref
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.contention import waits
from provisioner.slices.planning.contention.limits import Budget
from provisioner.slices.planning.contention.line import CREATES, Unit, granted, in_line, place_of
from provisioner.slices.planning.contention.usage import LimitScope
from provisioner.slices.planning.contention.waits import ChoiceBlocker, WaitKind, WaitsFor
from provisioner.slices.planning.create.gangs import GangTurns
from provisioner.slices.planning.create.options import LaunchOptions, has_fresh_offer, options_of, problem_of_all
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import BackoffKey, Phase, TurnResource
from provisioner.slices.planning.plan import Create, PoolState, wanted_pool
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.seats import burst_ends, join
from provisioner.slices.planning.spec.capacity import Choices, wants_one_zone
from provisioner.slices.planning.spec.specification import Specification, pool_name
from provisioner.slices.supplier import UnmeetableError

#: Time after the leader pod became unschedulable in which a create waits until other pools lose the slice's labels.
_RELABELLED = timedelta(minutes=1)
#: Time after the leader pod became unschedulable in which no Event reports a wait for operations.
_PATIENCE = timedelta(minutes=2)
_BRIEF = (WaitKind.OPERATIONS, WaitKind.LABELS, WaitKind.BURST)


class _Candidate(NamedTuple):
    slice_: Slice
    unit: Unit
    #: Zone of the workload's other pools when `options` were computed; None if unknown.
    zone: Zone | None
    options: LaunchOptions


class Launches:
    """The creates of one decision, and the reasons of slices that wait. Used by one thread."""

    def __init__(self, ctx: Round, matching: Matching, turns: GangTurns, budget: Budget, line: Sequence[Unit]) -> None:
        """Examine the slices that want a pool and have none. Slices that may get one become candidates for `serve`."""
        memory = ctx.memory
        self._round, self._matching, self._gangs, self._budget = ctx, matching, turns, budget
        self.units: Mapping[SliceId, Unit] = {unit.id: unit for unit in line}
        #: Names that a new pool must not have: open deletes and nodes of a former pool would count for the new pool.
        self._names: set[PoolName] = {pool.name for pool in ctx.snapshot.pools}
        self._names |= {node.pool_name for node in ctx.snapshot.nodes} | {*memory.creates, *memory.deletes}
        self._in_flight = _in_flight(ctx)
        self._zones = dict(matching.zones)
        self.tallies, self.stamps = memory.tallies, turns.stamps
        self._marked = _marked(ctx) if any(slice_.controlled for slice_ in matching.unserved) else {}
        self._candidates: list[_Candidate] = []
        self._refused: list[Sequence[Slice]] = []
        #: For each examined slice, the other slices that share its new pool, or wait for the same reason.
        self.joined: dict[SliceId, tuple[Slice, ...]] = {}
        self.waits: dict[SliceId, WaitsFor] = {}
        self.creates: list[Create] = []
        self.served: list[tuple[Slice, NodePoolRequest, Choices]] = []
        self.wanted: list[PoolState] = []
        self.wake_at: list[datetime] = []
        self.waits_for_operations = False
        self.contended: set[TurnResource] = set()
        self._names_of: dict[SliceId, tuple[int, PoolName]] = {}
        refusals = self._refusals_of_gangs()
        refused = set(filter(ctx.is_refused, ctx.refusals))
        by_workload = ctx.settings.max_pools_per_jobset is not None
        for slice_, sharers in join(matching.unserved, refused, by_workload=by_workload):
            self.joined[slice_.id] = sharers
            candidate = self._look_at(slice_, refusals)
            self._candidates += [candidate] if candidate is not None else []

    def refused_in_line(self) -> list[Sequence[Slice]]:
        """Return the slices to make room for, in the order of the queue; slices that start together are one entry."""
        places = {slice_id: place for place, slice_id in enumerate(self.units)}
        return sorted(self._refused, key=lambda slices: places[slices[0].id])

    def serve(self, slots: int) -> None:
        """Decide on at most `slots` creates, and record why the other slices wait."""
        backoffs = self._round.memory.backoffs
        waiting: dict[CapacityKey, list[Unit]] = defaultdict(list)
        for candidate in self._candidates:
            for _, offer in candidate.options.offers:
                if backoff.probing(backoffs, offer.blueprint.capacity) is not None:
                    waiting[offer.blueprint.capacity].append(candidate.unit)
        places = {key: place_of(in_line(key, units, self._round.memory.stamps)) for key, units in waiting.items()}
        # Capacity with a back-off is contended even if it is not in `waiting`, because the back-off may block slices.
        self.contended |= {key for key in backoffs if isinstance(key, CapacityKey) and backoff.probing(backoffs, key)}
        for candidate in self._candidates:
            self._serve(candidate, places, slots)
        self._place_limited()
        for slice_id, wait in tuple(self.waits.items()):
            phase, slice_ = Phase.WANTED if wait.kind in _BRIEF else Phase.BLOCKED, self._round.slices[slice_id]
            sharers, now = self.joined[slice_id], self._round.now
            slice_ = replace(slice_, parallelism=1 + len(sharers)) if sharers else slice_
            self.wanted.append(wanted_pool(slice_, wait.pool, phase, now, sharers=sharers, next_at=wait.until))
            self.waits |= dict.fromkeys((sharer.id for sharer in sharers), wait)
        self.contended |= {CREATES} if self.waits else set()

    def _refusals_of_gangs(self) -> dict[SliceId, WaitsFor]:
        """Return why slices that start together wait, by slice: a pool is created only if all of them can get one."""
        waits_of: dict[SliceId, WaitsFor] = {}
        slices: dict[WorkloadUid, list[Slice]] = defaultdict(list)
        allowed = self._gangs.members.keys() - self._gangs.waiting.keys()
        for slice_ in self._matching.unserved:
            if slice_.workload.uid in allowed:
                slices[slice_.workload.uid].append(slice_)
        memory = self._round.memory
        rejected = {digest for digest, last in memory.backoffs.items() if last.slice_id is not None}
        # A rejected request counts as being tried until its pool is up: the operation of an accepted create may fail.
        calls = (*memory.creates.values(), *memory.coming_up.values())
        tried = {call.slice_id for call in calls if call.request.digest in rejected}
        for uid, unserved in slices.items():
            refusal = self._budget.refusal(unserved, self.units[unserved[0].id])
            problem, first = problem_of_all(self._round, unserved, self._matching.zones), None
            # If a limit can never allow all pools, its message is more exact than `problem`.
            if refusal is not None and (refusal.final or not problem):
                wait = refusal
                self._note_refused(refusal, unserved)
            elif problem:
                wait = WaitsFor(kind=WaitKind.TOGETHER, problem=problem)
            elif rejected and (first := self._first_tried(uid, unserved, rejected, tried)) is not None:
                wait = WaitsFor(kind=WaitKind.TOGETHER, first=first)
            else:
                continue
            together = wait._replace(together=unserved[0].workload)
            waits_of |= {member.id: together for member in unserved if member is not first}
        return waits_of

    def _first_tried(
        self, uid: WorkloadUid, unserved: Sequence[Slice], rejected: Collection[BackoffKey], tried: Collection[SliceId]
    ) -> Slice | None:
        """Return the slice that is tried first, because its request was rejected; None if no request was rejected."""
        for slice_ in self._gangs.members[uid]:
            if slice_.id in tried:
                return slice_
        for slice_ in unserved:
            offers = options_of(self._round, slice_, self._zones.get(uid)).offers
            if any(offer.digest in rejected for _, offer in offers):
                return slice_
        return None

    def _look_at(self, slice_: Slice, refusals: Mapping[SliceId, WaitsFor]) -> _Candidate | None:
        """Return a slice as a candidate for a new pool; if it has to wait, record the reason and return None."""
        slice_ = self._within_limits(slice_)
        self._names_of[slice_.id] = self._free_name(slice_)
        options_or_wait = self._options_or_wait(slice_, refusals)
        burst_end = burst_ends((slice_, *self.joined[slice_.id]), self._round.now)
        if not isinstance(options_or_wait, WaitsFor) and burst_end is not None and burst_end > self._round.now:
            options_or_wait = WaitsFor(kind=WaitKind.BURST, until=burst_end, warning=False, silent=True)
        if isinstance(options_or_wait, WaitsFor):
            self._wait(slice_, options_or_wait)
            return None
        return _Candidate(slice_, self.units[slice_.id], self._zones.get(slice_.workload.uid), options_or_wait)

    def _within_limits(self, slice_: Slice) -> Slice:
        """Return the slice; if it shares pools, with the number of nodes that the limits allow, at least one."""
        while slice_.share is not None and slice_.parallelism > 1 and self._refusal(slice_) is not None:
            slice_ = replace(slice_, parallelism=slice_.parallelism - 1)
        return slice_

    def _refusal(self, slice_: Slice) -> WaitsFor | None:
        return self._budget.refusal([slice_], self.units[slice_.id])

    def _options_or_wait(self, slice_: Slice, refusals: Mapping[SliceId, WaitsFor]) -> LaunchOptions | WaitsFor:
        uid, volumes = slice_.workload.uid, slice_.requirements.volumes
        if volumes is not None and volumes.problem:
            return WaitsFor(kind=WaitKind.VOLUME, problem=(volumes.problem,))
        try:
            options = options_of(self._round, slice_, self._zones.get(uid))
        except UnmeetableError as error:
            requirements = slice_.requirements
            if MACHINE_CONFIGS in self._round.snapshot.unknown and slice_.shape is None and not requirements.problem:
                return WaitsFor(kind=WaitKind.CATALOGUE, problem=error.args)
            return WaitsFor(kind=WaitKind.REQUEST, problem=error.args, failed=True, final=True)
        refusal, gang = self._refusal(slice_), refusals.get(slice_.id)
        if refusal is not None and refusal.kind is WaitKind.PAUSE:
            return refusal
        if (failures := self._too_many_failures(slice_)) is not None:
            return failures
        if (turn := self._gangs.waiting.get(uid)) is not None:
            return turn
        if options.offers and gang is not None:
            return gang
        if refusal is not None:
            self._note_refused(refusal, [slice_])
            return refusal
        if not options.offers:
            return waits.of_choices(options.blockers, self._round.now)
        relabelled_at = self.units[slice_.id].since + _RELABELLED
        alone = slice_.controlled and slice_.share is None
        marked = self._marked.get((slice_.workload.namespace, slice_.mark)) if alone else None
        if marked is not None and self._round.now < relabelled_at:
            return WaitsFor(kind=WaitKind.LABELS, other=marked, until=relabelled_at, warning=False, silent=True)
        return options

    def _note_refused(self, refusal: WaitsFor, slices: Sequence[Slice]) -> None:
        """Record slices that a limit refuses, to make room for them, if each could get capacity that has not failed."""
        fresh = (has_fresh_offer(self._round, slice_, self._zones.get(slice_.workload.uid)) for slice_ in slices)
        if refusal.kind is WaitKind.LIMIT and all(fresh):
            self._refused.append(slices)

    def _serve(self, candidate: _Candidate, places: Mapping[CapacityKey, Mapping[SliceId, int]], slots: int) -> None:
        moved = self._zones.get(candidate.slice_.workload.uid) != candidate.zone
        moved = moved and wants_one_zone(candidate.slice_, self._round.settings)
        if moved or self._within_limits(candidate.slice_) is not candidate.slice_:
            # Earlier creates of this decision chose the zone or used up a limit, so the options are computed again.
            again = self._look_at(candidate.slice_, {})
            if again is None:
                return
            candidate = again
        slice_ = candidate.slice_
        wait = self._refusal(slice_) or self._too_many_failures(slice_)
        offer, blockers = self._in_turn(candidate, places)
        if wait is not None:
            self._wait(slice_, wait)
        elif offer is None:
            self._wait(slice_, waits.of_choices(blockers, self._round.now))
        elif len(self.creates) >= slots:
            self.waits_for_operations = True
            silent = self._round.now - candidate.unit.since < _PATIENCE
            self._wait(slice_, WaitsFor(kind=WaitKind.OPERATIONS, warning=False, silent=silent))
        else:
            self._create(candidate, offer)

    def _in_turn(
        self, candidate: _Candidate, places: Mapping[CapacityKey, Mapping[SliceId, int]]
    ) -> tuple[Specification | None, list[ChoiceBlocker]]:
        """Return the best pool that a slice may try now (None if all are blocked), and the slice's blocked choices."""
        blockers = list(candidate.options.blockers)
        for choice, offer in candidate.options.offers:
            capacity = offer.blueprint.capacity
            last = backoff.probing(self._round.memory.backoffs, capacity)
            if last is None:
                return offer, blockers
            line = places.get(capacity, {})
            place = line.get(candidate.unit.id, len(line) + 1)
            if place <= backoff.max_in_flight(last) - self._in_flight[capacity]:
                return offer, blockers
            blockers.append(ChoiceBlocker(choice, last, capacity, place, max(place, len(line))))
        return None, blockers

    def _wait(self, slice_: Slice, wait: WaitsFor) -> None:
        self.waits[slice_.id] = wait._replace(pool=self._names_of[slice_.id][1])
        self.wake_at += [wait.until] if wait.until is not None else []

    def _place_limited(self) -> None:
        """Add the place in the queue and the users of the limit to waits for a limit and to waits in `_BRIEF`."""
        lines: dict[LimitScope | None, dict[Unit, list[SliceId]]] = defaultdict(dict)
        gangs = self._gangs.members
        first: dict[WorkloadUid, Unit] = {}
        for slice_id, wait in self.waits.items():
            if (wait.scope is not None and not wait.final) or wait.kind in _BRIEF:
                unit = self.units[slice_id]
                # Slices that start together have one place in the queue.
                unit = first.setdefault(slice_id.workload_uid, unit) if slice_id.workload_uid in gangs else unit
                lines[wait.scope].setdefault(unit, []).append(slice_id)
        users = self._budget.users() if lines else {}
        for scope, units in lines.items():
            order = in_line(CREATES, units, self._round.memory.stamps)
            using = users[scope].most_common() if scope is not None else []
            ids = [unit.id for unit in order]
            for place, unit in enumerate(order, start=1):
                for slice_id in units[unit]:
                    self.waits[slice_id] = self.waits[slice_id].in_line(place, ids, using)

    def _too_many_failures(self, slice_: Slice) -> WaitsFor | None:
        counted = backoff.counted_until(self.tallies, slice_.id, slice_.workload.namespace, slice_.siblings)
        if counted is None or counted[0] <= self._round.now:
            return None
        retry_at, failure = counted
        return WaitsFor(kind=WaitKind.FAILURES, failure=failure, until=retry_at, failed=True)

    def _create(self, candidate: _Candidate, offer: Specification) -> None:
        slice_, capacity = candidate.slice_, offer.blueprint.capacity
        attempt, name = self._names_of[slice_.id]
        request = offer.stamped(name, attempt)
        if slice_.leader is None:
            raise ValueError(f"slice {slice_.id} has no leader pod and cannot be pending")
        pod, workload = pod_ref(slice_.leader), workload_ref(slice_.workload)
        self.creates.append(Create(slice_id=slice_.id, request=request, pod=pod, workload=workload))
        sharers, seats = self.joined[slice_.id], slice_.parallelism - 1
        sharers, unseated = sharers[:seats], sharers[seats:]
        self.wanted.append(wanted_pool(slice_, request.name, Phase.WANTED, self._round.now, sharers=sharers))
        self.served.append((slice_, request, candidate.options.choices))
        self._names.add(request.name)
        self._zones.setdefault(slice_.workload.uid, request.zone)
        self._budget.take(slice_)
        self.tallies = backoff.create_sent(self.tallies, slice_.id, slice_.workload.namespace, self._round.now)
        for resource in (CREATES, capacity):
            self.stamps = granted(self.stamps, resource, [candidate.unit], self._round.now)
        # If a limit reduced the nodes of the pool, the slices in `unseated` get no node, and wait for the limit.
        if unseated and (refusal := self._refusal(unseated[0])) is not None:
            self.joined |= {slice_.id: sharers, unseated[0].id: unseated[1:]}
            self._names_of[unseated[0].id] = self._free_name(unseated[0])
            self._wait(unseated[0], refusal)

    def _free_name(self, slice_: Slice) -> tuple[int, PoolName]:
        listed = max((pool.attempt for pool in self._round.pools_of.get(slice_.id, ())), default=0)
        attempt = max(listed, self._round.memory.slice(slice_.id).attempt)
        while (name := pool_name(slice_.workload.name, slice_.id, attempt)) in self._names:
            attempt += 1
        return attempt, name


def _marked(ctx: Round) -> dict[tuple[str, str], PoolName]:
    """Return a usable pool for each namespace and mark in labels: pods that select both can run on the pool."""
    pools = [pool for pool in ctx.owned.values() if pool.usable]
    labelled = [(pool, node.labels) for pool in pools for node in pool.nodes]
    labelled += [(pool, pool.pool.labels) for pool in pools if pool.missing]
    marks = (
        (labels.get(constants.SLICE_NAMESPACE, ""), labels.get(constants.SLICE, ""), pool.name)
        for pool, labels in labelled
    )
    return {(namespace, mark): name for namespace, mark, name in marks if mark}


def _in_flight(ctx: Round) -> Counter[CapacityKey]:
    memory = ctx.memory
    if not memory.backoffs:
        return Counter()
    requests = {name: call.request for name, call in (*memory.coming_up.items(), *memory.creates.items())}
    making = (pool for pool in ctx.owned.values() if not pool.listed or pool.pool.status is PoolStatus.PROVISIONING)
    return Counter(capacity_key(requests.get(pool.name, pool.pool)) for pool in making)
