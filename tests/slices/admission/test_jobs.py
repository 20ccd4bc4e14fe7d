"""Tests of the node selectors that the webhook changes in Jobs, as the Go provisioner's webhook did."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants
from provisioner.admission.review import Answer, Operation, Request
from provisioner.settings.webhook import WebhookSettings
from provisioner.slices.admission import Judge, jobset_to_read, review_job
from provisioner.slices.offline.documents import Document
from provisioner.slices.offline.forecast import forecast
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.objects import Json, job_reference, pod_spec, raw_job, raw_jobset
from tests.support.patches import apply_patch
from tests.support.settings import settings

pytestmark = pytest.mark.timeout(60)

KEY = hashlib.sha1(b"ml/train-slice-0").hexdigest()
OWN = pod_spec()["nodeSelector"]
ALL = WebhookSettings(job_key_selector=True, location_hint="rack-7", force_on_demand=True)


def job(
    selector: Any = OWN, *, owner: str = "JobSet", chips: int = 4, pod_marks: Json | None = None, **marks: Any
) -> Json:
    """Return a Job without the annotation that lets the provisioner serve a plain Job."""
    references = [job_reference("train", kind=owner)] if owner else []
    tolerations = [{"key": constants.SPOT, "operator": "Exists"}]
    pod = pod_spec(chips=chips, nodeSelector=selector, tolerations=tolerations)
    if selector is None:
        del pod["nodeSelector"]
    metadata = {"ownerReferences": references, "annotations": {}, **marks}
    return raw_job("train-slice-0", namespace="ml", pod=pod, pod_metadata=pod_marks, metadata=metadata)


def suspended(raw: Json) -> Json:
    return {**raw, "spec": {**raw["spec"], "suspend": True}}


def judge_by(**changes: Any) -> Judge:
    effective = settings(**{"serve_jobs": True, **changes})
    return Judge(settings_of=lambda _: effective, rules=GKE_RULES)


USUAL = judge_by()
JOBSET = raw_jobset(namespace="ml")


def reviewed(
    raw: Json, changes: WebhookSettings, jobset: Json | None = JOBSET, by: Judge = USUAL, **request: Any
) -> Answer:
    """Return the answer to a review of a Job; `jobset` is passed only if the review reads it."""
    asked = Request(**{"operation": "CREATE", "kind": "Job", "namespace": "ml", "object": raw, **request})
    return review_job(asked, changes, by, jobset if jobset_to_read(asked, changes) else None)


def selector_after(raw: Json, changes: WebhookSettings) -> Any:
    after = apply_patch(raw, reviewed(raw, changes).patch)
    return after["spec"]["template"]["spec"].get("nodeSelector")


@pytest.mark.parametrize(("replicas", "parallelism"), [(4, 1), (4, 2), (3, 1)])
def test_child_jobs_that_together_fill_a_slice_get_no_job_key(replicas: int, parallelism: int) -> None:
    """With its own job-key selector, each child Job would get a whole slice and use only a part of it."""
    together = replicas != 3
    pod = pod_spec(topology="2x2x4")
    jobset = raw_jobset(
        namespace="ml", replicas=replicas, parallelism=parallelism, pod=pod, metadata={"annotations": None}
    )
    raw = job(pod["nodeSelector"], labels={constants.REPLICATED_JOB_NAME: "slice"})
    raw["spec"] |= {"parallelism": parallelism, "completions": parallelism}
    patch = reviewed(raw, WebhookSettings(job_key_selector=True, location_hint="rack-7"), jobset).patch
    assert [operation.value for operation in patch] == ["rack-7"] * together


@pytest.mark.parametrize("on_jobset", [True, False])
def test_child_job_whose_pods_select_nodes_by_its_name_is_changed(*, on_jobset: bool) -> None:
    """JobSet's controller reads the placement annotations from the JobSet and from the replicated job."""
    by_name = {constants.EXCLUSIVE_TOPOLOGY: constants.NODE_POOL, constants.NODE_SELECTOR_STRATEGY: "true"}
    jobset = raw_jobset(namespace="ml", metadata={"annotations": by_name if on_jobset else None})
    raw = job({**OWN, constants.NAMESPACED_JOB: "ml_train-slice-0"}, annotations=by_name)
    assert reviewed(raw, WebhookSettings(location_hint="rack-7"), jobset).patch


