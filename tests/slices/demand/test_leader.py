"""The leader pod of a child Job: index 0 with exclusive placement on several hosts, otherwise the lowest index."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Workloads
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.slices.demand.slices import all_slices, find_by_workload
from provisioner.workloads.jobset import parse_jobset
from tests.support.models import make_pod
from tests.support.objects import pod_spec, raw_jobset

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
