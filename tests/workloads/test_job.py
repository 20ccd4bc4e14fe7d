"""Plain Jobs and their pods: which Jobs are served, and to which Job a pod belongs."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Workload, WorkloadKind, Workloads
from provisioner.slices.demand.slices import slice_id_of
from provisioner.workloads import PLAIN_JOB
from provisioner.workloads.job import parse_job
from provisioner.workloads.parse_pod import claim_of, parse_pod
from tests.support.objects import job_reference, pod_spec, raw_job, raw_pod

SERVED = {constants.SERVE: "true"}


def sweep(*, metadata: dict[str, Any] | None = None, chips: int = 4, **spec: Any) -> dict[str, Any]:
    """Return a Job that requests to be served; `spec` and `metadata` replace fields."""
    pod = pod_spec(topology="2x2x4", chips=chips)
    return raw_job("sweep", namespace="team", parallelism=4, pod=pod, metadata=metadata, spec=spec, status={})


def parsed(raw: dict[str, Any]) -> Workload:
    found = parse_job(raw)
    assert found is not None
    return found


def test_job_is_a_workload_with_one_group() -> None:
    """The group has no number. Its pod with the lowest existing index is the leader."""
    found = parsed(sweep())
    assert (found.kind, found.namespace, found.name, found.uid) == (WorkloadKind.JOB, "team", "sweep", "uid-of-sweep")
    (group,) = found.groups
    assert (group.replicas, group.surge, group.parallelism) == (1, 0, 4)
    assert (group.numbered, group.lowest_leads) == (False, True)
    assert (group.template.chips, group.template.node_selector[constants.TPU_TOPOLOGY]) == (4, "2x2x4")
    assert (found.problem, found.lives) == ((), True)


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"annotations": {}}, id="it does not ask"),
        pytest.param({"annotations": {constants.SERVE: "false"}}, id="it asks not to be"),
        pytest.param({"annotations": {constants.SERVE: True}}, id="the annotation is no text"),
        pytest.param({"annotations": None, "labels": SERVED}, id="it asks by a label"),
        pytest.param({"labels": {constants.JOBSET_NAME: "train"}}, id="its label is that of a child Job"),
        pytest.param(
            {"ownerReferences": [job_reference("train", kind="JobSet", apiVersion="jobset.x-k8s.io/v1alpha2")]},
            id="a JobSet controls it",
        ),
        pytest.param({"uid": None, "annotations": {}}, id="it cannot be read, and does not ask"),
    ],
)
def test_job_that_is_not_served_is_not_kept(metadata: dict[str, Any]) -> None:
    """A malformed Job that does not request to be served must not cause a log line."""
    assert parse_job(sweep(metadata=metadata)) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"completionMode": "NonIndexed"}, "create it again with completionMode: Indexed", id="no index"),
        pytest.param({"completionMode": None}, "create it again with completionMode: Indexed", id="no mode"),
        pytest.param(
            {"metadata": {"ownerReferences": [job_reference("nightly", kind="CronJob")]}},
            "a CronJob controls it",
            id="a Job of a CronJob",
        ),
        pytest.param({"parallelism": 10**6, "completions": 10**6}, "parallelism is 1,000,000", id="too many pods"),
        pytest.param(
            {"metadata": {"labels": {f"k{n}": "v" for n in range(200)}}}, "labels has 200 entries", id="too many labels"
        ),
    ],
)
def test_job_that_cannot_be_served_has_a_problem(changes: dict[str, Any], words: str) -> None:
    """The problem is the message of an Event on the Job."""
    if "metadata" in changes and "annotations" not in changes["metadata"]:
        changes = {**changes, "metadata": {**changes["metadata"], "annotations": SERVED}}
    assert words in "; ".join(parsed(sweep(**changes)).problem)


@pytest.mark.parametrize(
    ("managed_by", "want"),
    [
        pytest.param(None, "", id="nobody is named"),
        pytest.param(constants.JOB_CONTROLLER, "", id="Kubernetes' own controller"),
        pytest.param(constants.JOBSET_CONTROLLER, constants.JOBSET_CONTROLLER, id="the controller of another kind"),
        pytest.param("kueue.x-k8s.io/multikueue", "kueue.x-k8s.io/multikueue", id="it runs in another cluster"),
    ],
)
def test_other_controller_of_a_job_is_read(managed_by: str | None, want: str) -> None:
    """A Job that another controller manages has no pods in this cluster."""
    assert parsed(sweep(managedBy=managed_by)).managed_by == want


@pytest.mark.parametrize("place", ["labels", "annotations"])
def test_job_whose_pods_count_for_a_jobset_has_a_problem(place: str) -> None:
    """Otherwise the Job's pods would not be served, and no message would report why."""
    raw = sweep()
    raw["spec"]["template"]["metadata"] = {place: {constants.JOBSET_NAME: "train"}}
    assert f"its pod template has {constants.JOBSET_NAME}" in parsed(raw).problem[0]


