"""Before Kueue admits a JobSet nothing is bought for it: from the objects as the API server sends them."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Workloads
from provisioner.slices.demand import Slice, group_key
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.workloads.jobset import parse_jobset
from provisioner.workloads.pods import parse_pod
from tests.support.models import find_slices
from tests.support.objects import raw_jobset, raw_pod

GATE = {"name": "kueue.x-k8s.io/topology"}
LABELS = {
    "jobset.sigs.k8s.io/jobset-name": "train",
    "jobset.sigs.k8s.io/jobset-uid": "uid-of-train",
    "jobset.sigs.k8s.io/job-key": group_key("default", "train-slice-0"),
    "batch.kubernetes.io/job-completion-index": "0",
}


def workload(**spec: Any) -> dict[str, Any]:
    """Return a JobSet that Kueue has under its queue."""
    raw = raw_jobset(metadata={"labels": {"kueue.x-k8s.io/queue-name": "tpus"}})
    raw["spec"].update(spec)
    return raw


def leader(*, reason: str = "", gates: tuple[dict[str, str], ...] = (), **changes: Any) -> dict[str, Any]:
    """Return the first slice's leader pod; `reason` is why it is not scheduled, empty for no word on it yet."""
    metadata = {"labels": LABELS, **changes.pop("metadata", {})}
    raw = raw_pod(metadata=metadata, **changes)
    raw["spec"]["schedulingGates"] = list(gates)
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "said by the API server"}
    raw["status"] = {"phase": "Pending", "conditions": [condition] if reason else []}
    return raw


def first_slice(raw: dict[str, Any], *pods: dict[str, Any]) -> Slice | None:
    """Return the JobSet's first slice, None where it has none."""
    parsed = parse_jobset(raw)
    seen = [pod for each in pods if (pod := parse_pod(each)) is not None]
    found = find_slices(Workloads.of({parsed.uid: parsed}), seen, ServingPolicy())
    return next((each for each in found.values() if each.group_name == "train-slice-0"), None)


@pytest.mark.parametrize(
    ("raw", "pods", "pending"),
    [
        pytest.param(workload(suspend=True), [], False, id="a JobSet that waits for admission, without pods"),
        pytest.param(
            workload(suspend=True),
            [
                leader(
                    reason="Unschedulable",
                    metadata={"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30},
                )
            ],
            False,
            id="one that was evicted and whose pods are ending",
        ),
        pytest.param(
            workload(suspend=False),
            [leader(reason="SchedulingGated", gates=(GATE,))],
            False,
            id="an admitted one whose pods have a gate",
        ),
        pytest.param(workload(), [leader(gates=(GATE,))], False, id="gated pods of which nothing is said yet"),
        pytest.param(workload(), [leader(reason="Unschedulable")], True, id="ungated pods that find no node"),
        pytest.param(
            workload(managedBy="kueue.x-k8s.io/multikueue"),
            [leader(reason="Unschedulable")],
            False,
            id="one that MultiKueue runs in another cluster",
        ),
        pytest.param(
            workload(managedBy=constants.JOBSET_CONTROLLER),
            [leader(reason="Unschedulable")],
            True,
            id="one that names the JobSet controller of this cluster",
        ),
    ],
)
def test_what_wants_a_pool(*, raw: dict[str, Any], pods: list[dict[str, Any]], pending: bool) -> None:
    """Only pods that Kueue has let go, and that the scheduler could not place."""
    found = first_slice(raw, *pods)
    assert (found is not None and found.pending) is pending


def test_what_kueue_adds_on_admission_is_what_is_asked_for() -> None:
    """A flavour puts node selectors on the JobSet's template, and so on its pods."""
    pod = leader(reason="Unschedulable")
    pod["spec"]["nodeSelector"][constants.RESERVATION_NAME] = "of-the-flavour"
    found = first_slice(workload(suspend=False), pod)
    assert found is not None
    assert found.requirements.node_selector[constants.RESERVATION_NAME] == "of-the-flavour"
