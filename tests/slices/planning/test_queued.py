"""Queued capacity is no choice any more: who asks for it is told, and pools that an earlier release made of it go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import CapacityKind, NodePool, PoolStatus
from provisioner.model.choices import parse_choices
from provisioner.model.fit import misfit
from provisioner.model.workloads import Toleration, Workload
from provisioner.slices.planning.ownership import is_ours
from provisioner.slices.planning.plan import DeleteReason
from provisioner.slices.suppliers.gke.node_labels import expected_node
from tests.support.models import CHIP_TOLERATION, make_jobset, make_pool, make_requirements
from tests.support.settings import settings
from tests.support.world import World

#: Some of these tests live through hours of rounds.
pytestmark = pytest.mark.timeout(30)

TOLERATIONS = (CHIP_TOLERATION, Toleration(key=constants.QUEUED, operator="Exists"))
ASKED = {constants.CAPACITY: "queued"}
SELECTED = {constants.QUEUED: "true"}


def jobset_of(
    name: str = "train",
    *,
    annotations: dict[str, str] | None = None,
    pod_annotations: dict[str, str] | None = None,
    selector: dict[str, str] | None = None,
) -> Workload:
    """Return a JobSet of one slice whose pods tolerate queued nodes."""
    asked = make_requirements(
        accelerator="tpu-v5p-slice", tolerations=TOLERATIONS, annotations=pod_annotations or {}, selector=selector
    )
    return make_jobset(name, replicas=1, template=asked, annotations=annotations or {})


def queued_pool(workload: Workload) -> NodePool:
    """Return the pool that an earlier release made for a JobSet: up, and without nodes."""
    plain = make_pool(jobset_of(workload.name))
    return replace(
        plain,
        labels={**plain.labels, constants.QUEUED: "true"},
        capacity=CapacityKind.QUEUED,
    )


def world_with_a_queued_pool(workload: Workload, **changes: Any) -> tuple[World, NodePool]:
    """Return a world as a new release finds it."""
    pool = queued_pool(workload)
    world = World(workload, settings_=settings(**changes))
    world.put(pool)
    return world, pool


# --- Who asks for it ---


@pytest.mark.parametrize(
    ("asked", "changes", "words"),
    [
        pytest.param(
            {"annotations": ASKED}, {}, f"annotation {constants.CAPACITY}='queued' has 'queued'", id="the JobSet"
        ),
        pytest.param(
            {"pod_annotations": ASKED},
            {},
            f"annotation {constants.CAPACITY}='queued' has 'queued'",
            id="the pod template",
        ),
        pytest.param(
            {"annotations": {constants.CAPACITY: "queued, on-demand"}},
            {},
            f"annotation {constants.CAPACITY}='queued, on-demand' has 'queued'",
            id="before another choice, which nobody asked to pay for first",
        ),
        pytest.param(
            {"annotations": {constants.CAPACITY: "on-demand, queued@us-central2-b"}},
            {},
            "has 'queued@us-central2-b'",
            id="after another choice, as with any word that is no choice",
        ),
        pytest.param({"selector": SELECTED}, {}, f"the pod selects {constants.QUEUED}=true", id="by selector"),
        pytest.param(
            {"selector": SELECTED},
            {"capacity": parse_choices("on-demand")},
            f"the pod selects {constants.QUEUED}=true",
            id="by selector, where the settings have a choice",
        ),
        pytest.param(
            {"selector": SELECTED | {constants.SPOT: "true"}},
            {},
            f"the pod selects {constants.QUEUED}=true",
            id="by selector, with another one",
        ),
        pytest.param(
            {"selector": SELECTED},
            {"force_on_demand": True},
            f"the pod selects {constants.QUEUED}=true",
            id="by selector, where everything is on-demand: unsetting that would not help",
        ),
    ],
)
def test_who_asks_for_queued_capacity_gets_no_pool_and_is_told_why(
    asked: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    """On the pod and the JobSet: the value, why it is not served, and both ways out. Others are served."""
    world = World(jobset_of("asks", **asked), jobset_of("other"), settings_=settings(**changes))
    plan = world.step()
    assert [create.workload.name for create in plan.creates] == ["other"]
    (told,) = plan.notices
    assert (told.reason, told.warning) == (constants.INVALID_REQUEST, True)
    assert [(each.kind, each.name.partition("-")[0]) for each in told.objects] == [("Pod", "asks"), ("JobSet", "asks")]
    assert words in told.message
    assert "queued capacity is not supported: Kueue starts a JobSet only after" in told.message
    assert "use flex-start, or set up node pool and Kueue by hand" in told.message
    assert f"{constants.DISABLE}=true" in told.message
    assert len(told.message) < 1024
    # Neither does time help.
    world.run(48, seconds=1800)
    assert len(world.created) == 1


def test_who_only_tolerates_queued_nodes_is_served() -> None:
    """Kueue's flavours put the toleration on pods that run anywhere."""
    plan = World(jobset_of()).step()
    (create,) = plan.creates
    assert create.request.capacity is CapacityKind.ON_DEMAND
    assert constants.QUEUED not in create.request.labels
    assert plan.notices == ()


