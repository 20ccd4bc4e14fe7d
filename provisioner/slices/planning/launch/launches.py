"""What is done for the slices that want a pool and have none: a create, or the reason why not."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from provisioner import constants
from provisioner.model.capacity import NodePoolRequest, PoolName, PoolStatus, Zone
from provisioner.model.workloads import WorkloadUid, pod_ref, workload_ref
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch import allowlists, blockers, limits, wishes
from provisioner.slices.planning.launch.blockers import Obstacle
from provisioner.slices.planning.launch.capacity import Choices, capacity_key, choices_of
from provisioner.slices.planning.launch.limits import Budget, Refusal
from provisioner.slices.planning.launch.names import pool_name
from provisioner.slices.planning.launch.reserving import is_due, is_open, pass_turns, turn_of
from provisioner.slices.planning.launch.specification import check_shape, is_held, labels_left_out, pool_request
from provisioner.slices.planning.launch.wishes import UnmeetableError
from provisioner.slices.planning.lifecycle import Phase
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import KeepingTurn, Memory, Pace, Reservation
from provisioner.slices.planning.plan import Create, PoolState, Verdict
from provisioner.slices.planning.supply import Supply
from provisioner.slices.planning.verdicts import not_separate, underused, unknown_selectors, unlisted, verdict

_WAITS_FOR_OPERATIONS = "waits for other node pool operations of this cluster to end"
_WAITS_FOR_PACE = "tries again in a moment, after others that failed"


@dataclass(slots=True, kw_only=True)
class Buying:
    """What came of the slices that have no pool."""

    creates: list[Create] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    #: One line of the read model for each pool that does not exist yet.
    wanted: list[PoolState] = field(default_factory=list)
    wake_at: list[datetime] = field(default_factory=list)
    waits_for_operations: bool = False
    pace: Pace = field(default_factory=Pace)
    #: By the scope of the limit.
    reservations: dict[str, Reservation] = field(default_factory=dict)
    #: JobSets for which chips may be kept next, likewise; longest waiting first. Only where it is nobody's turn.
    candidates: dict[str, list[WorkloadUid]] = field(default_factory=dict)
    keeping_turns: Mapping[str, KeepingTurn] = field(default_factory=dict)
    turns_in_vain: Mapping[WorkloadUid, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hopeless:
    """Why none is bought of the slices of a JobSet that start together."""

    why: str
    #: When that may be over by itself.
    until: datetime | None = None
    #: It waits for nothing but limits.
    limited: bool = False
    #: Those that try before all others, for GKE refused them before: the others would be held for nothing.
    first: frozenset[SliceId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """Everything that decides on creates beside the slice itself."""

    owned: Mapping[SliceId, list[Supply]]
    supply: Mapping[PoolName, Supply]
    #: Names that are in use.
    taken: frozenset[PoolName]
    memory: Memory
    settings: Settings
    #: The zone of JobSets whose pools are all to be in one.
    zones: Mapping[WorkloadUid, Zone] = field(default_factory=dict)
    #: JobSets whose turn it is not, and why.
    queued: Mapping[WorkloadUid, str] = field(default_factory=dict)
    #: JobSets of which all slices are bought or none.
    gangs: Collection[WorkloadUid] = ()
    budget: Budget
    #: How many operations may be started; None: any number.
    slots: int | None
    now: datetime


def buy(unserved: Iterable[Slice], shop: Shop) -> Buying:
    """Decide on a create for each slice, as far as limits, back-off and the cluster's operations allow.

    Whoever failed longest ago, or came first since, goes first: so nobody who is refused keeps others from trying.
    """
    buying = Buying(pace=shop.memory.pace)
    names = set(shop.taken)
    probes = _Probes.of(shop)
    zones = dict(shop.zones)
    budget = shop.budget.copy()
    unserved = _by_turn(unserved, shop)
    hopeless = _hopeless(unserved, shop, zones)
    members: dict[WorkloadUid, list[Slice]] = defaultdict(list)
    for slice_ in unserved:
        if slice_.workload.uid in shop.gangs:
            members[slice_.workload.uid].append(slice_)
    for slice_ in unserved:
        attempt, name = _free_name(slice_, shop, names)
        try:
            choices = _choices(slice_, shop.settings, zones)
            refusal = budget.refusal(slice_)
            obstacle = _too_much(slice_, name, refusal) if refusal is not None else _queued(slice_, name, shop)
            offer = obstacle or _offer(slice_, name, attempt, choices, probes, shop)
            if _out_for_long(slice_, refusal, hopeless, shop):
                offered = functools.partial(_offer, slice_, name, attempt, choices, probes, shop)
                _reserve(slice_, members.get(slice_.workload.uid, (slice_,)), offered, budget, buying, shop)
        except UnmeetableError as error:
            buying.verdicts.append(verdict(slice_, constants.INVALID_REQUEST, f"No TPU node pool is made: {error}"))
            buying.wanted.append(_wanted(slice_, name, Phase.BLOCKED, shop.now, str(error)))
            continue
        waits = slice_.workload.uid in hopeless and slice_.id not in hopeless[slice_.workload.uid].first
        if not isinstance(offer, Obstacle) and waits:
            offer = _for_the_others(slice_, name, hopeless[slice_.workload.uid])
        if isinstance(offer, Obstacle):
            buying.wanted.append(_wanted(slice_, name, Phase.BLOCKED, shop.now, offer.note))
            buying.verdicts += [offer.verdict] if offer.verdict is not None else []
            buying.wake_at += [offer.until] if offer.until is not None else []
        elif (shop.slots is not None and len(buying.creates) >= shop.slots) or probes.full(offer):
            buying.waits_for_operations = True
            buying.wanted.append(_wanted(slice_, name, Phase.WANTED, shop.now, _WAITS_FOR_OPERATIONS))
        elif (paced_until := _paced_until(slice_, buying.pace, shop.memory)) is not None and paced_until > shop.now:
            buying.wake_at.append(paced_until)
            buying.wanted.append(_wanted(slice_, name, Phase.WANTED, shop.now, _WAITS_FOR_PACE))
        else:
            if paced_until is not None:
                buying.pace = backoff.retried(buying.pace, shop.now)
            buying.creates.append(_create(slice_, offer))
            buying.wanted.append(_wanted(slice_, name, Phase.WANTED, shop.now, ""))
            buying.verdicts += (*underused(slice_), *unlisted(slice_), *_left_out(slice_, choices, shop.settings))
            buying.verdicts += unknown_selectors(slice_, offer)
            buying.verdicts += not_separate(slice_) if is_held(offer) else ()
            names.add(name)
            probes.add(offer)
            zones.setdefault(slice_.workload.uid, offer.zone)
            budget.take(slice_)
    buying.keeping_turns, buying.turns_in_vain = pass_turns(
        shop.memory, buying.reservations, buying.candidates, {each.workload.uid for each in unserved}, shop.now
    )
    # A turn that begins now has its effect in the next decision.
    buying.wake_at += [
        shop.now if turn.workload_uid is not None and turn.began_at == shop.now else turn.until
        for turn in buying.keeping_turns.values()
    ]
    return buying


def _reserve(
    slice_: Slice,
    together: Collection[Slice],
    offered: Callable[[], NodePoolRequest | Obstacle],
    budget: Budget,
    buying: Buying,
    shop: Shop,
) -> None:
    """Keep what becomes free for slices if it is their JobSet's turn; note that they wait for one if it is nobody's."""
    scope, uid = budget.scope_to_reserve(together), slice_.workload.uid
    turn = shop.memory.keeping_turns.get(scope)
    is_theirs = turn is not None and turn.workload_uid == uid and turn.until > shop.now
    if not scope or not (is_theirs or is_open(turn, shop.now)):
        return
    try:
        if isinstance(offered(), Obstacle):
            return
    except UnmeetableError:
        # Told when the limit is out of the way.
        return
    if is_theirs:
        missing = budget.reserve(scope, together)
        since = turn_of(slice_, shop.memory)
        buying.reservations[scope] = Reservation(workload_uid=uid, since=since, missing_chips=missing)
    else:
        buying.candidates.setdefault(scope, []).append(uid)


def _by_turn(unserved: Iterable[Slice], shop: Shop) -> list[Slice]:
    """Sort slices by whose turn it is.

    Those that failed take turns together with others of their JobSet that compete for the same: a thousand slices of
    one JobSet that is refused must not try before one slice of another. For the pace, where all compete with all, the
    namespaces take turns first; for capacity, only slices of one shape do, also those that have not tried yet.
    """
    unserved, memory, order = tuple(unserved), shop.memory, _order(shop)
    turns = {each.id: order(each) for each in unserved}
    if not memory.last_failure_at:
        return sorted(unserved, key=lambda each: turns[each.id])
    groups: dict[SliceId, tuple[tuple[object, ...], ...]] = {}
    latest: dict[tuple[object, ...], datetime] = {}
    for each in unserved:
        failed_at = memory.last_failure_at.get(each.id)
        alike: tuple[object, ...] = (each.workload.uid, each.shape, each.nodes)
        if failed_at is None or turns[each.id] < failed_at:
            groups[each.id] = (alike,)
            continue
        if _paced_until(each, memory.pace, memory) is not None:
            groups[each.id] = ((each.workload.namespace,), (each.workload.namespace, each.workload.uid))
        else:
            groups[each.id] = (alike,)
        for group in groups[each.id]:
            latest[group] = max(turns[each.id], latest.get(group, turns[each.id]))

    def key(each: Slice) -> tuple[datetime, datetime, datetime]:
        turn = turns[each.id]
        outer, *inner = [max(turn, latest.get(group, turn)) for group in groups[each.id]]
        return outer, (inner or [outer])[0], turn

    return sorted(unserved, key=key)


def problem_of(
    slice_: Slice, settings: Settings, memory: Memory, zones: Mapping[WorkloadUid, Zone], now: datetime
) -> str:
    """Say why no pool can be had for a slice, whatever there is in stock; empty where one can."""
    problems: dict[str, None] = {}
    try:
        choices = _choices(slice_, settings, zones)
    except UnmeetableError as error:
        return str(error)
    for choice in choices.open:
        try:
            request = pool_request(slice_, settings, 0, choice)
        except UnmeetableError as error:
            problems.setdefault(str(error))
            continue
        refused = blockers.of_request(choice, request, memory, now)
        if refused is None:
            return ""
        problems.setdefault(f"GKE refuses {choice}: {refused.failure.message}")
    return "; ".join(problems)


def gang_problem(slices: Iterable[Slice], settings: Settings, memory: Memory, now: datetime) -> str:
    """Say why slices that start together can never be had all at once, whatever is in stock; empty where they can."""
    slices = tuple(slices)
    for each in slices:
        problem = problem_of(each, settings, memory, {}, now)
        if problem:
            return f"slice {each.group_name}: {problem}"
    return limits.problem_of(slices, settings)


def _choices(slice_: Slice, settings: Settings, zones: Mapping[WorkloadUid, Zone]) -> Choices:
    """Return what may be tried; raise UnmeetableError where that is nothing."""
    wishes.check(slice_, settings)
    check_shape(slice_)
    problem = allowlists.namespace_problem(slice_.workload.namespace, settings)
    if problem:
        raise UnmeetableError(problem)
    choices = choices_of(slice_, settings)
    zone = zones.get(slice_.workload.uid) if wishes.wants_one_zone(slice_, settings) else None
    if zone is None:
        return choices
    there = tuple(choice for choice in choices.open if choice.zone == zone)
    if not there:
        raise UnmeetableError(
            f"all pools of JobSet {slice_.workload.name} are to be in one zone, {zone}, and this slice may be in "
            f"{', '.join(sorted({choice.zone for choice in choices.open}))} only"
        )
    return Choices(open=there, left_out=choices.left_out)


def _hopeless(
    unserved: Collection[Slice], shop: Shop, zones: Mapping[WorkloadUid, Zone]
) -> dict[WorkloadUid, _Hopeless]:
    """Say why of some JobSets that start together not all slices can be had: none is bought then."""
    found: dict[WorkloadUid, _Hopeless] = {}
    budgets: dict[WorkloadUid, Budget] = {}
    for slice_ in unserved:
        uid = slice_.workload.uid
        if uid not in shop.gangs or uid in found:
            continue
        problem = problem_of(slice_, shop.settings, shop.memory, zones, shop.now)
        if problem:
            found[uid] = _Hopeless(why=f"slice {slice_.group_name} can be had nowhere: {problem}")
            continue
        budget = budgets.get(uid) or budgets.setdefault(uid, shop.budget.copy())
        refusal = budget.refusal(slice_)
        if refusal is not None:
            found[uid] = _Hopeless(why=refusal.message, until=refusal.until, limited=True)
        budget.take(slice_)
    refused = {refusal.slice_id for refusal in shop.memory.refusals.values()}
    for slice_ in unserved:
        uid = slice_.workload.uid
        if slice_.id in refused and uid in shop.gangs and (uid not in found or found[uid].first):
            first = (found[uid].first if uid in found else frozenset()) | {slice_.id}
            found[uid] = _Hopeless(why=f"slice {slice_.group_name}, which GKE refused before, tries first", first=first)
    return found


def _order(shop: Shop) -> Callable[[Slice], datetime]:
    """Return the order in which slices have their turn.

    A JobSet that starts all together and holds some of its slices goes on with the others: it gives them back in time.
    """
    begun = {slice_id.workload_uid for slice_id, pools in shop.owned.items() if pools} & set(shop.gangs)
    nothing = replace(shop.memory, last_failure_at={})
    return lambda each: turn_of(each, nothing if each.workload.uid in begun else shop.memory)


def _out_for_long(
    slice_: Slice, refusal: Refusal | None, hopeless: Mapping[WorkloadUid, _Hopeless], shop: Shop
) -> bool:
    """Whether limits alone have kept a slice, or one that it starts together with, out for too long."""
    if not is_due(shop.now - turn_of(slice_, shop.memory)) or slice_.workload.uid in shop.queued:
        return False
    gang = hopeless.get(slice_.workload.uid)
    return refusal is not None if gang is None else gang.limited


def _paced_until(slice_: Slice, pace: Pace, memory: Memory) -> datetime | None:
    own, failed_at = memory.slice_backoffs.get(slice_.id), memory.last_failure_at.get(slice_.id)
    return backoff.paced_until(pace, own, failed_at)


def _too_much(slice_: Slice, name: PoolName, refusal: Refusal) -> Obstacle:
    message = f"Node pool {name} is not made: {refusal.message}"
    said = verdict(slice_, constants.LIMIT_REACHED, message, key=f"{refusal.limit} {name}")
    return Obstacle(note=message, verdict=said, until=refusal.until)


def _queued(slice_: Slice, name: PoolName, shop: Shop) -> Obstacle | None:
    turn = shop.queued.get(slice_.workload.uid)
    if turn is None:
        return None
    said = verdict(slice_, constants.CREATION_WAITING, f"Node pool {name} waits: {turn}", key=f"queue {name}")
    return Obstacle(note=turn, verdict=said)


def _for_the_others(slice_: Slice, name: PoolName, found: _Hopeless) -> Obstacle:
    """Tell that a slice could be had, and another one of its JobSet could not."""
    message = (
        f"Node pool {name} is not made, for the slices of JobSet {slice_.workload.name} start together: {found.why}"
    )
    said = verdict(slice_, constants.CREATION_WAITING, message, key=f"together {name}")
    return Obstacle(note=message, verdict=said, until=found.until)


def _offer(
    slice_: Slice,
    name: PoolName,
    attempt: int,
    choices: Choices,
    probes: _Probes,
    shop: Shop,
) -> NodePoolRequest | Obstacle:
    """Specify the pool of the best choice that nothing stands in the way of."""
    shape = check_shape(slice_)
    machine_type, topology = shape.machine_type.name, str(shape.topology)
    in_the_way: list[blockers.InTheWay] = []
    problems: dict[str, None] = {}
    waiting: NodePoolRequest | None = None
    for choice in choices.open:
        key = capacity_key(choice, machine_type, topology, slice_.nodes)
        found = blockers.of_capacity(slice_, choice, key, shop.memory, probes.making, shop.now)
        if found is None:
            try:
                request = pool_request(slice_, shop.settings, attempt, choice)
            except UnmeetableError as error:
                problems.setdefault(str(error))
                continue
            found = blockers.of_request(choice, request, shop.memory, shop.now) or blockers.of_failed_pool(
                choice, request, shop.memory, shop.now
            )
            if found is None and probes.full(request):
                # Another choice may need no probe.
                waiting = waiting or request
                continue
            if found is None:
                return request
        in_the_way.append(found)
    if waiting is not None:
        return waiting
    if not in_the_way:
        raise UnmeetableError("; ".join(problems))
    return blockers.combined(slice_, name, in_the_way, shop.now)


def _left_out(slice_: Slice, choices: Choices, settings: Settings) -> tuple[Verdict, ...]:
    messages = [labels_left_out(slice_, settings)]
    if choices.left_out:
        messages.append(f"Some choices of capacity are left out: {'; '.join(choices.left_out)}")
    return tuple(verdict(slice_, constants.INVALID_REQUEST, message) for message in messages if message)


@dataclass(slots=True, kw_only=True)
class _Probes:
    """The capacities of which a pool is being made, each with the first such pool."""

    making: dict[str, PoolName]
    memory: Memory
    #: How many of those in the making may be of capacity that was out of stock last time; None: any number.
    most: int | None

    @classmethod
    def of(cls, shop: Shop) -> _Probes:
        """Look at the pools that there are."""
        making: dict[str, PoolName] = {}
        for name in sorted(shop.supply):
            pool = shop.supply[name].pool
            if pool.status is PoolStatus.PROVISIONING:
                making.setdefault(backoff.capacity_key(pool), name)
        limit = shop.memory.operations.limit
        return cls(making=making, memory=shop.memory, most=None if limit is None else (limit + 1) // 2)

    def add(self, request: NodePoolRequest) -> None:
        """Take note of one that is about to be made."""
        self.making.setdefault(backoff.capacity_key(request), request.name)

    def full(self, request: NodePoolRequest) -> bool:
        """Whether a pool would take an operation that others need, only to see whether there is stock again.

        A create that runs into a stockout holds one of GKE's few operations for up to half an hour.
        """
        if self.most is None or backoff.probing(self.memory.backoffs, backoff.capacity_key(request)) is None:
            return False
        probing = sum(backoff.probing(self.memory.backoffs, key) is not None for key in self.making)
        return probing >= self.most


def _free_name(slice_: Slice, shop: Shop, names: set[PoolName]) -> tuple[int, PoolName]:
    """Return the attempt to make and its pool's name: one of which nothing is left."""
    listed = max((each.attempt + 1 for each in shop.owned.get(slice_.id, ())), default=0)
    attempt = max(listed, shop.memory.attempts.get(slice_.id, 0))
    while (name := pool_name(slice_.workload.name, slice_.id, attempt)) in names:
        # Something is left of an earlier pool of that name, or somebody made one by hand.
        attempt += 1
    return attempt, name


def _create(slice_: Slice, request: NodePoolRequest) -> Create:
    if slice_.leader is None:
        raise ValueError(f"slice {slice_.id} has no leader pod and cannot be wanting")
    return Create(
        slice_id=slice_.id, request=request, pod=pod_ref(slice_.leader), workload=workload_ref(slice_.workload)
    )


def _wanted(slice_: Slice, name: PoolName, phase: Phase, now: datetime, note: str) -> PoolState:
    shape = slice_.shape
    return PoolState(
        name=name,
        phase=phase,
        since=now,
        slice_id=slice_.id,
        workload=slice_.workload,
        namespace=slice_.workload.namespace,
        workload_name=slice_.workload.name,
        group_name=slice_.group_name,
        machine_type=shape.machine_type.name if shape is not None else "",
        topology=str(shape.topology) if shape is not None else "",
        chips=shape.machine_type.chips * slice_.nodes if shape is not None else 0,
        nodes=slice_.nodes,
        ready_nodes=0,
        note=note,
    )
