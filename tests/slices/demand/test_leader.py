"""The leader pod of a child Job: index 0 with exclusive placement on several hosts, otherwise the lowest index."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Workloads
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
from tests.support.models import make_pod
from tests.support.objects import pod_spec, raw_jobset, raw_lws, raw_pod, reference, toleration
from tests.support.settings import settings

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
    """Pods of ended indexes are not watched. A child Job whose index 0 had ended never got a pool again."""
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
    """On a slice, the leader is the first pod; elsewhere, the provisioner sees only the workers."""
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
