"""Queued capacity is no choice: who asks for it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import CapacityKind
from provisioner.model.workloads import Toleration, Workload
from tests.support.models import CHIP_TOLERATION, make_jobset, make_requirements
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


@pytest.mark.parametrize(
    ("asked", "changes", "words"),
    [
        pytest.param(
            {"annotations": ASKED}, {}, f"annotation {constants.CAPACITY}='queued' has 'queued'", id="the JobSet"
        ),
        pytest.param(
            {"annotations": {constants.CAPACITY: "queued, on-demand"}},
            {},
            f"annotation {constants.CAPACITY}='queued, on-demand' has 'queued'",
            id="before another choice, which nobody asked to pay for first",
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
    workload = replace(jobset_of(annotations=ASKED), labels={constants.DISABLE: "true"})
    plan = World(workload).step()
    assert (plan.creates, plan.notices) == ((), ())