def test_a_jobset_that_is_marked_is_left_to_kueue_without_a_word() -> None:
    """As the message says."""
    workload = replace(jobset_of(annotations=ASKED), labels={constants.DISABLE: "true"})
    plan = World(workload).step()
    assert (plan.creates, plan.notices) == ((), ())


# --- Pools that are there ---


@pytest.mark.parametrize("end", [World.finish, World.remove_jobset], ids=["completes", "is deleted"])
def test_a_queued_pool_of_an_earlier_release_goes_when_its_jobset(end: Any) -> None:
    """It is ours, whether or not it has nodes."""
    workload = jobset_of(annotations=ASKED)
    world, pool = world_with_a_queued_pool(workload)
    assert is_ours(pool)
    world.run(60)
    assert (world.created, world.deleted) == ([], [])
    end(world, workload)
    world.run(40)
    assert (world.created, world.deleted) == ([], [pool.name])
    (reason,) = {each.reason for plan in world.plans for each in plan.deletes}
    assert reason in (DeleteReason.WORKLOAD_GONE, DeleteReason.WORKLOAD_FINISHED)


@pytest.mark.parametrize("asked", [{"annotations": ASKED}, {"selector": SELECTED}], ids=["annotation", "selector"])
def test_a_queued_pool_of_an_earlier_release_serves_its_jobset_to_the_end(asked: dict[str, Any]) -> None:
    """An upgrade takes no pool from pods that run, nor from those that come back after a restart."""
    workload = jobset_of(**asked)
    world, pool = world_with_a_queued_pool(workload)
    world.bring_nodes(pool.name)
    world.live(60)
    assert world.bound(workload) == 1
    world.end_pods(workload)
    world.start_pods(workload)
    world.live(60)
    assert world.bound(workload) == 1
    assert (world.created, world.deleted, world.told()) == ([], [], [])


def test_who_waits_for_a_queued_pool_of_an_earlier_release_is_told_to_delete_it() -> None:
    """The pool may be in a queue: nobody but its owner knows that its nodes will not come."""
    workload = jobset_of(annotations=ASKED)
    world, pool = world_with_a_queued_pool(workload, replace_stuck_slices=True)
    world.run(60, seconds=60)
    told = world.told(constants.STUCK)
    assert {each.message for each in told} == {world.told()[0].message}
    assert f"waits for node pool {pool.name}, which an earlier release created with queued capacity" in told[0].message
    assert told[0].message.endswith("; then delete that node pool")
    assert (world.created, world.deleted) == ([], [])
    # As told.
    world.workloads[workload.uid] = replace(workload, annotations={constants.CAPACITY: "flex-start"})
    world.remove_pool(pool.name)
    world.run(2)
    (made,) = world.created
    assert world.pools[made].capacity is CapacityKind.FLEX_START


def test_a_queued_pool_without_nodes_is_nothing_for_the_next_slice() -> None:
    """Its nodes would never come; those that are there are as good as others."""
    gone = jobset_of("gone", annotations=ASKED)
    world, pool = world_with_a_queued_pool(gone, deletion_delay_seconds=3600.0)
    world.remove_jobset(gone)
    world.add(jobset_of("next"))
    world.step()
    (made,) = world.created
    world.live(3)
    world.bring_nodes(pool.name)
    world.add(jobset_of("third"))
    world.live(3)
    assert world.created == [made]


def test_a_queued_pool_keeps_off_who_does_not_tolerate_its_taint() -> None:
    """GKE puts it on the nodes, and the pool's own taints do not have it."""
    pool = queued_pool(jobset_of())
    assert pool.status is PoolStatus.RUNNING
    intolerant = make_requirements(accelerator="tpu-v5p-slice")
    assert f"the taint {constants.QUEUED}=true" in misfit(intolerant, expected_node(pool))
    assert misfit(jobset_of().groups[0].template, expected_node(pool)) == ""
