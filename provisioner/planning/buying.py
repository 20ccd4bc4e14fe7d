"""What is done for the slices that want a pool and have none: a create, or the reason why not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from provisioner import constants
from provisioner.demand import Slice, SliceId
from provisioner.model.capacity import NodePoolRequest, PoolName, PoolStatus, Zone
from provisioner.model.workloads import JobSetUid, jobset_ref, pod_ref
from provisioner.planning import allowlists, asking, backoff, obstacles
from provisioner.planning.asking import UnmeetableError
from provisioner.planning.capacity import Choices, capacity_key, choices_of
from provisioner.planning.lifecycle import Phase
from provisioner.planning.limits import Budget
from provisioner.planning.memory import CallState, Memory
from provisioner.planning.names import pool_name
from provisioner.planning.obstacles import Obstacle
from provisioner.planning.plan import Create, PoolState, Verdict
from provisioner.planning.specification import HELD_TAINT, check_shape, labels_left_out, pool_request
from provisioner.planning.supply import Supply
from provisioner.planning.verdicts import not_separate, underused, unlisted, verdict
from provisioner.settings import Settings

_WAITS_FOR_OPERATIONS = "waits for other node pool operations of this cluster to end"


@dataclass(slots=True, kw_only=True)
class Buying:
    """What came of the slices that have no pool."""

    creates: list[Create] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    #: One line of the read model for each pool that does not exist yet.
    wanted: list[PoolState] = field(default_factory=list)
    wake_at: list[datetime] = field(default_factory=list)
    waits_for_operations: bool = False


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
    zones: Mapping[JobSetUid, Zone] = field(default_factory=dict)
    #: JobSets whose turn it is not, and why.
    queued: Mapping[JobSetUid, str] = field(default_factory=dict)
    #: JobSets of which all slices are bought or none.
    gangs: Collection[JobSetUid] = ()
    budget: Budget
    #: How many operations may be started; None: any number.
    slots: int | None
    now: datetime


def buy(unserved: Iterable[Slice], shop: Shop) -> Buying:
    """Decide on a create for each slice, as far as limits, back-off and the cluster's operations allow."""
    buying = Buying()
    slots = _limited(shop.slots, shop.memory)
    names = set(shop.taken)
    probes = _pools_in_making(shop.supply)
    zones = dict(shop.zones)
    budget = shop.budget.copy()
    unserved = tuple(unserved)
    hopeless = _hopeless(unserved, shop, zones)
    for slice_ in unserved:
        attempt, name = _free_name(slice_, shop, names)
        try:
            choices = _choices(slice_, shop.settings, zones)
            obstacle = _too_much(slice_, name, budget) or _queued(slice_, name, shop)
            offer = obstacle or _offer(slice_, name, attempt, choices, probes, shop)
        except UnmeetableError as error:
            buying.verdicts.append(verdict(slice_, constants.INVALID_REQUEST, f"No TPU node pool is made: {error}"))
            buying.wanted.append(_wanted(slice_, name, Phase.BLOCKED, shop.now, str(error)))
            continue
        if not isinstance(offer, Obstacle) and slice_.jobset.uid in hopeless:
            offer = _for_the_others(slice_, name, *hopeless[slice_.jobset.uid])
        if isinstance(offer, Obstacle):
            buying.wanted.append(_wanted(slice_, name, Phase.BLOCKED, shop.now, offer.note))
            buying.verdicts += [offer.verdict] if offer.verdict is not None else []
            buying.wake_at += [offer.until] if offer.until is not None else []
        elif slots is not None and len(buying.creates) >= slots:
            buying.waits_for_operations = True
            buying.wanted.append(_wanted(slice_, name, Phase.WANTED, shop.now, _WAITS_FOR_OPERATIONS))
        else:
            buying.creates.append(_create(slice_, offer))
            buying.wanted.append(_wanted(slice_, name, Phase.WANTED, shop.now, ""))
            buying.verdicts += (*underused(slice_), *unlisted(slice_), *_left_out(slice_, choices, shop.settings))
            buying.verdicts += not_separate(slice_) if HELD_TAINT in offer.taints else ()
            names.add(name)
            probes.setdefault(backoff.capacity_key(offer), name)
            zones.setdefault(slice_.jobset.uid, offer.zone)
            budget.take(slice_)
    return buying


def problem_of(slice_: Slice, settings: Settings, memory: Memory, zones: Mapping[JobSetUid, Zone]) -> str:
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
        refused = obstacles.of_request(choice, request, memory)
        if refused is None:
            return ""
        problems.setdefault(f"GKE refuses {choice}: {refused.failure.message}")
    return "; ".join(problems)


def _choices(slice_: Slice, settings: Settings, zones: Mapping[JobSetUid, Zone]) -> Choices:
    """Return what may be tried; raise UnmeetableError where that is nothing."""
    asking.check(slice_, settings)
    check_shape(slice_)
    problem = allowlists.namespace_problem(slice_.jobset.namespace, settings)
    if problem:
        raise UnmeetableError(problem)
    choices = choices_of(slice_, settings)
    zone = zones.get(slice_.jobset.uid) if asking.wants_one_zone(slice_, settings) else None
    if zone is None:
        return choices
    there = tuple(choice for choice in choices.open if choice.zone == zone)
    if not there:
        raise UnmeetableError(
            f"all pools of JobSet {slice_.jobset.name} are to be in one zone, {zone}, and this slice may be in "
            f"{', '.join(sorted({choice.zone for choice in choices.open}))} only"
        )
    return Choices(open=there, left_out=choices.left_out)


