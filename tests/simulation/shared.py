"""Checks pods that have no workload, and the pools of single hosts that these pods share.

The pods of one namespace, accelerator and topology are a class. With a new pool, the class must not have more nodes
than its maximum number of pods within the lag of a cache, plus one for each pod of another namespace that may take a
node, and one for each pod that fits no node. A rolling update thus buys at most maxSurge more hosts, and a burst no
more hosts than pods. Pools and nodes that the pods cannot count on are left out, such as:

- pools that are being deleted, or whose nodes were lost, cordoned or not ready within the lag of a cache;
- pools with labels of one slice or another namespace;
- pools that another process may have created after this process listed the pools;
- nodes with pods of other classes, or with pods that are past their grace period.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from provisioner import constants
from provisioner.kube.protocol import JsonObject
from provisioner.model.capacity import PoolName
from provisioner.model.workloads import WorkloadKind, group_key, uid_in
from rehearsal.simulators.gke.records import Pool, PoolStatus
from tests.simulation.admission import is_shared, mark_of
from tests.simulation.jobs import JobRun
from tests.simulation.objects import PodRun, raw_pod
from tests.simulation.pools import chips_in, hosts, is_ours, namespace_of, owner_of, workload_name

if TYPE_CHECKING:
    from tests.simulation.checks import Checker
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation

RUNS = "21 each pod of a Deployment or StatefulSet runs"
FEW = "22 pods that share pools get no more hosts than they need, at most 16 in a pool"
EMPTY = "23 a pool without pods is not kept, whatever pods of other namespaces do"
REFUSED = "24 pods that fit no host get at most 6 pools in a day"
CHARGED = "25 a namespace pays for the nodes that its pods use, in shared pools, too"
SERVED = "26 no pool is created for pods that SERVE_PODS excludes"
COSTS = "27 a Deployment that scales in empties one pool before the next"

#: Maximum number of nodes of a shared pool, and of pools for a workload whose pods fit no host.
MAX_NODES, MAX_REFUSED = 16, 6
#: Resources in requests of `intruders` that the provisioner checks before it creates a pool: an excess gets no pool.
_KNOWN = frozenset({"cpu", "memory"})
#: Maximum lag of a cache in seconds after the storm, and seconds from the end of the storm until this lag applies.
_CALM_LAG_SECONDS, _SETTLES_SECONDS = 45.0, 150.0
#: Maximum time in seconds for which a pod waits for other pods of its burst, and minimum number of pods of a burst.
_BURST_SECONDS, _BURST = 15.0, 12
#: Maximum seconds for which a ready pool may have no pods: the longest claim, the wait before a delete, and a margin.
_EMPTY_SECONDS = 900.0 + 60.0 + 240.0
#: Time in seconds within which a pod is removed after its grace period, unless its node does not respond.
LEAVES_SECONDS = 3.0
#: Seconds after which a pool that is still being created no longer counts as nodes for its pods.
_LATE_SECONDS = 500.0
_UP = (PoolStatus.PROVISIONING, PoolStatus.RUNNING)
#: Namespace, accelerator, topology.
_Class = tuple[str, str, str | None]


class Shared:
    """Checks the shared pools of one run."""

    def __init__(self, simulation: Simulation, checker: Checker) -> None:
        self._simulation, self._stage = simulation, simulation.stage
        self._cluster, self._checker = simulation.cluster, checker
        #: Classes of all pods, past and present, that SERVE_PODS selects, by workload UID and group key.
        self._classes: dict[tuple[str, str], _Class] = {}
        #: Time and number of pods of each class that want a node, for each change, oldest first.
        self._wanted: defaultdict[_Class, deque[tuple[float, int]]] = defaultdict(deque)
        self._counted: dict[PodRun, _Class] = {}
        #: Time at which each pool last lost a pod that stayed longer than `LEAVES_SECONDS` after its grace period.
        self._lingered_at: dict[str, float] = {}
        #: Unused pools of workloads whose pods fit no host, and their maximum number, by UID of the workload.
        self._refused: defaultdict[str, dict[str, Pool]] = defaultdict(dict)
        self._most_refused: dict[str, int] = {}
        self._empty_since: dict[str, float] = {}
        self.max_pods: Counter[str] = Counter()

    def changed(self, pod: PodRun) -> None:
        class_ = self.class_of(pod)
        if class_ is None:
            return
        for uid in self._uids_of(pod) if not pod.gone else ():
            key = uid, group_key(pod.namespace, pod.name)
            self.max_pods[uid] += key not in self._classes
            self._classes[key] = class_
            if not pod.bindable:
                self._most_refused[uid] = 0 if pod.requests.keys() <= _KNOWN else MAX_REFUSED
        if pod.gone and pod.deadline is not None and pod.deadline + LEAVES_SECONDS < self._stage.agenda.now:
            self._lingered_at[pod.pool] = self._stage.agenda.now
        wants = not (pod.gone or pod.finished or pod.deadline is not None)
        if wants is (pod in self._counted):
            return
        if wants:
            self._counted[pod] = class_
        else:
            del self._counted[pod]
        now, counts = self._stage.agenda.now, self._wanted[class_]
        counts.append((now, (counts[-1][1] if counts else 0) + (1 if wants else -1)))
        while len(counts) > 1 and counts[1][0] < now - 1000.0:
            counts.popleft()

    def bound(self, pod: PodRun) -> None:
        """Stop counting the pool of a bound pod as unused."""
        for pools in self._refused.values():
            pools.pop(pod.pool, None)

    def class_of(self, pod: PodRun) -> _Class | None:
        """Return namespace, accelerator and topology of a pod; None if it is not served, or shares no pools."""
        team, shape = self._simulation.pods, pod.shape
        annotated = constants.SERVE in pod.metadata.get("annotations", {})
        served = team.serve_pods == "all" or (team.serve_pods == "annotated" and annotated)
        if pod.workload is not None or not served or shape.hosts != 1 or not shape.chips:
            return None
        return pod.namespace, shape.accelerator, shape.topology

    def _uids_of(self, pod: PodRun) -> tuple[str, ...]:
        """Return the possible UIDs of a pod's workload: the UID of its owner or the pod, and a derived UID."""
        references = raw_pod(pod, self._stage.agenda)["metadata"].get("ownerReferences")
        uid = references[0]["uid"] if references else pod.uid
        return uid, uid_in(pod.namespace, uid)

    def created(self, process: Process, pool: Pool) -> None:
        owner = owner_of(pool.body["config"]["labels"])
        class_ = self._classes.get(owner)
        made = f"{process.name} creates {pool.name} of {hosts(pool)} hosts"
        of_set = owner[0] in self._simulation.guests.wide_uids()
        if class_ is None and (of_set or self._is_of_job(owner[0], workload_name(pool)[1])):
            return
        if class_ is None:
            self._stage.violate(SERVED, f"{made} for {workload_name(pool)}, and no such pod is served")
            return
        if class_ != (namespace_of(pool.body["config"]["labels"]), pool.plan.machine.accelerator, pool.plan.topology):
            self._stage.violate(SERVED, f"{made} for a pod of {class_}")
        if hosts(pool) > MAX_NODES:
            self._stage.violate(FEW, made)
        if owner[0] in self._most_refused:
            self._refused[owner[0]][pool.name] = pool
            # The scheduler never refused the pods on a pool that failed.
            count = sum(earlier.trouble is None for earlier in self._refused[owner[0]].values())
            if count > self._most_refused[owner[0]]:
                self._stage.violate(REFUSED, f"{made}, the pool number {count} for {owner[0]}")
        recent, wanted = self._recent_pools(class_), self._most_wanted(process, class_)
        there, taken = self._seats(process, class_, pool)
        # The check does not apply to the storm, in which late events may show the pods of a burst one after the other.
        judged = not self._stage.stormy and class_[0] == self._simulation.pods.namespace
        # A pool that fails, or a node that a pod of another class takes, lets pods of the burst wait again, and thus
        # allows one more pool.
        if judged and len(recent) > _pools_of_burst(wanted) + taken + self._failed_pools(class_):
            self._stage.violate(FEW, f"{made}, number {len(recent)} of the pools of a burst: {sorted(recent)}")
        if sum(there.values()) + hosts(pool) > wanted + self._rivals(class_) + self._unfit(class_):
            self._stage.violate(FEW, f"{made} for at most {wanted} pods of {class_}, which have nodes: {there}")
        self._judge_charge(pool, class_[0], made)

    def _is_of_job(self, uid: str, name: str) -> bool:
        """Whether a workload is a Job or a pod of a Job, which SERVE_PODS=all serves without the annotation."""
        every = self._cluster.every_workload if self._simulation.pods.serve_pods == "all" else ()
        jobs = [workload for workload in every if isinstance(workload, JobRun)]
        return any(uid in (job.uid, uid_in(job.namespace, job.uid)) or name.startswith(f"{job.name}-") for job in jobs)

    def lag_seconds(self) -> float:
        """Return the maximum lag of a cache in seconds, which is smaller after the storm."""
        calm = self._stage.agenda.now - self._simulation.storm_seconds
        return _CALM_LAG_SECONDS if calm > _SETTLES_SECONDS else self._checker.stale_seconds()

    def _most_wanted(self, process: Process, class_: _Class) -> int:
        """Return the maximum number of pods of a class within the time that the cache of a process may lag."""
        now, stale_seconds, most = self._stage.agenda.now, self._checker.stale_seconds(), 0
        # The time is doubled for a paused process, because several pauses may follow each other.
        paused = process.paused_until > now - stale_seconds
        since = now - (2 * stale_seconds if paused else self.lag_seconds())
        for at, count in reversed(self._wanted[class_]):
            most = max(most, count)
            if at < since:
                break
        return most

    def _recent_pools(self, class_: _Class) -> list[str]:
        """Return the names of pools of a class, up or in creation, that were created in the last `_BURST_SECONDS`."""
        since, pools = self._stage.agenda.now - _BURST_SECONDS, self._simulation.cloud.pools.values()
        created = (pool for pool in pools if is_ours(pool) and self._belongs(pool, class_) and pool.status in _UP)
        return [pool.name for pool in created if self._checker.created_by[pool.name][1] >= since]

    def _failed_pools(self, class_: _Class) -> int:
        pools = self._simulation.cloud.pools.values()
        return sum(pool.trouble is not None and is_ours(pool) and self._belongs(pool, class_) for pool in pools)

    def _seats(self, process: Process, class_: _Class, new: Pool) -> tuple[dict[str, int], int]:
        """Return the number of nodes in each pool that pods of a class may use, and the number that other pods took."""
        found, taken = {}, 0
        for pool in self._simulation.cloud.pools.values():
            if pool is new or not is_ours(pool) or not self._belongs(pool, class_):
                continue
            pods = self._cluster.pods_on_pool(pool.name)
            others = {pod.node for pod in pods if self._blocks(process, pod, class_)}
            taken += len(others)
            if self._is_steady(pool, class_[0]) and not self._checker._in_flight_of_another(process, pool):
                # Marked pods cannot be bound to an unmarked pool, so only its used nodes count if other pods are on it.
                used = {pod.node for pod in pods if not pod.finished}
                found[pool.name] = (len(used) if others and self._is_open(pool) else hosts(pool)) - len(others)
        return {name: count for name, count in found.items() if count}, taken

    def _rivals(self, class_: _Class) -> int:
        """Return the number of pods of other namespaces that request the same machines and may use nodes of a class."""
        since = self._stage.agenda.now - self.lag_seconds()
        others = ((pod, self.class_of(pod)) for pod in self._cluster.pods if not pod.node or pod.bound_at > since)
        return sum(other is not None and other != class_ and other[1:] == class_[1:] for _, other in others)

    def _unfit(self, class_: _Class) -> int:
        """Return the number of pods of a class that fit no node, and for which free nodes thus do not count."""
        return sum(not pod.bindable and not pod.gone and self.class_of(pod) == class_ for pod in self._cluster.pods)

    def _belongs(self, pool: Pool, class_: _Class) -> bool:
        labels = pool.body["config"]["labels"]
        return self._classes.get(owner_of(labels)) == class_ and workload_name(pool)[0] == WorkloadKind.POD

    def _blocks(self, process: Process, pod: PodRun, class_: _Class) -> bool:
        """Whether an unfinished pod is of another class or past its grace period, or terminates under a wrong clock."""
        wrong = bool(process.skew_seconds) or process.skewed_before[0] > 0.0
        past = pod.deadline is not None and (pod.deadline + LEAVES_SECONDS <= self._stage.agenda.now or wrong)
        return not pod.finished and (self.class_of(pod) != class_ or past)

    def _is_open(self, pool: Pool) -> bool:
        nodes = (node for node in self._cluster.nodes.values() if node.pool_name == pool.name)
        return not any(mark_of(node.labels)[0] for node in nodes)

    def _is_steady(self, pool: Pool, namespace: str) -> bool:
        """Whether pods of a namespace can count on a pool: healthy for longer than a cache may lag, and for them."""
        now, seconds = self._stage.agenda.now, self.lag_seconds()
        deletes = [process.loop.memory.deletes for process in self._simulation.processes]
        nodes = [node for node in self._cluster.nodes.values() if node.pool_name == pool.name]
        marks = {mark_of(node.labels) for node in nodes}
        begun = self._checker.created_by.get(pool.name, (None, 0.0))[1]
        late = pool.status is PoolStatus.PROVISIONING and now - begun > _LATE_SECONDS
        broke_at = self._cluster.pool_broke_at.get(pool.name, -math.inf)
        broken = now - max(broke_at, self._lingered_at.get(pool.name, -math.inf)) < seconds
        return (
            pool.status in _UP
            and not (late or broken or pool.name in self._checker.deleted_by_hand)
            and self._checker.healthy(pool)
            and not any(PoolName(pool.name) in known for known in deletes)
            and all(not mark[0] or (is_shared(mark) and mark[1] == namespace) for mark in marks)
        )

    def _judge_charge(self, pool: Pool, namespace: str, made: str) -> None:
        """Compare a new pool with the limit of its namespace, which counts the nodes that its pods use."""
        most = self._simulation.pods.max_chips_of(namespace)
        if most is None:
            return
        used = {other.name: self._charge(other, namespace) for other in self._simulation.cloud.pools.values()}
        total = sum(used.values()) + chips_in(pool) - used[pool.name]
        if total > most:
            self._stage.violate(CHARGED, f"{made}, which brings {namespace} to {total} chips of {most}: {used}")

    def _charge(self, pool: Pool, namespace: str) -> int:
        """Return the chips of the nodes on which pods of a namespace have been for longer than a cache may lag."""
        now, seconds = self._stage.agenda.now, self.lag_seconds()
        if not is_ours(pool):
            return 0
        pods = [pod for pod in self._cluster.pods_on_pool(pool.name) if not pod.finished and pod.shape.chips]
        known = [pod for pod in pods if pod.deadline is None and now - pod.bound_at > seconds]
        own = {pod.node for pod in known if pod.namespace == namespace}
        return len(own) * chips_in(pool) // hosts(pool)

    def look(self) -> None:
        """Check that no ready pool is kept without pods; called every few seconds after the storm."""
        now, before, self._empty_since = self._stage.agenda.now, self._empty_since, {}
        for pool in self._simulation.cloud.pools.values():
            if not is_ours(pool) or workload_name(pool)[0] != WorkloadKind.POD or pool.status is not PoolStatus.RUNNING:
                continue
            if any(not pod.finished for pod in self._cluster.pods_on_pool(pool.name)) or self._simulation.pods.waits:
                continue
            since = max(before.get(pool.name, now), self._simulation.disturbed_at)
            self._empty_since[pool.name] = before.get(pool.name, now)
            if now - since > _EMPTY_SECONDS:
                self._stage.violate(EMPTY, f"{pool.name} is kept without pods for {now - since:.0f} s")

    def unsettled(self) -> Iterator[tuple[str, str]]:
        for text in self._simulation.pods.unsettled():
            yield RUNS, text

    def before_cost(self, process: Process, path: str, body: JsonObject) -> None:
        pod = next((candidate for candidate in self._cluster.pods if candidate.path == path), None)
        if pod is None:
            return
        (cost,) = body["metadata"]["annotations"].values()
        process.note("writes the deletion cost %s of %s", cost, pod.name)
        if pod.owner is not None and (pod.owner.template.own_cost or pod.owner.kind != "ReplicaSet"):
            self._stage.violate(COSTS, f"{process.name} writes the cost of {pod.name}")
        pod.cost, pod.cost_at = cost, self._stage.agenda.now

    def judge_scale_in(self, before: list[PodRun], left: list[PodRun]) -> None:
        """Check that a ReplicaSet has left pods on at most one of the pools from which it deleted pods."""
        kept = Counter(pod.pool for pod in left)
        cut = Counter(pod.pool for pod in before) - kept
        parts = sorted(name for name in cut if kept[name])
        if len(parts) > 1:
            names = ", ".join(f"{cut[name]} of {cut[name] + kept[name]} on {name}" for name in parts)
            self._stage.violate(COSTS, f"a ReplicaSet deletes {names}")


def _pools_of_burst(pods: int) -> float:
    """Return the number of full pools that a burst of pods needs, rounded up, plus 3; infinite below `_BURST` pods."""
    return -(-pods // MAX_NODES) + 3 if pods >= _BURST else math.inf
