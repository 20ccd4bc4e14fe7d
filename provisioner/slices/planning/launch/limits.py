"""How many chips and pools the administrator allows.

Counted is everything of ours that GKE has or may have: listed pools in whatever state, and creates that no list shows
yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from provisioner import tpu
from provisioner.model.capacity import PoolName
from provisioner.model.workloads import Workload, WorkloadName, WorkloadUid
from provisioner.settings import Settings
from provisioner.settings.forms import OTHERS
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.supply import Supply

_HOUR = timedelta(hours=1)
_ALL = "all pools together"
_PAUSE = "PAUSE_CREATION"
#: The first words of scopes, narrowest first.
_BREADTH = ("namespace", "accelerator", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Which limit is in the way of a pool."""

    #: The setting's name.
    limit: str
    message: str
    #: When it may be out of the way by itself; None: when pools go, or the setting changes.
    until: datetime | None = None


_PAUSED = Refusal(
    limit=_PAUSE,
    message="PAUSE_CREATION is set: no node pools are created until the administrator unsets it.",
)


@dataclass(slots=True, kw_only=True)
class Budget:
    """What is left within the limits, as the creates of one decision use it up."""

    settings: Settings
    now: datetime
    #: Chips by scope.
    chips: Counter[str] = field(default_factory=Counter)
    #: Chips by scope and the workload that has them.
    chips_of_workloads: Counter[tuple[str, WorkloadUid]] = field(default_factory=Counter)
    #: Pools by their workload.
    pools: Counter[WorkloadName] = field(default_factory=Counter)
    #: The creates of the last hour, oldest first.
    created: list[datetime] = field(default_factory=list)
    #: Of the chips those that are kept for slices that have waited for too long, by scope.
    reserved: dict[str, int] = field(default_factory=dict)
    #: Whether there is a limit on chips, and one that chips or pools are counted for.
    counts_chips: bool = field(init=False)
    counts: bool = field(init=False)

    @classmethod
    def of(cls, round_: Round, matching: Matching) -> Budget:
        """Count what there is."""
        settings, now, holders = round_.settings, round_.now, matching.holders
        budget = cls(settings=settings, now=now)
        budget.created = sorted(moment for moment in round_.memory.created_at.values() if moment > now - _HOUR)
        for each in round_.supply.values() if budget.counts else ():
            # One that only others' pods are on is not had by the workload that it was made for.
            lent = is_lent(each, holders.get(each.name, frozenset()))
            budget._count(each.workload_name, each.pool.machine_type, each.pool.hosts, pools=0 if lent else 1)
            users = {slice_id.workload_uid for slice_id in holders.get(each.name, ()) if slice_id is not None}
            for uid in users or {each.workload_uid}:
                budget.chips_of_workloads.update(dict.fromkeys(((scope, uid) for scope in scopes_of(each)), each.chips))
        return budget

    def __post_init__(self) -> None:
        settings = self.settings
        self.counts_chips = settings.max_chips is not None or bool(
            settings.max_chips_per_namespace or settings.max_chips_per_accelerator
        )
        self.counts = self.counts_chips or settings.max_pools_per_jobset is not None

    def copy(self) -> Budget:
        """Return a budget of its own with the same things counted."""
        return replace(
            self,
            chips=self.chips.copy(),
            chips_of_workloads=self.chips_of_workloads.copy(),
            pools=self.pools.copy(),
            created=self.created.copy(),
            reserved=self.reserved.copy(),
        )

    def refusal(self, slice_: Slice) -> Refusal | None:
        """Return what forbids one more pool for this slice, None where nothing does."""
        if self.settings.pause_creation:
            return _PAUSED
        if slice_.shape is None:
            return None
        chips = _chips_of(slice_) if self.counts_chips else 0
        for limit, scope, most in self._limits_on_chips(slice_) if self.counts_chips else ():
            if self.chips[scope] + chips > most:
                return _too_many_chips(limit, scope, most, self.chips[scope], self.reserved.get(scope, 0), chips)
        return self._refusal_of_others(slice_.workload)

    def missing(self, slice_: Slice) -> dict[str, int]:
        """Return how many chips have to go, by scope, before a pool for this slice is allowed."""
        chips = _chips_of(slice_)
        return {
            scope: self.chips[scope] + chips - most
            for _, scope, most in self._limits_on_chips(slice_)
            if self.chips[scope] + chips > most
        }

    def scope_to_reserve(self, slices: Collection[Slice]) -> str:
        """Return the narrowest limit that keeps out slices that wait for each other: what becomes free there may help.

        Within no wider one: whom a limit of its own namespace keeps out must not keep chips from other namespaces. Once
        for each limit. And not where that would be of no use: where another limit keeps them out too, or where a limit
        allows their workload no more than it has. Empty where nothing is to be kept.
        """
        if any(self._refusal_of_others(each.workload) for each in slices):
            return ""
        asked: Counter[str] = Counter()
        own: Counter[str] = Counter()
        limits: dict[str, int] = {}
        for each in slices:
            for _, scope, most in self._limits_on_chips(each):
                limits[scope] = most
                asked[scope] += _chips_of(each)
                own[scope] = self.chips_of_workloads[scope, each.workload.uid]
        if any(asked[scope] + own[scope] > most for scope, most in limits.items()):
            return ""
        refusing = [scope for scope, most in limits.items() if self.chips[scope] + asked[scope] > most]
        scope = min(refusing, key=lambda each: _BREADTH.index(each.partition(" ")[0]), default="")
        return "" if scope in self.reserved else scope

    def reserve(self, scope: str, slices: Collection[Slice]) -> int:
        """Keep what becomes free within a limit for slices; return how many chips are missing."""
        asked, allowed = 0, 0
        for each in slices:
            for _, other, most in self._limits_on_chips(each):
                if other == scope:
                    asked, allowed = asked + _chips_of(each), most
        self.reserved[scope] = asked
        self.chips[scope] += asked
        return self.chips[scope] - allowed

    def _limits_on_chips(self, slice_: Slice) -> Iterable[tuple[str, str, int]]:
        """Yield setting, scope and number."""
        settings, namespace = self.settings, slice_.workload.namespace
        if settings.max_chips is not None:
            yield "MAX_CHIPS", _ALL, settings.max_chips
        most = _amount(settings.max_chips_per_namespace, namespace)
        if most is not None:
            yield "MAX_CHIPS_PER_NAMESPACE", _namespace(namespace), most
        accelerator = slice_.shape.accelerator.label if slice_.shape is not None else ""
        most = _amount(settings.max_chips_per_accelerator, accelerator)
        if most is not None:
            yield "MAX_CHIPS_PER_ACCELERATOR", _accelerator(accelerator), most

    def take(self, slice_: Slice) -> None:
        """Count a create that has been decided."""
        workload, shape = slice_.workload, slice_.shape
        if shape is not None and self.counts:
            self._count(workload.full_name, shape.machine_type.name, slice_.nodes, pools=1)
            for scope in scopes(workload.namespace, shape.accelerator.label):
                self.chips_of_workloads[scope, workload.uid] += _chips_of(slice_)
        self.created.append(self.now)

    def give_back(self, each: Supply) -> None:
        """Count a pool no more."""
        self._count(each.workload_name, each.pool.machine_type, -each.pool.hosts, pools=-1)

    def _count(self, workload: WorkloadName, machine_type: str, nodes: int, *, pools: int) -> None:
        known = tpu.machine_type(machine_type)
        if known is not None:
            for scope in scopes(workload.namespace, known[0].label):
                self.chips[scope] += nodes * known[1].chips
        self.pools[workload] += pools

    def _refusal_of_others(self, workload: Workload) -> Refusal | None:
        """Return what forbids one more pool besides the limits on chips."""
        if self.settings.pause_creation:
            return _PAUSED
        return self._too_many_pools(workload) or self._too_many_creates()

    def _too_many_pools(self, workload: Workload) -> Refusal | None:
        most, there = self.settings.max_pools_per_jobset, self.pools[workload.full_name]
        if most is None or there < most:
            return None
        return Refusal(
            limit="MAX_POOLS_PER_JOBSET",
            message=f"MAX_POOLS_PER_JOBSET allows a {workload.kind} {most} node pools, and {workload.name} has "
            f"{there}.",
        )

    def _too_many_creates(self) -> Refusal | None:
        most = self.settings.max_creates_per_hour
        if most is None or len(self.created) < most:
            return None
        until = self.created[len(self.created) - most] + _HOUR if most else None
        return Refusal(
            limit="MAX_CREATES_PER_HOUR",
            message=f"MAX_CREATES_PER_HOUR allows {most} new node pools within an hour, and {len(self.created)} were "
            "created.",
            until=until,
        )


