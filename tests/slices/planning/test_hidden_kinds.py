"""Tests of pools whose workloads cannot be read: the pools may be needed, and must not block other pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Workload, WorkloadKind
from provisioner.slices.demand.owners import with_owners
from provisioner.slices.planning.memory.answers import DeleteAnswer, DeleteResult
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.plan import Delete
from provisioner.slices.planning.round import Snapshot
from provisioner.workloads.parse_pod import parse_pod
from tests.support.models import make_job, make_jobset, make_lws, make_pod, make_pool, make_requirements
from tests.support.objects import raw_plain_pod, reference
from tests.support.settings import settings
from tests.support.world import World

_WATCHED_KINDS = frozenset[WorkloadKind]()
_NO_SETS = frozenset({WorkloadKind.LEADER_WORKER_SET})

#: Hidden workload, unknown kinds and settings: a kind that may not be read, or a namespace that is not served.
_HIDDEN = [
    pytest.param(make_lws("hidden"), _NO_SETS, {}, id="a kind"),
    pytest.param(
        make_jobset("hidden", namespace="away"), _WATCHED_KINDS, {"namespaces": ("default",)}, id="a namespace"
    ),
]


class HalfSeen(World):
    """A world in which the provisioner cannot read some kinds of workloads."""

    unknown_kinds = _WATCHED_KINDS

    def snapshot(self, **changes: Any) -> Snapshot:
        return super().snapshot(**{"unknown_kinds": self.unknown_kinds} | changes)

    def _delete(self, delete: Delete) -> DeleteAnswer:
        if delete.named.name == "hidden":
            return DeleteAnswer(name=delete.name, at=self.now, result=DeleteResult.NEEDED, reason="it lives")
        return super()._delete(delete)


def half_seen(kinds: frozenset[WorkloadKind], **changes: Any) -> HalfSeen:
    world = HalfSeen(settings_=settings(**changes))
    world.unknown_kinds = kinds
    return world


@pytest.mark.parametrize(("hidden", "kinds", "changes"), _HIDDEN)
def test_unready_pool_of_a_hidden_workload_does_not_block_other_replacements(
    hidden: Workload, kinds: frozenset[WorkloadKind], changes: dict[str, Any]
) -> None:
    """The pool's slice is unknown, so the pool cannot be replaced, and must not use up the share of replacements."""
    world = half_seen(kinds, ready_timeout_seconds=100.0, **changes)
    world.put(make_pool(hidden))
    world.step(seconds=1)
    workload = make_jobset("seen")
    world.add(workload)
    world.put(make_pool(workload))
    world.run(8, seconds=20)
    assert world.memory.given_up == {make_pool(workload).name}
    world.run(8, seconds=20)
    assert len(world.created) == 1


def test_unready_pool_of_a_hidden_workload_is_replaced_for_a_visible_slice() -> None:
    """The pods of a JobSet ran on the pool last, so the slice that it serves is known."""
    workload = make_jobset("seen")
    pool = make_pool(make_lws("hidden"))
    world = half_seen(_NO_SETS, ready_timeout_seconds=100.0)
    world.workloads[workload.uid] = workload
    world.put_pool(pool)
    for node in list(world.nodes.values()):
        world.put(make_pod(workload, index=int(node.name[-1]), node=node.name))
    world.step()
    world.nodes.clear()
    world.end_pods(workload)
    world.start_pods(workload)
    world.run(8, seconds=20)
    assert len(world.created) == 1


@pytest.mark.parametrize(("hidden", "kinds", "changes"), _HIDDEN)
def test_pool_of_a_hidden_workload_is_not_deleted_to_free_chips(
    hidden: Workload, kinds: frozenset[WorkloadKind], changes: dict[str, Any]
) -> None:
    """The hidden workload may need its pool, which seems idle for longest, so the next idle pool is deleted."""
    world = half_seen(kinds, max_chips=16, deletion_delay_seconds=3600.0, **changes)
    world.put_pool(make_pool(hidden))
    world.step(seconds=60)
    idle = make_pool(make_jobset("over"))
    world.put_pool(idle)
    world.step(seconds=60)
    world.add(make_jobset("waits", template=make_requirements(topology="2x2x1", tolerations=()), parallelism=1))
    plan = world.look()
    assert [delete.name for delete in plan.deletes] == [idle.name]


class WithJobs(HalfSeen):
    """A world with pods of Jobs, whose kind depends on the Jobs that the provisioner can read."""

    def snapshot(self, **changes: Any) -> Snapshot:
        listed = {uid: job for uid, job in self.workloads.items() if job.kind not in self.unknown_kinds}
        workloads, pods = with_owners(listed, self.pods.values(), unknown_kinds=self.unknown_kinds)
        return super().snapshot(**{"workloads": workloads, "pods": pods, **changes})


@pytest.mark.parametrize("annotated", [True, False])
def test_pods_of_a_job_get_no_second_pool_while_jobs_are_unknown(*, annotated: bool) -> None:
    """In the past, pods of an annotated Job got a second pool, as pods of kind POD, until Jobs were listed."""
    single_host = make_requirements(topology="2x2x1", tolerations=())
    world = WithJobs(settings_=settings(serve_jobs=True))
    job = make_job("sweep", parallelism=4, template=single_host)
    if annotated:
        world.workloads[job.uid] = job
    for index in range(4):
        metadata = {"annotations": {constants.COMPLETION_INDEX: str(index)}}
        owner = {**reference("Job", job.name, "batch/v1"), "uid": job.uid}
        pod = parse_pod(raw_plain_pod(f"sweep-{index}", owner, topology="2x2x1", metadata=metadata))
        assert pod is not None
        world.put(replace(pod, created_at=world.now, unschedulable_since=world.now))
    world.run(20)
    assert [pool.hosts for pool in world.pools.values()] == [4]
    world.memory, world.last_round = Memory(), None
    world.unknown_kinds = frozenset({WorkloadKind.JOB})
    rival = make_jobset("rival", template=single_host, parallelism=4)
    world.add(rival)
    assert [create.slice_id.workload_uid for create in world.step().creates] == [rival.uid]
    world.unknown_kinds = _WATCHED_KINDS
    world.run(20)
    assert (len(world.created), world.deleted) == (2, [])
