"""How many chips and pools the administrator allows, and whose they are.

Counted is everything of ours that GKE has or may have: listed pools in whatever state, and creates that no list shows
yet. Chips count for the namespaces whose unfinished pods are bound to them, else for the one whose slice counts on the
pool, else for the one that it was created for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from provisioner import constants, tpu
from provisioner.model.capacity import PoolName
from provisioner.model.workloads import Pod, Workload, WorkloadName, WorkloadUid
from provisioner.settings import Settings
from provisioner.settings.forms import OTHERS
from provisioner.slices.demand import Slice
from provisioner.slices.planning.plan import Blocked, LimitUse
from provisioner.slices.planning.round import Round, Supply
from provisioner.slices.planning.turns import Unit, unit_of

HOUR = timedelta(hours=1)
ALL = "all pools together"
CREATES_PER_HOUR = "creates"
_PAUSE = "PAUSE_CREATION"
_POOLS = "MAX_POOLS_PER_JOBSET"
#: The first words of scopes, narrowest first.
_BREADTH = ("namespace", "accelerator", "all", CREATES_PER_HOUR)


def _refusal(limit: str, message: str, until: datetime | None = None) -> Blocked:
    return Blocked(reason=constants.LIMIT_REACHED, key=limit, message=message, until=until)


class Charge(NamedTuple):
    """For whom one pool counts."""

    chips: Mapping[str, int]
    accelerator: str
    #: Whose pool it is for the limit on pools.
    workload: WorkloadName
    uid: WorkloadUid


class Reserved(NamedTuple):
    """What is reserved within one limit for the unit whose turn it is."""

    unit: Unit
    chips: int
    #: How many have to become free for it.
    missing: int


@dataclass(slots=True, kw_only=True)
class Budget:
    """What is left within the limits, as the claims and creates of one decision use it up."""

    settings: Settings
    now: datetime
    #: Set while no pools are created at all.
    paused: Blocked | None = None
    #: Chips, or creates, by scope, and chips by scope and the workload that has them.
    used: Counter[str] = field(default_factory=Counter)
    chips_of_workloads: Counter[tuple[str, WorkloadUid]] = field(default_factory=Counter)
    pools: Counter[WorkloadName] = field(default_factory=Counter)
    charges: dict[PoolName, Charge] = field(default_factory=dict)
    created: list[datetime] = field(default_factory=list)
    #: By scope.
    reserved: dict[str, Reserved] = field(default_factory=dict)

    @classmethod
    def of(cls, round_: Round) -> Budget:
        """Count what there is, before any slice counts on a pool that no pod is bound to."""
        paused = _pause(round_.snapshot.paused_since, round_.settings)
        budget = cls(settings=round_.settings, now=round_.now, paused=paused)
        budget.created = sorted(at for at in round_.memory.created_at if at > round_.now - HOUR)
        budget.used[CREATES_PER_HOUR] = len(budget.created)
        if budget.counts:
            users = _users(round_)
            for each in round_.supply.values():
                budget._charge(each.name, _charge_of(each, users.get(each.name, Counter())))
        return budget

    @property
    def counts(self) -> bool:
        """Whether there is a limit that chips or pools are counted for."""
        settings = self.settings
        amounts = settings.max_chips_per_namespace or settings.max_chips_per_accelerator
        return bool(amounts) or settings.max_chips is not None or settings.max_pools_per_jobset is not None

    def copy(self) -> Budget:
        """Return a budget of its own with the same things counted."""
        return replace(
            self,
            used=self.used.copy(),
            chips_of_workloads=self.chips_of_workloads.copy(),
            pools=self.pools.copy(),
            charges=self.charges.copy(),
            created=self.created.copy(),
            reserved=self.reserved.copy(),
        )

    def refusal(self, slice_: Slice) -> Blocked | None:
        """Return what forbids one more pool for this slice, by the setting's name; None where nothing does."""
        if self.paused is not None:
            return self.paused
        if slice_.shape is None:
            return None
        for limit, scope, most, asked in self._limits(slice_):
            reserved = self._reserved_for_others(scope, slice_)
            if self.used[scope] + reserved + asked <= most:
                continue
            if scope == CREATES_PER_HOUR:
                return self._too_many_creates(most, reserved)
            return _too_many_chips(limit, scope, most, self.used[scope], reserved, asked)
        return self._too_many_pools(slice_.workload)

    def take(self, slice_: Slice) -> None:
        """Count a create that has been decided."""
        shape, workload = slice_.shape, slice_.workload
        if shape is not None and self.counts:
            chips = {workload.namespace: _chips_of(slice_)}
            self._count(Charge(chips, shape.accelerator.label, workload.full_name, workload.uid), 1)
        self.created.append(self.now)
        self.used[CREATES_PER_HOUR] += 1

    def give_back(self, each: Supply) -> None:
        """Count a pool no more."""
        charge = self.charges.pop(each.name, None)
        if charge is not None:
            self._count(charge, -1)

    def refusing(self, slice_: Slice) -> frozenset[str]:
        """Return the scopes of the limits on chips and creates that keep a slice out."""
        return frozenset(scope for _, scope, most, asked in self._limits(slice_) if self.used[scope] + asked > most)

    def in_the_way(self, slice_: Slice, each: Supply) -> bool:
        """Whether one pool less would help a slice that a limit keeps from its own."""
        charge = self.charges.get(each.name)
        if charge is None:
            return False
        scopes = self.refusing(slice_)
        if scopes:
            return not scopes.isdisjoint(_scopes(charge))
        return charge.workload == slice_.workload.full_name and self._too_many_pools(slice_.workload) is not None

    def counts_in(self, scope: str, each: Supply) -> bool:
        """Whether the chips of a pool count within a limit."""
        charge = self.charges.get(each.name)
        return charge is not None and scope in _scopes(charge)

    def allows_claim(self, slice_: Slice, each: Supply, *, again: bool = False) -> bool:
        """Whether a slice may count on a pool that another had, or was created for: its chips then count for the slice.

        One that counted on it before does so `again`, whoever has a turn by now.
        """
        charge = self.charges.get(each.name)
        if charge is None:
            return True
        namespace = slice_.workload.namespace
        if not again and any(self._keeps(scope, most, slice_) for _, scope, most, _ in self._limits(slice_)):
            return False
        if charge.uid == slice_.workload.uid:
            return True
        most = _amount(self.settings.max_chips_per_namespace, namespace)
        more = each.chips - charge.chips.get(namespace, 0)
        if most is not None and self.used[_namespace(namespace)] + more > most:
            return False
        return self._too_many_pools(slice_.workload) is None

    def own_claims_alone(self, slice_: Slice) -> bool:
        """Whether a slice may count on no pools but those that count for its namespace: no others need be looked at."""
        namespace = slice_.workload.namespace
        most = _amount(self.settings.max_chips_per_namespace, namespace)
        return most is not None and self.used[_namespace(namespace)] + _chips_of(slice_) > most

    def claim(self, slice_: Slice, each: Supply) -> None:
        """Count a pool for the slice that counts on it."""
        charge, workload = self.charges.get(each.name), slice_.workload
        if charge is not None and charge.uid != workload.uid:
            self._count(charge, -1)
            chips = {workload.namespace: each.chips}
            self._charge(each.name, Charge(chips, charge.accelerator, workload.full_name, workload.uid))

    def scope_to_reserve(self, slices: Collection[Slice]) -> str:
        """Return the narrowest limit that keeps out slices that wait for each other: what becomes free there may help.

        Within no wider one: whom a limit of its own namespace keeps out must not keep chips from other namespaces.
        Empty where nothing is to be kept.
        """
        if self.forbids(slices):
            return ""
        asked, _, limits = self._asked(slices)
        # Who only waits for what is reserved for another waits for a turn as well.
        slice_ = next(iter(slices))
        refusing = [
            scope
            for scope, most in limits.items()
            if self.used[scope] + self._reserved_for_others(scope, slice_) + asked[scope] > most
        ]
        return min(refusing, key=breadth, default="")

    def forbids(self, slices: Collection[Slice]) -> bool:
        """Whether slices can have nothing, however much becomes free."""
        asked, own, limits = self._asked(slices)
        never = any(asked[scope] + own[scope] > most for scope, most in limits.items())
        return never or self.paused is not None or any(self._too_many_pools(each.workload) for each in slices)

    def reserve(self, scope: str, unit: Unit, slices: Collection[Slice]) -> None:
        """Keep what becomes free within a limit for the unit whose turn it is."""
        asked, _, limits = self._asked(slices)
        if scope in limits:
            missing = self.used[scope] + asked[scope] - limits[scope]
            self.reserved[scope] = Reserved(unit, asked[scope], missing)

    def scopes_of(self, slice_: Slice) -> list[str]:
        """Return the scopes of the limits that a slice counts within."""
        return [scope for _, scope, _, _ in self._limits(slice_)]

    def uses(self) -> tuple[LimitUse, ...]:
        """Return how much of each limit that is set is used."""
        settings, uses = self.settings, list[LimitUse]()
        if settings.max_chips is not None:
            uses.append(LimitUse("MAX_CHIPS", "all", self.used[ALL], settings.max_chips))
        uses += self._uses("MAX_CHIPS_PER_NAMESPACE", settings.max_chips_per_namespace, _namespace(""))
        uses += self._uses("MAX_CHIPS_PER_ACCELERATOR", settings.max_chips_per_accelerator, _accelerator(""))
        if settings.max_pools_per_jobset is not None:
            uses.append(LimitUse(_POOLS, OTHERS, max(self.pools.values(), default=0), settings.max_pools_per_jobset))
        if settings.max_creates_per_hour is not None:
            uses.append(LimitUse("MAX_CREATES_PER_HOUR", "all", len(self.created), settings.max_creates_per_hour))
        return tuple(uses)

    def _charge(self, name: PoolName, charge: Charge) -> None:
        self.charges[name] = charge
        self._count(charge, 1)

    def _count(self, charge: Charge, sign: int) -> None:
        for namespace, chips in charge.chips.items():
            for scope in (ALL, _namespace(namespace), _accelerator(charge.accelerator)):
                self.used[scope] += sign * chips
                self.chips_of_workloads[scope, charge.uid] += sign * chips
        self.pools[charge.workload] += sign

    def _asked(self, slices: Iterable[Slice]) -> tuple[Counter[str], Counter[str], dict[str, int]]:
        """Return by scope what slices ask for, what their workloads have, and the limits."""
        asked: Counter[str] = Counter()
        own: Counter[str] = Counter()
        limits: dict[str, int] = {}
        for each in slices:
            for _, scope, most, amount in self._limits(each):
                limits[scope] = most
                asked[scope] += amount
                own[scope] = self.chips_of_workloads[scope, each.workload.uid]
        return asked, own, limits

    def _reserved_for_others(self, scope: str, slice_: Slice) -> int:
        reserved = self.reserved.get(scope)
        if reserved is None or reserved.unit in (unit_of(slice_), unit_of(slice_, together=True)):
            return 0
        return reserved.chips

    def _keeps(self, scope: str, most: int, slice_: Slice) -> bool:
        """Whether what is free within a limit, idle pools with it, is reserved for another."""
        reserved = self._reserved_for_others(scope, slice_)
        return reserved > 0 and scope != CREATES_PER_HOUR and self.used[scope] + reserved > most

    def _limits(self, slice_: Slice) -> Iterator[tuple[str, str, int, int]]:
        """Yield setting, scope, how much that allows, and how much of it the slice asks for."""
        settings, namespace, chips = self.settings, slice_.workload.namespace, _chips_of(slice_)
        if settings.max_chips is not None:
            yield "MAX_CHIPS", ALL, settings.max_chips, chips
        most = _amount(settings.max_chips_per_namespace, namespace)
        if most is not None:
            yield "MAX_CHIPS_PER_NAMESPACE", _namespace(namespace), most, chips
        accelerator = slice_.shape.accelerator.label if slice_.shape is not None else ""
        most = _amount(settings.max_chips_per_accelerator, accelerator)
        if most is not None:
            yield "MAX_CHIPS_PER_ACCELERATOR", _accelerator(accelerator), most, chips
        if settings.max_creates_per_hour is not None:
            yield "MAX_CREATES_PER_HOUR", CREATES_PER_HOUR, settings.max_creates_per_hour, 1

    def _too_many_pools(self, workload: Workload) -> Blocked | None:
        most, there = self.settings.max_pools_per_jobset, self.pools[workload.full_name]
        if most is None or there < most:
            return None
        return _refusal(
            _POOLS, f"{_POOLS} allows a {workload.kind} {most} node pools, and {workload.name} has {there}."
        )

    def _too_many_creates(self, most: int, reserved: int) -> Blocked:
        kept = f", {reserved} are reserved for a slice whose turn it is" if reserved else ""
        too_many = len(self.created) + reserved + 1 - most
        return _refusal(
            "MAX_CREATES_PER_HOUR",
            f"MAX_CREATES_PER_HOUR allows {most} new node pools within an hour, and {len(self.created)} were "
            f"created{kept}.",
            self.created[too_many - 1] + HOUR if too_many <= len(self.created) else None,
        )

    def _uses(self, limit: str, amounts: Iterable[tuple[str, int]], prefix: str) -> Iterator[LimitUse]:
        named = dict(amounts)
        for name, most in named.items():
            others = (
                chips
                for scope, chips in self.used.items()
                if scope.startswith(prefix) and scope.removeprefix(prefix) not in named
            )
            used = max(others, default=0) if name == OTHERS else self.used[prefix + name]
            yield LimitUse(limit, name, used, most)


