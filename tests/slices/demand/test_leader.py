"""Tests of leader pods: index 0 with exclusive placement on several hosts, otherwise the lowest index of the group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import constants
from provisioner.model.placement import labels_of, slice_key
from provisioner.model.workloads import Pod, Workload, Workloads, group_key
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.slices.demand.slices import all_slices, find_by_workload
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.pipeline import decide
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.workloads.jobset import parse_jobset
from provisioner.workloads.leaderworkerset import parse_leaderworkerset
from provisioner.workloads.parse_pod import parse_pod
from tests.support.clock import NOW
from tests.support.controllers import pods_of
from tests.support.models import make_pod
from tests.support.objects import pod_spec, raw_jobset, raw_lws, raw_pod, reference, toleration
from tests.support.settings import settings

SUBGROUPS = Path(__file__).parents[2] / "data" / "leaderworkerset" / "subgroups.yaml"
EXCLUSIVE = {constants.EXCLUSIVE_TOPOLOGY: constants.NODE_POOL}


@pytest.mark.parametrize(
    ("topology", "of_jobset", "of_job", "want"),
    [
        pytest.param("2x2x4", EXCLUSIVE, {}, None, id="exclusive placement of the JobSet"),
        pytest.param("2x2x4", {}, EXCLUSIVE, None, id="exclusive placement of the replicated job"),
        pytest.param("2x2x4", {}, {}, 2, id="no exclusive placement"),
        pytest.param("2x2x1", EXCLUSIVE, {}, 2, id="single hosts"),
    ],
)
def test_lowest_unfinished_index_leads_unless_placement_is_exclusive(
    topology: str, of_jobset: dict[str, Any], of_job: dict[str, Any], want: int | None
) -> None:
    """Pods that have ended are not watched. In the past, a child Job whose pod of index 0 had ended got no new pool."""
    raw = raw_jobset(parallelism=4, pod=pod_spec(topology=topology))
    raw["metadata"]["annotations"] = of_jobset
    raw["spec"]["replicatedJobs"][0]["template"]["metadata"] = {"annotations": of_job}
    workload = parse_jobset(raw)
    pods = [make_pod(workload, index=index) for index in (3, 2)]
    workloads = Workloads.of({workload.uid: workload})
    (found,) = all_slices(find_by_workload(workloads, pods, ServingPolicy())).values()
    assert (found.leader.completion_index if found.leader is not None else None) == want
    assert found.pending is (want is not None)


@pytest.mark.parametrize("on_slice", [True, False], ids=["leader on a host of the slice", "leader elsewhere"])
def test_group_whose_leader_has_no_chips_gets_a_host_for_each_worker(*, on_slice: bool) -> None:
    selector = {constants.TPU_ACCELERATOR: "tpu-v4-podslice", constants.TPU_TOPOLOGY: "2x2x4"}
    head = {"containers": [{"name": "head"}], "nodeSelector": selector if on_slice else {}}
    worker = pod_spec(topology="2x2x4", tolerations=[toleration()])
    body = {"size": 5, "leaderTemplate": {"spec": head}, "workerTemplate": {"spec": worker}}
    raw = raw_lws(metadata={"annotations": {}})
    raw["spec"]["leaderWorkerTemplate"] = body
    workload = parse_leaderworkerset(raw)
    labels = {"labels": {constants.LWS_NAME: "serve"}, "annotations": {constants.LWS_SIZE: "5"}}
    pods = [
        parse_pod(raw_pod(name, metadata={**labels, "ownerReferences": [reference("StatefulSet", owner)]}, spec=spec))
        for name, owner, spec in (("serve-0", "serve", head), ("serve-0-1", "serve-0", worker))
    ]
    assert (pods[0] is not None) is on_slice
    snapshot = Snapshot(workloads={workload.uid: workload}, pods=tuple(filter(None, pods)), pools_listed_at=NOW)
    plan = decide(snapshot, Memory(), settings(), GKE_RULES, NOW)
    assert [create.request.hosts for create in plan.creates] == [4], plan.notices


def _pods_of_groups(*, on_slice: bool) -> tuple[Workload, list[Pod]]:
    """Return the LeaderWorkerSet of SUBGROUPS and its pods. Leaders are in a subgroup only if they are `on_slice`."""
    raw = yaml.safe_load(SUBGROUPS.read_text(encoding="utf-8"))
    raw["metadata"] |= {"namespace": "default", "uid": "u"}
    if not on_slice:
        template = raw["spec"]["leaderWorkerTemplate"]
        template["subGroupPolicy"]["subGroupPolicyType"] = "LeaderExcluded"
        del template["leaderTemplate"]["spec"]["nodeSelector"]
    return parse_leaderworkerset(raw), [pod for pod in map(parse_pod, pods_of(raw)) if pod is not None]


@pytest.mark.parametrize("on_slice", [True, False], ids=["leader on a host", "leader elsewhere"])
def test_each_subgroup_is_led_by_its_lowest_pod_and_gets_a_pool(*, on_slice: bool) -> None:
    workload, pods = _pods_of_groups(on_slice=on_slice)
    workloads = Workloads.of({workload.uid: workload})
    slices = all_slices(find_by_workload(workloads, pods, ServingPolicy())).values()
    name = "disaggregated"
    first = {group: f"{name}-{group}" if on_slice else f"{name}-{group}-1" for group in (0, 1)}
    assert {
        slice_.group_name: (slice_.leader.name if slice_.leader else "", len(slice_.pods)) for slice_ in slices
    } == {
        f"{name}-subgroup-0-0": (first[0], 2 + on_slice),
        f"{name}-subgroup-0-1": (first[1], 2 + on_slice),
        f"{name}-subgroup-1-0": (f"{name}-0-3", 2),
        f"{name}-subgroup-1-1": (f"{name}-1-3", 2),
    }
    assert {(slice_.parallelism, slice_.nodes, slice_.pending) for slice_ in slices} == {(2, 2, True)}
    snapshot = Snapshot(workloads={workload.uid: workload}, pods=tuple(pods), pools_listed_at=NOW)
    plan = decide(snapshot, Memory(), settings(), GKE_RULES, NOW)
    assert [create.request.hosts for create in plan.creates] == [2] * 4, plan.notices


def test_subgroup_is_led_by_its_lowest_pod_even_if_the_leader_of_the_group_has_chips() -> None:
    """A restart recreates the pods of a group in any order, so the first pod of a subgroup may be missing."""
    raw = raw_lws(replicas=1, size=4, metadata={"annotations": {}})
    raw["spec"]["leaderWorkerTemplate"]["subGroupPolicy"] = {"subGroupSize": 2}
    workload = parse_leaderworkerset(raw)
    left = [pod for pod in map(parse_pod, pods_of(raw)) if pod is not None and pod.name != "serve-0-2"]
    found = all_slices(find_by_workload(Workloads.of({workload.uid: workload}), left, ServingPolicy())).values()
    leaders = {slice_.group_name: slice_.leader.name for slice_ in found if slice_.leader is not None}
    assert leaders == {"serve-subgroup-0-0": "serve-0", "serve-subgroup-1-0": "serve-0-3"}


def test_marks_of_subgroups_are_the_labels_of_their_pools() -> None:
    """Marks are node selectors, which keep the pods of a subgroup on its pool."""
    workload, pods = _pods_of_groups(on_slice=True)
    marked = []
    for pod in pods:
        asked = pod.requirements
        selector = {**asked.node_selector, **labels_of(slice_key(asked.labels), pod.namespace)}
        # Leaders get no marks here, although the placement policy also marks leaders without chips.
        marked.append(replace(pod, requirements=replace(asked, node_selector=selector)) if asked.chips else pod)
    snapshot = Snapshot(workloads={workload.uid: workload}, pods=tuple(marked), pools_listed_at=NOW)
    plan = decide(snapshot, Memory(), settings(), GKE_RULES, NOW)
    name_of = {slice_.id: slice_.group_name for slice_ in plan.decided.slices.values()}
    assert {name_of[create.slice_id]: create.request.labels[constants.SLICE] for create in plan.creates} == {
        f"disaggregated-subgroup-{number}-{group}": f"l-{group_key(f'disaggregated-{group}', str(number))}"
        for number in (0, 1)
        for group in (0, 1)
    }