OPTS_OUT = {constants.DISABLE: "true"}
RESERVED = {**OWN, constants.RESERVATION_NAME: "r", constants.RESERVATION_PROJECT: "p", constants.SPOT: "true"}
HINT = {constants.LOCATION_HINT: "rack-7"}


@pytest.mark.parametrize(
    ("raw", "changes", "want"),
    [
        pytest.param(job(), WebhookSettings(job_key_selector=True), {**OWN, "job-key": KEY}, id="child Job"),
        pytest.param(job(owner=""), WebhookSettings(job_key_selector=True), OWN, id="Job without an owner"),
        pytest.param(job(owner="CronJob"), WebhookSettings(job_key_selector=True), OWN, id="Job of a CronJob"),
        pytest.param(job(None), ALL, None, id="no topology"),
        pytest.param(
            job({**OWN, "job-key": "mine"}),
            WebhookSettings(job_key_selector=True),
            {**OWN, "job-key": "mine"},
            id="key that the Job selects",
        ),
        pytest.param(job(), WebhookSettings(location_hint="rack-7"), {**OWN, **HINT}, id="location hint"),
        pytest.param(job(RESERVED, owner=""), ALL, {**OWN, **HINT}, id="Job without the annotation"),
        pytest.param(job(RESERVED, owner="", annotations={constants.SERVE: "true"}), ALL, {**OWN, **HINT}, id="served"),
        pytest.param(
            job(RESERVED, owner="", annotations={constants.SERVE: "true"}, labels=OPTS_OUT),
            ALL,
            RESERVED,
            id="Job that opts out",
        ),
        pytest.param(job(RESERVED, pod_marks={"annotations": OPTS_OUT}), ALL, RESERVED, id="Job whose pods opt out"),
        pytest.param(
            job(RESERVED, pod_marks={"annotations": {constants.SLICE_TOPOLOGY: "2x2x2"}}),
            ALL,
            RESERVED,
            id="dynamic slicing",
        ),
        pytest.param(job(RESERVED), WebhookSettings(force_on_demand=True), OWN, id="reservation and spot are removed"),
        *(
            pytest.param(
                job({**OWN, **other}), WebhookSettings(force_on_demand=True), {**OWN, **stays}, id=" ".join(other)
            )
            for other, stays in (
                ({constants.RESERVATION_NAME: "r", constants.RESERVATION_AFFINITY: "specific"}, {}),
                ({constants.RESERVATION_NAME: "r", "cloud.google.com/reservation-zone": "us-central2-b"}, {}),
                ({constants.PREEMPTIBLE: "true"}, {}),
                ({constants.FLEX_START: "true", constants.MAX_RUN_SECONDS: "3600"}, {}),
                ({constants.PROVISIONING: "spot"}, {}),
                ({constants.SPOT: "true", constants.PROVISIONING: "standard"}, {constants.PROVISIONING: "standard"}),
            )
        ),
        pytest.param(job({}), WebhookSettings(force_on_demand=True), {}, id="no selectors"),
        pytest.param(job(RESERVED), ALL, {**OWN, **HINT, "job-key": KEY}, id="all settings"),
        pytest.param(job(RESERVED), WebhookSettings(), RESERVED, id="no settings"),
        pytest.param(job(RESERVED, chips=0), ALL, RESERVED, id="no chips"),
    ],
)
def test_job_gets_only_the_selector_changes_that_are_enabled(raw: Json, changes: WebhookSettings, want: Any) -> None:
    """The API server may invoke the webhook twice for one Job; the second review must change nothing."""
    assert selector_after(raw, changes) == want
    after = apply_patch(raw, reviewed(raw, changes).patch)
    assert reviewed(after, changes) == Answer()


