"""Twice as many objects of one kind cost at most twice as many calls and bytes, from the caches to the decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Expression, Pod, Workload, WorkloadUid
from provisioner.nodegroups.api.names import CLEANUP_DEVICE_PLUGIN, GROUP_FINALIZERS
from provisioner.nodegroups.planning import decide as of_groups
from provisioner.nodegroups.planning.memory import Memory as GroupMemory
from provisioner.nodegroups.planning.round import Snapshot as GroupSnapshot
from provisioner.slices.demand.capacity_requests import with_slices
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.pipeline import decide
from provisioner.slices.planning.plan import Plan
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.workloads.capacity_requests import parse_capacity_buffer, parse_provisioning_request
from provisioner.workloads.raycluster import parse_raycluster
from tests.nodegroups.simulation.cluster import FACTS
from tests.nodegroups.simulation.world import SETTINGS, make_group
from tests.support.clock import NOW
from tests.support.counting import counted, measured
from tests.support.models import make_job, make_jobset, make_lws, make_node, make_pod, make_pool, make_requirements
from tests.support.objects import raw_buffer, raw_raycluster, raw_request
from tests.support.pod_world import Cluster, pod_of
from tests.support.settings import settings

pytestmark = pytest.mark.timeout(60)

FEW = 60
#: Maximum ratio of costs: 2 for twice as many objects, and 5 % for steps that only many objects reach.
MOST = 2.1
TEMPLATE = make_requirements(tolerations=())
LIKE_A_JOBSET = {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet"}


def request(name: str, **status: Any) -> Workload:
    found = parse_provisioning_request({**raw_request(name, 2), "status": status})
    assert found is not None
    return found


def served_request(name: str) -> Workload:
    """Return a request whose status names a pool that does not exist."""
    condition = {"type": constants.PROVISIONED, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return request(name, conditions=[condition], provisioningClassDetails={"node-pools": f"pool-{name}"})


def buffer(name: str, **spec: Any) -> Workload:
    found = parse_capacity_buffer(raw_buffer(name, **spec or {"replicas": 1}))
    assert found is not None
    return found


def gang(name: str) -> Workload:
    template = replace(TEMPLATE, annotations={constants.ALL_OR_NOTHING: "true"})
    return make_jobset(name, template=template, replicas=2)


KINDS: dict[str, Callable[[str], Workload]] = {
    "JobSets": make_jobset,
    "suspended JobSets": lambda name: make_jobset(name, suspended=True),
    "finished JobSets": lambda name: make_jobset(name, terminal_state="Completed"),
    "JobSets that start together": gang,
    "LeaderWorkerSets": make_lws,
    "RayClusters": lambda name: parse_raycluster(raw_raycluster(name)),
    "Jobs": make_job,
    "ProvisioningRequests": request,
    "ProvisioningRequests that are served": served_request,
    "CapacityBuffers": buffer,
    "CapacityBuffers like a JobSet": lambda name: buffer(
        name, scalableRef={**LIKE_A_JOBSET, "name": "honest"}, percentage=10
    ),
    "CapacityBuffers like no object": lambda name: buffer(
        name, scalableRef={**LIKE_A_JOBSET, "name": "nothing"}, percentage=10
    ),
}


def decide_on(make: Callable[[str], Workload], count: int, *, limited: bool, pools: int = 0) -> Callable[[], Plan]:
    """Return a function that reads the caches and decides, in the round after the first one."""
    made = [make_jobset("honest"), *(make(f"object-{number}") for number in range(count))]
    workloads: dict[WorkloadUid, Workload] = {workload.uid: workload for workload in made}
    pods: list[Pod] = [
        make_pod(workload, job=job, unschedulable_since=NOW)
        for workload in made
        if workload.kind.has_pods and workload.lives
        for job in range(workload.groups[0].replicas)
    ]
    own = [make_pool(make_jobset(f"old-{number}")) for number in range(pools)]
    nodes = tuple(make_node(pool, index) for pool in own for index in range(pool.hosts))
    changed = settings(max_chips=8, max_chips_per_namespace=(("*", 8),)) if limited else settings()
    now = NOW + timedelta(minutes=1)

    def look(memory: Memory, **last: Any) -> Plan:
        read, leaders = with_slices(workloads, {("default", "template"): TEMPLATE})
        seen = Snapshot(workloads=read, pods=(*pods, *leaders), nodes=nodes, pools=tuple(own), pools_listed_at=now)
        return decide(seen, memory, changed, GKE_RULES, now, **last)

    first = look(Memory())
    return lambda: look(first.memory, last=first.round)


@pytest.mark.parametrize("limited", [False, True], ids=["no limits", "limits"])
@pytest.mark.parametrize("kind", KINDS)
def test_twice_as_many_objects_cost_at_most_twice_as_much(kind: str, limited: bool) -> None:
    """One tenant may create many objects, so the cost of a round must grow at most in proportion to their number."""
    few, many = (decide_on(KINDS[kind], count, limited=limited) for count in (FEW, 2 * FEW))
    few(), many()
    assert counted(many)[1] <= MOST * counted(few)[1]
    assert measured(many)[1] <= MOST * measured(few)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_work_for_objects_and_pools_is_the_sum_and_not_the_product(kind: str) -> None:
    both, objects, pools = (
        counted(decide_on(KINDS[kind], count, limited=True, pools=pools))[1]
        for count, pools in ((FEW, FEW), (FEW, 0), (0, FEW))
    )
    assert both <= 1.1 * (objects + pools)


def decide_on_pods(pools: int, pending: int, *, idle: bool) -> Callable[[], Plan]:
    """Return a function that decides on pending pods of a tenant, and on pools of other tenants.

    Each pod excludes another node. If the pools are idle, a limit forbids the tenant to use the pools.
    """
    world = Cluster(settings_=settings(concurrency=1000, deletion_delay_seconds=3600.0))
    for number in range(pools):
        world.scale(1, owner=f"other-{number}", namespace=f"other-{number}")
    world.settle()
    assert all(pod.node_name for pod in world.pods.values())
    if idle:
        world.pods.clear()
        limits: dict[str, Any] = {"max_chips_per_namespace": (("default", 0), ("*", 4096)), "max_pools_per_jobset": 8}
        world.settings = replace(world.settings, **limits)
    nodes = sorted(world.nodes) or [""]
    for number in range(pending):
        pod = pod_of(f"pod-{number}", f"owner-{number}")
        other = Expression(key="metadata.name", operator="NotIn", values=(nodes[number % len(nodes)],), on_field=True)
        asked = replace(pod.requirements, affinity_terms=((other,),), memory_bytes=1000 + number)
        world.put(replace(pod, requirements=asked, created_at=world.now, unschedulable_since=world.now))
    seen, last = world.snapshot(), world.look()
    return lambda: decide(seen, last.memory, world.settings, world.rules, world.now, last.round)


@pytest.mark.parametrize("idle", [False, True], ids=["used pools", "idle pools and a limit"])
def test_work_for_pods_and_pools_of_other_tenants_is_the_sum_and_not_the_product(idle: bool) -> None:
    """In the past, 4,000 pods with different requests and 400 idle pools took 10 s and 300 MB."""
    few, many = (decide_on_pods(count, count, idle=idle) for count in (FEW, 2 * FEW))
    assert counted(many)[1] <= MOST * counted(few)[1]
    # Each pair of a pod and a node still takes one bit, so the memory grows faster than the number of pods.
    assert measured(many)[1] <= 2.5 * measured(few)[1]


@pytest.mark.parametrize(
    "metadata",
    [{}, {"finalizers": GROUP_FINALIZERS}, {"finalizers": (CLEANUP_DEVICE_PLUGIN,), "deleted_at": NOW}],
    ids=["new", "created", "deleted"],
)
def test_twice_as_many_node_groups_cost_at_most_twice_as_much(metadata: dict[str, Any]) -> None:
    """In the past, each deleted group was compared with all groups: 10,000 groups took half a minute."""

    def decide_on_groups(count: int) -> None:
        groups = [make_group(f"group-{number}", topology="2x2") for number in range(count)]
        metas = (replace(group.meta, uid=group.meta.name, created_at=NOW, **metadata) for group in groups)
        marked = tuple(replace(group, meta=meta) for group, meta in zip(groups, metas, strict=True))
        other = replace(groups[0], meta=replace(groups[0].meta, name="other", uid="other", finalizers=GROUP_FINALIZERS))
        of_groups.decide(GroupSnapshot(cluster=FACTS, groups=(*marked, other)), GroupMemory(), SETTINGS, NOW)

    decide_on_groups(2 * FEW)
    assert counted(lambda: decide_on_groups(2 * FEW))[1] <= MOST * counted(lambda: decide_on_groups(FEW))[1]
