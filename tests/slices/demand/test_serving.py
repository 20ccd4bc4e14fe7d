"""Which workloads are served, and which of their pods want a pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Workloads
from provisioner.slices.demand import Slice, group_key
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.workloads.jobset import parse_jobset
from provisioner.workloads.pods import parse_pod
from tests.support.models import find_slices, make_jobset, make_requirements
from tests.support.objects import raw_jobset, raw_pod
from tests.support.world import told_of

ON, OFF = {constants.DISABLE: "true"}, {constants.DISABLE: "false"}
OPT_IN = ("team", "ml")


@pytest.mark.parametrize(
    ("policy", "pod", "workload", "want"),
    [
        pytest.param({}, {}, {}, True, id="a plain pod is served"),
        pytest.param({}, {"node_selector": {}}, {}, False, id="a pod without topology selector is not"),
        pytest.param({}, {"labels": ON}, {}, False, id="a pod may opt out by label"),
        pytest.param({}, {"annotations": ON}, {}, False, id="a pod may opt out by annotation"),
        pytest.param({}, {}, {"labels": ON}, False, id="a JobSet may opt out by label"),
        pytest.param({}, {}, {"annotations": ON}, False, id="a JobSet may opt out by annotation"),
        pytest.param({}, {"labels": OFF}, {"annotations": OFF}, True, id="any other value opts nothing out"),
        pytest.param(
            {}, {"annotations": {constants.SLICE_TOPOLOGY: "4x4x4"}}, {}, False, id="dynamic slicing is not ours"
        ),
        pytest.param({"namespaces": frozenset({"default"})}, {}, {}, True, id="a listed namespace is served"),
        pytest.param({"namespaces": frozenset({"other"})}, {}, {}, False, id="an unlisted namespace is not"),
        pytest.param({"opt_in_label": OPT_IN}, {}, {}, False, id="without the opt-in label nothing is served"),
        pytest.param({"opt_in_label": OPT_IN}, {"labels": {"team": "ml"}}, {}, True, id="a pod may opt in"),
        pytest.param({"opt_in_label": OPT_IN}, {"labels": {"team": "web"}}, {}, False, id="with its very value"),
        pytest.param(
            {"opt_in_label": OPT_IN, "namespace_labels": {"default": {"team": "ml"}}},
            {},
            {},
            True,
            id="a namespace may opt in",
        ),
        pytest.param(
            {"opt_in_label": OPT_IN, "namespace_labels": {"other": {"team": "ml"}}},
            {},
            {},
            False,
            id="another namespace does not opt in for this one",
        ),
        pytest.param(
            {"opt_in_label": OPT_IN, "namespace_labels": {"default": {"team": "ml"}}},
            {"labels": ON},
            {},
            False,
            id="opting out goes before opting in",
        ),
    ],
)
def test_serving(*, policy: Mapping[str, Any], pod: Mapping[str, Any], workload: Mapping[str, Any], want: bool) -> None:
    assert ServingPolicy(**policy).serves(make_jobset(**workload), make_requirements(**pod)) is want


def test_why_a_pod_that_does_not_opt_in_is_not_served() -> None:
    """Labels of the namespace may not have been read."""
    for labels, known in (({"default": {}}, ""), ({}, ", as far as the namespace is known,")):
        policy = ServingPolicy(opt_in_label=OPT_IN, namespace_labels=labels)
        found = policy.why_not(make_jobset(), make_requirements())
        assert found is not None
        assert found.why == f"neither its pods nor its namespace have{known} the label team=ml"


@pytest.mark.parametrize(
    ("workload", "policy", "told"),
    [
        pytest.param({"labels": {constants.SLICE_AUTOPROVISIONING: "sync"}}, {}, True, id="sync is the Go release's"),
        pytest.param({"labels": {constants.SLICE_AUTOPROVISIONING: "async"}}, {}, True, id="so is async"),
        pytest.param({"annotations": {constants.SLICE_AUTOPROVISIONING: "true"}}, {}, True, id="so is the early form"),
        pytest.param(
            {"labels": {constants.SLICE_AUTOPROVISIONING: "sync"}},
            {"namespaces": ("other",)},
            False,
            id="of an unlisted namespace nobody is told",
        ),
        pytest.param(
            {"labels": {constants.SLICE_AUTOPROVISIONING: "sync"}, "annotations": ON},
            {},
            False,
            id="who opted out is not told",
        ),
        pytest.param(
            {"labels": {constants.SLICE_AUTOPROVISIONING: "sync"}, "suspended": True},
            {},
            False,
            id="nor is one that is suspended",
        ),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_jobset_that_asks_for_slice_resources_gets_no_pools(
    *, dynamic: bool, workload: dict[str, Any], policy: dict[str, Any], told: bool
) -> None:
    """Whether its pods have the selector of a pool or the annotation of dynamic slicing."""
    changes = {"node_selector": {}, "annotations": {constants.SLICE_TOPOLOGY: "4x4x4"}} if dynamic else {}
    owner = make_jobset(template=make_requirements(**changes), **workload)
    assert not ServingPolicy(**policy).serves(owner, make_requirements())
    assert told_of(owner, **policy) == ([owner.name] if told else [])


@pytest.mark.parametrize("value", ["", "off", "true"])
def test_another_value_of_the_label_asks_for_nothing(value: str) -> None:
    owner = make_jobset(labels={constants.SLICE_AUTOPROVISIONING: value})
    assert ServingPolicy().serves(owner, make_requirements())
    assert told_of(owner) == []


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