def test_job_without_chips_has_no_problem() -> None:
    found = parsed(sweep(chips=0, completionMode="NonIndexed"))
    assert (found.problem, found.groups[0].template.chips) == ((), 0)


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({"parallelism": 4, "completions": 8}, 4, id="several waves"),
        pytest.param({"parallelism": 8, "completions": 4}, 4, id="fewer completions than could run"),
        pytest.param({"parallelism": None, "completions": 4}, 1, id="the default"),
        pytest.param({"parallelism": 4, "completions": None}, 4, id="no completions"),
        pytest.param({"parallelism": -1, "completions": 4}, 0, id="a negative number"),
    ],
)
def test_number_of_concurrent_pods_is_that_of_the_job_controller(spec: dict[str, Any], want: int) -> None:
    assert parsed(sweep(**spec)).groups[0].parallelism == want


@pytest.mark.parametrize(
    ("changes", "lives"),
    [
        pytest.param({}, True, id="it runs"),
        pytest.param({"spec": {"suspend": True}}, False, id="it is suspended"),
        pytest.param({"spec": {"suspend": "true"}}, True, id="a text suspends nothing"),
        pytest.param({"spec": {"parallelism": 0}}, False, id="it is paused"),
        pytest.param({"conditions": [("Complete", "True")]}, False, id="it completed"),
        pytest.param({"conditions": [("Suspended", "False"), ("Failed", "True")]}, False, id="it failed"),
        pytest.param({"conditions": [("Complete", "False")]}, True, id="it has not completed"),
        pytest.param({"conditions": [("FailureTarget", "True")]}, True, id="its pods are still ending"),
        pytest.param({"conditions": [([], "True"), (None, "True")]}, True, id="conditions of no type"),
        pytest.param(
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": SERVED}}, False, id="it goes"
        ),
    ],
)
@pytest.mark.parametrize("live", [False, True])
def test_job_lives_unless_it_ended_or_is_suspended(*, changes: dict[str, Any], lives: bool, live: bool) -> None:
    """The result is the same for the complete object, as in a watch, and without its template, as before a delete."""
    raw = sweep(metadata=changes.get("metadata"), **changes.get("spec", {}))
    raw["status"]["conditions"] = [{"type": type_, "status": status} for type_, status in changes.get("conditions", ())]
    assert parsed(PLAIN_JOB.without_templates(raw) if live else raw).lives is lives


def _pod(**metadata: Any) -> dict[str, Any]:
    labels = {constants.JOB_NAME: "sweep", constants.COMPLETION_INDEX: "2"}
    whole = {"labels": labels, "ownerReferences": [job_reference("sweep")], **metadata}
    return raw_pod("sweep-2-abcde", namespace="team", metadata=whole)


_OTHER = [job_reference("other")]