def _pause(since: datetime | None, settings: Settings) -> Blocked | None:
    if since is not None:
        who = f"Creation is paused since {since:%Y-%m-%d %H:%M} UTC, by ConfigMap {constants.PAUSE_CONFIGMAP_NAME}"
        return _refusal(_PAUSE, f"{who}: no node pools are created until the administrator deletes it.")
    if settings.pause_creation:
        return _refusal(_PAUSE, "PAUSE_CREATION is set: no node pools are created until the administrator unsets it.")
    return None


def _users(round_: Round) -> dict[PoolName, Counter[tuple[str, WorkloadName, WorkloadUid]]]:
    """Count the nodes that each workload has unfinished pods with chips on, by pool; of several the first that came."""
    pool_of_node = {node.name: node.pool_name for node in round_.snapshot.nodes}
    first: dict[str, Pod] = {}
    for pod in round_.snapshot.pods:
        if pod.node_name in pool_of_node and not pod.finished and pod.requirements.chips:
            before = first.setdefault(pod.node_name, pod)
            if (pod.created_at, pod.uid) < (before.created_at, before.uid):
                first[pod.node_name] = pod
    users: dict[PoolName, Counter[tuple[str, WorkloadName, WorkloadUid]]] = {}
    for node, pod in first.items():
        uid = round_.workloads.uid_of(pod) or WorkloadUid("")
        user = (pod.namespace, WorkloadName(pod.kind, pod.namespace, pod.workload_name), uid)
        users.setdefault(pool_of_node[node], Counter())[user] += 1
    return users