@pytest.mark.parametrize(
    "jobset",
    [
        pytest.param(raw_jobset(metadata={"labels": OPTS_OUT}), id="opt-out by a label"),
        pytest.param(raw_jobset(metadata={"annotations": OPTS_OUT}), id="opt-out by an annotation"),
        pytest.param(raw_jobset(metadata={"labels": {constants.SLICE_AUTOPROVISIONING: "sync"}}), id="slice resources"),
        pytest.param(raw_jobset(spec={"managedBy": "kueue.x-k8s.io/multikueue"}), id="another cluster"),
        pytest.param(None, id="deleted JobSet"),
    ],
)
def test_child_job_of_an_unserved_jobset_is_not_changed(jobset: Json | None) -> None:
    assert reviewed(job(RESERVED), ALL, jobset) == Answer()


@pytest.mark.parametrize(
    ("selector", "by"),
    [
        pytest.param({constants.NODE_POOL: "mine"}, {}, id="a node pool"),
        pytest.param({constants.COMPUTE_CLASS: "mine"}, {}, id="a ComputeClass"),
        pytest.param({constants.HOSTNAME: "mine"}, {}, id="a host"),
        pytest.param({constants.QUEUED: "true"}, {}, id="queued nodes"),
        pytest.param({constants.TPU_TOPOLOGY: "2x2x3"}, {}, id="an invalid topology"),
        pytest.param({}, {"opt_in_label": ("team", "tpu")}, id="no opt-in label"),
        pytest.param({}, {"namespaces": ("prod",)}, id="a namespace that is not served"),
        pytest.param({}, {"allowed_namespaces": ("prod",)}, id="a namespace that is not allowed"),
        pytest.param({}, {"max_chips": 4}, id="more chips than MAX_CHIPS"),
    ],
)
def test_job_that_gets_no_pool_gets_no_key(selector: dict[str, str], by: dict[str, Any]) -> None:
    """Pods with the key in their selector would wait indefinitely, because no node would have the key."""
    for one in (job({**OWN, **selector}), job({**OWN, **selector}, owner="", annotations={constants.SERVE: "true"})):
        assert reviewed(one, ALL, by=judge_by(**by)) == Answer()


@pytest.mark.parametrize(
    "by",
    [
        {"opt_in_label": ("team", "tpu")},
        {"namespaces": ("ml",)},
        {"allowed_label_keys": ("job-key", constants.LOCATION_HINT)},
        {"pause_creation": True},
        {"max_chips": 8},
    ],
    ids="".join,
)
def test_job_that_gets_a_pool_gets_its_key(by: dict[str, Any]) -> None:
    """The pool may be created later: after a pause, or when other child Jobs no longer use up a limit."""
    raw = job(pod_marks={"labels": {"team": "tpu"}})
    assert reviewed(
        raw, WebhookSettings(job_key_selector=True), raw_jobset(namespace="ml", replicas=3), judge_by(**by)
    ).patch


def test_job_is_not_changed_if_its_nodes_may_not_have_the_key() -> None:
    assert (
        reviewed(job(), WebhookSettings(job_key_selector=True), by=judge_by(allowed_label_keys=("team",))) == Answer()
    )


def test_annotated_job_is_not_changed_if_no_jobs_are_served() -> None:
    raw = job(RESERVED, owner="", annotations={constants.SERVE: "true"})
    assert reviewed(raw, ALL, by=judge_by(serve_jobs=False, serve_pods="none")) == Answer()


def test_jobset_is_read_only_if_the_review_depends_on_it() -> None:
    def read(raw: Json, changes: WebhookSettings = ALL, **request: Any) -> str:
        asked = {"operation": "CREATE", "kind": "Job", "namespace": "ml", "object": raw, **request}
        return jobset_to_read(Request(**asked), changes)

    assert read(job()) == "train"
    assert {read(job(), WebhookSettings()), read(job(owner="")), read(job(chips=0))} == {""}
    assert read(job(), operation="UPDATE") == ""


