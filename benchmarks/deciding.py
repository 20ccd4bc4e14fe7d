"""Measures a decision in worlds that are too large for the local control plane."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from provisioner import constants
from provisioner.model.capacity import Node, PoolStatus, Taint, Zone, expected_pool
from provisioner.model.workloads import Pod, PodGroup, Requirements, Toleration, Workload, WorkloadUid
from provisioner.runtime import process
from provisioner.settings import Settings
from provisioner.slices.demand import group_key
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.pipeline import decide
from provisioner.slices.planning.round import Round, Snapshot
from provisioner.slices.suppliers.gke.rules import GKE_RULES

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_SETTINGS = Settings(project_id="p", cluster_location="us-central2", zone=Zone("us-central2-b"), cluster="c")
_RUNS = 15


def measure(say: Callable[..., None]) -> None:
    """Measure decisions about bursts, and about worlds in which all slices run, in the manner of the running loop."""
    process.collect_garbage_rarely()
    for slices in (100, 1000, 4000):
        pending = _burst(slices)
        running = _running(pending)
        # The slices of a burst are new. Running slices are decided on with the memory of an earlier decision.
        remembered = decide(running, Memory(), _SETTINGS, GKE_RULES, _NOW).memory
        for what, snapshot, memory in (
            ("that all want a pool", pending, Memory()),
            ("that all run, two nodes each", running, remembered),
        ):
            last = decide(snapshot, memory, _SETTINGS, GKE_RULES, _NOW).round
            say(f"decide: {slices} slices {what}, all new", f"{_median(snapshot, memory):.1f} ms")
            say(f"decide: {slices} slices {what}", f"{_median(snapshot, memory, last):.1f} ms")


def _median(snapshot: Snapshot, memory: Memory, last: Round | None = None) -> float:
    """Return the median time in milliseconds of a decision, with the results of the last decision or without."""
    seconds = []
    for _ in range(_RUNS):
        started = time.perf_counter()
        decide(snapshot, memory, _SETTINGS, GKE_RULES, _NOW, last)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1000


def _burst(slices: int) -> Snapshot:
    requirements = Requirements(
        chips=4,
        node_selector={constants.TPU_ACCELERATOR: "tpu-v4-podslice", constants.TPU_TOPOLOGY: "2x2x2"},
        tolerations=(Toleration(key=constants.TPU_RESOURCE, operator="Exists"),),
    )
    workloads, pods = {}, []
    for index in range(slices):
        uid = WorkloadUid(f"uid-{index}")
        job = PodGroup(name="w", replicas=1, parallelism=2, template=requirements)
        workloads[uid] = Workload(namespace="default", name=f"js-{index}", uid=uid, groups=(job,))
        pods.append(
            Pod(
                namespace="default",
                name=f"js-{index}-w-0-0-x",
                uid=f"pod-{index}",
                workload_name=f"js-{index}",
                workload_uid=uid,
                group_key=group_key("default", f"js-{index}-w-0"),
                completion_index=0,
                requirements=requirements,
                unschedulable_since=_NOW - timedelta(seconds=1),
            )
        )
    return Snapshot(workloads=workloads, pods=tuple(pods), pools_listed_at=_NOW)


def _running(burst: Snapshot) -> Snapshot:
    pools, nodes, pods = [], [], []
    # The concurrency allows all creates of the burst in one decision.
    settings = replace(_SETTINGS, concurrency=len(burst.pods))
    by_key = {
        create.slice_id.group_key: create for create in decide(burst, Memory(), settings, GKE_RULES, _NOW).creates
    }
    for pod in burst.pods:
        create = by_key[pod.group_key]
        pool = expected_pool(create.request)
        pools.append(replace(pool, status=PoolStatus.RUNNING))
        view = GKE_RULES.expected_node(pool)
        names = [f"{pool.name}-{host}" for host in range(2)]
        nodes += [
            Node(
                name=name,
                pool_name=pool.name,
                labels=view.labels,
                taints=(Taint(key=constants.TPU_RESOURCE, value="present"),),
                ready=True,
                allocatable_chips=4,
                allocatable_cpu_millicores=240_000,
                allocatable_memory_bytes=400 * 1024**3,
                created_at=_NOW,
            )
            for name in names
        ]
        pods += [_bound(pod, name, index) for index, name in enumerate(names)]
    return Snapshot(
        workloads=burst.workloads, pods=tuple(pods), nodes=tuple(nodes), pools=tuple(pools), pools_listed_at=_NOW
    )


def _bound(pod: Pod, node: str, index: int) -> Pod:
    return Pod(
        namespace=pod.namespace,
        name=f"{pod.name}-{index}",
        uid=f"{pod.uid}-{index}",
        workload_name=pod.workload_name,
        workload_uid=pod.workload_uid,
        group_key=pod.group_key,
        completion_index=index,
        phase="Running",
        node_name=node,
        requirements=pod.requirements,
    )
