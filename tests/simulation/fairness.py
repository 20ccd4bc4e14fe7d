"""Checks the bounds of the queue (docs/reliability.md): no tenant waits without limit, or pays for another tenant.

While hostile tenants stay, each honest slice must be served within a bound, and pools that hang must be reported.
Waiting time counts only after the storm, and only while running workloads leave room for the slice. In all runs, the
number of creates is limited.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

from provisioner.slices.messages.notices import EventReason
from rehearsal.simulators.gke.records import Pool, PoolStatus
from tests.simulation.hostile import SLOW_CALL_SECONDS
from tests.simulation.objects import HOSTILE_NAMESPACE, NAMESPACE, WorkloadRun
from tests.simulation.pools import chips_in, is_ours, namespace_of, owner_of, workload_name

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation
    from tests.simulation.waiting import Waiting

FAIR = "8 an honest slice is served within the bound of the line"
PAYS = "9 everybody pays for their own use"
COUNTED = "10 creates are counted, failed ones too"
TOLD = "11 nothing is silent"

#: Maximum seconds for which the first slice in the queue blocks a resource: for a create, or a ready pool without pods.
TURN_SECONDS = 900.0
#: Maximum back-off in seconds after a failed create, even if the create failed during the storm.
BACKOFF_SECONDS = 1800.0
#: Maximum seconds until a create is sent once nothing blocks it.
_CREATE_SECONDS = 120.0
#: Maximum seconds for which a slice may claim a pool that was created for another slice, without pods on the pool.
_CLAIM_SECONDS = 360.0
#: Maximum interval in seconds between attempts to create while operations of foreign pools hang.
_ATTEMPT_SECONDS = 60.0
#: Maximum creates of a workload in a burst, in addition to two for each slice, and creates per second after the burst.
_BURST, _PER_SECOND = 8, 1 / 60
#: Maximum creates of a namespace in a burst, and creates per second after the burst.
_BURST_OF_NAMESPACE, _PER_SECOND_OF_NAMESPACE = 64, 6 / 60
#: Number of creates that are allowed in excess of the bound.
_SLACK = 2
#: Seconds in each status after which a pool must be reported; the report may take `_TELLING_SECONDS` more.
_SILENT_SECONDS = {PoolStatus.PROVISIONING: 3600.0, PoolStatus.STOPPING: 1800.0, PoolStatus.RECONCILING: 1800.0}
_TELLING_SECONDS = 180.0
POOL_STUCK = "pool_stuck"
#: Namespace, kind and name of a workload; only the namespace for pods without a workload.
Payer = tuple[str, str, str]
#: Maximum number of records in one part of the memory, in addition to one for each existing pod and pool.
_MAX_RECORDS = 32
#: Maximum of `stamps` instead of `_MAX_RECORDS`: a workload and its namespace have a time at every resource.
_MAX_STAMPS = 64


class Fairness:
    """Checks the waits of tenants in one run."""

    def __init__(self, simulation: Simulation, waiting: Waiting) -> None:
        self._simulation = simulation
        self._stage = simulation.stage
        self._hostile = simulation.hostile
        self._waiting = waiting
        #: Seconds that each slice has waited, and maximum number of slices that waited in its namespace in this time. A
        #: workload whose slices start together counts once.
        self._waited: dict[tuple[WorkloadRun, int], tuple[float, int]] = {}
        #: Number of creates that count against a workload or namespace in one process, and time of the last create.
        self._creates: dict[tuple[Process, str], tuple[float, float]] = {}
        self._status_since: dict[str, tuple[PoolStatus, float]] = {}
        self._looked_at = math.inf

    def create_sent(self, process: Process, pool: dict[str, Any]) -> None:
        uid, namespace = _counted_for(pool)
        slices = sum(
            workload.max_replicas for workload in self._simulation.cluster.every_workload if workload.uid == uid
        )
        slices = slices or self._simulation.checker.shared.max_pods.get(uid, 0)
        for key, most, per_second in (
            # Two for each slice: its next create may be in progress when the response to its last create comes.
            (uid, _BURST + 2 * slices, _PER_SECOND),
            (namespace, _BURST_OF_NAMESPACE, _PER_SECOND_OF_NAMESPACE),
        ):
            count, before = self._creates.get((process, key), (0.0, self._stage.agenda.now))
            count = max(0.0, count - (self._stage.agenda.now - before) * per_second) + 1.0
            self._creates[process, key] = count, self._stage.agenda.now
            if count > most + _SLACK:
                self._stage.violate(COUNTED, f"{process.name} sends {pool['name']}, {count:.0f} of {most} for {key}")

    def create_accepted(self, process: Process, pool: dict[str, Any]) -> None:
        for key in _counted_for(pool):
            self._creates.pop((process, key), None)

    def create_not_taken(self, process: Process, pool: dict[str, Any]) -> None:
        """Undo the count of a create that GKE rejected for too many operations, which have their own limit."""
        for key in _counted_for(pool):
            count, before = self._creates.get((process, key), (0.0, 0.0))
            self._creates[process, key] = max(0.0, count - 1.0), before

    def look_at_waiting(self) -> None:
        """Check how long honest slices have waited; called every 5 s after the storm while hostile tenants stay."""
        now = self._stage.agenda.now
        passed, self._looked_at = max(0.0, now - self._looked_at), now
        waiting = [
            (workload, job)
            for workload in self._simulation.cluster.workloads.values()
            if workload.namespace == NAMESPACE and workload.alive
            for job in workload.slots()
            if job not in workload.ended_jobs and self._waits(workload, job)
        ]
        units = len({(workload, None if workload.gang else job) for workload, job in waiting})
        before, self._waited = self._waited, {}
        for workload, job in waiting:
            seconds, max_units = before.get((workload, job), (0.0, 0))
            seconds += passed if self._has_room(workload) and not self._is_on_its_way(workload, job) else 0.0
            self._waited[workload, job] = seconds, max(max_units, units)
            self._judge_wait(workload, job)

    def _judge_wait(self, workload: WorkloadRun, job: int) -> None:
        seconds, units = self._waited[workload, job]
        checker, limited = self._simulation.checker, self._hostile.limited
        refused = limited and EventReason.LIMIT_REACHED in checker.told(workload, job)
        # A resource other than the limit of a namespace is shared by two namespaces, which take turns.
        namespaces, turn_seconds = (1, TURN_SECONDS) if refused else (2, self._turn_seconds())
        bound = namespaces * units * turn_seconds + _CREATE_SECONDS + _ATTEMPT_SECONDS * self._hostile.hangs_operations
        bound += _CLAIM_SECONDS * self._hostile.sits_on_pools
        if self._waiting.may_back_off(workload, job):
            bound += BACKOFF_SECONDS
        if seconds > bound:
            name = f"slice {workload.group_name(job)} of {workload.namespace}"
            text = f"{name} has waited for {seconds:.0f} s for a pool, the bound is {bound:.0f} s; told: "
            self._stage.violate(PAYS if refused else FAIR, text + ", ".join(sorted(checker.told(workload, job))))

    def _turn_seconds(self) -> float:
        hostile, gke = self._hostile, self._simulation.cloud.world.settings
        if hostile.resource in ("limit", "stock"):
            return TURN_SECONDS
        if hostile.resource == "operations":
            # No operation hangs, so a slice blocks the resource only until GKE's operation ends.
            return max(gke.create_seconds + gke.create_jitter_seconds, gke.delete_seconds)
        return SLOW_CALL_SECONDS if hostile.resource == "threads" else 0.0

    def _waits(self, workload: WorkloadRun, job: int) -> bool:
        pods = [pod for (owner, _), pod in workload.pods.items() if owner == job and pod.deadline is None]
        return any(not pod.node and pod.waiting_since is not None for pod in pods)

    def _is_on_its_way(self, workload: WorkloadRun, job: int) -> bool:
        """Whether a slice, or each waiting slice if they start together, has a pool that it can use."""
        jobs = workload.slots() if workload.gang else (job,)
        return all(self._waiting.on_its_way(workload, number) or not self._waits(workload, number) for number in jobs)

    def _has_room(self, workload: WorkloadRun) -> bool:
        """Whether GKE accepts creates, and the chips suffice or (unless slices start together) a pod is bound."""
        if not self._hostile.takes_operations:
            return False
        if any(pod.node for pod in workload.pods.values()) and not workload.gang:
            return True
        used = {NAMESPACE: 0, HOSTILE_NAMESPACE: 0}
        of_stock = 0
        for pool in self._simulation.cloud.pools.values():
            for namespace in self._users(pool) | self._owner_that_waits(pool):
                used[namespace] = used.get(namespace, 0) + chips_in(pool)
                of_stock += chips_in(pool) * (pool.plan.machine.accelerator == workload.shape.accelerator)
        wanted = workload.shape.hosts * workload.shape.chips * (workload.replicas if workload.gang else 1)
        hostile = self._hostile
        limits = (
            (hostile.max_chips, sum(used.values())),
            (hostile.stock_chips, of_stock),
            (hostile.max_chips_of(NAMESPACE), used[NAMESPACE]),
        )
        return all(most is None or chips + wanted <= most for most, chips in limits)

    def _users(self, pool: Pool) -> set[str]:
        """Return the namespaces whose unfinished pods are bound to a pool of the provisioner."""
        pods = self._simulation.cluster.pods_on_pool(pool.name) if is_ours(pool) else ()
        return {pod.namespace for pod in pods if not pod.finished}

    def _owner_that_waits(self, pool: Pool) -> set[str]:
        """Return the hostile namespace whose waiting slice a pool was created for; empty if none."""
        labels = pool.body["config"].get("labels", {})
        if not is_ours(pool) or namespace_of(labels) == NAMESPACE:
            return set()
        owner = owner_of(labels)
        return {
            workload.namespace
            for workload in self._simulation.cluster.workloads.values()
            if workload.uid == owner[0] and workload.alive
            for job in workload.slots()
            if workload.slice_id(job).group_key == owner[1] and self._waits(workload, job)
        }

    def payers(self, pool: Pool, stale_seconds: float) -> set[Payer]:
        """Return the possible users of a pool in the view of a process whose caches may be `stale_seconds` old.

        The users are the workloads of pods on the pool. If the caches may lack all these pods, three other users are
        possible: the last user, workloads that may claim the pool, and the workload that the pool was created for.
        """
        now, cluster = self._stage.agenda.now, self._simulation.cluster
        pods = [pod for pod in cluster.pods_on_pool(pool.name) if not pod.finished]
        payers = {_payer(pod.namespace, pod.workload) for pod in pods}
        if any(now - pod.bound_at >= stale_seconds and pod.deadline is None for pod in pods):
            return payers
        uid, left_at = cluster.left_by.get(pool.name, ("", float("-inf")))
        payers |= {
            _payer(workload.namespace, workload)
            for workload in cluster.every_workload
            if (workload.uid == uid and now - left_at < stale_seconds)
            or (workload.alive and any(self._waiting.could_use(workload, job, pool) for job in workload.slots()))
        }
        return payers | {owner_name(pool)} | ({("", "", "")} if not uid and now - left_at < stale_seconds else set())

    def over_limit(self, pool: Pool, pools: list[Pool], stale_seconds: float) -> str:
        """Return how a new pool exceeds a limit of its namespace or workload, empty if it does not."""
        owner = owner_name(pool)
        max_chips, max_pools = self._hostile.max_chips_of(owner[0]), self._simulation.market.max_pools
        if max_chips is None and max_pools is None:
            return ""
        payers = {other.name: self.payers(other, stale_seconds) for other in pools if other is not pool}
        charged = [
            other for other in pools if other is pool or {payer[0] for payer in payers[other.name]} == {owner[0]}
        ]
        chips = sum(map(chips_in, charged))
        if max_chips is not None and chips > max_chips:
            return f"brings namespace {owner[0]} to {chips} chips of {max_chips}"
        own = sum(owner_name(other) == owner and (other is pool or payers[other.name] == {owner}) for other in charged)
        if max_pools is not None and own > max_pools:
            return f"brings {owner[2]} to {own} pools of {max_pools}"
        return ""

    def look_at_pools(self) -> None:
        """Check that pools that hang are reported; called every 5 s after the storm while hostile tenants stay."""
        now, before, self._status_since = self._stage.agenda.now, self._status_since, {}
        for pool in self._simulation.cloud.pools.values():
            status, since = before.get(pool.name, (None, now))
            since = since if status is pool.status else now
            self._status_since[pool.name] = pool.status, since
            max_seconds = _SILENT_SECONDS.get(pool.status)
            if max_seconds is None or not is_ours(pool):
                continue
            since = max(since, self._simulation.disturbed_at)
            if now - since > max_seconds + _TELLING_SECONDS and not self._is_told(pool):
                text = f"node pool {pool.name} has been {pool.status.value} for {now - since:.0f} s, and nobody is told"
                self._stage.violate(TOLD, text)

    def _is_told(self, pool: Pool) -> bool:
        plans = [process.board._published for process in self._simulation.processes if process.leads]
        alerts = [alert for plan in plans if plan is not None for alert in plan.plan.alerts]
        named = any(alert.kind == POOL_STUCK and pool.name in alert.message for alert in alerts)
        told = self._simulation.checker.told_of(owner_of(pool.body["config"]["labels"])[0])
        return named or EventReason.STUCK in told

    def look_at_hostile(self) -> None:
        """Check that workloads whose first slice waits have Events, and that the memory of each process is bounded."""
        now, checker = self._stage.agenda.now, self._simulation.checker
        for workload in self._simulation.cluster.workloads.values():
            leader = workload.leader(0)
            waits_since = leader.waiting_since if leader is not None else None
            waits = workload.alive and waits_since is not None and now - waits_since > TURN_SECONDS
            if waits and not checker.told(workload, 0):
                self._stage.violate(TOLD, f"{workload.group_name(0)} has waited for {now - (waits_since or 0):.0f} s")
        there = len(self._simulation.cluster.pods) + len(self._simulation.cloud.pools)
        for process in self._simulation.processes:
            self._judge_memory(process, there)

    def _judge_memory(self, process: Process, there: int) -> None:
        memory = process.loop.memory
        for field in dataclasses.fields(memory):
            part = getattr(memory, field.name)
            most = there + (_MAX_STAMPS if field.name == "stamps" else _MAX_RECORDS)
            if isinstance(part, Sized) and len(part) > most:
                self._stage.violate(COUNTED, f"{process.name} remembers {len(part)} {field.name}, {there} are there")


def _counted_for(pool: dict[str, Any]) -> tuple[str, str]:
    labels = pool["config"]["labels"]
    return owner_of(labels)[0], f"namespace {namespace_of(labels)}"


def owner_name(pool: Pool) -> Payer:
    return namespace_of(pool.body["config"]["labels"]), *workload_name(pool)


def _payer(namespace: str, workload: WorkloadRun | None) -> Payer:
    return (namespace, workload.kind, workload.name) if workload is not None else (namespace, "", "")