@pytest.mark.parametrize(
    ("metadata", "want"),
    [
        pytest.param({}, ("sweep", "uid-of-sweep", 2), id="a pod of the Job"),
        pytest.param(
            {"labels": {}, "annotations": {constants.COMPLETION_INDEX: "0"}},
            ("sweep", "uid-of-sweep", 0),
            id="no label",
        ),
        pytest.param({"labels": {}}, ("sweep", "uid-of-sweep", None), id="no index"),
        pytest.param(
            {"labels": {constants.COMPLETION_INDEX: "-1"}}, ("sweep", "uid-of-sweep", None), id="an index of no pod"
        ),
        pytest.param({"ownerReferences": _OTHER}, ("other", "uid-of-other", 2), id="the label names another Job"),
        pytest.param({"labels": {}, "ownerReferences": []}, None, id="nothing"),
        pytest.param({"labels": {}, "ownerReferences": [job_reference("a", kind="JobSet")]}, None, id="another kind"),
    ],
)
def test_job_of_a_pod_is_its_controller(metadata: dict[str, Any], want: tuple[str, str, int | None] | None) -> None:
    """The controller reference determines the Job; labels are ignored."""
    claim = claim_of(_pod(**metadata)["metadata"])
    assert (None if claim is None else (claim.name, claim.uid, claim.index)) == want
    if claim is not None:
        assert (claim.kind, claim.group_name) == (WorkloadKind.JOB, claim.name)


@pytest.mark.parametrize(
    "references",
    [
        pytest.param([], id="labels alone"),
        pytest.param([job_reference("sweep", kind="JobSet")], id="another kind"),
        pytest.param([job_reference("sweep", apiVersion="v1")], id="another API group"),
        pytest.param([job_reference("sweep", uid="")], id="no UID"),
        pytest.param([job_reference("")], id="no name"),
    ],
)
def test_pod_that_no_job_controls_has_no_group(references: list[dict[str, Any]]) -> None:
    """The pod is in no slice, but its chips are in use."""
    raw = _pod(ownerReferences=references)
    if references and not references[0]["name"]:
        references[0]["uid"] = "uid"
    claim = claim_of(raw["metadata"])
    assert claim is not None
    assert (claim.kind, claim.group_name, claim.uid, claim.index) == (WorkloadKind.JOB, "", "", None)
    job, pod = parsed(sweep()), parse_pod(raw)
    assert pod is not None
    assert slice_id_of(pod, Workloads.of({job.uid: job})) is None


def test_pod_of_a_jobset_does_not_count_for_its_job() -> None:
    """A child Job controls the pod, and JobSets are checked first."""
    claim = claim_of(_pod(labels={constants.JOBSET_NAME: "train", constants.JOB_NAME: "sweep"})["metadata"])
    assert claim is not None
    assert (claim.kind, claim.name, claim.group_name) == (WorkloadKind.JOBSET, "train", "sweep")


@pytest.mark.parametrize(
    ("pod", "belongs"),
    [
        pytest.param(_pod(), True, id="its own"),
        pytest.param(_pod(namespace="hostile"), False, id="one of another namespace"),
        pytest.param(_pod(ownerReferences=[job_reference("sweep", uid="former")]), False, id="one of a namesake"),
    ],
)
def test_pod_counts_only_for_a_job_of_its_namespace_and_uid(*, pod: dict[str, Any], belongs: bool) -> None:
    job = parsed(sweep())
    read = parse_pod(pod)
    assert read is not None
    assert (Workloads.of({job.uid: job}).uid_of(read) == job.uid) is belongs


def test_pod_without_chips_is_not_kept() -> None:
    containers = [{"name": "main", "resources": {"requests": {"cpu": "much"}}}]
    assert parse_pod(_pod() | {"spec": {"containers": containers}}) is None


def test_selector_of_jobs_excludes_child_jobs_of_jobsets() -> None:
    """The API server leaves out child Jobs of JobSets, because the JobSets themselves are watched."""
    assert PLAIN_JOB.selector == "!jobset.sigs.k8s.io/jobset-name"
