"""The invariants, judged on the world as it is and never on what a controller believes.

While the storm lasts, each call that changes something is judged at the moment of its effect. What a cache could not
know yet is no violation: where a judgement is about what a slice counts on, the situation must have lasted for longer
than any cache can lag (`STALE_SECONDS`). What is promised without any cache is judged to the moment: the pods on a
pool, foreign pools, the lease, the proof of the cluster. Limits on chips do not exist in the product yet, so nothing
about them is checked.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from provisioner import constants
from provisioner.cluster.protocol import JsonObject
from provisioner.model.capacity import PoolName
from provisioner.model.workloads import ObjectRef
from provisioner.planning.memory import CallState
from provisioner.simulator.records import NodeState, Pool, PoolStatus
from tests.simulation.objects import JobSetRun

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation

#: Longer than the longest lag, the longest wait for a list after a lost event, and the deletion delay together.
STALE_SECONDS = 150.0
#: Calls of one process to GKE in any minute: lists once or twice a second at most, and a few calls per slice.
MOST_CALLS_PER_MINUTE = 180
_WINDOW_SECONDS = 60.0
_UP = (PoolStatus.PROVISIONING, PoolStatus.RUNNING)
_VERDICTS = frozenset({constants.INVALID_REQUEST, constants.CREATION_FAILED, constants.STUCK})

KEEP = "1 no pool is deleted under work, or under a JobSet that counts on it"
LEAK = "2 no pool without need survives"
SERVE = "3 every feasible slice gets its pool, every infeasible one a verdict"
ONE = "4 one pool a slice, foreign pools untouched, one leader, one proven cluster"
RATE = "6 calls to GKE stay under the stated rate"


class Checker:
    """Judges one run."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.stage = simulation.stage
        self.calls: Counter[str] = Counter()
        self.deleted_by_hand: set[str] = set()
        self.most_calls_per_minute = 0
        self.changed_at = 0.0
        self._recent: dict[Process, deque[float]] = {}
        self._verdicts: dict[str, set[str]] = {}
        self._refused: set[tuple[str, str]] = set()

    # --- calls

    def saw_call(self, process: Process, method: str, pool: str | None) -> None:
        """Count a call that is being sent."""
        now = self.stage.agenda.now
        self.calls[method] += 1
        recent = self._recent.setdefault(process, deque())
        recent.append(now)
        while recent[0] < now - _WINDOW_SECONDS:
            recent.popleft()
        self.most_calls_per_minute = max(self.most_calls_per_minute, len(recent))
        if len(recent) > MOST_CALLS_PER_MINUTE:
            self.stage.violate(
                RATE, f"{process.name} made {len(recent)} calls within a minute, the last {method} {pool}"
            )

    def before_change(self, process: Process, method: str, name: str | None, body: JsonObject | None) -> None:
        """Judge a call that is about to take effect."""
        if not self.simulation.same_cluster:
            self.stage.violate(ONE, f"{process.name} sends {method} although the kubeconfig is of another cluster")
        for other in self.simulation.processes:
            if other is not process and other.leads and process.elector is not None:
                self.stage.violate(ONE, f"{method} of {process.name} takes effect while {other.name} leads")
        if method == "nodePools.delete":
            pool = self.simulation.cloud.pools.get(name or "")
            if pool is not None and not is_ours(pool):
                self.stage.violate(ONE, f"{process.name} deletes {name}, which is none of ours")

    def after_change(self, process: Process, method: str, name: str | None, body: JsonObject | None) -> None:
        """Judge a call that GKE took."""
        self.changed_at = self.stage.agenda.now
        if method == "nodePools.create" and body is not None:
            name = body["nodePool"]["name"]
            process.note("creates node pool %s", name)
            self._judge_create(process, self.simulation.cloud.pools[name])
        elif method == "nodePools.delete":
            pool = self.simulation.cloud.pools[name or ""]
            process.note("deletes node pool %s", name)
            self._judge_delete(process, pool)
        else:
            self.stage.violate(ONE, f"{process.name} sends {method}, which it never should")

    def before_patch(self, process: Process, path: str, body: JsonObject) -> None:
        """Judge a write to a node."""
        node = self.simulation.cluster.nodes.get(path.rsplit("/", 1)[-1])
        unschedulable = body["spec"]["unschedulable"]
        if not self.simulation.same_cluster:
            self.stage.violate(ONE, f"{process.name} writes {path} although the kubeconfig is of another cluster")
        if node is None:
            return
        process.note("%s %s", "cordons" if unschedulable else "uncordons", node.name)
        if node.labels.get(constants.POOL_JOBSET_NAME) is None:
            self.stage.violate(
                ONE, f"{process.name} writes {node.name} of pool {node.pool_name}, which is none of ours"
            )
        if not unschedulable and not node.cordoned_by_us and node.cordoned:
            self.stage.violate(ONE, f"{process.name} uncordons {node.name}, which somebody else cordoned")

    def saw_event(self, process: Process, ref: ObjectRef, reason: str, message: str) -> None:
        """Take note of an Event."""
        process.note("tells %s %s: %s: %s", ref.kind, ref.name, reason, message)
        self._verdicts.setdefault(ref.uid, set()).add(reason)

    def refuse(self, body: JsonObject) -> None:
        """Take note that GKE called a slice's request invalid: what then happens is the user's to mend."""
        labels = body["nodePool"]["config"]["labels"]
        self._refused.add(owner_of(labels))

    # --- 1

    def _judge_delete(self, process: Process, pool: Pool) -> None:
        now = self.stage.agenda.now
        if pool.trouble is not None and pool.trouble.status == "INVALID_ARGUMENT":
            self._refused.add(owner_of(pool.body["config"]["labels"]))
        # A clock that runs ahead ends a grace early: there is no other clock to go by.
        ahead = max(0.0, process.skew_seconds)
        for pod in self.simulation.cluster.pods_on_pool(pool.name):
            if pod.blocks(now + ahead):
                self.stage.violate(KEEP, f"{process.name} deletes {pool.name} under pod {pod.name}")
        if not self._healthy(pool) or any(self.simulation.cluster.pods_on_pool(pool.name)):
            return
        for jobset, job in self._slices():
            if self._counts_on(jobset, job, pool) and self._unchanged_for(jobset, job, pool) > STALE_SECONDS:
                self.stage.violate(
                    KEEP,
                    f"{process.name} deletes {pool.name}, on which {jobset.job_name(job)} has counted for "
                    f"{self._unchanged_for(jobset, job, pool):.0f} s",
                )

    def _counts_on(self, jobset: JobSetRun, job: int, pool: Pool) -> bool:
        """Whether a living slice without a place has this pool and no other to go to."""
        if self._pods_bound(jobset, job) or not _fits(jobset, pool):
            return False
        made_for = owner_of(pool.body["config"]["labels"]) == (jobset.uid, jobset.slice_id(job).job_key)
        if not made_for and jobset.last_pool.get(job) != pool.name:
            return False
        others = [each for each in self.simulation.cloud.pools.values() if each is not pool and is_ours(each)]
        return not any(_fits(jobset, other) and other.status in _UP for other in others)

    def _unchanged_for(self, jobset: JobSetRun, job: int, pool: Pool) -> float:
        changed = max(jobset.changed.get(job, 0.0), self.simulation.cluster.pool_changed.get(pool.name, 0.0))
        return self.stage.agenda.now - max(changed, self.simulation.disturbed_at)

    def _healthy(self, pool: Pool) -> bool:
        """Whether pods will get all hosts there, by all that can be seen from outside."""
        nodes = [self.simulation.cluster.nodes.get(node.name) for node in pool.nodes]
        if pool.status is PoolStatus.PROVISIONING:
            return True
        whole = all(node is not None and node.ready and node.allocatable_chips and not node.cordoned for node in nodes)
        return pool.status is PoolStatus.RUNNING and whole and bool(nodes)

    # --- 4

    def _judge_create(self, process: Process, pool: Pool) -> None:
        owner = owner_of(pool.body["config"]["labels"])
        for other in self.simulation.cloud.pools.values():
            if other is pool or not is_ours(other) or owner_of(other.body["config"]["labels"]) != owner:
                continue
            if not self._healthy(other) or not _same_kind(other, pool) or other.name in self.deleted_by_hand:
                continue
            # The JobSet was suspended and resumed: the first pool's delete is on its way, and cannot be called back.
            going = process.loop.memory.deletes.get(PoolName(other.name))
            if going is not None and going.state in (CallState.UNDER_WAY, CallState.ACCEPTED):
                continue
            if any(
                bound.jobset is None or (bound.jobset.uid, bound.jobset.slice_id(bound.job).job_key) != owner
                for bound in self.simulation.cluster.pods_on_pool(other.name)
            ):
                continue
            changed = self.simulation.cluster.pool_changed.get(other.name, 0.0)
            settled = other.status is PoolStatus.PROVISIONING and not any(
                node.state is NodeState.REGISTERED for node in other.nodes
            )
            if settled or self.stage.agenda.now - changed > STALE_SECONDS:
                self.stage.violate(
                    ONE,
                    f"{process.name} makes {pool.name} for the slice that {other.name} was made for ({other.status})",
                )

    # --- 2 and 3, after the storm

    def unsettled(self) -> list[tuple[str, str]]:
        """List what is not yet as it should be, with the invariant that it would break if it lasted."""
        found: list[tuple[str, str]] = []
        if not self.simulation.same_cluster:
            return found
        cluster = self.simulation.cluster
        found += [
            (SERVE, f"JobSet {jobset.name} has not ended")
            for jobset in cluster.jobsets.values()
            if jobset.deleting or (jobset.alive and jobset.fate != "forever" and self._can_end(jobset))
        ]
        for jobset, job in self._slices():
            if job not in jobset.ended_jobs and not self._served(jobset, job):
                found.append((SERVE, f"slice {jobset.job_name(job)} ({jobset.uid}) neither runs nor is told why"))
        needed = self._needed_pools()
        for pool in self.simulation.cloud.pools.values():
            if not is_ours(pool):
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

    def _can_end(self, jobset: JobSetRun) -> bool:
        """Whether nothing keeps its slices from running that only its owner can change."""
        refused = any((jobset.uid, jobset.slice_id(job).job_key) in self._refused for job in range(jobset.replicas))
        return jobset.shape.feasible and not refused

    def _served(self, jobset: JobSetRun, job: int) -> bool:
        members = [pod for (owner, _), pod in jobset.pods.items() if owner == job]
        if len(members) >= jobset.shape.parallelism and all(pod.node and pod.deadline is None for pod in members):
            return True
        refused = (jobset.uid, jobset.slice_id(job).job_key) in self._refused
        if not members and self._waits_for_refused(jobset, job):
            return True
        if jobset.shape.feasible and not refused:
            return False
        told = self._verdicts.get(jobset.uid, set()).union(*(self._verdicts.get(pod.uid, ()) for pod in members))
        # It may have been lucky with a pool that was made for another: then its followers' trouble is told later.
        return bool(told & _VERDICTS) or any(pod.node for pod in members)

    def _waits_for_refused(self, jobset: JobSetRun, job: int) -> bool:
        """Whether the JobSet controller makes no pods of a job in order, because one before it is refused.

        There is no leader pod to provision for or to tell anything; the refused one is judged by itself.
        """
        return jobset.ordered and any(
            earlier not in jobset.ended_jobs and (jobset.uid, jobset.slice_id(earlier).job_key) in self._refused
            for earlier in range(job)
        )

    def _needed_pools(self) -> set[str]:
        needed = {pod.pool for pod in self.simulation.cluster.pods if pod.node and not pod.finished}
        for jobset, job in self._slices():
            if self._pods_bound(jobset, job):
                continue
            owner = (jobset.uid, jobset.slice_id(job).job_key)
            for pool in self.simulation.cloud.pools.values():
                last = jobset.last_pool.get(job) == pool.name
                if is_ours(pool) and (last or owner_of(pool.body["config"]["labels"]) == owner) and _fits(jobset, pool):
                    needed.add(pool.name)
        return needed

    def _slices(self) -> list[tuple[JobSetRun, int]]:
        return [
            (jobset, job)
            for jobset in self.simulation.cluster.jobsets.values()
            if jobset.alive
            for job in range(jobset.replicas)
        ]

    @staticmethod
    def _pods_bound(jobset: JobSetRun, job: int) -> bool:
        return any(owner == job and pod.node for (owner, _), pod in jobset.pods.items())


def is_ours(pool: Pool) -> bool:
    """Whether a pool says that the provisioner made it."""
    return constants.POOL_JOBSET_NAME in pool.body.get("config", {}).get("labels", {})


def owner_of(labels: dict[str, Any]) -> tuple[str, str]:
    """Return the JobSet's UID and the job key on a pool."""
    return labels.get(constants.POOL_JOBSET_UID, ""), labels.get(constants.POOL_JOB_KEY, "")


def _fits(jobset: JobSetRun, pool: Pool) -> bool:
    shape, plan = jobset.shape, pool.plan
    spot = bool(pool.body["config"].get("spot"))
    return (
        plan.machine.accelerator == shape.accelerator
        and plan.topology == shape.topology
        and plan.hosts_per_zone == shape.hosts
        and spot == shape.spot
    )


def _same_kind(one: Pool, other: Pool) -> bool:
    return (
        one.plan.machine.name == other.plan.machine.name
        and one.plan.topology == other.plan.topology
        and one.plan.hosts_per_zone == other.plan.hosts_per_zone
        and one.body["config"].get("spot") == other.body["config"].get("spot")
    )
