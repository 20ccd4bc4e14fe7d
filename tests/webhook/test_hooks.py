"""Reviews of each path as the API server posts them, and the expected responses."""

from __future__ import annotations

import base64
import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from provisioner.admission.hooks import begin_of, is_small
from provisioner.admission.review import Notice
from provisioner.kube import errors
from provisioner.settings import SettingsError
from provisioner.settings.webhook import read_webhook_settings
from provisioner.webhook.app import make_hooks
from tests.support.kube import FakeKube
from tests.support.objects import Json, job_reference, pod_spec, raw_job, raw_jobset, raw_stateful_set
from tests.support.reviews import answer_of

pytestmark = pytest.mark.timeout(30)

AT = "/spec/template/spec/nodeSelector"
WRONG = (
    "spec.replicatedJobs[0].template.spec.parallelism: JobSet ml/train: InvalidTPURequest: No TPU node pool is "
    "created: job train-slice-0 has parallelism 3, but a slice of topology 2x2x2 has 2 hosts with one pod each; set "
    "parallelism to 2 or choose a larger topology"
)
TOO_MUCH = (
    "spec.replicatedJobs[0].template.spec.template.spec.containers[0].resources.requests[google.com/tpu]: JobSet "
    "ml/train: NodePoolLimitReached: Node pool train-* is not created: Limit of all node pools: at most 4 "
    "chips; this slice needs 8, so waiting will not help. Request fewer chips, or ask the administrator to raise "
    "MAX_CHIPS."
)


def answered(
    path: str,
    raw: Json,
    outcome: str,
    kube: FakeKube | None = None,
    tell: Callable[[Notice], None] = pytest.fail,
    **variables: str,
) -> Json:
    """Review the create of an object, or the change of a scale; check the outcome, and return the response."""
    settings = read_webhook_settings(variables)
    (hook,) = [candidate for candidate in make_hooks(settings, kube or FakeKube(), variables) if candidate.path == path]
    seen: list[tuple[str, str]] = []
    request = {"uid": "7", "kind": {"kind": raw["kind"]}, "operation": "CREATE", "namespace": "ml", "object": raw}
    if raw["kind"] == "Scale":
        request |= {"operation": "UPDATE", "subResource": "scale", "name": raw["metadata"]["name"]}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    content = answer_of(begin_of(hook, lambda *told: seen.append(told[:2]), tell=tell), json.dumps(review).encode())
    assert seen == [(hook.name, outcome)]
    found: dict[str, Any] = json.loads(content.body)
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    return found["response"]


def jobset(**parts: Any) -> Json:
    return raw_jobset(namespace="ml", uid="", **parts)


ADMITTED = {"uid": "7", "allowed": True}
WARNED = {**ADMITTED, "warnings": [WRONG]}


def denied(message: str) -> Json:
    status = {"status": "Failure", "message": message, "reason": "Forbidden", "code": 403}
    return {"uid": "7", "allowed": False, "status": status}


@pytest.mark.parametrize(
    ("path", "variables", "want"),
    [
        pytest.param("/validate", {}, WARNED, id="warned, if nothing is set"),
        pytest.param("/validate", {"VALIDATION": "deny"}, denied(WRONG), id="rejected, as set"),
        pytest.param("/validate", {"VALIDATION": "off"}, ADMITTED, id="admitted, as set"),
        pytest.param("/validate/warn", {"VALIDATION": "off"}, WARNED, id="warned, as the namespace says"),
        pytest.param("/validate/deny", {"VALIDATION": "off"}, denied(WRONG), id="rejected, as the namespace says"),
    ],
)
def test_jobset_of_too_many_pods_gets_the_response_that_setting_or_path_requires(
    path: str, variables: dict[str, str], want: Json
) -> None:
    outcome = "denied" if not want["allowed"] else "warned" if "warnings" in want else "admitted"
    assert answered(path, jobset(parallelism=3), outcome, **variables) == want


def test_a_jobset_that_gets_its_slices_is_admitted() -> None:
    assert answered("/validate/deny", jobset(), "admitted") == ADMITTED