def _hopeless(
    unserved: Iterable[Slice], shop: Shop, zones: Mapping[JobSetUid, Zone]
) -> dict[JobSetUid, tuple[str, datetime | None]]:
    """Say why, and until when, of some JobSets that start together not all slices can be had: none is bought then."""
    found: dict[JobSetUid, tuple[str, datetime | None]] = {}
    budgets: dict[JobSetUid, Budget] = {}
    for slice_ in unserved:
        uid = slice_.jobset.uid
        if uid not in shop.gangs or uid in found:
            continue
        problem = problem_of(slice_, shop.settings, shop.memory, zones)
        if problem:
            found[uid] = f"slice {slice_.job_name} can be had nowhere: {problem}", None
            continue
        budget = budgets.get(uid) or budgets.setdefault(uid, shop.budget.copy())
        refusal = budget.refusal(slice_)
        if refusal is not None:
            found[uid] = refusal.message, refusal.until
        budget.take(slice_)
    return found


def _too_much(slice_: Slice, name: PoolName, budget: Budget) -> Obstacle | None:
    refusal = budget.refusal(slice_)
    if refusal is None:
        return None
    message = f"Node pool {name} is not made: {refusal.message}"
    said = verdict(slice_, constants.LIMIT_REACHED, message, key=f"{refusal.limit} {name}")
    return Obstacle(note=message, verdict=said, until=refusal.until)


def _queued(slice_: Slice, name: PoolName, shop: Shop) -> Obstacle | None:
    turn = shop.queued.get(slice_.jobset.uid)
    if turn is None:
        return None
    said = verdict(slice_, constants.CREATION_WAITING, f"Node pool {name} waits: {turn}", key=f"queue {name}")
    return Obstacle(note=turn, verdict=said)


def _for_the_others(slice_: Slice, name: PoolName, why: str, until: datetime | None) -> Obstacle:
    """Tell that a slice could be had, and another one of its JobSet could not."""
    message = f"Node pool {name} is not made, for the slices of JobSet {slice_.jobset.name} start together: {why}"
    said = verdict(slice_, constants.CREATION_WAITING, message, key=f"together {name}")
    return Obstacle(note=message, verdict=said, until=until)


def _offer(
    slice_: Slice,
    name: PoolName,
    attempt: int,
    choices: Choices,
    probes: Mapping[str, PoolName],
    shop: Shop,
) -> NodePoolRequest | Obstacle:
    """Specify the pool of the best choice that nothing stands in the way of."""
    machine_type = slice_.shape.machine_type.name if slice_.shape is not None else ""
    in_the_way: list[obstacles.InTheWay] = []
    problems: dict[str, None] = {}
    for choice in choices.open:
        found = obstacles.of_capacity(choice, capacity_key(choice, machine_type), shop.memory, probes, shop.now)
        if found is None:
            try:
                request = pool_request(slice_, shop.settings, attempt, choice)
            except UnmeetableError as error:
                problems.setdefault(str(error))
                continue
            found = obstacles.of_request(choice, request, shop.memory)
            if found is None:
                return request
        in_the_way.append(found)
    if not in_the_way:
        raise UnmeetableError("; ".join(problems))
    return obstacles.combined(slice_, name, in_the_way, shop.now)


def _left_out(slice_: Slice, choices: Choices, settings: Settings) -> tuple[Verdict, ...]:
    messages = [labels_left_out(slice_, settings)]
    if choices.left_out:
        messages.append(f"Some choices of capacity are left out: {'; '.join(choices.left_out)}")
    return tuple(verdict(slice_, constants.INVALID_REQUEST, message) for message in messages if message)


def _limited(slots: int | None, memory: Memory) -> int | None:
    if backoff.CLUSTER not in memory.backoffs:
        return slots
    # What the last call ran into concerns every call: one goes first to see whether it is over.
    unanswered = sum(call.state is CallState.UNDER_WAY for call in memory.creates.values())
    return min(1 if slots is None else slots, max(0, 1 - unanswered))


def _pools_in_making(supply: Mapping[PoolName, Supply]) -> dict[str, PoolName]:
    """Name one pool in the making for each capacity."""
    making: dict[str, PoolName] = {}
    for name in sorted(supply):
        pool = supply[name].pool
        if pool.status is PoolStatus.PROVISIONING:
            making.setdefault(backoff.capacity_key(pool), name)
    return making


def _free_name(slice_: Slice, shop: Shop, names: set[PoolName]) -> tuple[int, PoolName]:
    """Return the attempt to make and its pool's name: one of which nothing is left."""
    listed = max((each.attempt + 1 for each in shop.owned.get(slice_.id, ())), default=0)
    attempt = max(listed, shop.memory.attempts.get(slice_.id, 0))
    while (name := pool_name(slice_.jobset.name, slice_.id, attempt)) in names:
        # Something is left of an earlier pool of that name, or somebody made one by hand.
        attempt += 1
    return attempt, name


def _create(slice_: Slice, request: NodePoolRequest) -> Create:
    if slice_.leader is None:
        raise ValueError(f"slice {slice_.id} has no leader pod and cannot be wanting")
    return Create(slice_id=slice_.id, request=request, pod=pod_ref(slice_.leader), jobset=jobset_ref(slice_.jobset))


def _wanted(slice_: Slice, name: PoolName, phase: Phase, now: datetime, note: str) -> PoolState:
    shape = slice_.shape
    return PoolState(
        name=name,
        phase=phase,
        since=now,
        slice_id=slice_.id,
        jobset=slice_.jobset,
        namespace=slice_.jobset.namespace,
        jobset_name=slice_.jobset.name,
        job_name=slice_.job_name,
        machine_type=shape.machine_type.name if shape is not None else "",
        topology=str(shape.topology) if shape is not None else "",
        chips=shape.machine_type.chips * slice_.nodes if shape is not None else 0,
        nodes=slice_.nodes,
        ready_nodes=0,
        note=note,
    )
