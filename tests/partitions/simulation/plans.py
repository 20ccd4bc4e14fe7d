"""Invariants of plans: no IPUs have two pods, and no pod delays an earlier pod of the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.actions import ReadServer, SaveLedger
from provisioner.partitions.planning.decide import Plan
from provisioner.partitions.planning.ledger import Entry
from provisioner.partitions.planning.memory import Refusal, Site
from provisioner.partitions.planning.round import ServerView, Snapshot
from provisioner.partitions.vipu.records import Allocation, Partition
from provisioner.settings.partitions import PartitionSettings
from tests.partitions.simulation.kube import CLUSTER
from tests.partitions.simulation.process import own

#: Number of stockouts in an empty allocation after which a pod delays no other pods, because it may never fit.
_MAX_IN_VAIN = 3
#: Number of failed creates after which a pod delays no other pods.
_MAX_TRIES = 3
#: Number of failed removes after which a partition counts as not removable.
_MAX_REMOVES = 6
#: Tolerance in seconds for the comparison of start times.
_NOTHING_SECONDS = 1.0


def faults_of(
    snapshot: Snapshot, plan: Plan, settings: PartitionSettings, *, tells_sizes: Mapping[str, bool]
) -> Iterator[str]:
    """Yield the mistakes of a plan. `tells_sizes` has, by address, whether a server reports sizes of allocations."""
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
    snapshot: Snapshot
    plan: Plan
    save: SaveLedger
    settings: PartitionSettings
    tells_sizes: Mapping[str, bool]
    pods: dict[str, Pod] = field(init=False)
    #: Time of the plan by the clock of its process, as a timestamp.
    now: float = field(init=False)
    #: Servers with a usable reading.
    views: list[ServerView] = field(init=False)
    #: Ids of the entries that this plan adds or changes.
    new: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.pods = {pod.uid: pod for pod in self.snapshot.pods}
        self.now = self.plan.memory.writes[self.save.key].since.timestamp()
        self.views = [
            view
            for view in self.snapshot.servers
            # After the clock was set back, a reading may be from the future: its age is unknown, so it is left out.
            if view.reading is not None and view.failure is None and view.reading.asked_at.timestamp() <= self.now
        ]

    def faults(self) -> Iterator[str]:
        before = {entry.id: entry for entry in self.save.before.entries}
        new = [entry for entry in self.save.entries if before.get(entry.id) != entry]
        self.new = frozenset(entry.id for entry in new)
        listed = {partition.id for view in self.snapshot.servers for partition in _partitions(view)}
        placed = [
            entry
            for entry in new
            if entry.pod_uid in self.pods and self.pods[entry.pod_uid].gated and entry.id not in listed
        ]
        yield from self._too_much(placed)
        yield from self._room_of_those_tried_again(placed)
        head = self._head()
        if head is None or self.settings.namespace_limits:
            return
        younger = [entry for entry in placed if _order(head) < _order(self.pods[entry.pod_uid])]
        if younger:
            yield from self._passing(head, younger)

    def _too_much(self, placed: list[Entry]) -> Iterator[str]:
        """Yield allocations and namespaces with newly placed pods that have more IPUs than exist or than the limit."""
        taken: Counter[Site] = Counter()
        for entry in self.save.entries:
            taken[entry.server, entry.allocation] += entry.size
        recorded = {(entry.server, entry.id) for entry in self.save.entries}
        totals: dict[Site, int | None] = {}
        for view in self.snapshot.servers:
            for partition in _partitions(view):
                if (view.server.address, partition.id) not in recorded and not own(partition.id):
                    taken[view.server.address, partition.allocation] += partition.size
            for allocation in view.reading.allocations if view.reading is not None else ():
                totals[view.server.address, allocation.name] = allocation.ipus
        for site in {(entry.server, entry.allocation) for entry in placed}:
            total = totals.get(site)
            if total is not None and taken[site] > total:
                yield f"{taken[site]} of {total} IPUs are given away on {site[0]} in {site[1]}"
        limits = dict(self.settings.namespace_limits)
        for namespace in {entry.namespace for entry in placed} if limits else ():
            limit = limits.get(namespace, limits["*"])
            used = sum(
                entry.size for entry in self.save.entries if entry.namespace == namespace and self._counts(entry)
            )
            if used > limit:
                yield f"namespace {namespace} has {used} IPUs, and may have {limit}"

    def _room_of_those_tried_again(self, placed: list[Entry]) -> Iterator[str]:
        """Yield pods placed in an allocation where a rejected pod is retried, before the server has answered."""
        listed = {(view.server.address, partition.id) for view in self.views for partition in _partitions(view)}
        for entry in self.save.entries:
            known = self.plan.memory.partitions.get(entry.id)
            site, tries = (entry.server, entry.allocation), known.backoff.failures if known and known.backoff else 0
            refusal = self.plan.memory.refusals.get(entry.pod_uid, {}).get(site)
            if refusal is None or refusal.listed is None or refusal.in_vain >= _MAX_IN_VAIN or tries >= _MAX_TRIES:
                continue
            pod = self.pods.get(entry.pod_uid)
            if (entry.server, entry.id) in listed or pod is None or not self._needs(pod):
                continue
            if pod.partition_annotation:
                # A pod that has lost its partition delays no other pods.
                continue
            after = [
                other
                for other in placed
                if (other.server, other.allocation) == site and other is not entry
                # If the rejected pod is also placed now, the pods before it in the queue do not count.
                if entry.id not in self.new or _order(pod) < _order(self.pods[other.pod_uid])
            ]
            if after:
                yield f"{after[0].pod} may take the room of {entry.pod}, which is tried again"

    def _head(self) -> Pod | None:
        placed = {entry.pod_uid for entry in self.save.entries}
        waiting = [
            pod
            for pod in self.pods.values()
            if pod.uid not in placed
            and pod.injected
            and not (pod.problem or pod.held_by_others or pod.finished or pod.released or pod.deletion_deadline)
            and names.owner_id(CLUSTER, pod.uid) not in map(names.owner_of, self.save.before.unreadable)
            and not pod.partition_annotation
            and not self._waits_for_others(pod)
        ]
        return next((pod for pod in sorted(waiting, key=_order) if not self._is_refused(pod)), None)

    def _is_refused(self, pod: Pod) -> bool:
        """Return whether creates of a pod failed recently in each of its `_sites`, so that it delays no other pod."""
        refused = self._refused(pod)
        return bool(refused) and not self._sites(pod).keys() - refused

    def _refused(self, pod: Pod) -> set[Site]:
        refusals = self.plan.memory.refusals.get(pod.uid, {})
        return {
            site
            for site, refusal in refusals.items()
            if refusal.listed is None and refusal.backoff.until.timestamp() > self.now
        }

    def _sites(self, pod: Pod) -> dict[Site, Allocation]:
        """Return the allocations that are large enough for a pod, on servers that it may use and that report sizes."""
        return {
            (view.server.address, allocation.name): allocation
            for view in self.views
            if (pod.servers is None or view.server.address in pod.servers)
            and pod.server_annotation in ("", view.server.address)
            and self.tells_sizes[view.server.address]
            for allocation in (view.reading.allocations if view.reading is not None else ())
            # Leave out allocations in which other partitions leave too few IPUs.
            if (allocation.ipus or 0) - self._strange_ipus(view, allocation) >= pod.size
        }

    def _waits_for_others(self, pod: Pod) -> bool:
        """Return whether partitions that will not be removed use up each allocation that is large enough for a pod."""
        large, possible = False, False
        for view in self.views:
            if pod.servers is not None and view.server.address not in pod.servers:
                continue
            for allocation in view.reading.allocations if view.reading is not None else ():
                large = large or allocation.ipus is None or allocation.ipus >= pod.size
                possible = (
                    possible
                    or allocation.ipus is None
                    or allocation.ipus - self._strange_ipus(view, allocation) >= pod.size
                )
        return large and not possible

    def _strange_ipus(self, view: ServerView, allocation: Allocation) -> int:
        """Return the IPUs of partitions that may be in an allocation and that the controller will not remove."""
        unreadable = self.save.before.unreadable
        here = self._entries_at((view.server.address, allocation.name))
        return sum(entry.size for entry in here if self._stays(entry)) + sum(
            partition.size
            for partition in _partitions(view)
            if (not own(partition.id) or partition.id in unreadable or self._is_left(view, partition))
            and _may_be_in(partition, allocation)
        )

    def _is_left(self, view: ServerView, partition: Partition) -> bool:
        """Return whether a partition is an orphan of which at least _MAX_REMOVES removes failed."""
        known = self.plan.memory.strays.get((view.server.address, partition.id))
        return known is not None and known.removing is not None and known.removing.failures >= _MAX_REMOVES

    def _passing(self, head: Pod, younger: list[Entry]) -> Iterator[str]:
        """Yield a fault if pods that are placed now delay `head`, which is before them in the queue."""
        sites = {
            site: allocation
            for site, allocation in self._sites(head).items()
            if site not in self._refused(head) and all(r.in_vain < _MAX_IN_VAIN for r in self._crowding(head, site))
        }
        passing = {site: [entry for entry in younger if (entry.server, entry.allocation) == site] for site in sites}
        before = {
            site: self._start(head, allocation, site, without=passing[site]) for site, allocation in sites.items()
        }
        # If no deadline is known, a rejected pod delays other pods only for `crowded_seconds`.
        since = self.now - self.settings.crowded_seconds
        for site in sites:
            if before[site] == inf and any(r.since.timestamp() <= since for r in self._crowding(head, site)):
                del before[site]
        if not before:
            return
        if min(before.values()) == inf:
            # No deadline frees enough IPUs, so at least one allocation must be reserved for the pod.
            if all(passing[site] for site in before) and not self._may_use_unknown(head):
                yield f"{younger[0].pod} passes {head.name}, for which nothing is kept anywhere"
            return
        best = min(before.values())
        now = min(self._start(head, sites[site], site) for site in before)
        if now > best + _NOTHING_SECONDS:
            yield f"{younger[0].pod} passes {head.name}, which could start in {best:.0f} s, and now in {now:.0f} s"

    def _may_use_unknown(self, pod: Pod) -> bool:
        """Return whether a pod may be tried in an allocation of unknown size, which is then reserved for it."""
        return any(
            not self.tells_sizes[view.server.address] and (pod.servers is None or view.server.address in pod.servers)
            for view in self.views
        )

    def _start(self, head: Pod, allocation: Allocation, site: Site, *, without: Sequence[Entry] = ()) -> float:
        """Return the seconds until deadlines have freed enough IPUs of an allocation for a pod; infinite if never.

        If the allocation is crowded, the pod does not start before the first partition there ends.
        """
        holders = [entry for entry in self._entries_at(site) if entry not in without]
        free = (allocation.ipus or 0) - sum(partition.size for partition in self._not_recorded(site[0], allocation))
        free -= sum(entry.size for entry in holders)
        ends = sorted((self._ends_in(entry, head), entry.size) for entry in holders)
        if free >= head.size and not self._is_crowded(head, site):
            return 0.0
        for end, size in ends:
            free += size
            if free >= head.size:
                return end
        return inf

    def _is_crowded(self, head: Pod, site: Site) -> bool:
        """Return whether a partition of at most the pod's size was rejected lately, and none was removed since."""
        listed = {
            partition.id for view in self.views if view.server.address == site[0] for partition in _partitions(view)
        }
        return any(
            (refusal.listed or frozenset()) <= listed and refusal.backoff.until.timestamp() > self.now
            for refusal in self._crowding(head, site)
        )

    def _crowding(self, head: Pod, site: Site) -> list[Refusal]:
        """Return the stockouts in an allocation for partitions of at most the size of a pod."""
        return [
            refusal
            for uid, refusals in self.plan.memory.refusals.items()
            if (refusal := refusals.get(site)) is not None and refusal.listed is not None
            if uid in self.pods and self.pods[uid].size <= head.size
        ]

    def _counts(self, entry: Entry) -> bool:
        """Return whether an entry counts against its namespace.

        An entry counts if its pod needs it or its server can be read, but never if it `_stays`.
        """
        pod = self.pods.get(entry.pod_uid)
        if self._stays(entry):
            return False
        return (pod is not None and self._needs(pod)) or entry.server in {view.server.address for view in self.views}

    def _entries_at(self, site: Site) -> list[Entry]:
        return [entry for entry in self.save.entries if (entry.server, entry.allocation) == site]

    def _not_recorded(self, server: str, allocation: Allocation) -> list[Partition]:
        ids = {entry.id for entry in self.save.entries if entry.server == server}
        view = next(candidate for candidate in self.views if candidate.server.address == server)
        return [
            partition
            for partition in _partitions(view)
            if partition.id not in ids and _may_be_in(partition, allocation)
        ]

    def _ends_in(self, entry: Entry, head: Pod) -> float:
        """Return the seconds until an entry's IPUs are free, infinite if unknown; longer if a new pod passes `head`."""
        pod = self.pods.get(entry.pod_uid)
        if self._stays(entry):
            return inf
        if pod is None or not self._needs(pod):
            return 0.001
        if pod.active_deadline_seconds is None:
            return inf
        rest = self._rest(entry, pod, pod.active_deadline_seconds)
        grace = self._longest(pod) - pod.active_deadline_seconds
        if rest <= -grace:
            # A pod that has not ended after its deadline and grace period may never end.
            return inf
        passes = entry.id in self.new and _order(head) < _order(pod)
        return max(0.001, rest + grace if passes else rest)

    def _stays(self, entry: Entry) -> bool:
        """Return whether removes of an entry's partition failed too often, and its pod is gated or does not need it."""
        known, pod = self.plan.memory.partitions.get(entry.id), self.pods.get(entry.pod_uid)
        if known is None or known.removing is None or known.kept or known.removing.failures < _MAX_REMOVES:
            return False
        return pod is None or pod.gated or not self._needs(pod)

    def _rest(self, entry: Entry, pod: Pod, deadline_seconds: float) -> float:
        """Return the seconds left of a deadline, which begins with the pod's start or, if unknown, with its entry."""
        since = entry.recorded_at.timestamp()
        # The start time is from the kubelet's clock. If this clock is ahead, the time of the entry is used.
        if pod.started_at is not None and pod.started_at.timestamp() <= self.now and entry.id not in self.new:
            since = pod.started_at.timestamp()
        return deadline_seconds - max(0.0, self.now - since)

    def _longest(self, pod: Pod) -> float:
        deadline = pod.active_deadline_seconds
        return inf if deadline is None else deadline + pod.grace_seconds + self.settings.backfill_allowance_seconds

    def _needs(self, pod: Pod) -> bool:
        if pod.finished or pod.released:
            return False
        seen = self.plan.memory.ending.get((pod.uid, str(pod.deletion_deadline)))
        if pod.deletion_deadline is None or seen is None:
            return True
        return self.now < seen.timestamp() + pod.deletion_grace_seconds + self.settings.past_grace_seconds


def _partitions(view: ServerView) -> Iterable[Partition]:
    return view.reading.partitions if view.reading is not None else ()


def _may_be_in(partition: Partition, allocation: Allocation) -> bool:
    return partition.allocation == allocation.name or (
        not partition.allocation and partition.cluster == allocation.cluster
    )


def _order(pod: Pod) -> tuple[float, float, str]:
    return -pod.priority, pod.created_at.timestamp(), pod.uid