@pytest.mark.parametrize(
    ("serve_pods", "outcome"), [("all", "denied"), ("annotated", "admitted"), ("none", "admitted")]
)
def test_deployment_is_rejected_if_its_pods_are_served_and_fit_no_host(serve_pods: str, outcome: str) -> None:
    asked = {"google.com/tpu": "4", "memory": "9Ti"}
    pod = pod_spec(topology="2x2x1", containers=[{"name": "main", "resources": {"requests": asked, "limits": asked}}])
    raw = {**raw_stateful_set(pod=pod), "kind": "Deployment"}
    found = answered("/validate/deny", raw, outcome, SERVE_PODS=serve_pods)
    assert ("9216Gi memory" in json.dumps(found)) == (outcome == "denied")


def test_settings_of_the_provisioner_apply_to_validation() -> None:
    assert answered("/validate/deny", jobset(), "warned", MAX_CHIPS="4") == {**ADMITTED, "warnings": [TOO_MUCH]}


ASKING = {"labels": {"tpu-provisioner.cloud.google.com/inject": "enabled"}}
NO_SERVICE = "Pod ml/serve-0: StatefulSet ml/serve has no spec.serviceName, so its pods have no host names"
NO_INDEX = "Pod of Job ml/sweep: Job ml/sweep has no completionMode Indexed, so nothing shows which worker a pod is"


stateful_set = functools.partial(raw_stateful_set, service="")


def job(**parts: Any) -> Json:
    bare = pod_spec(nodeSelector={})
    spec = {"completionMode": "NonIndexed"}
    return raw_job(namespace="ml", uid="", parallelism=4, pod=bare, spec=spec, metadata={"annotations": {}}, **parts)


@pytest.mark.parametrize(
    ("raw", "variables", "words"),
    [
        pytest.param(stateful_set(**ASKING), {}, NO_SERVICE, id="a StatefulSet without a Service"),
        pytest.param(stateful_set(), {}, "", id="one that does not ask"),
        pytest.param(stateful_set(), {"INJECT": "all"}, NO_SERVICE, id="one that need not ask"),
        pytest.param(stateful_set(**ASKING), {"INJECT": "off"}, "", id="one that asks in vain"),
        pytest.param(job(pod_metadata=ASKING), {}, NO_INDEX, id="a Job without indexes"),
        pytest.param(job(), {}, "", id="such a Job that does not ask"),
        pytest.param(jobset(pod_metadata=ASKING), {}, "", id="a JobSet"),
    ],
)
def test_owner_whose_pods_will_lack_variables_gets_a_warning(raw: Json, variables: dict[str, str], words: str) -> None:
    found = answered("/validate/deny", raw, "warned" if words else "admitted", SERVE_PODS="none", **variables)
    assert found["allowed"]
    assert [warning[: len(words)] for warning in found.get("warnings", [])] == ([words] if words else [])


@pytest.mark.parametrize(
    ("replicas", "outcome", "path"),
    [
        pytest.param(6, "admitted", "/validate/deny", id="to whole slices"),
        pytest.param(0, "admitted", "/validate/deny", id="to none, which the API server leaves out"),
        pytest.param(5, "warned", "/validate/deny", id="to half a slice"),
        pytest.param(3, "warned", "/validate/deny", id="to less"),
        pytest.param(5, "admitted", "", id="of a StatefulSet that is not there"),
    ],
)
def test_scale_to_an_incomplete_slice_gets_a_warning(replicas: int, outcome: str, path: str) -> None:
    kube = FakeKube()
    raw = stateful_set()
    raw["spec"] |= {"replicas": 4, "serviceName": "serve"}
    if path:
        kube.put_object("/apis/apps/v1/namespaces/ml/statefulsets/serve", raw)
    scale = {"kind": "Scale", "metadata": {"name": "serve"}, "spec": {"replicas": replicas} if replicas else {}}
    found = answered(path or "/validate/deny", scale, outcome, kube)
    said = "".join((found.get("status", {}).get("message", ""), *found.get("warnings", [])))
    assert ("make it a multiple of 2" in said) == (outcome != "admitted")
    assert [call.method for call in kube.calls] == ["GET"]


def test_invalid_setting_of_the_provisioner_raises_settings_error() -> None:
    with pytest.raises(SettingsError, match="MAX_CHIPS='many'"):
        make_hooks(read_webhook_settings({}), FakeKube(), {"MAX_CHIPS": "many"})


JOBSET = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets/train"


def child_job() -> Json:
    return raw_job(
        "train-slice-0",
        metadata={"ownerReferences": [job_reference("train", kind="JobSet")]},
        pod=pod_spec(nodeSelector={**pod_spec()["nodeSelector"], "cloud.google.com/gke-spot": "true"}),
    )