def test_patch_adds_and_removes_single_keys() -> None:
    assert reviewed(job(RESERVED), WebhookSettings(job_key_selector=True, force_on_demand=True)).patch == (
        Operation(op="add", path="/spec/template/spec/nodeSelector/job-key", value=KEY),
        *(
            Operation(op="remove", path=f"/spec/template/spec/nodeSelector/cloud.google.com~1{key}")
            for key in ("reservation-name", "reservation-project", "gke-spot")
        ),
    )


@pytest.mark.parametrize(
    "request_",
    [{"operation": "UPDATE"}, {"operation": "DELETE", "object": {}}, {"kind": "Pod"}, {"subresource": "status"}],
    ids=["an update", "a deletion", "another kind", "a status"],
)
def test_review_of_an_update_deletion_status_or_other_kind_changes_nothing(request_: dict[str, Any]) -> None:
    assert reviewed(job(RESERVED), ALL, **request_) == Answer()


ASKED = {"annotations": {constants.CONSUMES_REQUEST: "request"}}


@pytest.mark.parametrize(
    ("raw", "before", "is_changed"),
    [
        pytest.param(job(), None, True, id="created"),
        pytest.param(job(pod_marks=ASKED), None, False, id="created again for a request"),
        pytest.param(suspended(job()), None, False, id="created suspended"),
        pytest.param(job(), suspended(job()), True, id="resumed"),
        pytest.param(job(pod_marks=ASKED), suspended(job()), False, id="resumed for a request"),
        pytest.param(suspended(job()), suspended(job()), False, id="updated while suspended"),
        pytest.param(job(), {**suspended(job()), "status": {"startTime": "t"}}, False, id="with a fixed template"),
        pytest.param(suspended(job(owner="")), None, True, id="Job without a JobSet, created suspended"),
        pytest.param(job(owner=""), suspended(job(owner="")), False, id="Job without a JobSet, resumed"),
    ],
)
def test_child_job_is_changed_when_it_starts_without_a_provisioning_request(
    raw: Json, before: Json | None, *, is_changed: bool
) -> None:
    """Pods with added selectors would not fit the pools of a ProvisioningRequest.

    A resumed JobSet overwrites the templates of its suspended Jobs, so a change of a suspended Job would be lost.
    """
    request: Json = {"operation": "UPDATE", "old_object": before} if before is not None else {}
    assert bool(reviewed(raw, WebhookSettings(location_hint="rack-7"), **request).patch) == is_changed


@pytest.mark.parametrize(
    "raw",
    [{}, {"spec": []}, job("text"), job([1]), job(chips=-1), raw_job(spec={"template": {"spec": {"containers": 7}}})],
    ids=["empty", "no spec", "a text as selectors", "a list", "fewer chips than none", "no containers"],
)
def test_invalid_job_is_not_changed(raw: Json) -> None:
    assert reviewed(raw, ALL) == Answer()


@given(
    st.dictionaries(
        st.sampled_from([*RESERVED, *HINT, "job-key", "example.com/b"]), st.sampled_from("abc"), max_size=6
    ),
    st.booleans(),
    st.booleans(),
)
def test_selectors_that_no_setting_concerns_are_not_changed(
    selector: dict[str, str], job_key: bool, on_demand: bool
) -> None:
    selector |= OWN
    after = selector_after(
        job(selector), WebhookSettings(job_key_selector=job_key, location_hint="rack-7", force_on_demand=on_demand)
    )
    ours = {"job-key", *HINT, *RESERVED} - set(OWN)
    assert {key: value for key, value in after.items() if key not in ours} == {
        key: value for key, value in selector.items() if key not in ours
    }


def test_nodes_get_the_key_that_the_pods_select() -> None:
    """Without the key as a node label, the scheduler could not bind the pods to the nodes of their pool."""
    raw = raw_jobset(uid="", pod=pod_spec(nodeSelector={**OWN, "job-key": KEY}))
    (pool,) = forecast([Document(raw)], settings(), GKE_RULES).pools
    assert pool.request.labels["job-key"] == KEY
