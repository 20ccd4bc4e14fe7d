"""What is done for the slices that want a pool and have none: a create, or the reason why not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model.capacity import NodePoolRequest, PoolName, Zone
from provisioner.model.choices import key_of_choice
from provisioner.model.workloads import WorkloadUid, pod_ref, workload_ref
from provisioner.slices.demand import Slice
from provisioner.slices.planning.launch import blockers
from provisioner.slices.planning.launch.blockers import Blocker
from provisioner.slices.planning.launch.capacity import Choices
from provisioner.slices.planning.launch.gangs import Turns
from provisioner.slices.planning.launch.limits import Budget, Refusal
from provisioner.slices.planning.launch.order import by_turn, paced_until
from provisioner.slices.planning.launch.probes import Probes
from provisioner.slices.planning.launch.reserving import is_due, is_open, pass_turns, turn_of
from provisioner.slices.planning.launch.specification import Specification, check_shape, is_held, labels_left_out
from provisioner.slices.planning.launch.together import Unsatisfiable, find_unsatisfiable
from provisioner.slices.planning.lifecycle import Phase
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import KeepingTurn, Pace, Reservation
from provisioner.slices.planning.notices import not_separate, notice, underused, unknown_selectors, unlisted
from provisioner.slices.planning.plan import Create, Notice, PoolState
from provisioner.slices.planning.round import Round
from provisioner.slices.supplier import UnmeetableError

#: What creates and deletes wait for where GKE takes no more at once.
OTHER_OPERATIONS = "other node pool operations of this cluster to end"
#: A slice that waits for its turn for longer is told: in the ordinary course it comes sooner.
_PATIENCE = timedelta(minutes=2)


@dataclass(slots=True, kw_only=True)
class Launches:
    """What came of the slices that have no pool."""

    creates: list[Create] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    #: One line of the read model for each pool that does not exist yet.
    wanted: list[PoolState] = field(default_factory=list)
    wake_at: list[datetime] = field(default_factory=list)
    waits_for_operations: bool = False
    pace: Pace = field(default_factory=Pace)
    #: By the scope of the limit.
    reservations: dict[str, Reservation] = field(default_factory=dict)
    #: Workloads for which chips may be kept next, likewise; longest waiting first. Only where it is nobody's turn.
    candidates: dict[str, list[WorkloadUid]] = field(default_factory=dict)
    keeping_turns: Mapping[str, KeepingTurn] = field(default_factory=dict)
    turns_in_vain: Mapping[WorkloadUid, int] = field(default_factory=dict)


def launch(round_: Round, matching: Matching, turns: Turns, budget: Budget, slots: int | None) -> Launches:
    """Decide on a create for each slice, as far as limits, back-off and the cluster's operations allow.

    `slots` is how many operations may be started; None: any number.
    """
    unserved = by_turn(round_, matching.unserved, turns)
    members: dict[WorkloadUid, list[Slice]] = defaultdict(list)
    for slice_ in unserved:
        if slice_.workload.uid in turns.members:
            members[slice_.workload.uid].append(slice_)
    launcher = _Launcher(
        round_=round_,
        sidelined=turns.sidelined,
        members=members,
        unsatisfiable=find_unsatisfiable(round_, unserved, turns, matching.zones, budget),
        slots=slots,
        names=_taken_names(round_),
        probes=Probes.of(round_),
        zones=dict(matching.zones),
        budget=budget.copy(),
        launches=Launches(pace=round_.memory.pace),
    )
    for slice_ in unserved:
        launcher.serve(slice_)
    launches = launcher.launches
    launches.keeping_turns, launches.turns_in_vain = pass_turns(
        round_.memory, launches.reservations, launches.candidates, {each.workload.uid for each in unserved}, round_.now
    )
    # A turn that begins now has its effect in the next decision.
    launches.wake_at += [
        round_.now if turn.workload_uid is not None and turn.began_at == round_.now else turn.until
        for turn in launches.keeping_turns.values()
    ]
    return launches


def _taken_names(round_: Round) -> set[PoolName]:
    """List the names that are in use.

    A name is free only when nothing of an earlier pool of that name is left. A delete of ours that is not closed yet,
    or nodes in the cache with others' pods on them, would be taken for the new pool's: its slice would not count on it
    and buy another, and the delete might even hit it.
    """
    listed = (pool.name for pool in round_.snapshot.pools)
    with_nodes = (node.pool_name for node in round_.snapshot.nodes)
    return {*listed, *round_.memory.creates, *round_.memory.deletes, *with_nodes}


@dataclass(slots=True, kw_only=True)
class _Launcher:
    """Serves one slice after the other; what one gets, the next one does not."""

    round_: Round
    #: Workloads whose turn it is not, and why.
    sidelined: Mapping[WorkloadUid, str]
    #: Slices of which all are bought or none.
    members: Mapping[WorkloadUid, list[Slice]]
    unsatisfiable: Mapping[WorkloadUid, Unsatisfiable]
    slots: int | None
    names: set[PoolName]
    probes: Probes
    #: The zone of workloads whose pools are all to be in one.
    zones: dict[WorkloadUid, Zone]
    budget: Budget
    launches: Launches
    #: Of the slices that failed and are paced, one tries next.
    paces: bool = False

    def serve(self, slice_: Slice) -> None:
        """Decide on a create for one slice."""
        launches, uid = self.launches, slice_.workload.uid
        attempt, name = self._free_name(slice_)
        try:
            choices = self.round_.candidates.choices(slice_, self.zones.get(uid))
            refusal = self.budget.refusal(slice_)
            blocker = _too_much(slice_, name, refusal) if refusal is not None else self._queued(slice_, name)
            offer = blocker or self._offer(slice_, name, choices)
            if self._is_out_for_long(slice_, refusal):
                self._reserve(slice_, lambda: self._offer(slice_, name, choices))
        except UnmeetableError as error:
            message = f"No TPU node pool is created: {error}"
            launches.notices.append(notice(slice_, constants.INVALID_REQUEST, message))
            self._state(slice_, name, Phase.BLOCKED, message)
            return
        gang = self.unsatisfiable.get(uid)
        if gang is not None and not isinstance(offer, Blocker) and slice_.id not in gang.first:
            offer = _for_the_others(slice_, name, gang)
        if isinstance(offer, Blocker):
            self._state(slice_, name, Phase.BLOCKED, offer.note, next_at=offer.until)
            launches.notices += [offer.notice] if offer.notice is not None else []
            launches.wake_at += [offer.until] if offer.until is not None else []
        elif self._lacks_operations(offer):
            launches.waits_for_operations = True
            self._wait_for_operations(slice_, name, offer)
        else:
            paced = paced_until(slice_, launches.pace, self.round_.memory)
            if paced is not None and paced > self.round_.now:
                launches.wake_at.append(paced)
                self._wait_for_pace(slice_, name, paced)
                return
            if paced is not None:
                launches.pace = backoff.retried(launches.pace, self.round_.now)
            self._create(slice_, offer.stamped(name, attempt), choices)
            self.probes.add(offer.blueprint.capacity, name)

    def _wait_for_operations(self, slice_: Slice, name: PoolName, offer: Specification) -> None:
        """Say which operations a slice waits for; in an Event too, where that lasts."""
        limit = self.round_.memory.operations.limit
        last = backoff.probing(self.round_.memory.backoffs, offer.blueprint.capacity)
        if not self._has_slot or last is None:
            key = "operations"
            message = f"Node pool {name} waits for {OTHER_OPERATIONS}"
            message += f"; {self.round_.rules.supplier_name} takes {limit} at once" if limit is not None else ""
        else:
            key = "probes"
            message = (
                f"Node pool {name} waits for other node pools of capacity that was out of stock or over quota: no more "
                f"than {self.probes.most} at once are created to see whether it is available again; the last "
                f"message of {self.round_.rules.supplier_name} for this one: {last.failure.message}"
            )
        self._state(slice_, name, Phase.WANTED, message)
        self._tell_if_it_lasts(slice_, message, f"{key} {name}")

    def _wait_for_pace(self, slice_: Slice, name: PoolName, until: datetime) -> None:
        """Say why a slice has failed that is to try again, one after the other; the first of them tries then."""
        own = self.round_.memory.slice_backoffs.get(slice_.id)
        last = f"; the last attempt failed: {own.failure.message}" if own is not None else ""
        message = f"Node pool {name} is tried again after other slices whose creates failed{last}"
        self._state(slice_, name, Phase.WANTED, message, next_at=None if self.paces else until)
        self.paces = True
        self._tell_if_it_lasts(slice_, message, f"pace {name}")

    def _tell_if_it_lasts(self, slice_: Slice, message: str, key: str) -> None:
        """Say in an Event too what a slice waits for, where it has waited for long."""
        since = slice_.leader.unschedulable_since if slice_.leader is not None else None
        if since is not None and self.round_.now - since >= _PATIENCE:
            said = notice(slice_, constants.CREATION_WAITING, message, key=key, warning=False)
            self.launches.notices.append(said)

    @property
    def _has_slot(self) -> bool:
        """Whether GKE takes one more operation."""
        return self.slots is None or len(self.launches.creates) < self.slots

    def _lacks_operations(self, offer: Specification) -> bool:
        return not self._has_slot or self.probes.full(offer.blueprint.capacity)

    def _create(self, slice_: Slice, request: NodePoolRequest, choices: Choices) -> None:
        """Decide on a create, and tell what its owner has to know of it."""
        launches = self.launches
        launches.creates.append(_create_of(slice_, request))
        self._state(slice_, request.name, Phase.WANTED, "")
        launches.notices += (*underused(slice_), *unlisted(slice_), *self._left_out(slice_, choices))
        launches.notices += unknown_selectors(slice_, request, self.round_.rules)
        launches.notices += not_separate(slice_) if is_held(request) else ()
        self.names.add(request.name)
        self.zones.setdefault(slice_.workload.uid, request.zone)
        self.budget.take(slice_)

    def _offer(self, slice_: Slice, name: PoolName, choices: Choices) -> Specification | Blocker:
        """Specify the pool of the best choice that nothing stands in the way of."""
        memory, now, making = self.round_.memory, self.round_.now, self.probes.making
        shape = check_shape(slice_)
        machine_type, topology, nodes = shape.machine_type.name, str(shape.topology), slice_.nodes
        in_the_way: list[blockers.InTheWay] = []
        problems: dict[str, None] = {}
        waiting: Specification | None = None
        for choice in choices.open:
            key = key_of_choice(choice, machine_type, topology, nodes)
            found = blockers.of_capacity(slice_, choice, key, memory, making, now)
            if found is None:
                try:
                    specification = self.round_.candidates.specification(slice_, choice)
                except UnmeetableError as error:
                    problems.setdefault(str(error))
                    continue
                digest = specification.digest
                found = blockers.of_request(choice, digest, memory, now) or blockers.of_failed_pool(
                    choice, digest, memory, now
                )
                if found is None and self.probes.full(specification.blueprint.capacity):
                    # Another choice may need no probe.
                    waiting = waiting or specification
                    continue
                if found is None:
                    return specification
            in_the_way.append(found)
        if waiting is not None:
            return waiting
        if not in_the_way:
            raise UnmeetableError("; ".join(problems))
        return blockers.combined(slice_, name, in_the_way, now, self.round_.rules.supplier_name)

    def _free_name(self, slice_: Slice) -> tuple[int, PoolName]:
        """Return the attempt to make and its pool's name: one of which nothing is left."""
        listed = max((each.attempt + 1 for each in self.round_.owned.get(slice_.id, ())), default=0)
        attempt = max(listed, self.round_.memory.attempts.get(slice_.id, 0))
        while (name := self.round_.rules.pool_name(slice_.workload.name, slice_.id, attempt)) in self.names:
            # Something is left of an earlier pool of that name, or somebody made one by hand.
            attempt += 1
        return attempt, name

    def _queued(self, slice_: Slice, name: PoolName) -> Blocker | None:
        turn = self.sidelined.get(slice_.workload.uid)
        if turn is None:
            return None
        message = f"Node pool {name} waits: {turn}"
        return Blocker(note=message, notice=notice(slice_, constants.CREATION_WAITING, message, key=f"queue {name}"))

    def _is_out_for_long(self, slice_: Slice, refusal: Refusal | None) -> bool:
        """Whether limits alone have kept a slice, or one that it starts together with, out for too long."""
        uid, round_ = slice_.workload.uid, self.round_
        if not is_due(round_.now - turn_of(slice_, round_.memory)) or uid in self.sidelined:
            return False
        gang = self.unsatisfiable.get(uid)
        return refusal is not None if gang is None else gang.limited

    def _reserve(self, slice_: Slice, offered: Callable[[], Specification | Blocker]) -> None:
        """Keep what becomes free for slices if it is their turn; note that they wait for one if it is nobody's."""
        uid, memory, now = slice_.workload.uid, self.round_.memory, self.round_.now
        together: Collection[Slice] = self.members.get(uid, (slice_,))
        scope = self.budget.scope_to_reserve(together)
        turn = memory.keeping_turns.get(scope)
        is_theirs = turn is not None and turn.workload_uid == uid and turn.until > now
        if not scope or not (is_theirs or is_open(turn, now)):
            return
        try:
            if isinstance(offered(), Blocker):
                return
        except UnmeetableError:
            # Told when the limit is out of the way.
            return
        if is_theirs:
            missing = self.budget.reserve(scope, together)
            since = turn_of(slice_, memory)
            self.launches.reservations[scope] = Reservation(workload_uid=uid, since=since, missing_chips=missing)
        else:
            self.launches.candidates.setdefault(scope, []).append(uid)

    def _left_out(self, slice_: Slice, choices: Choices) -> Iterable[Notice]:
        messages = [labels_left_out(slice_, self.round_.settings, self.round_.rules)]
        if choices.left_out:
            messages.append(f"Some choices of capacity are skipped: {'; '.join(choices.left_out)}")
        return [notice(slice_, constants.INVALID_REQUEST, message) for message in messages if message]

    def _state(
        self, slice_: Slice, name: PoolName, phase: Phase, note: str, *, next_at: datetime | None = None
    ) -> None:
        """Write the line of a pool that is wanted, or that something is in the way of."""
        shape, nodes = slice_.shape, slice_.nodes
        self.launches.wanted.append(
            PoolState(
                name=name,
                phase=phase,
                since=self.round_.now,
                slice_id=slice_.id,
                leader=slice_.leader,
                workload=slice_.workload,
                workload_kind=slice_.workload.kind,
                namespace=slice_.workload.namespace,
                workload_name=slice_.workload.name,
                group_name=slice_.group_name,
                machine_type=shape.machine_type.name if shape is not None else "",
                topology=str(shape.topology) if shape is not None else "",
                chips=shape.machine_type.chips * nodes if shape is not None else 0,
                nodes=nodes,
                ready_nodes=0,
                note=note,
                next_at=next_at,
            )
        )


def _too_much(slice_: Slice, name: PoolName, refusal: Refusal) -> Blocker:
    message = f"Node pool {name} is not created: {refusal.message}"
    said = notice(slice_, constants.LIMIT_REACHED, message, key=f"{refusal.limit} {name}")
    return Blocker(note=message, notice=said, until=refusal.until)


def _for_the_others(slice_: Slice, name: PoolName, found: Unsatisfiable) -> Blocker:
    """Tell that a slice could be had, and another one of its workload could not."""
    message = f"Node pool {name} is not created, because the slices of {slice_.workload} start together: {found.why}"
    said = notice(slice_, constants.CREATION_WAITING, message, key=f"together {name}")
    return Blocker(note=message, notice=said, until=found.until)


def _create_of(slice_: Slice, request: NodePoolRequest) -> Create:
    if slice_.leader is None:
        raise ValueError(f"slice {slice_.id} has no leader pod and cannot be pending")
    workload = workload_ref(slice_.workload)
    return Create(slice_id=slice_.id, request=request, pod=pod_ref(slice_.leader), workload=workload)