def test_a_child_job_gets_its_selectors() -> None:
    """The variables have the names that the Go provisioner's admission_controller reads."""
    kube = FakeKube()
    kube.put_object(JOBSET, jobset())
    variables = {"RESERVATION_LOCATION_HINT": "rack-7", "FORCE_ON_DEMAND": "true", "ALWAYS_HINT_TIME": "true"}
    response = answered("/mutate/jobs", child_job(), "patched", kube, JOB_KEY_SELECTOR="true", **variables)
    assert json.loads(base64.b64decode(response.pop("patch"))) == [
        {"op": "add", "path": f"{AT}/job-key", "value": "a5346cf0fbf08b961557f9886d877b4ea76a67ce"},
        {"op": "add", "path": f"{AT}/cloud.google.com~1gke-location-hint", "value": "rack-7"},
        {"op": "remove", "path": f"{AT}/cloud.google.com~1gke-spot"},
    ]
    assert response == {**ADMITTED, "patchType": "JSONPatch"}


def test_child_job_of_a_jobset_that_opts_out_is_unchanged() -> None:
    kube = FakeKube()
    marks = {"tpu-provisioner.cloud.google.com/disable-autoprovisioning": "true"}
    kube.put_object(JOBSET, jobset(metadata={"annotations": marks}))
    assert answered("/mutate/jobs", child_job(), "admitted", kube, JOB_KEY_SELECTOR="true") == ADMITTED


def test_child_job_with_unreadable_jobset_is_admitted_with_warning_and_notice() -> None:
    kube = FakeKube()
    kube.fail("GET", JOBSET, errors.Unavailable("away"))
    told: list[Notice] = []
    found = answered("/mutate/jobs", child_job(), "warned", kube, told.append, JOB_KEY_SELECTOR="true")
    [notice] = told
    assert (notice.about.kind, notice.about.namespace, notice.about.name) == ("JobSet", "ml", "train")
    assert notice.about.uid == "uid-of-train"
    assert notice.message.endswith("without its selectors: JobSet ml/train could not be read (away)")
    assert found["warnings"] == ["JobSet ml/train could not be read (away), so this is admitted unchanged"]


def test_owner_with_an_invalid_name_is_not_read() -> None:
    scale = {"kind": "Scale", "metadata": {"name": ".."}, "spec": {"replicas": 3}}
    [warning] = answered("/validate", scale, "warned")["warnings"]
    assert "is not the name of an object" in warning


def test_job_is_unchanged_without_settings() -> None:
    job = raw_job(metadata={"ownerReferences": [job_reference("train", kind="JobSet")]})
    assert answered("/mutate/jobs", job, "admitted") == ADMITTED
    assert answered("/mutate/jobs", job, "admitted", RESERVATION_LOCATION_HINT="", FORCE_ON_DEMAND="false") == ADMITTED


def test_unreadable_reviews_are_denied_by_placement_and_partitions() -> None:
    """Otherwise failurePolicy applies: a pod without a review could run on the node pool of another namespace."""
    body = b'{"apiVersion":"admission.k8s.io/v1","request":{"uid":"7","object":"' + b"," * 500_001
    hooks = make_hooks(read_webhook_settings({}), FakeKube(), {})
    denied = {hook.path for hook in hooks if answer_of(begin_of(hook, lambda *_: None), body).status_code == 200}
    placement = {"/mutate/placement", "/mutate/placement/assign", "/mutate/placement/off"}
    assert denied == {"/mutate/partitions", *placement}


def _workers(value: str) -> list[Json]:
    values = {"TPU_WORKER_ID": "7", "TPU_WORKER_HOSTNAMES": value, "TPU_PROCESS_ADDRESSES": value}
    return [{"name": name, "value": text} for name, text in values.items()]


def _pod(containers: int = 1, metadata: Json | None = None, **container: Any) -> Json:
    labels = {**ASKING["labels"], "jobset.sigs.k8s.io/job-key": "a" * 40}
    chips = "4" if containers == 1 else "1"
    own = {"name": "c", "image": "i", "resources": {"limits": {"google.com/tpu": chips}}, **container}
    selector = {"cloud.google.com/gke-tpu-accelerator": "tpu7x", "cloud.google.com/gke-tpu-topology": "2x2x1"}
    return {
        "kind": "Pod",
        "metadata": {"name": "p", "labels": labels, "annotations": {"graphcore.ai/ipus": "4"}, **(metadata or {})},
        "spec": {"nodeSelector": selector, "containers": [own] * containers},
    }


