"""Tests of child Jobs with fewer pods than a slice has hosts: several Jobs fill a slice, or get no pool."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Pod, Workloads, group_key
from provisioner.slices.demand import SliceId
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.slices.demand.owners import with_owners
from provisioner.slices.demand.slices import all_slices, find_by_workload
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.pipeline import decide
from provisioner.slices.planning.plan import Plan
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.workloads.jobset import parse_jobset
from provisioner.workloads.parse_pod import parse_pod
from tests.support.clock import NOW
from tests.support.objects import pod_spec, raw_jobset, raw_leader, toleration
from tests.support.settings import settings

EXCLUSIVE = {constants.EXCLUSIVE_TOPOLOGY: constants.NODE_POOL}
CONFIRMED = {constants.ALLOW_UNUSED_HOSTS: "true"}
#: Topology of eight hosts.
TOPOLOGY = "2x4x4"


def pods_of(replicas: int, *, marked: bool = False) -> list[Pod]:
    """Return one unschedulable leader pod for each child Job; if `marked`, each pod selects the key of its Job."""
    found = []
    for number in range(replicas):
        spec = pod_spec(topology=TOPOLOGY, tolerations=[toleration()])
        if marked:
            spec["nodeSelector"] |= {constants.SLICE: f"j-{number}", constants.SLICE_NAMESPACE: "default"}
        pod = parse_pod(raw_leader(number=number, spec=spec))
        assert pod is not None
        found.append(pod)
    return found


def planned(replicas: int, parallelism: int, annotations: dict[str, Any], **how: bool) -> Plan:
    raw = raw_jobset(replicas=replicas, parallelism=parallelism, pod=pod_spec(topology=TOPOLOGY))
    raw["metadata"]["annotations"] = annotations
    jobset = parse_jobset(raw)
    workloads, pods = with_owners({jobset.uid: jobset}, pods_of(replicas, **how))
    snapshot = Snapshot(workloads=workloads, pods=pods, pools_listed_at=NOW)
    return decide(snapshot, Memory(), settings(concurrency=64), GKE_RULES, NOW)


@pytest.mark.parametrize(
    ("replicas", "parallelism", "annotations", "pools", "problem"),
    [
        pytest.param(8, 1, {}, 1, "", id="one Job for each host"),
        pytest.param(16, 1, {}, 2, "", id="hosts of two slices"),
        pytest.param(4, 2, {}, 1, "", id="two hosts for each Job"),
        pytest.param(2, 8, {}, 2, "", id="whole slices"),
        pytest.param(6, 1, {}, 0, "so 7 would not be used", id="too few Jobs for a slice"),
        pytest.param(8, 3, {}, 0, "so 5 would not be used", id="no whole number of Jobs in a slice"),
        pytest.param(8, 1, EXCLUSIVE, 0, "so 7 would not be used", id="exclusive placement"),
        pytest.param(6, 1, CONFIRMED, 6, "", id="confirmed"),
        pytest.param(3, 4, {}, 3, "", id="half of the hosts"),
    ],
)
def test_child_jobs_share_pools_only_if_together_they_fill_slices(
    replicas: int, parallelism: int, annotations: dict[str, Any], pools: int, problem: str
) -> None:
    """In the past, eight child Jobs with one pod each got eight pools of eight hosts."""
    plan = planned(replicas, parallelism, annotations)
    assert [create.request.hosts for create in plan.creates] == [8] * pools
    notices = [notice.message for notice in plan.notices if notice.reason == EventReason.INVALID_REQUEST]
    assert bool(notices) is bool(problem)
    assert all(problem in notice for notice in notices)


def test_child_jobs_with_own_nodes_are_no_slice_together() -> None:
    """The pods of each child Job select the key of their Job, so several Jobs cannot share the nodes of a pool."""
    plan = planned(8, 1, {}, marked=True)
    assert plan.creates == ()
    assert {"use one Job with parallelism 8" in notice.message for notice in plan.notices} == {True}


@pytest.mark.parametrize(
    ("with_pods", "succeeded", "ended"),
    [
        pytest.param([3], 2, [], id="one Job without pods retries"),
        pytest.param([3], 3, [0], id="other Jobs succeeded"),
        pytest.param([2, 3], 2, [0], id="Jobs of one slice succeeded"),
        pytest.param([1, 3], 2, [], id="one Job of each slice succeeded"),
        pytest.param([], 4, [0, 1], id="all Jobs succeeded"),
    ],
)
def test_slice_has_ended_if_all_child_jobs_without_pods_succeeded(
    with_pods: list[int], succeeded: int, ended: list[int]
) -> None:
    """The status contains only the number of succeeded child Jobs, which may be of different slices."""
    raw = raw_jobset(replicas=4, parallelism=4, pod=pod_spec(topology=TOPOLOGY))
    raw["metadata"]["annotations"] = {}
    raw["status"] = {"replicatedJobsStatus": [{"name": "slice", "succeeded": succeeded}]}
    jobset = parse_jobset(raw)
    workloads, pods = with_owners({jobset.uid: jobset}, [pods_of(4)[number] for number in with_pods])
    ids = [SliceId(jobset.uid, group_key("default", f"train-slice-{number}")) for number in range(2)]
    found = find_by_workload(Workloads.of(workloads), pods, ServingPolicy(), dict.fromkeys(ids, ""))
    slices = all_slices(found)
    assert [number for number, slice_id in enumerate(ids) if slices[slice_id].ended] == ended
