"""What a round takes over from the last one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from provisioner.model.workloads import Pod, Workload
from provisioner.slices.planning.round import Round, begin_round
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.models import make_jobset, make_pod
from tests.support.settings import settings
from tests.support.world import World

OPT_IN = settings(opt_in_label=("tpu", "yes"))


class CountedLabels(dict[str, dict[str, str]]):
    """Labels of namespaces that count how often they are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedLabels.compared += 1
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def round_after(last: Round | None, world: World, labels: dict[str, dict[str, str]]) -> Round:
    """Begin a round in which namespaces have these labels."""
    snapshot = replace(world.snapshot(), namespace_labels=labels)
    return begin_round(snapshot, world.memory, OPT_IN, GKE_RULES, world.now, last.derived if last is not None else None)


def waiting(count: int) -> tuple[list[Workload], World]:
    """Return JobSets whose leaders wait."""
    workloads = [make_jobset(f"train-{index}", replicas=1) for index in range(count)]
    return workloads, World(*workloads)


def test_the_labels_of_namespaces_are_compared_once_a_round_and_not_for_each_workload() -> None:
    """Whoever may create namespaces must not slow each decision for all workloads."""
    _, world = waiting(20)
    last = round_after(None, world, CountedLabels(default={"tpu": "yes"}))
    CountedLabels.compared = 0
    now = round_after(last, world, CountedLabels(default={"tpu": "yes"}))
    assert all(now.slices[slice_id] is slice_ for slice_id, slice_ in last.slices.items())
    assert CountedLabels.compared == 1


def test_a_namespace_that_is_served_no_more_takes_its_slices_along() -> None:
    """Nothing of the last round is believed where the labels have changed."""
    _, world = waiting(2)
    before = round_after(None, world, {"default": {"tpu": "yes"}})
    after = round_after(before, world, {"default": {}})
    assert [each.served for each in before.slices.values()] == [True, True]
    assert [each.served for each in after.slices.values()] == [False, False]


def test_one_pod_that_changes_costs_its_own_workload_only() -> None:
    """The slices of the others are the same objects."""
    workloads, world = waiting(3)
    labels = {"default": {"tpu": "yes"}}
    before = round_after(None, world, labels)
    pod: Pod = make_pod(workloads[0], node="somewhere")
    world.put(pod)
    after = round_after(before, world, labels)
    changed: list[Any] = [
        slice_id for slice_id in after.slices if after.slices[slice_id] is not before.slices[slice_id]
    ]
    assert [slice_id.workload_uid for slice_id in changed] == [workloads[0].uid]
    assert not after.slices[changed[0]].pending
