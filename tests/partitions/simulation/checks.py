"""What must hold at every moment of every run. Independent of the code that it judges, as far as that goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf

from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.calls import (
    Call,
    CreatePartition,
    OpenGate,
    ReadServer,
    RemovePartition,
    SaveLedger,
)
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.partitions.planning.plan import Plan
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.planning.snapshot import Snapshot
from provisioner.partitions.vipu.records import Allocation, Partition
from tests.partitions.simulation.kube import CLUSTER, Kube
from tests.partitions.simulation.process import own
from tests.partitions.simulation.servers import VipuServer
from tests.support.simulations.stage import Stage

#: A reading may be so old when its gate is opened.
_SEEN_SECONDS = 150.0
#: The stated bound: so long after its pod, and after the last fault, a partition is gone.
OUTLIVES_SECONDS = 600.0


class Checks:
    """Watches one run."""

    def __init__(self, stage: Stage, kube: Kube, servers: dict[str, VipuServer], settings: PlanningSettings) -> None:
        self.stage, self.kube, self.servers, self.settings = stage, kube, servers, settings
        #: Ids that the ledger has had.
        self.recorded: set[str] = set()
        #: When somebody else, or another leader, may last have written the ledger.
        self.tampered_at = -inf
        self.longest_outlived = 0.0
        #: Whom each partition was handed to, by id.
        self.handed: dict[str, str] = {}
        kube.on_open, kube.on_start, kube.on_save = self._open, self._start, self._save
        kube.on_take_back = self._take_back
        for server in servers.values():
            server.on_change = lambda call, server=server: self._change(server, call)

    # --- pods and their partitions

    def _open(self, pod: Pod, gate: OpenGate) -> None:
        """A gate is opened only for a partition of the pod's own that is active."""
        if gate.partition_id != names.partition_id(CLUSTER, pod.uid):
            self.stage.violate(f"pod {pod.name} is told of partition {gate.partition_id}, which is not its own")
        other = self.kube.pods.get(self.handed.get(gate.partition_id, pod.uid))
        if other is not None and other.uid != pod.uid and self.kube.needs(other):
            self.stage.violate(f"pods {pod.name} and {other.name} share partition {gate.partition_id}")
        self.handed[gate.partition_id] = pod.uid
        if not pod.gated:
            self.stage.violate(f"the gate of pod {pod.name} is opened twice")
        entry = next((each for each in self.kube.read_ledger().entries if each.pod_uid == pod.uid), None)
        tampered = self.stage.agenda.now - self.tampered_at < _SEEN_SECONDS
        if entry is None and not tampered:
            self.stage.violate(f"the gate of pod {pod.name} is opened, and the ledger has no entry of it")
        self._has_its_partition(pod, gate.server.address, "its gate is opened")

    def _take_back(self, pod: Pod) -> None:
        """Only a pod that cannot have started loses its partition."""
        if pod.node or pod.gated:
            self.stage.violate(f"the partition of pod {pod.name} is taken back, and it is on {pod.node or 'its way'}")

    def _start(self, pod: Pod) -> None:
        # Of one that found no node for long a fault may have taken it long ago: its init container waits for that.
        late = pod.uid in self.kube.late and self._was_robbed(pod)
        if pod.told_server and self.kube.needs(pod) and not late:
            self._has_its_partition(pod, pod.told_server, "it starts")

    def _was_robbed(self, pod: Pod) -> bool:
        server = self.servers.get(pod.told_server)
        return server is not None and names.partition_id(CLUSTER, pod.uid) in server.robbed

    def _has_its_partition(self, pod: Pod, address: str, when: str) -> None:
        partition_id, server = names.partition_id(CLUSTER, pod.uid), self.servers[address]
        robbed = self.stage.agenda.now - server.robbed.get(partition_id, -inf) < _SEEN_SECONDS
        if not server.is_active(partition_id) and not robbed:
            self.stage.violate(f"pod {pod.name} has no active partition on {address} when {when}")

    def _change(self, server: VipuServer, call: Call) -> None:
        """Judge a request when it takes effect."""
        address = server.server.address
        if isinstance(call, CreatePartition):
            if call.request.id not in self.recorded:
                self.stage.violate(f"partition {call.request.id} is made, and the ledger never had it")
            return
        if not isinstance(call, RemovePartition):
            return
        if not own(call.id):
            self.stage.violate(f"partition {call.id} is removed, and it is not ours")
        pod = self.kube.by_partition(call.id)
        if pod is None or not self.kube.needs(pod) or pod.told_server != address:
            return
        if not call.gated:
            self.stage.violate(f"partition {call.id} is removed under pod {pod.name}")
        # A late one: it was sent when nobody had been told, and hits what was made since under the same id.
        server.robbed[call.id] = self.stage.agenda.now

    # --- the ledger

    def _save(self, ledger: Ledger) -> None:
        """Each entry is of one pod, and each pod has one."""
        self.recorded |= {entry.id for entry in ledger.entries}
        for entry in ledger.entries:
            if entry.id != names.partition_id(CLUSTER, entry.pod_uid):
                self.stage.violate(f"entry {entry.id} is of pod {entry.pod}, whose id is another one")

    # --- who passes whom

    def judge(self, snapshot: Snapshot, plan: Plan) -> None:
        """Judge a plan: the oldest pod that waits is promised no later a start for those that pass it."""
        for fault in plan.faults:
            self.stage.violate(f"{fault.subject}: {fault.error}")
        failing = {view.server.address for view in snapshot.servers if view.failure is not None or view.reading is None}
        for call in plan.calls:
            if call.server in failing and not isinstance(call, ReadServer):
                self.stage.violate(f"{call.key} is called on a server that cannot be read")
        save = next((each for each in plan.writes if isinstance(each, SaveLedger)), None)
        if save is None:
            return
        before = {entry.id: entry for entry in save.before.entries}
        new = [entry for entry in save.entries if before.get(entry.id) != entry]
        pods = {pod.uid: pod for pod in snapshot.pods}
        placed = {entry.pod_uid for entry in save.entries}
        listed = {each.id for view in snapshot.servers if view.reading is not None for each in view.reading.partitions}
        passing = [
            entry for entry in new if entry.pod_uid in pods and pods[entry.pod_uid].gated and entry.id not in listed
        ]
        self._fit(passing, save, snapshot)
        self._is_left_room(passing, save, snapshot, plan)
        if not passing or self.settings.namespace_limits:
            return
        waiting = [pod for pod in pods.values() if not _waits_for_others(pod, snapshot)]
        head = self._head(waiting, placed, plan, frozenset(save.before.unreadable))
        if head is None:
            return
        for entry in passing:
            if _order(head) < _order(pods[entry.pod_uid]):
                self._passes(head, entry, snapshot, save, plan)

    def _fit(self, placed: list[Entry], save: SaveLedger, snapshot: Snapshot) -> None:
        """No allocation is given away twice; on top of what is recorded again nothing goes where that is too much."""
        taken: Counter[tuple[str, str]] = Counter()
        for entry in save.entries:
            taken[entry.server, entry.allocation] += entry.size
        recorded = {(entry.server, entry.id) for entry in save.entries}
        for view in snapshot.servers:
            for each in view.reading.partitions if view.reading is not None else ():
                if (view.server.address, each.id) not in recorded and not own(each.id):
                    taken[view.server.address, each.allocation] += each.size
        totals = {
            (view.server.address, each.name): each.ipus
            for view in snapshot.servers
            if view.reading is not None
            for each in view.reading.allocations
        }
        for site in {(entry.server, entry.allocation) for entry in placed}:
            total = totals.get(site)
            if total is not None and taken[site] > total:
                self.stage.violate(f"{taken[site]} of {total} IPUs are given away on {site[0]} in {site[1]}")
        limits = self.settings.namespace_limits
        for namespace in {entry.namespace for entry in placed} if limits else ():
            limit = limits.get(namespace, limits["*"])
            used = sum(entry.size for entry in save.entries if entry.namespace == namespace)
            if used > limit:
                self.stage.violate(f"namespace {namespace} has {used} IPUs, and may have {limit}")

    def _is_left_room(self, placed: list[Entry], save: SaveLedger, snapshot: Snapshot, plan: Plan) -> None:
        """Nobody is placed where an older one may lose its room to it, wherever the server puts them."""
        pods, now = {pod.uid: pod for pod in snapshot.pods}, plan_time(plan, save)
        for view in snapshot.servers:
            if view.reading is None or view.failure is not None:
                continue
            address, listed = view.server.address, {each.id: each for each in view.reading.partitions}
            for allocation in view.reading.allocations:
                site = (address, allocation.name)
                here = [each for each in save.entries if (each.server, each.allocation) == site]
                fresh = [each for each in placed if each in here]
                for entry in here if allocation.ipus is not None else ():
                    known = plan.memory.partitions.get(entry.id)
                    tried = known is not None and known.backoff is not None
                    older = pods.get(entry.pod_uid)
                    if entry.id in listed or tried or older is None or not (older.gated and self._needs(older, now)):
                        continue
                    after = [each for each in fresh if _order(older) < _order(pods[each.pod_uid])]
                    spoilt = sum(max(1, each.size // entry.size) for each in here)
                    if after and spoilt > (allocation.ipus or 0) // entry.size:
                        self.stage.violate(f"{after[0].pod} may take the room of {entry.pod}, which is being made")

    def _head(self, pods: Iterable[Pod], placed: set[str], plan: Plan, unreadable: frozenset[str]) -> Pod | None:
        waiting = [
            pod
            for pod in pods
            if pod.uid not in placed
            and pod.injected
            and not (pod.problem or pod.held_by_others or pod.finished or pod.released or pod.deletion_deadline)
            and not plan.memory.refusals.get(pod.uid)
            and names.partition_id(CLUSTER, pod.uid) not in unreadable
        ]
        return min(waiting, key=_order, default=None)

    def _passes(self, head: Pod, entry: Entry, snapshot: Snapshot, save: SaveLedger, plan: Plan) -> None:
        unreadable = save.before.unreadable
        views = [
            view
            for view in snapshot.servers
            if view.reading is not None
            and view.failure is None
            and (head.servers is None or view.server.address in head.servers)
            and head.told_server in ("", view.server.address)
            and self.servers[view.server.address].tells_sizes
        ]
        sites = [
            (view.server.address, each)
            for view in views
            if view.reading is not None
            for each in view.reading.allocations
            # Where others leave it too little, it is passed.
            if (each.ipus or 0) - _strange_ipus(view.reading.partitions, each, unreadable) >= head.size
        ]
        if not any((address, each.name) == (entry.server, entry.allocation) for address, each in sites):
            return
        pods, now = {pod.uid: pod for pod in snapshot.pods}, plan_time(plan, save)
        crowded = {
            site
            for site, each in plan.memory.crowding.items()
            if each.holds and each.size <= head.size and site in [(address, one.name) for address, one in sites]
        }
        if (entry.server, entry.allocation) in crowded:
            self._is_gone_in_time(head, entry, save, pods, now)
        sites = [(address, each) for address, each in sites if (address, each.name) not in crowded]
        if not sites:
            return
        starts = []
        for without in (entry, None):
            holders = [each for each in save.entries if without is None or each.id != without.id]
            starts.append(min(self._start_of(head, site, holders, snapshot, pods, now, fresh=entry) for site in sites))
        if starts[0] == inf and (entry.server, entry.allocation) not in crowded:
            self.stage.violate(f"{entry.pod} passes {head.name}, to which nobody can promise anything")
        if starts[1] > starts[0] + 1.0:
            self.stage.violate(
                f"{entry.pod} passes {head.name}, which could start in {starts[0]:.0f} s, and now in {starts[1]:.0f} s"
            )

    def _is_gone_in_time(self, head: Pod, entry: Entry, save: SaveLedger, pods: dict[str, Pod], now: float) -> None:
        """Where a pod found no room, who passes it is gone before anything can change there."""
        old = {each.id for each in save.before.entries}
        first = min(
            (
                self._rest_of(each, pods, now)
                for each in save.entries
                if each.id in old and (each.server, each.allocation) == (entry.server, entry.allocation)
            ),
            default=inf,
        )
        pod = pods[entry.pod_uid]
        if self._longest(pod) > first + 1.0:
            self.stage.violate(f"{entry.pod} passes {head.name}, which was crowded out and may start in {first:.0f} s")

    def _longest(self, pod: Pod) -> float:
        deadline = pod.active_deadline_seconds
        return inf if deadline is None else deadline + pod.grace_seconds + self.settings.backfill_allowance_seconds

    def _rest_of(self, entry: Entry, pods: dict[str, Pod], now: float) -> float:
        """Return in how many seconds an entry may be gone; 0: at any moment, for all anybody knows."""
        pod = pods.get(entry.pod_uid)
        if pod is None or pod.active_deadline_seconds is None or not self._needs(pod, now):
            return 0.0
        return max(0.0, pod.active_deadline_seconds - max(0.0, now - _began(entry, pod, now)))

    def _start_of(
        self,
        head: Pod,
        site: tuple[str, Allocation],
        holders: list[Entry],
        snapshot: Snapshot,
        pods: dict[str, Pod],
        now: float,
        *,
        fresh: Entry,
    ) -> float:
        """Return in how many seconds a pod could start in an allocation if it were the only one that waits."""
        address, allocation = site
        listed = next(view.reading for view in snapshot.servers if view.server.address == address)
        ids = {entry.id for entry in holders if entry.server == address}
        free = allocation.ipus or 0
        if listed is not None:
            free -= sum(
                each.size
                for each in listed.partitions
                if each.id not in ids
                and each.allocation in ("", allocation.name)
                and (each.allocation or each.cluster == allocation.cluster)
            )
        ends = []
        for entry in holders:
            if (entry.server, entry.allocation) != (address, allocation.name):
                continue
            free -= entry.size
            pod = pods.get(entry.pod_uid)
            if pod is None or not self._needs(pod, now):
                ends.append((0.001, entry.size))
            elif pod.active_deadline_seconds is not None:
                rest = pod.active_deadline_seconds - max(0.0, now - _began(entry, pod, now))
                if entry.id == fresh.id:
                    rest = self._longest(pod)
                overdue = pod.grace_seconds + self.settings.backfill_allowance_seconds
                if rest > -overdue:
                    ends.append((max(rest, 0.001), entry.size))
        at = 0.0
        for end, size in sorted(ends):
            if free >= head.size:
                break
            at, free = end, free + size
        return at if free >= head.size else inf

    def _needs(self, pod: Pod, now: float) -> bool:
        if pod.finished or pod.released:
            return False
        deadline = pod.deletion_deadline
        return deadline is None or now < deadline.timestamp() + self.settings.past_grace_seconds

    # --- at the end

    def outlived(self, since: float) -> None:
        """No partition of ours outlives its pod by more than the stated bound, counted from `since` at the earliest."""
        now = self.stage.agenda.now
        for server in self.servers.values():
            for partition_id in server.partitions():
                if not own(partition_id):
                    continue
                pod = self.kube.by_partition(partition_id)
                if pod is not None and self.kube.needs(pod):
                    continue
                uid = next((u for u in self.kube.runs if names.partition_id(CLUSTER, u) == partition_id), "")
                age = now - max(since, self.kube.ended.get(uid, 0.0) + 30.0)
                self.longest_outlived = max(self.longest_outlived, age)
                if age > OUTLIVES_SECONDS:
                    self.stage.violate(f"partition {partition_id} has outlived its pod by {age:.0f} s")

    def nothing_left(self) -> None:
        """Nothing of ours is left anywhere."""
        for address, server in self.servers.items():
            left = [each for each in server.partitions() if own(each)]
            if left:
                self.stage.violate(f"left on {address}: {', '.join(left)}")
        ledger = self.kube.read_ledger()
        if ledger.entries or ledger.unreadable:
            self.stage.violate(f"left in the ledger: {[entry.pod for entry in ledger.entries]} {ledger.unreadable}")


def _strange_ipus(partitions: Iterable[Partition], allocation: Allocation, unreadable: Mapping[str, str]) -> int:
    """Return the IPUs of partitions that may be in an allocation, and that nobody here removes."""
    return sum(
        each.size
        for each in partitions
        if (not own(each.id) or each.id in unreadable)
        and each.allocation in ("", allocation.name)
        and (each.allocation or each.cluster == allocation.cluster)
    )


def _waits_for_others(pod: Pod, snapshot: Snapshot) -> bool:
    """Whether all allocations that a pod may use and that are large enough have too much in them that is not ours."""
    unreadable = snapshot.ledger.unreadable if snapshot.ledger is not None else {}
    large, possible = False, False
    for view in snapshot.servers:
        if view.reading is None or view.failure is not None:
            continue
        if pod.servers is not None and view.server.address not in pod.servers:
            continue
        for each in view.reading.allocations:
            strange = _strange_ipus(view.reading.partitions, each, unreadable)
            large = large or each.ipus is None or each.ipus >= pod.size
            possible = possible or each.ipus is None or each.ipus - strange >= pod.size
    return large and not possible


def _began(entry: Entry, pod: Pod, now: float) -> float:
    """Return when a pod began to hold its partition: one that is placed now does now, whatever came around its gate."""
    recorded = entry.recorded_at.timestamp()
    return pod.started_at.timestamp() if pod.started_at is not None and recorded < now else recorded


def plan_time(plan: Plan, save: SaveLedger) -> float:
    """Return when a plan was made, by the clock of its process."""
    return plan.memory.writes[save.key].since.timestamp()


def _order(pod: Pod) -> tuple[float, float, str]:
    return -pod.priority, pod.created_at.timestamp(), pod.uid