def _charge_of(each: Supply, users: Mapping[tuple[str, WorkloadName, WorkloadUid], int]) -> Charge:
    """Charge each namespace for the nodes that it uses, and the rest to the one that uses most."""
    known = tpu.machine_type(each.pool.machine_type)
    accelerator, total = (known[0].label if known is not None else ""), each.chips
    if not users:
        creator, creator_uid, *_ = each.ownership
        return Charge({creator.namespace: total}, accelerator, creator, creator_uid)
    (_, workload, uid), _ = max(users.items(), key=lambda item: (item[1], item[0][0], item[0][1].name))
    per_node = total // max(1, each.pool.hosts)
    chips: Counter[str] = Counter()
    for (namespace, _, _), nodes in users.items():
        chips[namespace] += per_node * nodes
    chips[workload.namespace] += total - chips.total()
    return Charge(chips, accelerator, workload, uid)


def problem_of(slices: Iterable[Slice], settings: Settings) -> str:
    """Say which limit can never allow pools for all of some slices at once, empty where none is in the way."""
    empty = Budget(settings=settings, now=datetime.min.replace(tzinfo=UTC) + 2 * HOUR)
    for each in slices:
        refusal = empty.refusal(each)
        if refusal is not None:
            return f"{refusal.key} does not allow all of them at once"
        empty.take(each)
    return ""


