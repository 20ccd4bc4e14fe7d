"""What is done for the slices that want a pool and have none: a create, or the reason why not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import NodePoolRequest, PoolName, PoolStatus, Zone, expected_pool
from provisioner.model.choices import capacity_key
from provisioner.model.fit import may_be_there, trusted
from provisioner.model.wording import clock
from provisioner.model.workloads import WorkloadUid, pod_ref, workload_ref
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch.blocked import InTheWay, Prospects, combined, problem_of, prospects_of
from provisioner.slices.planning.launch.capacity import Choices, wants_one_zone
from provisioner.slices.planning.launch.gangs import Turns
from provisioner.slices.planning.launch.limits import Budget
from provisioner.slices.planning.launch.operations import OTHER_OPERATIONS
from provisioner.slices.planning.launch.reserving import pass_on, resource_of
from provisioner.slices.planning.launch.specification import Specification, is_held, labels_left_out, pool_name
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import Phase, Tally
from provisioner.slices.planning.plan import Blocked, Create, Notice, PoolState, notice, underused
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.turns import CREATES, TURN, Turn, Unit, had_turn, in_order, unit_of, waits_since
from provisioner.slices.supplier import PoolRules, UnmeetableError

#: A slice that waits for its turn for longer is told: in the ordinary course it comes sooner.
_PATIENCE = timedelta(minutes=2)


class _Wish(NamedTuple):
    """A slice that wants a pool, and the pools that it could have now."""

    slice_: Slice
    attempt: int
    name: PoolName
    #: In which the other pools of its workload are, as far as that was known.
    zone: Zone | None
    prospects: Prospects


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unsatisfiable:
    """Why none is bought of the slices of a workload that start together."""

    why: str
    #: When that may be over by itself.
    until: datetime | None = None
    #: It waits for nothing but limits.
    limited: bool = False
    #: Those that try before all others, for GKE refused them before: the others would be held for nothing.
    first: frozenset[SliceId] = frozenset()


def launch(round_: Round, matching: Matching, turns: Turns, budget: Budget, slots: int) -> Launches:
    """Decide on a create for each slice, as far as limits, back-off and the cluster's operations allow.

    First, each slice is looked at alone: what is in its way, and which pools it could have. Then what is contended goes
    to those whose turn it is. `slots` is how many creates may be started.
    """
    launches = Launches(
        round_=round_,
        gangs=turns,
        unsatisfiable=_find_unsatisfiable(round_, matching.unserved, turns, matching.zones, budget),
        slots=slots,
        # Of all names something is left: open deletes and cached nodes would be taken for the new pool's.
        names={
            *(pool.name for pool in round_.snapshot.pools),
            *round_.memory.creates,
            *round_.memory.deletes,
            *(node.pool_name for node in round_.snapshot.nodes),
        },
        making=_not_yet_known(round_),
        zones=dict(matching.zones),
        budget=budget,
        unserved=matching.unserved,
        tallies=round_.memory.tallies,
    )
    found = (launches.look_at(each) for each in matching.unserved)
    wishes = {unit_of(wish.slice_): wish for wish in found if wish is not None}
    launches.queues = _queues(round_, wishes.values())
    # Who waits for others at its capacity is not the next of its workload, or that would wait for both.
    behind = dict.fromkeys(unit for unit, wish in wishes.items() if launches.in_turn(wish)[0] is None)
    since = {unit: waits_since(wish.slice_, round_.now) for unit, wish in wishes.items() if unit not in behind}
    for unit in (*in_order(CREATES, since, round_.memory.last_turns), *behind):
        launches.serve(wishes[unit])
    for each in matching.spare:
        launches.serve_spare(each)
    launches.turns = pass_on(round_, budget, launches.limited, matching, turns.members, launches.creates)
    launches.waits_for = {unit: resource_of(scope) for scope, units in launches.limited.items() for unit in units}
    # A turn that begins now has its effect in the next decision.
    moments = (
        round_.now if turn.holder is not None and turn.began_at == round_.now else turn.until
        for turn in launches.turns.values()
    )
    launches.wake_at += [at for at in moments if at >= round_.now]
    return launches


def _find_unsatisfiable(
    round_: Round, unserved: Collection[Slice], turns: Turns, zones: Mapping[WorkloadUid, Zone], budget: Budget
) -> dict[WorkloadUid, _Unsatisfiable]:
    """Say why of some workloads that start together not all slices can be had: none is bought then."""
    found: dict[WorkloadUid, _Unsatisfiable] = {}
    budgets: dict[WorkloadUid, Budget] = {}
    for slice_ in unserved:
        uid = slice_.workload.uid
        if uid not in turns.members or uid in found:
            continue
        problem = problem_of(round_, slice_, zones)
        if problem:
            found[uid] = _Unsatisfiable(
                why=f"no choice of capacity is available for slice {slice_.group_name}: {problem}"
            )
            continue
        own = budgets.get(uid) or budgets.setdefault(uid, budget.copy())
        refusal = own.refusal(slice_)
        if refusal is not None:
            found[uid] = _Unsatisfiable(why=refusal.message, until=refusal.until, limited=True)
        own.take(slice_)
    refused = {each.slice_id for each in round_.memory.backoffs.values()}
    for slice_ in unserved:
        uid = slice_.workload.uid
        if slice_.id in refused and uid in turns.members and (uid not in found or found[uid].first):
            first = (found[uid].first if uid in found else frozenset()) | {slice_.id}
            why = f"slice {slice_.group_name}, rejected before, tries first"
            found[uid] = _Unsatisfiable(why=why, first=first)
    return found


def _not_yet_known(round_: Round) -> set[str]:
    """List the capacities that were out of stock and of which a pool is being created, or is about to be free.

    Until one comes up, one slice at a time tries: a create that runs into a stockout takes one of the cluster's few
    operations for half an hour. None tries while what it may get is being deleted: its turn would be lost.
    """
    memory, found = round_.memory, set()
    requests = {name: call.request for name, call in (*memory.in_making.items(), *memory.creates.items())}
    for name, each in round_.supply.items() if memory.backoffs else ():
        entry = memory.phases.get(name)
        in_turn = entry is None or entry.phase.before_create or round_.now - entry.since < TURN
        freed = each.going and name not in memory.failed
        if in_turn and (freed or each.pool.status is PoolStatus.PROVISIONING):
            found.add(capacity_key(requests.get(name, each.pool)))
    return found


def _queues(round_: Round, wishes: Iterable[_Wish]) -> dict[str, dict[Unit, int]]:
    """Number by turn those that wait for capacity that was out of stock."""
    waiting: dict[str, dict[Unit, datetime]] = defaultdict(dict)
    for wish in wishes:
        for _, offer in wish.prospects.offers:
            if backoff.probing(round_.memory.backoffs, offer.blueprint.capacity) is not None:
                waiting[offer.blueprint.capacity][unit_of(wish.slice_)] = waits_since(wish.slice_, round_.now)
    queues: dict[str, dict[Unit, int]] = {}
    for capacity, units in waiting.items():
        order = in_order(capacity, units, round_.memory.last_turns)
        queues[capacity] = {unit: place for place, unit in enumerate(order, start=1)}
    return queues


@dataclass(slots=True, kw_only=True)
class Launches:
    """Serves one slice after the other; what one gets, the next one does not. Then it has what came of all."""

    round_: Round
    #: Of workloads whose slices start together.
    gangs: Turns
    unsatisfiable: Mapping[WorkloadUid, _Unsatisfiable]
    slots: int
    names: set[PoolName]
    #: Capacities that were out of stock, and of which it will be known soon whether they are.
    making: set[str]
    #: The zone of workloads whose pools are all to be in one zone.
    zones: dict[WorkloadUid, Zone]
    budget: Budget
    unserved: Collection[Slice]
    #: By capacity that was out of stock: who tries it first.
    queues: Mapping[str, Mapping[Unit, int]] = field(default_factory=dict)
    #: The scope of the limit that keeps a unit out, empty for none.
    scopes: dict[Unit, str] = field(default_factory=dict)
    #: By scope of a limit on chips: whom it alone keeps out, and since when.
    limited: dict[str, dict[Unit, datetime]] = field(default_factory=lambda: defaultdict(dict))
    creates: list[Create] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    #: One line of the read model for each pool that does not exist yet.
    wanted: list[PoolState] = field(default_factory=list)
    wake_at: list[datetime] = field(default_factory=list)
    waits_for_operations: bool = False
    #: Turns on limits from now on, who waits for which, and which units had a turn, for `Memory`.
    turns: Mapping[str, Turn] = field(default_factory=dict)
    waits_for: Mapping[Unit, str] = field(default_factory=dict)
    blocked: dict[SliceId, Blocked] = field(default_factory=dict)
    last_turns: dict[tuple[str, tuple[str, ...]], datetime] = field(default_factory=dict)
    tallies: Mapping[str, Tally]

    def look_at(self, slice_: Slice) -> _Wish | None:
        """Find the pools that a slice could have, None for none: then it is said why."""
        uid = slice_.workload.uid
        attempt, name = self._free_name(slice_)
        gang, refusal = self.unsatisfiable.get(uid), self.budget.refusal(slice_)
        limited = refusal is not None if gang is None else gang.limited
        blocked = _too_much(name, refusal) if refusal is not None else None
        if blocked is None and uid in self.gangs.sidelined:
            blocked = Blocked(message=f"Node pool {name} waits: {self.gangs.sidelined[uid]}", key="queue")
        offers: tuple[object, ...] = ()
        try:
            if blocked is None or (limited and uid not in self.gangs.sidelined):
                prospects = prospects_of(self.round_, slice_, self.zones.get(uid))
                offers = prospects.offers
            else:
                self.round_.candidates.choices(slice_, self.zones.get(uid))
        except UnmeetableError as error:
            message = f"No TPU node pool is created: {error}"
            self._block(slice_, name, Blocked(message=message, reason=constants.INVALID_REQUEST, failed=True))
            return None
        if offers and limited and not slice_.spare:
            self._wait_for_limit(slice_)
        if blocked is None and offers and gang is not None and slice_.id not in gang.first:
            why = f"because the slices of {slice_.workload} start together: {gang.why}"
            message = f"Node pool {name} is not created, {why}"
            blocked = Blocked(message=message, key="together", until=gang.until)
        if blocked is None:
            blocked = self._too_many_failures(slice_, name)
        if blocked is None and not offers:
            blocked = combined(name, prospects.in_the_way, self.round_.now, self.round_.rules.supplier_name)
        if blocked is not None:
            self._block(slice_, name, blocked)
            return None
        return _Wish(slice_, attempt, name, self.zones.get(uid), prospects)

    def serve(self, wish: _Wish) -> None:
        """Decide on a create for one slice, where it is its turn."""
        slice_, name = wish.slice_, wish.name
        if self.zones.get(slice_.workload.uid) != wish.zone and wants_one_zone(slice_, self.round_.settings):
            # Another slice of its workload has settled the zone since.
            again = self.look_at(slice_)
            if again is None:
                return
            wish = again
        refusal = self.budget.refusal(slice_)
        blocked = _too_much(name, refusal) if refusal is not None else self._too_many_failures(slice_, name)
        offer, in_the_way = self.in_turn(wish)
        if blocked is not None:
            self._block(slice_, name, blocked)
        elif offer is None:
            self._block(slice_, name, combined(name, in_the_way, self.round_.now, self.round_.rules.supplier_name))
        elif len(self.creates) >= self.slots:
            self.waits_for_operations = True
            self._block(slice_, name, self._no_operations(slice_, name), Phase.WANTED)
        else:
            self._create(slice_, offer, offer.stamped(name, wish.attempt), wish.prospects.choices)

    def serve_spare(self, slice_: Slice) -> None:
        """Decide on a create for a slice of a buffer, where nobody waits for a limit that it counts within."""
        wish = self.look_at(slice_)
        if wish is None:
            return
        waits = next((scope for scope in self.budget.scopes_of(slice_) if self.limited.get(scope)), "")
        if waits:
            message = f"Node pool {wish.name} is not created: workloads wait for the limit of {waits}, and come first"
            self._block(slice_, wish.name, Blocked(message=message, key="spare", warning=False))
        else:
            self.serve(wish)

    def in_turn(self, wish: _Wish) -> tuple[Specification | None, list[InTheWay]]:
        """Return the best pool that it is the slice's turn for; None where others try all of them first."""
        in_the_way, unit = list(wish.prospects.in_the_way), unit_of(wish.slice_)
        for choice, offer in wish.prospects.offers:
            capacity = offer.blueprint.capacity
            last = backoff.probing(self.round_.memory.backoffs, capacity)
            if last is None:
                return offer, in_the_way
            queue = self.queues.get(capacity, {})
            place = queue.get(unit, len(queue) + 1)
            if place == 1 and capacity not in self.making:
                return offer, in_the_way
            in_the_way.append(InTheWay(choice, last, (place, len(queue))))
        return None, in_the_way

    def _block(self, slice_: Slice, name: PoolName, blocked: Blocked, phase: Phase = Phase.BLOCKED) -> None:
        self.blocked[slice_.id] = blocked
        self._state(slice_, name, phase, blocked.brief or blocked.message, next_at=blocked.until)
        key = f"{blocked.key} {name}" if blocked.key else ""
        if not blocked.silent:
            self.notices.append(notice(slice_, blocked.reason, blocked.message, key=key, warning=blocked.warning))
        self.wake_at += [blocked.until] if blocked.until is not None else []

    def _too_many_failures(self, slice_: Slice, name: PoolName) -> Blocked | None:
        now, namespace = self.round_.now, slice_.workload.namespace
        until = backoff.counted_until(self.tallies, slice_.id, namespace, slice_.siblings)
        if until is None or until <= now:
            return None
        message = (
            f"Node pool {name} waits: too many creates of this workload or of its namespace have failed; next try "
            f"{clock(until, now)}"
        )
        own = self.round_.memory.slice_backoffs.get(slice_.id)
        message += f"; the last attempt failed: {own.failure.message}" if own is not None else ""
        return Blocked(message=message, key="failures", until=until, failed=True)

    def _wait_for_limit(self, slice_: Slice) -> None:
        """Note that a limit on chips alone keeps a slice, or those that it starts together with, out."""
        unit = unit_of(slice_, together=slice_.workload.uid in self.gangs.members)
        if unit not in self.scopes:
            gang = [each for each in self.unserved if each.workload.uid == slice_.workload.uid]
            self.scopes[unit] = self.budget.scope_to_reserve([slice_] if unit.group_key else gang)
        if scope := self.scopes[unit]:
            since = waits_since(slice_, self.round_.now)
            self.limited[scope][unit] = min(since, self.limited[scope].get(unit, since))

    def _no_operations(self, slice_: Slice, name: PoolName) -> Blocked:
        """Say that a slice waits for operations; in an Event too, where that lasts."""
        limit = self.round_.memory.operations.limit
        message = f"Node pool {name} waits for {OTHER_OPERATIONS}"
        if limit is not None:
            message += f"; {self.round_.rules.supplier_name} rejected more than {limit} of them at once"
        passes = self.round_.now - waits_since(slice_, self.round_.now) < _PATIENCE
        return Blocked(message=message, key="operations", warning=False, silent=passes)

    def _create(self, slice_: Slice, offer: Specification, request: NodePoolRequest, choices: Choices) -> None:
        capacity = offer.blueprint.capacity
        if slice_.leader is None:
            raise ValueError(f"slice {slice_.id} has no leader pod and cannot be pending")
        pod, workload = pod_ref(slice_.leader), workload_ref(slice_.workload)
        self.creates.append(Create(slice_id=slice_.id, request=request, pod=pod, workload=workload))
        self._state(slice_, request.name, Phase.WANTED, "")
        skipped = f"Some choices of capacity are skipped: {'; '.join(choices.left_out)}" if choices.left_out else ""
        left_out = labels_left_out(slice_, self.round_.settings, self.round_.rules)
        told = (
            (constants.UNLISTED_TOPOLOGY, slice_.shape.warning if slice_.shape is not None else ""),
            (constants.INVALID_REQUEST, left_out),
            (constants.INVALID_REQUEST, skipped),
        )
        self.notices += underused(slice_)
        self.notices += [notice(slice_, reason, words) for reason, words in told if words]
        self.notices += _unknown_selectors(slice_, request, self.round_.rules)
        self.notices += _not_separate(slice_) if is_held(request.taints) and slice_.workload.kind.has_pods else ()
        self.names.add(request.name)
        self.zones.setdefault(slice_.workload.uid, request.zone)
        self.budget.take(slice_)
        self.making.add(capacity)
        namespace = slice_.workload.namespace
        self.tallies = backoff.create_sent(self.tallies, slice_.id, namespace, self.round_.now)
        contended = backoff.probing(self.round_.memory.backoffs, capacity) is not None
        for resource in (CREATES, capacity) if contended else (CREATES,):
            self.last_turns |= had_turn(resource, unit_of(slice_), self.round_.now)

    def _free_name(self, slice_: Slice) -> tuple[int, PoolName]:
        """Return the attempt to make and its pool's name: one of which nothing is left."""
        listed = max((each.attempt for each in self.round_.owned.get(slice_.id, ())), default=0)
        attempt = max(listed, self.round_.memory.attempts.get(slice_.id, 0))
        while (name := pool_name(slice_.workload.name, slice_.id, attempt)) in self.names:
            # Something is left of an earlier pool of that name, or somebody made one by hand.
            attempt += 1
        return attempt, name

    def _state(
        self, slice_: Slice, name: PoolName, phase: Phase, note: str, *, next_at: datetime | None = None
    ) -> None:
        shape, nodes = slice_.shape, slice_.nodes
        self.wanted.append(
            PoolState(
                name=name,
                phase=phase,
                since=self.round_.now,
                slice_id=slice_.id,
                leader=slice_.leader,
                workload=slice_.workload,
                named=slice_.workload.full_name,
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


def _too_much(name: PoolName, refusal: Blocked) -> Blocked:
    return replace(refusal, message=f"Node pool {name} is not created: {refusal.message}")


def _unknown_selectors(slice_: Slice, request: NodePoolRequest, rules: PoolRules) -> tuple[Notice, ...]:
    """Say which of the pod's selectors nobody knows of the nodes that are about to be made."""
    asked = slice_.requirements
    if not asked.affinity_terms and not any(map(may_be_there, asked.node_selector)):
        return ()
    found = trusted(asked, rules.expected_node(expected_pool(request)))
    if not found:
        return ()
    message = (
        f"Node pool {request.name} is created, but it is not known whether its nodes will have the labels that the pod "
        "selects: "
        f"{', '.join(map(bounds.cut, found))}. If {rules.supplier_name} does not set such a label, the pods stay "
        f"unschedulable; check the labels of a TPU node of this cluster, or remove the selector"
    )
    return (notice(slice_, constants.UNKNOWN_SELECTOR, message, key=request.name),)


def _not_separate(slice_: Slice) -> tuple[Notice, ...]:
    """Say that the workload's pods may be put on nodes that were held for another one that starts together.

    Whichever leader pod fits is put there once our taint is off, and what pods are on is never given back: both would
    run in part. A selector of its own leaves it its own nodes alone.
    """
    name = slice_.workload.name
    if name in slice_.requirements.node_selector.values():
        return ()
    message = (
        f"the slices of {slice_.workload} start together, but its pods also fit the nodes of other workloads: each may "
        f"then run in part and wait for the other; add the nodeSelector {constants.LEGACY_POOL_ID}: {name} to its pods"
    )
    return (notice(slice_, constants.NOT_SEPARATE, message),)
