"""Checks the invariants, most of them against the simulated world and not against the provisioner's view of it.

Each call that changes something is checked when it takes effect. A process may not know the latest changes. A second
pool for a slice is therefore reported only if the first pool has not changed for `STALE_SECONDS`, has no nodes yet, or
is being repaired. Foreign pools, the lease, the proof of the cluster and the limit on chips are checked without delay.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from provisioner import constants
from provisioner.kube.protocol import JsonObject
from provisioner.model.capacity import Node, PoolName
from provisioner.model.workloads import ObjectRef, WorkloadKind
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.memory.state import CallState
from provisioner.slices.planning.plan import Plan
from rehearsal.simulators.gke.records import NodeState, Pool, PoolStatus
from rehearsal.simulators.gke.validation import pulls_images
from tests.simulation import shown
from tests.simulation.admission import mark_of
from tests.simulation.asked import Asked
from tests.simulation.asks import BUFFER, AskRun
from tests.simulation.assigned import CORDONS, Assigned
from tests.simulation.deletes import KEEP, LOOK_TO_EFFECT_SECONDS, Deletes
from tests.simulation.fairness import PAYS, TOLD, Fairness
from tests.simulation.line import Line
from tests.simulation.objects import PodRun, WorkloadRun
from tests.simulation.pools import (
    are_ours,
    chips_asked,
    chips_in,
    fits,
    fits_shape,
    is_ours,
    owner_of,
    same_kind,
    workload_name,
)
from tests.simulation.shared import Shared
from tests.simulation.stock import Stock
from tests.simulation.waiting import Waiting

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation

#: Maximum seconds until all caches show a change: late events, the list after a lost event, and the deletion delay.
STALE_SECONDS = 150.0
#: `STALE_SECONDS` of runs without late events: the deletion delay, and the seconds until a delete takes effect.
PROMPT_STALE_SECONDS = 45.0
#: Maximum number of calls of one process to GKE in any minute: up to two lists per second, and some calls per slice.
MAX_CALLS_PER_MINUTE = 180
_WINDOW_SECONDS = 60.0
_UP = (PoolStatus.PROVISIONING, PoolStatus.RUNNING)
_WAITING = frozenset({EventReason.LIMIT_REACHED, EventReason.CREATION_WAITING})
_VERDICTS = frozenset({EventReason.INVALID_REQUEST, EventReason.CREATION_FAILED, EventReason.STUCK})

LEAK = "2 no pool without need survives"
SERVE = "3 every feasible slice gets its pool, every infeasible one an Event"
ONE = "4 one pool a slice, foreign pools untouched, one leader, one proven cluster"
LIMIT = "5 limits on chips and pools are never exceeded by one leader"
RATE = "6 calls to GKE stay under the stated rate"
SHOWN = "7 people are shown what was decided, and what there is"


class Checker:
    """Checks all invariants of one run, most of them in parts such as `asked` and `stock`."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.stage = simulation.stage
        self.waiting = Waiting(simulation)
        self.fairness = Fairness(simulation, self.waiting)
        self.asked = Asked(simulation)
        self.deletes = Deletes(simulation, self)
        self.assigned = Assigned(simulation, self)
        self.stock = Stock(simulation)
        self.line = Line(simulation, self)
        self.shared = Shared(simulation, self)
        simulation.cluster.on_plain = self.shared.changed
        simulation.cluster.on_bound = self._bound
        self.deleted_by_hand: set[str] = set()
        #: Time at which a user last uncordoned a node of each pool.
        self.opened_by_hand: dict[str, float] = {}
        #: Time at which GKE last began to repair each pool.
        self.repaired_since: dict[str, float] = {}
        self.created_by: dict[str, tuple[Process, float]] = {}
        self.max_calls_per_minute = 0
        self.changed_at = 0.0
        self._was_up = self._was_healthy = self._was_warm = False
        self._recent: dict[Process, deque[float]] = {}
        self._listed_at: dict[Process, tuple[float, ...]] = {}
        self._notices: dict[str, set[str]] = {}

    def saw_call(self, process: Process, method: str, pool: str | None) -> None:
        now = self.stage.agenda.now
        if method == "nodePools.list":
            # Two times are kept, because the last list may be newer than the decision for a create.
            self._listed_at[process] = (*self._listed_at.get(process, ()), now)[-2:]
        recent = self._recent.setdefault(process, deque())
        recent.append(now)
        while recent[0] < now - _WINDOW_SECONDS:
            recent.popleft()
        self.max_calls_per_minute = max(self.max_calls_per_minute, len(recent))
        if len(recent) > MAX_CALLS_PER_MINUTE:
            self.stage.violate(
                RATE, f"{process.name} made {len(recent)} calls within a minute, the last {method} {pool}"
            )

    def before_change(self, process: Process, method: str, name: str | None, body: JsonObject | None) -> None:
        if not self.simulation.same_cluster:
            self.stage.violate(ONE, f"{process.name} sends {method} although the kubeconfig is of another cluster")
        for other in self.simulation.processes:
            if other is not process and other.leads and process.elector is not None:
                self.stage.violate(ONE, f"{method} of {process.name} takes effect while {other.name} leads")
        if method == "nodePools.create" and body is not None:
            self.simulation.market.before_create(body, chips_asked(body["nodePool"]))
        if method == "nodePools.delete":
            pool = self.simulation.cloud.pools.get(name or "")
            if pool is not None and not is_ours(pool):
                self.stage.violate(ONE, f"{process.name} deletes {name}, which is none of ours")
            # The state of the pool is recorded now, because the pool is STOPPING once GKE has accepted the delete.
            self._was_up = pool is not None and pool.status in _UP
            self._was_healthy = pool is not None and self.healthy(pool)
            self._was_warm = pool is not None and self._was_healthy and self.stock.is_warm(pool)

    def after_change(self, process: Process, method: str, name: str | None, body: JsonObject | None) -> None:
        self.changed_at = self.stage.agenda.now
        if method == "nodePools.create" and body is not None:
            name = body["nodePool"]["name"]
            process.note("creates node pool %s", name)
            pool = self.simulation.cloud.pools[name]
            self.created_by[name] = (process, self.stage.agenda.now)
            self.fairness.create_accepted(process, pool.body)
            if not pulls_images(pool.body):
                self.stage.violate(SERVE, f"{process.name} makes {name}, whose nodes cannot pull private images")
            if workload_name(pool)[0] == WorkloadKind.POD:
                self.shared.created(process, pool)
            else:
                self._judge_charge(process, pool)
                if not self.asked.judge_refill(process, pool):
                    self._judge_create(process, pool)
            self.asked.judge_create(process, pool)
            self.assigned.created(process, pool)
            self.stock.created(process, pool)
            self.line.created(process, pool)
            self._judge_limits(process, pool)
        elif method == "nodePools.delete":
            pool = self.simulation.cloud.pools[name or ""]
            process.note("deletes node pool %s", name)
            wrong = self.waiting.taken_away(pool) if self._was_up else ""
            if wrong:
                self.stage.violate(SERVE, wrong)
            self.deletes.judge(process, pool, healthy=self._was_healthy)
            if self._was_warm:
                self.stock.gave_way(process, pool)
        else:
            self.stage.violate(ONE, f"{process.name} sends {method}, which it never should")

    def before_patch(self, process: Process, path: str, body: JsonObject) -> None:
        if "status" in body:
            self.asked.before_status(process, path, body["status"])
            return
        if "/pods/" in path:
            self.shared.before_cost(process, path, body)
            return
        node = self.simulation.cluster.nodes.get(path.rsplit("/", 1)[-1])
        if not self.simulation.same_cluster:
            self.stage.violate(ONE, f"{process.name} writes {path} although the kubeconfig is of another cluster")
        if node is None:
            return
        if "labels" in body.get("metadata", {}):
            self.assigned.before_labels(process, node, body["metadata"]["labels"])
            return
        if "taints" in body["spec"]:
            self._judge_release(process, node, body["spec"]["taints"] or [])
            return
        unschedulable = body["spec"]["unschedulable"]
        process.note("%s %s", "cordons" if unschedulable else "uncordons", node.name)
        if not are_ours(node.labels):
            self.stage.violate(
                ONE, f"{process.name} writes {node.name} of pool {node.pool_name}, which is none of ours"
            )
        if unschedulable and PoolName(node.pool_name) not in process.loop.memory.deletes:
            self.stage.violate(CORDONS, f"{process.name} cordons {node.name}, and deletes no pool {node.pool_name}")
        if not unschedulable and not node.cordoned_by_us and node.cordoned:
            self.stage.violate(ONE, f"{process.name} uncordons {node.name}, which somebody else cordoned")

    def saw_event(self, process: Process, ref: ObjectRef, reason: str, message: str) -> None:
        """Record an Event, and check that no Event about a waiting slice names workloads of another namespace."""
        process.note("tells %s %s: %s: %s", ref.kind, ref.name, reason, message)
        self._notices.setdefault(ref.uid, set()).add(reason)
        if reason == EventReason.CREATION_WAITING and self.simulation.hostile.present:
            others = {
                workload.name
                for workload in self.simulation.cluster.every_workload
                if workload.namespace != ref.namespace
            }
            if named := [name for name in others if f"{name}-" in message]:
                self.stage.violate(TOLD, f"an Event on {ref} names {', '.join(named)} of another namespace")

    def _bound(self, pod: PodRun) -> None:
        self.assigned.bound(pod)
        self.shared.bound(pod)

    def told(self, workload: WorkloadRun, job: int) -> set[str]:
        """Return the reasons of the Events on a workload and on the pods of one of its slices."""
        pods = (pod.uid for (owner, _), pod in workload.pods.items() if owner == job)
        return self.told_of(workload.uid).union(*map(self.told_of, pods))

    def told_of(self, uid: str) -> set[str]:
        return self._notices.get(uid, set())

    def decided(self, process: Process, plan: Plan) -> None:
        self.waiting.look_at_pools()
        self.stock.look_at_pools()
        self.deletes.expect(process, plan)
        for false in shown.false_of_decision(process, plan):
            self.stage.violate(SHOWN, false)

    def settled(self) -> None:
        for false in shown.false_of_world(self.simulation):
            self.stage.violate(SHOWN, false)

    def stale_seconds(self) -> float:
        """Return `STALE_SECONDS`, or `PROMPT_STALE_SECONDS` if no fault of the run delays events or processes."""
        faults = self.stage.faults
        disturbed = faults["silent watch"] + faults["pause"] + faults["pause within a call"] + faults["clock jump"]
        prompt = self.simulation.calls.prompt and not disturbed and self.simulation.calls.kube_down_until == 0.0
        return PROMPT_STALE_SECONDS if prompt else STALE_SECONDS

    def healthy(self, pool: Pool) -> bool:
        """Whether all hosts of a pool are usable, or the pool is still being created."""
        nodes = [self.simulation.cluster.nodes.get(node.name) for node in pool.nodes]
        if pool.status is PoolStatus.PROVISIONING:
            return True
        whole = all(node is not None and node.ready and node.allocatable_chips and not node.cordoned for node in nodes)
        # A flex-start pool is created without nodes, and is healthy while it waits for capacity.
        return pool.status is PoolStatus.RUNNING and whole and bool(nodes or pool.plan.scale_up_hosts)

    def _is_repaired(self, pool: Pool) -> bool:
        """Whether GKE has been repairing a pool for more than `LOOK_TO_EFFECT_SECONDS`, and no node is cordoned."""
        since = self.repaired_since.get(pool.name, float("inf"))
        nodes = [self.simulation.cluster.nodes.get(node.name) for node in pool.nodes]
        return (
            pool.status is PoolStatus.RUNNING_WITH_ERROR
            and self.stage.agenda.now - since > LOOK_TO_EFFECT_SECONDS
            and not any(node is not None and node.cordoned for node in nodes)
        )

    def _judge_charge(self, process: Process, pool: Pool) -> None:
        """Check that the workload of a new pool has at some time requested a pool of this shape."""
        owner = owner_of(pool.body["config"]["labels"])
        charged = [
            workload
            for workload in self.simulation.cluster.every_workload
            if workload.uid == owner[0]
            and any(workload.slice_id(job).group_key == owner[1] for job in range(workload.max_replicas))
            and any(fits_shape(workload, shape, pool) for shape in workload.shapes)
        ]
        if not charged and not self._is_namesakes(pool):
            self.stage.violate(
                ONE, f"{process.name} makes {pool.name} for {owner}, and no workload has ever asked for such a slice"
            )

    def _is_namesakes(self, pool: Pool) -> bool:
        """Whether pods without the UID of their workload explain a pool for a deleted workload of the same name."""
        return any(
            (workload.kind, workload.name) == workload_name(pool) and shape.topology == pool.plan.topology
            for workload in self.simulation.cluster.every_workload
            if not workload.labels_uid
            for shape in workload.shapes
        )

    def _judge_create(self, process: Process, pool: Pool) -> None:
        owner = owner_of(pool.body["config"]["labels"])
        for other in self.simulation.cloud.pools.values():
            if other is pool or not is_ours(other) or owner_of(other.body["config"]["labels"]) != owner:
                continue
            repaired = self._is_repaired(other)
            if (
                not (self.healthy(other) or repaired)
                or not same_kind(other, pool)
                or other.name in self.deleted_by_hand
            ):
                continue
            # A pool does not count during its delete and shortly after: the new pool may have been decided then.
            going = process.loop.memory.deletes.get(PoolName(other.name))
            if going is not None and (
                going.state in (CallState.UNDER_WAY, CallState.ACCEPTED)
                or (process.loop.clock() - going.since).total_seconds() < LOOK_TO_EFFECT_SECONDS
            ):
                continue
            if any(
                bound.workload is None or (bound.workload.uid, bound.workload.slice_id(bound.job).group_key) != owner
                for bound in self.simulation.cluster.pods_on_pool(other.name)
            ):
                continue
            if any(
                workload.last_pool.get(job) == other.name and (workload.uid, workload.slice_id(job).group_key) != owner
                for workload, job in self.slices()
            ):
                # The pool does not count: another slice ran on it last, and may restart there.
                continue
            if self._is_booked(process, other.name, owner):
                continue
            waits = other.plan.capacity == "flex-start" and not any(
                node.state is NodeState.REGISTERED for node in other.nodes
            )
            if waits and mark_of(other.body["config"]["labels"]) != mark_of(pool.body["config"]["labels"]):
                # The autoscaler adds nodes only for pods with the marks of the create. Restarted pods may have others.
                continue
            user, left_at = self.simulation.cluster.left_by.get(other.name, (owner[0], 0.0))
            if user != owner[0] and self.stage.agenda.now - left_at < STALE_SECONDS:
                # The slice that used the pool last has ended or moved, and caches may not show that yet.
                continue
            changed = self.simulation.cluster.pool_changed.get(other.name, 0.0)
            settled = other.status is PoolStatus.PROVISIONING and not any(
                node.state is NodeState.REGISTERED for node in other.nodes
            )
            if settled or repaired or self.stage.agenda.now - changed > STALE_SECONDS:
                self.stage.violate(
                    ONE,
                    f"{process.name} makes {pool.name} for the slice that {other.name} was made for ({other.status})",
                )

    def _is_booked(self, process: Process, pool: str, owner: tuple[str, str]) -> bool:
        """Whether a live ProvisioningRequest or CapacityBuffer that does not own a pool counts on it."""
        live = {run.uid for run in self.simulation.cluster.workloads.values() if isinstance(run, AskRun) and run.alive}
        return any(
            memory.claim is not None and memory.claim.pool == pool and id_.workload_uid in live - {owner[0]}
            for id_, memory in process.loop.memory.slices.items()
        )

    def _judge_limits(self, process: Process, pool: Pool) -> None:
        """Check that all pools are within the limits, except for pools that another process has just created."""
        ours = [
            existing
            for existing in self.simulation.cloud.pools.values()
            if is_ours(existing) and (existing is pool or not self._in_flight_of_another(process, existing))
        ]
        wrong = self.simulation.administrator.judge_create(pool, ours, STALE_SECONDS)
        if wrong:
            self.stage.violate(LIMIT, f"{process.name} makes {pool.name}, {wrong}")
        exceeded = self.fairness.over_limit(pool, ours, STALE_SECONDS)
        if exceeded:
            self.stage.violate(PAYS, f"{process.name} makes {pool.name}, which {exceeded}")

    def _in_flight_of_another(self, process: Process, pool: Pool) -> bool:
        """Whether another process may have created a pool after the list on which this process decides."""
        maker, made_at = self.created_by.get(pool.name, (process, 0.0))
        return maker is not process and made_at >= self._listed_at.get(process, (0.0,))[0]

    def complete(self, workload: WorkloadRun) -> bool:
        """Whether each slice that needs a pool has a bound pod, or its own healthy RUNNING pool."""
        return all(
            self.pods_bound(workload, job)
            or any(
                owner_of(pool.body["config"]["labels"]) == (workload.uid, workload.slice_id(job).group_key)
                and self.healthy(pool)
                and pool.status is PoolStatus.RUNNING
                for pool in self.simulation.cloud.pools.values()
                if is_ours(pool)
            )
            for job in ({job for job, _ in workload.pods} if workload.kind.has_pods else workload.slots())
        )

    def _judge_release(self, process: Process, node: Node, taints: list[dict[str, str]]) -> None:
        process.note("releases %s", node.name)
        if {taint["key"] for taint in taints} != {taint.key for taint in node.taints} - {*constants.HELD_KEYS}:
            self.stage.violate(ONE, f"{process.name} changes taints of {node.name} that are none of ours")

    def unsettled(self) -> list[tuple[str, str]]:
        """Return the deviations from a settled world, each with the invariant that it breaks if it lasts."""
        found: list[tuple[str, str]] = []
        if not self.simulation.same_cluster:
            return found
        for overdue in (*self.waiting.overdue(), *self.asked.overdue()):
            self.stage.violate(SERVE, overdue)
        cluster = self.simulation.cluster
        if self.simulation.people.still_to_come:
            found.append((SERVE, "not everybody has come"))
        found += [(SERVE, unserved) for unserved in self.asked.unserved()]
        found += self.assigned.unsettled()
        found += self.shared.unsettled()
        found += [
            (SERVE, f"{workload.kind} {workload.name} has not ended")
            for workload in cluster.workloads.values()
            if workload.deleting or (workload.alive and workload.fate != "forever" and self.can_end(workload))
        ]
        for workload, job in self.slices():
            if job not in workload.ended_jobs and not self._served(workload, job):
                found.append((SERVE, f"slice {workload.group_name(job)} ({workload.uid}) neither runs nor is told why"))
        needed = self._needed_pools()
        kept = self._pools_kept(needed)
        for pool in self.simulation.cloud.pools.values():
            if not is_ours(pool) or pool.name in kept:
                continue
            if pool.status is PoolStatus.STOPPING or pool.name not in needed:
                found.append((LEAK, f"node pool {pool.name} ({pool.status.value}) is there, and nothing needs it"))
            else:
                found += [
                    (KEEP, f"node {node.name} of {pool.name}, which is needed, is cordoned by us")
                    for node in cluster.nodes.values()
                    if node.pool_name == pool.name and node.cordoned_by_us
                ]
        return found

    def can_end(self, workload: WorkloadRun) -> bool:
        """Whether a workload's slices can run without any change by users."""
        singled = self.simulation.singled
        unserved = workload.name == singled.name or singled.outranks(workload.priority, workload.shape)
        if unserved or not workload.shape.feasible:
            return False
        return self._held_for_ever() + self._wanted(workload) <= self._max_chips()

    def _served(self, workload: WorkloadRun, job: int) -> bool:
        if isinstance(workload, AskRun):
            told = set().union(*map(self.told_of, self.asked.together(workload)))
            return self.asked.served(workload) or (bool(told & _WAITING) and self._has_to_wait(workload))
        members = [pod for (owner, _), pod in workload.pods.items() if owner == job]
        shape = workload.shape_of(job)
        if len(members) >= workload.pods_due(job) and all(pod.node and pod.deadline is None for pod in members):
            return True
        singled = workload.name == self.simulation.singled.name
        told = self.told(workload, job)
        if shape.feasible and not singled:
            return bool(told & _WAITING) and self._has_to_wait(workload)
        # A slice that can get no pool of its own needs no Event if a pod is bound to a pool of another slice.
        waits = told & (_VERDICTS | _WAITING) if singled else told & _VERDICTS
        return bool(waits) or any(pod.node for pod in members)

    def _has_to_wait(self, workload: WorkloadRun) -> bool:
        """Whether `Singled` outranks a workload, or the chips that limits and stock leave are too few for its start."""
        # Warm pools of a buffer do not count, because the provisioner deletes them if workloads need their chips.
        warm = self.asked.warm() if workload.kind is not BUFFER else ()
        ours = (pool for pool in self.simulation.cloud.pools.values() if is_ours(pool) and pool.name not in warm)
        has_room = sum(map(chips_in, ours)) + self._wanted(workload) <= self._max_chips()
        return not has_room or self.simulation.singled.outranks(workload.priority, workload.shape)

    def _wanted(self, workload: WorkloadRun) -> int:
        return workload.shape.hosts * workload.shape.chips * (workload.replicas if workload.gang else 1)

    def _max_chips(self) -> float:
        market = self.simulation.market
        return min((limit for limit in (market.max_chips, market.stock_chips) if limit is not None), default=math.inf)

    def _held_for_ever(self) -> int:
        """Return the chips of pools on which pods of infeasible slices run, because these pods never end."""
        cluster = self.simulation.cluster
        held = {
            pod.pool
            for pod in cluster.pods
            if pod.node and not pod.finished and pod.workload is not None and not pod.workload.shape.feasible
        }
        pools = (pool for pool in self.simulation.cloud.pools.values() if pool.name in held and is_ours(pool))
        return sum(map(chips_in, pools))

    def _needed_pools(self) -> set[str]:
        needed = {pod.pool for pod in self.simulation.cluster.pods if pod.node and not pod.finished}
        for workload, job in self.slices():
            if self.pods_bound(workload, job) or workload.kind is BUFFER:
                continue
            owner = (workload.uid, workload.slice_id(job).group_key)
            for pool in self.simulation.cloud.pools.values():
                last = workload.last_pool.get(job) == pool.name
                if (
                    is_ours(pool)
                    and (last or owner_of(pool.body["config"]["labels"]) == owner)
                    and fits(workload, job, pool)
                ):
                    needed.add(pool.name)
        return needed

    def _pools_kept(self, needed: set[str]) -> set[str]:
        """Return pools beyond `needed` that slices of buffers and of suspended workloads may keep."""
        # A slice of a suspended workload may keep any pool of the workload, because its own pool may be unknown.
        claims = [
            {
                pool.name
                for pool in self.simulation.cloud.pools.values()
                if is_ours(pool)
                and pool.status is PoolStatus.RUNNING
                and pool.name not in needed
                and (pool.name in workload.pools or owner_of(pool.body["config"]["labels"])[0] == workload.uid)
            }
            for workload in self.simulation.cluster.workloads.values()
            if self.simulation.keeps_suspended
            and workload.suspended
            and not (workload.gone or workload.deleting or workload.terminal)
            for _ in workload.slots()
        ]
        claims += [self.asked.idle(buffer) - needed for buffer in self.asked.buffers() for _ in buffer.slots()]
        keepers: dict[str, int] = {}

        def keep(pool: str, tried: set[int]) -> bool:
            """Match a pool with a slice that can keep it, perhaps by changing other matches; return whether one can."""
            for number, claimed in enumerate(claims):
                if pool not in claimed or number in tried:
                    continue
                tried.add(number)
                other = next((name for name, keeper in keepers.items() if keeper == number), None)
                if other is None or keep(other, tried):
                    keepers[pool] = number
                    return True
            return False

        return {pool for pool in sorted(set().union(*claims)) if keep(pool, set())}

    def slices(self) -> list[tuple[WorkloadRun, int]]:
        """Return the slices of all workloads that need pools now."""
        return [
            (workload, job)
            for workload in self.simulation.cluster.workloads.values()
            if workload.alive
            for job in workload.slots()
        ]

    @staticmethod
    def pods_bound(workload: WorkloadRun, job: int) -> bool:
        return any(owner == job and pod.node for (owner, _), pod in workload.pods.items())
