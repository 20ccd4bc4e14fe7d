"""The JobSets of axlearn, the heaviest user of the Go provisioner: unchanged manifests, pools that fit."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import CapacityKind, NodePoolRequest, Taint, expected_pool
from provisioner.model.fit import misfit
from provisioner.model.workloads import Workload
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.models import CHIP_TOLERATION, SPOT_TOLERATION, go_pool, make_jobset, make_pod, make_requirements
from tests.support.world import World

PRIORITY = "job-priority"


def axlearn_jobset(*, tier: str = "spot", uid: str = "", **changes: Any) -> Workload:
    """Return a JobSet as axlearn makes it: one host network, labels and selectors of its bastion's scheduler."""
    terms = {constants.SPOT: "true"} if tier == "spot" else {constants.RESERVATION_NAME: "tpu-reservation"}
    fields: dict[str, Any] = {
        "accelerator": "tpu-v5p-slice",
        "topology": "2x2x4",
        "selector": {**terms, constants.LEGACY_POOL_ID: "train", PRIORITY: "5"},
        "tolerations": (SPOT_TOLERATION,) if tier == "spot" else (),
        "labels": {"bastion-tier": tier, PRIORITY: "5", "user-id": "u", "project-id": "p", "num-replicas": "1"},
        "annotations": {constants.DISABLE: "false"},
    }
    extra = changes.pop("selector", {})
    for key in ("labels", "annotations"):
        fields[key] = {**fields[key], **changes.pop(key, {})}
    fields["selector"] = {**fields["selector"], **extra}
    return make_jobset(uid=uid, parallelism=4, template=make_requirements(**fields | changes))


def bought(workload: Workload) -> NodePoolRequest:
    """Return what is bought for a JobSet; its leader lands there and its pods run."""
    world = World(workload)
    (create,) = world.step().creates
    world.finish_creates()
    world.schedule()
    world.run(3)
    assert world.states() == {create.request.name: "in_use"}
    assert (world.created, world.deleted) == ([create.request.name], [])
    return create.request


@pytest.mark.parametrize(
    ("changes", "labels", "request_fields"),
    [
        pytest.param(
            {},
            {},
            {"capacity": CapacityKind.SPOT, "reservation": "", "taints": (Taint(key=constants.SPOT, value="true"),)},
            id="spot",
        ),
        pytest.param(
            {"tier": "reserved"},
            {},
            {"capacity": CapacityKind.RESERVATION, "reservation": "tpu-reservation", "taints": ()},
            id="a reservation",
        ),
        pytest.param(
            {
                "labels": {constants.AUTO_RESTART: "true"},
                "annotations": {constants.COPY_LABELS: constants.AUTO_RESTART},
            },
            {constants.AUTO_RESTART: "true"},
            {},
            id="smart repair: a label with Google's prefix is copied where the annotation names it",
        ),
    ],
)
def test_a_jobset_of_axlearn_gets_the_pool_that_it_asks_for(
    changes: dict[str, Any], labels: dict[str, str], request_fields: dict[str, Any]
) -> None:
    """Unchanged manifests, and pods that fit what they get."""
    workload = axlearn_jobset(**changes)
    made = bought(workload)
    copied = {key: value for key, value in made.labels.items() if key not in constants.OWNER_LABELS}
    # axlearn looks its pools up by the first; nodes carry the second because it is a selector.
    reserved = {constants.RESERVATION_AFFINITY: "specific"} if made.reservation else {}
    assert copied == {constants.LEGACY_POOL_ID: "train", PRIORITY: "5", **reserved, **labels}
    assert {field: getattr(made, field) for field in request_fields} == request_fields
    leader = make_pod(workload).requirements
    assert CHIP_TOLERATION in leader.tolerations
    assert misfit(leader, GKE_RULES.expected_node(expected_pool(made))) == ""


def test_a_jobset_of_axlearn_that_is_made_again_on_other_terms_leaves_its_old_pool() -> None:
    """Its runner deletes the JobSet and makes it again under one name, with the selectors of another tier."""
    first, second = axlearn_jobset(tier="spot", uid="before"), axlearn_jobset(tier="reserved")
    world = World(second)
    pool = world.put_pool(go_pool(first, capacity=CapacityKind.SPOT))
    world.run(40)
    (made,) = world.created
    assert world.pools[made].reservation == "tpu-reservation"
    assert world.deleted == [pool.name]
