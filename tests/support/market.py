"""Simulates GKE with little capacity, and users who add and delete JobSets, for hours of decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from provisioner import constants, tpu
from provisioner.model.capacity import Failure, FailureKind, PoolName, PoolStatus
from provisioner.model.workloads import PodGroup, Workload
from provisioner.slices.demand import group_key
from tests.support.models import CHIP_TOLERATION, make_jobset, make_pod, make_requirements
from tests.support.world import World, failure

_TOGETHER = {constants.ALL_OR_NOTHING: "true"}


def jobset_of(name: str, topology: str = "2x2x2", *, accelerator: str = "tpu-v4-podslice", **changes: Any) -> Workload:
    template = make_requirements(accelerator=accelerator, topology=topology, tolerations=())
    return make_jobset(name, parallelism=_hosts(accelerator, topology), template=template, **changes)


def _hosts(accelerator: str, topology: str) -> int:
    return tpu.resolve(accelerator, topology, 4).nodes(1)


def gang(name: str = "train", namespace: str = "default", replicas: int = 2, **changes: Any) -> Workload:
    """Return an all-or-nothing JobSet, for a world with `marked` set."""
    return make_jobset(name, namespace=namespace, **{"annotations": _TOGETHER, "replicas": replicas} | changes)


def add_mixed(world: World, name: str, topology: str) -> Workload:
    """Add an all-or-nothing JobSet of one slice of v4 and one of v5p to a world with `marked` set."""
    templates = {
        group: make_requirements(accelerator=accelerator, topology=topology, tolerations=())
        for group, accelerator in (("slice", "tpu-v4-podslice"), ("other", "tpu-v5p-slice"))
    }
    groups = tuple(
        PodGroup(name=group, replicas=1, parallelism=_hosts("tpu-v4-podslice", topology), template=templates[group])
        for group in templates
    )
    workload = make_jobset(name, namespace=name, annotations=_TOGETHER, groups=groups)
    world.add(workload)
    group = f"{name}-other-0"
    key = group_key(name, group)
    marks = {constants.SLICE: f"j-{key}", constants.SLICE_NAMESPACE: name}
    selector = {**templates["other"].node_selector, **marks}
    asked = replace(templates["other"], tolerations=(CHIP_TOLERATION,), node_selector=selector)
    leader = make_pod(workload, requirements=asked, unschedulable_since=world.now, uid="uid-of-other", group_name=group)
    world.put(replace(leader, name=f"{group}-0-abcde", group_key=key))
    return workload


class Market:
    """A world in which creates, boots and deletes take time, and creates fail as tests choose."""

    def __init__(
        self,
        world: World,
        *,
        seconds: float = 20.0,
        boot_seconds: float = 0.0,
        delete_seconds: float = 0.0,
        max_operations: int | None = None,
    ) -> None:
        self.world = world
        self.seconds = seconds
        self.boot_seconds = boot_seconds
        self.delete_seconds = delete_seconds
        self.fails: Callable[[str], Failure | None] = lambda _jobset: None
        #: Time at which a pool was first seen with a status.
        self.begun: dict[tuple[PoolName, PoolStatus], datetime] = {}
        #: Time at which the create of a pool ended, after which its nodes boot.
        self._up_at: dict[PoolName, datetime] = {}
        #: Time at which all leaders of a JobSet were first bound.
        self.ran_at: dict[str, datetime] = {}
        if max_operations is not None:
            busy = (PoolStatus.PROVISIONING, PoolStatus.STOPPING)
            world.refuse_create = world.refuse_delete = lambda _: (
                failure(FailureKind.TOO_MANY_OPERATIONS)
                if sum(pool.status in busy for pool in world.pools.values()) >= max_operations
                else None
            )

    def step(self, *, seconds: float = 1.0) -> None:
        """Complete due creates, boots and deletes, decide, advance the clock, and bind pods."""
        world = self.world
        for name, pool in list(world.pools.items()):
            age_seconds = (world.now - self.begun.setdefault((name, pool.status), world.now)).total_seconds()
            if pool.status is PoolStatus.STOPPING and age_seconds >= self.delete_seconds:
                world.remove_pool(name)
            elif pool.status is PoolStatus.PROVISIONING and age_seconds >= self.seconds:
                problem = self.fails(pool.labels[constants.POOL_JOBSET_NAME])
                if problem is not None:
                    world.fail_pool(name, problem)
                else:
                    self._up_at[name] = world.now
                    world.put(replace(pool, status=PoolStatus.RUNNING))
        for name, up_at in list(self._up_at.items()):
            if world.now - up_at >= timedelta(seconds=self.boot_seconds):
                del self._up_at[name]
                if name in world.pools and world.pools[name].status is PoolStatus.RUNNING:
                    world.put_pool(world.pools[name], created_at=world.now)
        if any(len(assignment.verify) > 1 for assignment in world.step(seconds=seconds).assignments):
            # One round labels the first node of a pool, and the next round labels the other nodes.
            world.step(seconds=0)
        if not self.delete_seconds:
            world.finish_deletes()
        world.schedule()
        for workload in world.workloads.values():
            if world.bound(workload) == workload.groups[0].replicas:
                self.ran_at.setdefault(workload.name, world.now)

    def run(self, rounds: int, *, seconds: float = 1.0) -> None:
        for _ in range(rounds):
            self.step(seconds=seconds)

    def serves(self, workload: Workload, *, within_seconds: float, step_seconds: float = 1.0) -> bool:
        """Add a JobSet; return whether all its slices run within `within_seconds`."""
        self.world.add(workload)
        until = self.world.now + timedelta(seconds=within_seconds)
        while workload.name not in self.ran_at and self.world.now < until:
            self.step(seconds=step_seconds)
        return workload.name in self.ran_at


class Stream:
    """Keeps up to `most` one-host JobSets in the cluster. Each runs for `minutes`; then a new JobSet replaces it."""

    def __init__(self, market: Market, *, most: int, minutes: float, namespace: str = "stream") -> None:
        self.market = market
        self.most = most
        self.runs = timedelta(minutes=minutes)
        self.namespace = namespace
        self.count = 0

    def step(self, *, seconds: float = 20) -> None:
        """Delete JobSets that have run for `minutes`, add at most two new JobSets, and do one step of the market."""
        world, ran_at = self.market.world, self.market.ran_at
        there = [workload for workload in world.workloads.values() if workload.name.startswith("s0")]
        for workload in there:
            if workload.name in ran_at and world.now - ran_at[workload.name] > self.runs:
                world.remove_jobset(workload)
        for _ in range(min(2, self.most - len(there))):
            world.add(jobset_of(f"s0{self.count:05}", "2x2x1", namespace=self.namespace))
            self.count += 1
        self.market.step(seconds=seconds)

    def run(self, rounds: int, *, seconds: float = 20) -> None:
        for _ in range(rounds):
            self.step(seconds=seconds)

    def served(self, name: str, *, within_minutes: float) -> bool:
        until = self.market.world.now + timedelta(minutes=within_minutes)
        while name not in self.market.ran_at and self.market.world.now < until:
            self.step()
        return name in self.market.ran_at
