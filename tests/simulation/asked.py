"""Checks that the statuses of ProvisioningRequests and CapacityBuffers are true of the simulated world.

A request may get the condition Provisioned only if each of its slices has its own pool to which pods can be bound. From
then on, no other pool is created for the request or, while the request exists, for the pods that use it. Pools that
other slices took from a buffer are replaced within minutes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from provisioner import constants
from provisioner.kube.protocol import JsonObject
from provisioner.model.membership import reported_pool
from provisioner.slices.observe import read_sources, unknown_kinds
from provisioner.workloads import KINDS
from provisioner.workloads.capacity_requests import NODE_POOLS
from rehearsal.simulators.gke.records import Pool, PoolStatus
from tests.simulation.asks import BUFFER, REQUEST, AskRun, BufferRun, QueuedRun, RequestRun
from tests.simulation.objects import WorkloadRun
from tests.simulation.pools import fits, fits_shape, is_ours, owner_of
from tests.simulation.store import Change

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation

PART = "12 a workload is resumed only with all pools of its request ready"
TWICE = "13 no pool is made for what a request is served with"
_REFUSED_CHANCE = 0.05
#: Maximum time in seconds for which a slice of a workload may claim a pool of a buffer without using the pool.
_FREED_SECONDS = 360.0
_UP = (PoolStatus.PROVISIONING, PoolStatus.RUNNING)


class Asked:
    """Checks the ProvisioningRequests and CapacityBuffers of one run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._stage = simulation.stage
        self._rng = random.Random(f"asked {simulation.stage.seed}")
        #: Time at which each pool last lost a usable node, by name of the pool; only pools that were whole until then.
        self._lost_at: dict[str, float] = {}
        self._whole: set[str] = set()
        #: Time since which each buffer has had too few pools.
        self._missing_since: dict[BufferRun, float] = {}
        if simulation.asks:
            for kind in (REQUEST, BUFFER):
                simulation.stage.store.listen(KINDS[kind].resource, self._take_status)
            simulation.stage.store.listen("nodes", self._look_at_pool)

    def _take_status(self, change: Change) -> None:
        run = self._simulation.cluster.workloads.get(change.path)
        if isinstance(run, AskRun) and change.after is not None:
            run.take_status(change.after.get("status", {}), self._stage.agenda.now)

    def _look_at_pool(self, change: Change) -> None:
        metadata = (change.after or change.before or {})["metadata"]
        name = reported_pool(metadata["labels"], metadata["annotations"])
        pool = self._simulation.cloud.pools.get(name)
        if pool is not None and self._is_whole(pool):
            self._whole.add(name)
        elif name in self._whole:
            self._whole.discard(name)
            self._lost_at[name] = self._stage.agenda.now

    def _is_whole(self, pool: Pool) -> bool:
        nodes = [self._simulation.cluster.nodes.get(node.name) for node in pool.nodes]
        return bool(nodes) and all(node is not None and node.ready and node.allocatable_chips for node in nodes)

    def before_status(self, process: Process, path: str, status: JsonObject) -> None:
        run = self._simulation.cluster.workloads.get(path)
        true = {
            condition["type"]: condition["reason"]
            for condition in status["conditions"]
            if condition["status"] == "True"
        }
        process.note("writes %s: %s", path.rsplit("/", 1)[-1], ", ".join(f"{key} {true[key]}" for key in true) or "-")
        if not isinstance(run, RequestRun):
            return
        if not run.alive:
            self._stage.violate(PART, f"{process.name} writes {run.name}, which has ended")
        if constants.PROVISIONED in true and not run.is_true(constants.PROVISIONED):
            named = status.get("provisioningClassDetails", {}).get(NODE_POOLS, "").split(",")
            for wrong in self._wrong_with(run, named):
                self._stage.violate(PART, f"{process.name} calls {run.name} provisioned, {wrong}")

    def refuses(self, path: str) -> bool:
        if not self._stage.stormy or self._rng.random() >= _REFUSED_CHANCE:
            return False
        self._stage.fault("status refused", path)
        return True

    def _wrong_with(self, run: RequestRun, named: list[str]) -> Iterator[str]:
        now, stale_seconds = self._stage.agenda.now, self._simulation.checker.stale_seconds()
        if len(set(named)) != len(run.slots()):
            yield f"and names {len(set(named))} pools for {len(run.slots())} slices"
        for name in named:
            pool = self._simulation.cloud.pools.get(name)
            if name not in self._whole and now - self._lost_at.get(name, float("-inf")) > stale_seconds:
                yield f"and no pod can run on {name}"
            elif pool is not None and not fits(run, 0, pool):
                yield f"and its pods do not fit {name}"
            for pod in self._simulation.cluster.pods_on_pool(name):
                # A pod without a workload is no violation, because the provisioner may not watch the pod.
                if (
                    pod.workload is not None
                    and now - pod.bound_at > stale_seconds
                    and not pod.finished
                    and pod.deadline is None
                ):
                    yield f"and pod {pod.name} is on {name}"
            # A pod that used the pool after `other` was provisioned may belong to `other`, which then needs no pool.
            left_at = self._simulation.cluster.left_by.get(name, ("", 0.0))[1]
            for other in self._requests():
                since = other.true_since.get(constants.PROVISIONED, float("inf"))
                kept = other is not run and left_at < since < now and name in other.last_pool.values()
                if kept and not self._runs_elsewhere(other):
                    yield f"and {name} is kept for {other.name}"

    def _runs_elsewhere(self, request: RequestRun) -> bool:
        """Whether a pod for which a request booked pools is on another pool, as is possible without the policy."""
        users = (run for run in self._simulation.kueue.runs() if run.request is request)
        booked = set(request.last_pool.values())
        return any(pod.node and pod.pool not in booked for run in users for pod in run.pods.values())

    def judge_create(self, process: Process, pool: Pool) -> None:
        """Check that a new pool is neither for a served request nor for pods whose request still exists."""
        uid, key = owner_of(pool.body["config"]["labels"])
        now, stale_seconds = self._stage.agenda.now, self._simulation.checker.stale_seconds()
        run = next((workload for workload in self._simulation.cluster.every_workload if workload.uid == uid), None)
        if isinstance(run, RequestRun):
            served_at = run.true_since.get(constants.PROVISIONED, float("inf"))
            if now - served_at > stale_seconds:
                self._stage.violate(TWICE, f"{process.name} makes {pool.name} for {run.name}, which is served")
        watches = process.loop.watches
        if isinstance(run, QueuedRun) and REQUEST not in unknown_kinds(watches, read_sources(watches)):
            live = next((request for request in self._requests() if request.name == run.consumes), None)
            job = next((slot for slot in run.slots() if run.slice_id(slot).group_key == key), 0)
            leader = run.leader(job)
            if live is not None and leader is not None:
                self._stage.violate(TWICE, f"{process.name} makes {pool.name} for pods of {live.name}, which lives")

    def judge_refill(self, process: Process, pool: Pool) -> bool:
        """Return whether a new pool is for a buffer; if so, check that more slices wait than pools are idle."""
        uid = owner_of(pool.body["config"]["labels"])[0]
        run = next((workload for workload in self._simulation.cluster.every_workload if workload.uid == uid), None)
        if not isinstance(run, BufferRun):
            return False
        checker, cluster, pools = self._simulation.checker, self._simulation.cluster, self._simulation.cloud.pools
        long_ago = self._stage.agenda.now - checker.stale_seconds()
        takers = [
            workload
            for workload in cluster.every_workload
            if any(fits_shape(workload, shape, pool) for shape in workload.shapes)
        ]
        recent = any(changed > long_ago for taker in takers for changed in taker.changed.values())
        waiting = sum(
            not any(owner == job and pod.node for (owner, _), pod in taker.pods.items())
            for taker in takers
            if (taker.alive or taker.suspended) and not taker.gone
            for job in taker.slots()
        )
        kind = pool.plan.machine.accelerator, pool.plan.topology
        alone = [
            pod
            for pod in cluster.pods
            if pod.workload is None and not pod.finished and (pod.shape.accelerator, pod.shape.topology) == kind
        ]
        recent = recent or any(pod.created > long_ago for pod in alone)
        waiting += sum(not pod.node for pod in alone)
        going = {str(name) for name in process.loop.memory.deletes}
        registered = {node.pool_name for node in cluster.nodes.values()}
        up = [
            name
            for name in self.idle(run, _UP) - {pool.name, *going}
            if checker.healthy(pools[name])
            and (name not in registered or cluster.pool_changed.get(name, 0.0) <= long_ago)
        ]
        # Caches may not show a recent change yet.
        if not recent and len(up) >= waiting:
            text = f"{process.name} makes {pool.name} for {run.name}, and {len(up)} pools are idle for {waiting} slices"
            self._stage.violate(TWICE, text)
        return True

    def served(self, run: WorkloadRun) -> bool:
        """Whether all buffers of the shape of `run` have their pools; False for a request."""
        if isinstance(run, BufferRun):
            return self.missing(run) <= 0
        return False

    def together(self, run: AskRun) -> list[str]:
        """Return the UID of `run`; for a buffer, the UIDs of all buffers of its shape, as any may have the Event."""
        return [
            run.uid,
            *(buffer.uid for buffer in self.buffers() if isinstance(run, BufferRun) and buffer.shape == run.shape),
        ]

    def unserved(self) -> Iterator[str]:
        """Yield a report on each JobSet that Kueue still suspends although all its slices could get pools."""
        for run in self._simulation.kueue.runs():
            able = self._simulation.checker.can_end(run) and self._within_limits(run)
            if run.suspended and run.active and not run.terminal and able:
                yield f"{run.kind} {run.name} waits for {run.request.name if run.request is not None else 'nothing'}"

    def _within_limits(self, run: QueuedRun) -> bool:
        market = self._simulation.market
        chips = run.shape.hosts * run.shape.chips * run.replicas
        most = min(limit for limit in (market.max_chips, market.stock_chips, chips) if limit is not None)
        return chips <= most and (market.max_pools is None or run.replicas <= market.max_pools)

    def overdue(self) -> Iterator[str]:
        """Yield reports on buffers that have had too few pools for too long; called every few seconds."""
        before, self._missing_since = self._missing_since, {}
        waiting = self._simulation.checker.waiting
        for run in self.buffers():
            bounds = [waiting.within_seconds(run, job) for job in run.slots()]
            if not bounds or None in bounds or self.missing(run, _UP) <= 0:
                continue
            within_seconds = max(filter(None, bounds)) + _FREED_SECONDS
            since = self._missing_since[run] = before.get(run, self._stage.agenda.now)
            seconds = self._stage.agenda.now - max(since, self._simulation.disturbed_at)
            if seconds > within_seconds:
                yield f"buffer {run.name} ({run.uid}) has had too few pools for {seconds:.0f} s, no create was sent"

    def idle(self, run: BufferRun, statuses: tuple[PoolStatus, ...] = (PoolStatus.RUNNING,)) -> set[str]:
        pods = self._simulation.cluster.pods
        used = {pod.pool for pod in pods if pod.node and not (pod.finished or pod.is_guest)}
        return {
            pool.name
            for pool in self._simulation.cloud.pools.values()
            if is_ours(pool) and pool.name not in used and pool.status in statuses and fits(run, 0, pool)
        }

    def missing(self, run: BufferRun, statuses: tuple[PoolStatus, ...] = (PoolStatus.RUNNING,)) -> int:
        """Return the number of pools that all buffers of one shape lack together; negative if they have too many."""
        wanted = sum(len(buffer.slots()) for buffer in self.buffers() if buffer.shape == run.shape)
        return wanted - len(self.idle(run, statuses))

    def buffers(self) -> list[BufferRun]:
        workloads = self._simulation.cluster.workloads.values()
        return [workload for workload in workloads if isinstance(workload, BufferRun)]

    def warm(self) -> set[str]:
        return set().union(*map(self.idle, self.buffers()))

    def _requests(self) -> list[RequestRun]:
        workloads = self._simulation.cluster.workloads.values()
        return [workload for workload in workloads if isinstance(workload, RequestRun) and workload.alive]
