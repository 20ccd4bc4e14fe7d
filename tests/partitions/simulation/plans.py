"""What must hold of every plan: nothing is given away twice, and nobody passes an older pod to its cost.

Independent of the code that it judges, as far as that goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.calls import ReadServer, SaveLedger
from provisioner.partitions.planning.ledger import Entry
from provisioner.partitions.planning.memory import Site
from provisioner.partitions.planning.plan import Plan
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.planning.snapshot import ServerView, Snapshot
from provisioner.partitions.vipu.records import Allocation, Partition
from tests.partitions.simulation.kube import CLUSTER
from tests.partitions.simulation.process import own

#: Refused so often where nothing was, a pod may never start there.
_MOST_IN_VAIN = 3
#: Starts that differ by less are the same.
_NOTHING_SECONDS = 1.0


def faults_of(
    snapshot: Snapshot, plan: Plan, settings: PlanningSettings, *, tells_sizes: Mapping[str, bool]
) -> Iterator[str]:
    """Say what is wrong with a plan; `tells_sizes` has by server whether it tells how large allocations are."""
    for fault in plan.faults:
        yield f"{fault.subject}: {fault.error}"
    failing = {view.server.address for view in snapshot.servers if view.failure is not None or view.reading is None}
    for call in plan.calls:
        if call.server in failing and not isinstance(call, ReadServer):
            yield f"{call.key} is called on a server that cannot be read"
    for write in plan.writes:
        if isinstance(write, SaveLedger):
            yield from _Placement(snapshot, plan, write, settings, tells_sizes).faults()


@dataclass
class _Placement:
    """Which pods a plan gives their places."""

    snapshot: Snapshot
    plan: Plan
    save: SaveLedger
    settings: PlanningSettings
    tells_sizes: Mapping[str, bool]
    pods: dict[str, Pod] = field(init=False)
    #: When the plan was made, by the clock of its process.
    now: float = field(init=False)
    #: Servers that can be read.
    views: list[ServerView] = field(init=False)
    #: Ids of those that are recorded now.
    new: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.pods = {pod.uid: pod for pod in self.snapshot.pods}
        self.now = self.plan.memory.writes[self.save.key].since.timestamp()
        self.views = [view for view in self.snapshot.servers if view.reading is not None and view.failure is None]

    def faults(self) -> Iterator[str]:
        before = {entry.id: entry for entry in self.save.before.entries}
        new = [entry for entry in self.save.entries if before.get(entry.id) != entry]
        self.new = frozenset(entry.id for entry in new)
        listed = {each.id for view in self.snapshot.servers for each in _partitions(view)}
        placed = [
            entry
            for entry in new
            if entry.pod_uid in self.pods and self.pods[entry.pod_uid].gated and entry.id not in listed
        ]
        yield from self._too_much(placed)
        yield from self._room_of_those_being_made(placed)
        head = self._head()
        if head is None or self.settings.namespace_limits:
            return
        for entry in placed:
            if _order(head) < _order(self.pods[entry.pod_uid]):
                yield from self._passing(head, entry)

    def _too_much(self, placed: list[Entry]) -> Iterator[str]:
        """No allocation is given away twice; on top of what is recorded again nothing goes where that is too much."""
        taken: Counter[Site] = Counter()
        for entry in self.save.entries:
            taken[entry.server, entry.allocation] += entry.size
        recorded = {(entry.server, entry.id) for entry in self.save.entries}
        totals: dict[Site, int | None] = {}
        for view in self.snapshot.servers:
            for each in _partitions(view):
                if (view.server.address, each.id) not in recorded and not own(each.id):
                    taken[view.server.address, each.allocation] += each.size
            for allocation in view.reading.allocations if view.reading is not None else ():
                totals[view.server.address, allocation.name] = allocation.ipus
        for site in {(entry.server, entry.allocation) for entry in placed}:
            total = totals.get(site)
            if total is not None and taken[site] > total:
                yield f"{taken[site]} of {total} IPUs are given away on {site[0]} in {site[1]}"
        limits = self.settings.namespace_limits
        for namespace in {entry.namespace for entry in placed} if limits else ():
            limit = limits.get(namespace, limits["*"])
            used = sum(each.size for each in self.save.entries if each.namespace == namespace and self._counts(each))
            if used > limit:
                yield f"namespace {namespace} has {used} IPUs, and may have {limit}"

    def _room_of_those_being_made(self, placed: list[Entry]) -> Iterator[str]:
        """Nobody is placed where an older one may lose its room to it, wherever the server puts them."""
        for view in self.views:
            address, listed = view.server.address, {each.id for each in _partitions(view)}
            for allocation in view.reading.allocations if view.reading is not None else ():
                here = self._entries_at((address, allocation.name))
                fresh = [each for each in placed if each in here]
                for entry in here if allocation.ipus is not None else ():
                    known = self.plan.memory.partitions.get(entry.id)
                    tried = known is not None and known.backoff is not None
                    older = self.pods.get(entry.pod_uid)
                    if entry.id in listed or tried or older is None or not (older.gated and self._needs(older)):
                        continue
                    after = [each for each in fresh if _order(older) < _order(self.pods[each.pod_uid])]
                    if after and _places_taken(here, entry.size) > (allocation.ipus or 0) // entry.size:
                        yield f"{after[0].pod} may take the room of {entry.pod}, which is being made"

    # --- the oldest that waits

    def _head(self) -> Pod | None:
        placed = {entry.pod_uid for entry in self.save.entries}
        waiting = [
            pod
            for pod in self.pods.values()
            if pod.uid not in placed
            and pod.injected
            and not (pod.problem or pod.held_by_others or pod.finished or pod.released or pod.deletion_deadline)
            and names.owner_id(CLUSTER, pod.uid) not in map(names.owner_of, self.save.before.unreadable)
            and not self._waits_for_others(pod)
        ]
        return next((pod for pod in sorted(waiting, key=_order) if not self._is_refused(pod)), None)

    def _is_refused(self, pod: Pod) -> bool:
        """Whether a pod stands aside, because its partition could not be made wherever it may be."""
        refused = self._refused(pod)
        return bool(refused) and not self._sites(pod).keys() - refused

    def _refused(self, pod: Pod) -> set[Site]:
        refusals = self.plan.memory.refusals.get(pod.uid, {})
        return {site for site, each in refusals.items() if each.until.timestamp() > self.now}

    def _sites(self, pod: Pod) -> dict[Site, Allocation]:
        """Return the allocations that a pod may use, as far as servers tell how large they are."""
        return {
            (view.server.address, each.name): each
            for view in self.views
            if (pod.servers is None or view.server.address in pod.servers)
            and pod.told_server in ("", view.server.address)
            and self.tells_sizes[view.server.address]
            for each in (view.reading.allocations if view.reading is not None else ())
            # Where others leave it too little, it is passed.
            if (each.ipus or 0) - self._strange_ipus(view, each) >= pod.size
        }

    def _waits_for_others(self, pod: Pod) -> bool:
        """Whether all allocations that a pod may use and that are large enough have too much that is not ours."""
        large, possible = False, False
        for view in self.views:
            if pod.servers is not None and view.server.address not in pod.servers:
                continue
            for each in view.reading.allocations if view.reading is not None else ():
                large = large or each.ipus is None or each.ipus >= pod.size
                possible = possible or each.ipus is None or each.ipus - self._strange_ipus(view, each) >= pod.size
        return large and not possible

    def _strange_ipus(self, view: ServerView, allocation: Allocation) -> int:
        """Return the IPUs of partitions that may be in an allocation, and that nobody here removes."""
        unreadable = self.save.before.unreadable
        return sum(
            each.size
            for each in _partitions(view)
            if (not own(each.id) or each.id in unreadable) and _may_be_in(each, allocation)
        )

    def _passing(self, head: Pod, entry: Entry) -> Iterator[str]:
        """The oldest pod that waits can start no later for one that passes it."""
        refused = self._refused(head)
        sites = {site: each for site, each in self._sites(head).items() if site not in refused}
        here = (entry.server, entry.allocation)
        if here not in sites:
            return
        crowded = {
            site
            for site, each in self.plan.memory.crowding.items()
            if each.holds and each.size <= head.size and site in sites
        }
        if here in crowded and self.plan.memory.crowding[here].in_vain < _MOST_IN_VAIN:
            yield from self._before_anything_changes(head, entry)
        starts = {site: self._start(head, each, site, without=entry) for site, each in sites.items()}
        best = min((start for site, start in starts.items() if site not in crowded), default=None)
        if best is None:
            return
        if best == inf and here not in crowded:
            yield f"{entry.pod} passes {head.name}, to which nobody can promise anything"
        now = min(self._start(head, each, site) for site, each in sites.items() if site not in crowded)
        if now > best + _NOTHING_SECONDS:
            yield f"{entry.pod} passes {head.name}, which could start in {best:.0f} s, and now in {now:.0f} s"
        elsewhere = min((start for site, start in starts.items() if site not in {here, *crowded}), default=inf)
        if here not in crowded and starts[here] < elsewhere:
            yield from self._place_left(head, entry, sites[here], starts[here])

    def _before_anything_changes(self, head: Pod, entry: Entry) -> Iterator[str]:
        """Where a pod found no room, who passes it is gone before anything can change there."""
        old = {each.id for each in self.save.before.entries}
        here = [each for each in self._entries_at((entry.server, entry.allocation)) if each.id in old]
        first = min((self._may_go_in(each) for each in here), default=inf)
        if self._longest(self.pods[entry.pod_uid]) > first + _NOTHING_SECONDS:
            yield f"{entry.pod} passes {head.name}, which was crowded out and may start in {first:.0f} s"

    def _place_left(self, head: Pod, entry: Entry, allocation: Allocation, start: float) -> Iterator[str]:
        """Who passes is gone when the older one may start, or all leave it a place then, however they lie."""
        if self._longest(self.pods[entry.pod_uid]) <= start + _NOTHING_SECONDS:
            return
        here = self._entries_at((entry.server, entry.allocation))
        there = [each for each in here if self._ends_in(each, head) > start]
        strange = self._not_recorded(entry.server, allocation)
        if 1 + _places_taken((*there, *strange), head.size) > (allocation.ipus or 0) // head.size:
            yield f"{entry.pod} passes {head.name}, and may lie where that could start in {start:.0f} s"

    def _start(self, head: Pod, allocation: Allocation, site: Site, *, without: Entry | None = None) -> float:
        """Return in how many seconds a pod could start in an allocation if it were the only one that waits."""
        holders = [each for each in self._entries_at(site) if without is None or each.id != without.id]
        free = (allocation.ipus or 0) - sum(each.size for each in self._not_recorded(site[0], allocation))
        free -= sum(each.size for each in holders)
        at = 0.0
        for end, size in sorted((self._ends_in(each, head), each.size) for each in holders):
            if free >= head.size or end == inf:
                break
            at, free = end, free + size
        return at if free >= head.size else inf

    # --- who has IPUs, and how long

    def _counts(self, entry: Entry) -> bool:
        """Whether an entry counts against its namespace: what nobody needs does where it can be removed."""
        pod = self.pods.get(entry.pod_uid)
        return (pod is not None and self._needs(pod)) or entry.server in {each.server.address for each in self.views}

    def _entries_at(self, site: Site) -> list[Entry]:
        return [each for each in self.save.entries if (each.server, each.allocation) == site]

    def _not_recorded(self, server: str, allocation: Allocation) -> list[Partition]:
        ids = {entry.id for entry in self.save.entries if entry.server == server}
        view = next(each for each in self.views if each.server.address == server)
        return [each for each in _partitions(view) if each.id not in ids and _may_be_in(each, allocation)]

    def _ends_in(self, entry: Entry, head: Pod) -> float:
        """Return when an entry gives its IPUs back by its deadline; one that has passed the head may take its grace."""
        pod = self.pods.get(entry.pod_uid)
        if pod is None or not self._needs(pod):
            return 0.001
        if pod.active_deadline_seconds is None:
            return inf
        rest = self._rest(entry, pod, pod.active_deadline_seconds)
        grace = self._longest(pod) - pod.active_deadline_seconds
        if rest <= -grace:
            # It should have ended long ago, and may never.
            return inf
        since = entry.id in self.new or entry.recorded_at >= head.created_at
        passed = since and _order(head) < _order(pod)
        return max(0.001, rest + grace if passed else rest)

    def _may_go_in(self, entry: Entry) -> float:
        """Return in how many seconds an entry may be gone; 0: at any moment, for all anybody knows."""
        pod = self.pods.get(entry.pod_uid)
        if pod is None or pod.active_deadline_seconds is None or not self._needs(pod):
            return 0.0
        return max(0.0, self._rest(entry, pod, pod.active_deadline_seconds))

    def _rest(self, entry: Entry, pod: Pod, deadline_seconds: float) -> float:
        """Return what is left of a deadline: one that is placed now begins now, whatever came around its gate."""
        since = entry.recorded_at.timestamp()
        # By another clock, which may be ahead.
        if pod.started_at is not None and pod.started_at.timestamp() <= self.now and entry.id not in self.new:
            since = pod.started_at.timestamp()
        return deadline_seconds - max(0.0, self.now - since)

    def _longest(self, pod: Pod) -> float:
        deadline = pod.active_deadline_seconds
        return inf if deadline is None else deadline + pod.grace_seconds + self.settings.backfill_allowance_seconds

    def _needs(self, pod: Pod) -> bool:
        if pod.finished or pod.released:
            return False
        seen = self.plan.memory.ending.get(pod.uid)
        if pod.deletion_deadline is None or seen is None:
            return True
        return self.now < seen.since.timestamp() + pod.deletion_grace_seconds + self.settings.past_grace_seconds


def _partitions(view: ServerView) -> Iterable[Partition]:
    return view.reading.partitions if view.reading is not None else ()


def _may_be_in(partition: Partition, allocation: Allocation) -> bool:
    return partition.allocation == allocation.name or (
        not partition.allocation and partition.cluster == allocation.cluster
    )


def _places_taken(those: Iterable[Entry | Partition], size: int) -> int:
    """Return how many places for partitions of `size` those may take away at most."""
    return sum(max(1, each.size // size) for each in those)


def _order(pod: Pod) -> tuple[float, float, str]:
    return -pod.priority, pod.created_at.timestamp(), pod.uid