def _with_spec(**spec: Any) -> Json:
    pod = _pod(metadata={"labels": {}})
    return {**pod, "spec": {**pod["spec"], **spec}}


def _with_terms(*terms: Json) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return _with_spec(affinity={"nodeAffinity": required})


_EXPRESSION = {"key": "a", "operator": "Exists"}
_LARGEST = {
    "hosts that are empty": _pod(env=_workers("," * 30_000)),
    "hosts": _pod(env=_workers("h," * 15_000)),
    "localhost": _pod(env=_workers(",".join(["localhost"] * 3000))),
    "hosts in several containers": _pod(8, env=_workers("," * 3500)),
    "variables": _pod(env=[{"name": f"E{number}", "value": "1"} for number in range(900)]),
    "containers": _pod(64),
    "labels": _pod(metadata={"labels": {f"k{number}": "v" for number in range(4500)}}),
    "annotations": _pod(metadata={"annotations": {f"k{number}": "v" for number in range(4500)}}),
    "owners": _pod(metadata={"ownerReferences": [{"kind": "Job", "name": "a"}] * 900}),
    "a long name": _pod(metadata={"name": "x" * 60_000}),
    "a long number of IPUs": _pod(metadata={"annotations": {"graphcore.ai/ipus": "9" * 60_000}}),
    "a long number of chips": _pod(resources={"limits": {"google.com/tpu": "9" * 60_000}}),
    "resources": _pod(resources={"limits": {"google.com/tpu": "4", **{f"r{number}": "1" for number in range(4500)}}}),
    "ports": _pod(ports=[{"containerPort": number} for number in range(900)]),
    "mounts": _pod(volumeMounts=[{"name": "x", "mountPath": "/" * 30}] * 900),
    "capabilities": _pod(securityContext={"capabilities": {"add": ["CAP_X"] * 7000}}),
    "terms of affinity": _with_terms(*[{"matchExpressions": [_EXPRESSION]}] * 300),
    "expressions of a term": _with_terms({"matchExpressions": [_EXPRESSION] * 900}),
    "claims": _with_spec(resourceClaims=[{"name": "a"}] * 900),
    "selectors": _with_spec(nodeSelector={f"k{number}": "v" for number in range(4500)}),
    "a long topology": _with_spec(nodeSelector={"cloud.google.com/gke-tpu-topology": "1x" * 30_000}),
    "scheduling gates": _with_spec(schedulingGates=[{"name": f"g{number}"} for number in range(900)]),
    "volumes": _with_spec(volumes=[{"name": f"v{number}"} for number in range(900)]),
}


def _calls_of(work: Callable[[], object]) -> int:
    events: list[str] = []
    sys.setprofile(lambda _frame, event, _argument: events.append(event))
    try:
        work()
    finally:
        sys.setprofile(None)
    return events.count("call") + events.count("c_call")


@pytest.mark.parametrize("pod", _LARGEST.values(), ids=_LARGEST)
def test_calls_of_a_quick_review_are_bounded_by_the_size_of_the_pod(pod: Json) -> None:
    """A quick review blocks the event loop: with 60 ms for each pod of 60 KB, one tenant could stop a replica."""
    request = {"uid": "7", "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "ml", "object": pod}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    body = json.dumps(review, separators=(",", ":")).encode()
    assert is_small(body)
    for injection in ("compatible", "least-privilege"):
        settings = read_webhook_settings(
            {
                "INJECT": "all",
                "INJECT_TOPOLOGY": "true",
                "PLACEMENT_NAMESPACES": "all",
                "IPU_INJECTION": injection,
                "IPU_INIT_IMAGE": "i",
            }
        )
        quick = [hook for hook in make_hooks(settings, FakeKube(), {}) if hook.quick]
        assert len(quick) == 5
        for hook in quick:
            begin = begin_of(hook, lambda *_: None)
            # The first review fills caches, so only the calls of the second one are counted.
            begin(body, 0.0)
            assert _calls_of(functools.partial(begin, body, 0.0)) <= len(body) + 1000, hook.name