def breadth(scope: str) -> tuple[int, str]:
    """Order the scopes of limits, narrowest first."""
    return _BREADTH.index(scope.partition(" ")[0]), scope


def remembered(created_at: Iterable[datetime], started: int, settings: Settings, now: datetime) -> tuple[datetime, ...]:
    """Return the creates to remember for MAX_CREATES_PER_HOUR: none without that limit."""
    if settings.max_creates_per_hour is None:
        return ()
    # A moment far ahead was written by a clock that ran wrong.
    return (*(at for at in created_at if now - HOUR < at <= now + HOUR), *(now,) * started)


def _scopes(charge: Charge) -> set[str]:
    return {ALL, _accelerator(charge.accelerator), *map(_namespace, charge.chips)}


def _namespace(name: str) -> str:
    return f"namespace {name}"


def _accelerator(label: str) -> str:
    return f"accelerator {label}"


def _chips_of(slice_: Slice) -> int:
    return slice_.nodes * slice_.shape.machine_type.chips if slice_.shape is not None else 0


def _too_many_chips(limit: str, scope: str, most: int, counted: int, reserved: int, chips: int) -> Blocked:
    if chips > most:
        return _refusal(limit, f"{limit} allows {scope} {most} chips; this slice alone has {chips}.")
    kept = f", {reserved} are reserved for a slice whose turn it is" if reserved else ""
    return _refusal(
        limit, f"{limit} allows {scope} {most} chips, {counted} exist{kept}, and this slice would add {chips}."
    )


def _amount(amounts: Collection[tuple[str, int]], name: str) -> int | None:
    if not amounts:
        return None
    by_name = dict(amounts)
    return by_name.get(name, by_name.get(OTHERS))
