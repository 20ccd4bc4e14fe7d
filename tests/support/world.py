"""Small world for decisions: GKE and a scheduler in memory, which change only when a test calls a method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from provisioner import constants
from provisioner.model.capacity import (
    Failure,
    FailureKind,
    Node,
    NodePool,
    Operation,
    OperationName,
    PoolName,
    PoolStatus,
    expected_pool,
)
from provisioner.model.fit import misfit, view_of_node
from provisioner.model.workloads import Pod, Workload, Workloads, WorkloadUid
from provisioner.settings import Settings
from provisioner.slices.messages.notices import notices_of_workloads
from provisioner.slices.planning.memory import answers
from provisioner.slices.planning.memory.answers import CreateAnswer, DeleteAnswer, DeleteResult, LookUpAnswer
from provisioner.slices.planning.memory.state import CallState, LookUp, Memory
from provisioner.slices.planning.pipeline import decide
from provisioner.slices.planning.plan import Create, Delete, DeleteReason, Notice, Plan
from provisioner.slices.planning.round import Round, Snapshot, begin_round
from provisioner.slices.supplier import PoolRules
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.clock import NOW
from tests.support.models import make_node, make_nodes, make_pod
from tests.support.settings import settings

#: Interval, in decisions, between comparisons with a decision that uses no cached results.
_COMPARED_EVERY = 6


def failure(kind: FailureKind, message: str = "GKE's own words.") -> Failure:
    return Failure(kind=kind, message=message)


class World:
    """Workloads, pods, nodes and pools, and a provisioner that decides only when a test calls a method."""

    rules: PoolRules = GKE_RULES

    def __init__(self, *workloads: Workload, settings_: Settings | None = None, marked: bool = False) -> None:
        self.settings = settings_ or settings()
        self.marked = marked
        self.workloads: dict[WorkloadUid, Workload] = {}
        self.deleted_workloads: set[WorkloadUid] = set()
        self.pods: dict[str, Pod] = {}
        self.pools: dict[PoolName, NodePool] = {}
        self.nodes: dict[str, Node] = {}
        self.memory = Memory()
        self.now: datetime = NOW
        self.plans: list[Plan] = []
        self.last_round: Round | None = None
        self.created: list[PoolName] = []
        self.deleted: list[PoolName] = []
        #: Returns the failure of a create or delete, or None if GKE accepts the call.
        self.refuse_create: Callable[[Create], Failure | None] = lambda _: None
        self.refuse_delete: Callable[[Delete], Failure | None] = lambda _: None
        #: Sort key for UIDs of pods: `live` binds pods in this order; None to sort by UID.
        self.order: Callable[[str], Any] | None = None
        self.add(*workloads)

    def add(self, *workloads: Workload) -> None:
        for workload in workloads:
            self.workloads[workload.uid] = workload
            self.start_pods(workload)

    def add_with_pod(self, workload: Workload, **pod: Any) -> None:
        """Add a workload and one of its pods; `pod` has the arguments of `make_pod`."""
        self.workloads[workload.uid] = workload
        self.put(make_pod(workload, **pod))

    def start_pods(self, workload: Workload) -> None:
        for job in range(workload.groups[0].replicas):
            self.put(make_pod(workload, job=job, unschedulable_since=self.now, marked=self.marked))

    def put(self, *things: Pod | NodePool | Node) -> None:
        for thing in things:
            match thing:
                case Pod():
                    self.pods[thing.uid] = thing
                case NodePool():
                    self.pools[thing.name] = thing
                case Node():
                    self.nodes[thing.name] = thing

    def put_pool(self, pool: NodePool, **node_changes: Any) -> NodePool:
        self.put(pool, *make_nodes(pool, **node_changes))
        return pool

    def remove_pool(self, name: PoolName) -> None:
        self.pools.pop(name, None)
        self.nodes = {key: node for key, node in self.nodes.items() if node.pool_name != name}

    def finish_creates(self) -> None:
        for pool in list(self.pools.values()):
            if pool.status is PoolStatus.PROVISIONING:
                self.put_pool(replace(pool, status=PoolStatus.RUNNING), created_at=self.now)

    def bring_nodes(self, name: PoolName, *indices: int, **changes: Any) -> None:
        """Add the nodes with `indices`, by default all nodes, to a pool that was created without nodes."""
        pool = self.pools[name]
        for index in indices or range(pool.hosts):
            self.put(make_node(pool, index, created_at=self.now, **changes))

    def fail_pool(self, name: PoolName, reason: Failure) -> None:
        self.put(replace(self.pools[name], status=PoolStatus.ERROR, failure=reason))

    def finish_deletes(self) -> None:
        for name, pool in list(self.pools.items()):
            if pool.status is PoolStatus.STOPPING:
                self.remove_pool(name)

    def schedule(self, *, order: Callable[[str], Any] | None = None) -> None:
        """Bind each waiting leader and its followers to the first free pool, by name, whose nodes are ready and fit."""
        for uid in sorted(self.pods, key=order):
            leader = self.pods[uid]
            if leader.node_name or leader.finished or leader.completion_index != 0:
                continue
            workload = self.workload_of(leader)
            place = self._free_pool(leader)
            if workload is None or not place:
                continue
            bound = {"node_name": place[0].name, "phase": "Running", "unschedulable_since": None}
            self.put(replace(leader, **bound))  # type: ignore[arg-type]
            digits = leader.group_name.rpartition("-")[2]
            job = int(digits) if digits.isdigit() else 0
            for index, node in enumerate(place[1:], start=1):
                self.put(make_pod(workload, job=job, index=index, node=node.name, marked=self.marked))

    def _free_pool(self, leader: Pod) -> list[Node]:
        busy = {self.nodes[pod.node_name].pool_name for pod in self.pods.values() if pod.node_name in self.nodes}
        for name in sorted(self.pools):
            # GKE cordons the nodes of a pool before it deletes them, so no pod is bound to a STOPPING pool.
            if name in busy or self.pools[name].status is PoolStatus.STOPPING:
                continue
            nodes = sorted((node for node in self.nodes.values() if node.pool_name == name), key=lambda node: node.name)
            labelled = any(constants.SLICE in node.labels for node in nodes)
            # In a world of marked pods, a pod without a mark has an affinity that keeps it off labelled nodes.
            if self.marked and labelled and constants.SLICE not in leader.requirements.node_selector:
                continue
            fits = 0 < self.pools[name].hosts <= len(nodes) and all(
                node.ready and not node.cordoned and not misfit(leader.requirements, view_of_node(node))
                for node in nodes
            )
            if fits:
                return nodes
        return []

    def finish(self, workload: Workload) -> None:
        self.workloads[workload.uid] = replace(workload, terminal_state="Completed")
        self.end_pods(workload)

    def workload_of(self, pod: Pod) -> Workload | None:
        return self.workloads.get(Workloads.of(self.workloads).uid_of(pod) or WorkloadUid(""))

    def end_pods(self, workload: Workload, *groups: int) -> None:
        names = {make_pod(workload, job=group).group_name for group in groups}

        def is_over(pod: Pod) -> bool:
            named = (pod.kind, pod.namespace, pod.workload_name) == workload.full_name
            return named and pod.workload_uid in ("", workload.uid) and (not names or pod.group_name in names)

        self.pods = {uid: pod for uid, pod in self.pods.items() if not is_over(pod)}

    def remove_jobset(self, workload: Workload) -> None:
        del self.workloads[workload.uid]
        self.end_pods(workload)

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def snapshot(self, **changes: Any) -> Snapshot:
        fields: dict[str, Any] = {
            "workloads": self.workloads,
            "deleted_workloads": frozenset(self.deleted_workloads),
            "pods": tuple(self.pods.values()),
            "nodes": tuple(self.nodes.values()),
            "pools": tuple(self.pools.values()),
            "pools_listed_at": self.now,
            "live_calls": self.live_calls(),
        }
        return Snapshot(**fields | changes)

    def live_calls(self) -> frozenset[PoolName]:
        calls = {**self.memory.creates, **self.memory.deletes}
        return frozenset(name for name, call in calls.items() if call.state is CallState.UNDER_WAY)

    def look(self, **changes: Any) -> Plan:
        """Decide, but do not send the calls of the plan, which remain in progress."""
        snapshot = self.snapshot(**changes)
        plan = decide(snapshot, self.memory, self.settings, self.rules, self.now, self.last_round)
        if len(self.plans) % _COMPARED_EVERY == 1:
            # Results that are cached from the last round must not change the decision.
            fresh = decide(snapshot, self.memory, self.settings, self.rules, self.now)
            assert plan == fresh
        self.last_round = plan.round
        self.memory = plan.memory
        self.plans.append(plan)
        return plan

    def step(self, *, seconds: float = 1.0) -> Plan:
        plan = self.look()
        for delete in plan.deletes:
            self.answer(self._delete(delete))
        for create in plan.creates:
            self.answer(self._create(create))
        for look_up in plan.look_ups:
            self.answer(self._look_up(look_up))
        for name in plan.uncordons:
            self.nodes[name] = replace(self.nodes[name], cordoned=False, cordoned_by_us=False)
        for node_name, changes, verify in plan.assignments:
            node = self.nodes[node_name]
            if all(pod.node_name not in verify or pod.finished for pod in self.pods.values()):
                labels: dict[str, str | None] = {**node.labels, **changes}
                kept = {key: value for key, value in labels.items() if value is not None}
                self.nodes[node_name] = replace(node, labels=kept)
        for name in plan.releases:
            node = self.nodes[name]
            kept = tuple(taint for taint in node.taints if taint.key not in constants.HELD_KEYS)
            self.nodes[name] = replace(node, taints=kept)
        self.pass_time(seconds)
        return plan

    def run(self, rounds: int, *, seconds: float = 1.0) -> Plan:
        for _ in range(rounds):
            plan = self.step(seconds=seconds)
        return plan

    def live(self, rounds: int, *, seconds: float = 1.0, binds: bool = True) -> Plan:
        """Take steps; after each, complete creates and deletes, and bind pods if `binds`. Return the last plan."""
        for _ in range(rounds):
            plan = self.step(seconds=seconds)
            self.finish_creates()
            self.finish_deletes()
            if binds:
                self.schedule(order=self.order)
        return plan

    def answer(self, answer: answers.Answer) -> None:
        self.memory = answers.fold(self.memory, answer, dict(self.pools))

    def states(self) -> dict[PoolName, str]:
        return {state.name: state.phase.value for state in self.plans[-1].pools}

    def told(self, reason: str = "") -> list[Notice]:
        return [notice for plan in self.plans for notice in plan.notices if reason in ("", notice.reason)]

    def sent(self) -> list[Create]:
        """Return all creates that were decided, also those that GKE rejected."""
        return [create for plan in self.plans for create in plan.creates]

    def bound(self, workload: Workload) -> int:
        leaders = (pod for pod in self.pods.values() if pod.workload_uid == workload.uid and pod.completion_index == 0)
        return sum(bool(leader.node_name) for leader in leaders)

    def _create(self, create: Create) -> CreateAnswer:
        name = create.request.name
        refused = self.refuse_create(create)
        if refused is None:
            self.created.append(name)
            self.put(expected_pool(create.request))
        operation = OperationName(f"create-{name}") if refused is None else OperationName("")
        return CreateAnswer(name=name, at=self.now, operation=operation, failure=refused)

    def _delete(self, delete: Delete) -> DeleteAnswer:
        refused = self.refuse_delete(delete)
        if refused is not None:
            reason = refused.message
            return DeleteAnswer(
                name=delete.name, at=self.now, result=DeleteResult.FAILED, failure=refused, reason=reason
            )
        self.deleted.append(delete.name)
        self.put(replace(self.pools[delete.name], status=PoolStatus.STOPPING))
        operation = OperationName(f"delete-{delete.name}")
        return DeleteAnswer(name=delete.name, at=self.now, result=DeleteResult.ACCEPTED, operation=operation)

    def _look_up(self, look_up: LookUp) -> LookUpAnswer:
        """Return whether the pool exists, or its operation: not done while the pool is being created or deleted."""
        pool = self.pools.get(look_up.name)
        if not look_up.operation:
            return LookUpAnswer(look_up=look_up, at=self.now, exists=pool is not None)
        done = pool is None or pool.status not in (PoolStatus.PROVISIONING, PoolStatus.STOPPING)
        operation = Operation(name=look_up.operation, done=done, failure=pool.failure if pool is not None else None)
        return LookUpAnswer(look_up=look_up, at=self.now, operation=operation)


def running(workload: Workload) -> World:
    """Return a world in which each slice of a workload runs on its own pool."""
    world = World(workload)
    world.step()
    world.finish_creates()
    world.schedule()
    world.look()
    assert len(world.pools) == workload.groups[0].replicas
    return world


def reasons(world: World, seconds: float = 31) -> list[DeleteReason]:
    """Return the reasons of the deletes that are decided after `seconds`, by default after the deletion delay."""
    world.look()
    world.pass_time(seconds)
    return [delete.reason for delete in world.look().deletes]


def told_of(*workloads: Workload, **changes: Any) -> list[str]:
    """Return the names of workloads with a notice that they get no node pools, or can never be scheduled."""
    snapshot = Snapshot(workloads={workload.uid: workload for workload in workloads}, pools_listed_at=NOW)
    ctx = begin_round(snapshot, Memory(), settings(**changes), GKE_RULES, NOW)
    return [notice.objects[0].name for notice in notices_of_workloads(ctx)]