def problem_of(slices: Iterable[Slice], settings: Settings) -> str:
    """Say which limit can never allow pools for all of some slices at once, empty where none is in the way."""
    empty = Budget(settings=settings, now=datetime.min.replace(tzinfo=UTC) + 2 * _HOUR)
    if not empty.counts and settings.max_creates_per_hour is None:
        return ""
    for each in slices:
        refusal = empty.refusal(each)
        if refusal is not None and refusal.limit != _PAUSE:
            return f"{refusal.limit} does not allow all of them at once"
        empty.take(each)
    return ""


def scopes_of(each: Supply) -> tuple[str, str, str]:
    """Return the scopes of limits in which the chips of a pool count."""
    known = tpu.machine_type(each.pool.machine_type)
    return scopes(each.workload_name.namespace, known[0].label if known else "")


def scopes(namespace: str, accelerator: str) -> tuple[str, str, str]:
    """Return the scopes of limits in which the chips of a namespace and an accelerator count."""
    return _ALL, _namespace(namespace), _accelerator(accelerator)


def _namespace(name: str) -> str:
    return f"namespace {name}"


def _accelerator(label: str) -> str:
    return f"accelerator {label}"


def remembered(
    created_at: Mapping[PoolName, datetime], started: Iterable[PoolName], settings: Settings, now: datetime
) -> dict[PoolName, datetime]:
    """Return the creates to remember for MAX_CREATES_PER_HOUR: none without that limit.

    A moment far ahead was written by a clock that ran wrong.
    """
    if settings.max_creates_per_hour is None:
        return {}
    recent = {name: moment for name, moment in created_at.items() if now - _HOUR < moment <= now + _HOUR}
    for name in started:
        if name in recent:
            # A name that is free again may be sent again: each time counts.
            recent[PoolName(f"{name} {recent[name].isoformat()}")] = recent[name]
        recent[name] = now
    return recent


def _chips_of(slice_: Slice) -> int:
    return slice_.nodes * slice_.shape.machine_type.chips if slice_.shape is not None else 0


def _too_many_chips(limit: str, scope: str, most: int, counted: int, reserved: int, chips: int) -> Refusal:
    if chips > most:
        message = f"{limit} allows {scope} {most} chips; this slice alone has {chips}."
    else:
        kept = f", {reserved} are reserved for a slice that has waited longer" if reserved else ""
        message = (
            f"{limit} allows {scope} {most} chips, {counted - reserved} exist{kept}, and this slice would add {chips}."
        )
    return Refusal(limit=limit, message=message)


def is_lent(each: Supply, holders: Collection[SliceId | None]) -> bool:
    """Whether pods are on a pool, and none of the workload that it was made for."""
    return bool(holders) and all(slice_id is None or slice_id.workload_uid != each.workload_uid for slice_id in holders)


def _amount(amounts: Collection[tuple[str, int]], name: str) -> int | None:
    if not amounts:
        return None
    by_name = dict(amounts)
    return by_name.get(name, by_name.get(OTHERS))
