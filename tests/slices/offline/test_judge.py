"""Tests of the findings on one object before its creation, from decoded JSON only, as in an admission webhook."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants
from provisioner.settings import Settings
from provisioner.slices.admission import judge
from provisioner.slices.offline.documents import Document, Finding, Severity, dotted
from provisioner.slices.offline.forecast import forecast
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.any_json import ANY_JSON, spoilt
from tests.support.counting import counted
from tests.support.objects import (
    Json,
    pod_spec,
    raw_job,
    raw_jobset,
    raw_lws,
    raw_pod,
    raw_raycluster,
    raw_stateful_set,
)
from tests.support.settings import settings

pytestmark = pytest.mark.timeout(60)

SERVING = settings(serve_jobs=True)
ERROR, NOT_SERVED, WARNING, NOTE = Severity


def judged(raw: object, settings_: Settings = SERVING, **options: Any) -> tuple[Finding, ...]:
    return judge(raw, settings_, GKE_RULES, **options)


def test_findings_are_ordered_by_severity() -> None:
    """A client that shows only the first findings must show the errors."""
    raw = raw_jobset(
        parallelism=1,
        spec={"suspend": True},
        metadata={"labels": {"a": 1}, "annotations": {constants.CAPACITY: "spot, on-demand@us-east1-b, on-demand"}},
    )
    found = [finding.severity for finding in judged(raw)]
    assert found == sorted(found, key=list(Severity).index)
    assert {ERROR, WARNING, NOTE} <= set(found)


@pytest.mark.parametrize(
    ("changes", "replicas", "words"),
    [
        pytest.param({"max_chips": 40}, 6, "Limit of all node pools: 40 of 40 chips in use", id="the sixth"),
        pytest.param({"max_chips": 48}, 6, "", id="as many as are allowed"),
        pytest.param({"max_chips": 4}, 1, "this slice needs 8, so waiting will not help", id="the first"),
        pytest.param({"max_chips": 800}, 4096, "800 of 800 chips", id="the hundred and first of thousands"),
        pytest.param({"max_pools_per_jobset": 7}, 9, "train uses 7 of 7", id="pools"),
        pytest.param({"max_creates_per_hour": 3}, 9, "3 of 3 were created", id="creates"),
        pytest.param({"pause_creation": True}, 9, "PAUSE_CREATION is set", id="a pause"),
        pytest.param(
            {"max_chips": 40, "all_or_nothing": True}, 6, "together: Limit of all node pools", id="all or nothing"
        ),
    ],
)
def test_limits_count_all_slices(changes: dict[str, Any], replicas: int, words: str) -> None:
    found = [finding.message for finding in judged(raw_jobset(uid="", replicas=replicas), settings(**changes))]
    assert bool(found) == bool(words), found
    assert not words or any(words in message for message in found), found


def test_missing_opt_in_label_causes_no_finding() -> None:
    assert judged(raw_jobset(), settings(opt_in_label=("tpu", "yes"))) == ()


def test_namespace_of_the_request_is_used_if_the_object_has_none() -> None:
    only = settings(namespaces=("team-a",))
    assert judged(raw_jobset(namespace=""), only, namespace="team-a") == ()
    (found,) = judged(raw_jobset(namespace=""), only, namespace="team-b")
    assert "namespace team-b is not among SERVED_NAMESPACES" in found.message


def test_finding_on_an_object_with_a_generated_name_has_a_subject() -> None:
    raw = raw_jobset(pod=pod_spec(topology="2x2x3"))
    raw["metadata"] = {"generateName": "train-", "namespace": "default"}
    assert ["train-xxxxx" in finding.subject for finding in judged(raw)] == [True]


HOSTILE = [
    pytest.param(raw_jobset(uid="", replicas=2**31, parallelism=2**31), id="billions of pods"),
    pytest.param(raw_jobset(uid="", replicas=4096, pod=pod_spec(topology="2x2x3")), id="thousands of wrong slices"),
    pytest.param(raw_lws(uid="", replicas=4096, size=5), id="thousands of wrong groups"),
    pytest.param(
        raw_jobset(uid="", spec={"replicatedJobs": [{"name": f"j{n}", "replicas": 1} for n in range(20_000)]}),
        id="thousands of replicated jobs",
    ),
    pytest.param(
        raw_jobset(pod={**pod_spec(), "containers": pod_spec()["containers"] * 5_000}), id="thousands of containers"
    ),
    pytest.param(
        raw_jobset(
            pod={**pod_spec(topology="x"), "nodeSelector": {f"k{n}": "v" for n in range(20_000)}},
            metadata={
                "labels": {f"k{n}": 7 for n in range(20_000)},
                "annotations": {f"k{n}": "v" for n in range(20_000)},
            },
        ),
        id="thousands of labels",
    ),
    pytest.param(raw_stateful_set(labels={f"k{n}": ["v"] for n in range(20_000)}), id="a large object of another kind"),
]


@pytest.mark.parametrize("raw", HOSTILE)
def test_work_is_bounded_by_the_size_of_the_object(raw: Json) -> None:
    """Large numbers in an object must not cause work. Calls are counted, because times depend on the machine's load."""
    _, calls = counted(lambda: judged(raw))
    assert calls < 150_000 + 4 * len(json.dumps(raw))


@pytest.mark.parametrize(
    ("raw", "part"), [(raw_jobset(), "replicatedJobs"), (raw_raycluster(), "workerGroupSpecs")], ids=["jobs", "groups"]
)
def test_workload_with_too_many_groups_gets_one_error(raw: Json, part: str) -> None:
    """In the past, `plan` and the webhook failed with an exception on a RayCluster of 257 worker groups."""
    [found] = judged({**raw, "spec": {part: raw["spec"][part] * 257}})
    assert (found.severity, f"spec.{part} has 257 entries" in found.message) == (ERROR, True)


def _of_apps(kind: str, pod: Json) -> Json:
    return {**raw_stateful_set(pod=pod), "kind": kind}


def _cron_job(pod: Json) -> Json:
    spec = {"schedule": "0 1 * * *", "jobTemplate": {"spec": raw_job(pod=pod)["spec"]}}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}, "spec": spec}


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda pod: raw_jobset(pod=pod), id="JobSet"),
        pytest.param(lambda pod: raw_lws(pod=pod), id="LeaderWorkerSet"),
        pytest.param(lambda pod: raw_raycluster(template={"spec": pod}), id="RayCluster"),
        pytest.param(lambda pod: raw_job(pod=pod), id="Job"),
        pytest.param(lambda pod: raw_job(pod=pod, metadata={"annotations": {}}), id="Job of pods"),
        pytest.param(_cron_job, id="CronJob"),
        pytest.param(lambda pod: raw_pod(metadata={"labels": {}, "ownerReferences": []}, spec=pod), id="Pod"),
        *(pytest.param(partial(_of_apps, kind), id=kind) for kind in ("StatefulSet", "Deployment", "ReplicaSet")),
    ],
)
@pytest.mark.parametrize(
    ("pod", "words"),
    [
        pytest.param({"tolerations": [{"key": f"k{n}"} for n in range(65)]}, "tolerations", id="tolerations"),
        pytest.param({"volumes": [{"emptyDir": {}} for _ in range(257)]}, "volumes", id="volumes"),
        pytest.param({"nodeSelector": {f"k{n}": "v" for n in range(129)}}, "nodeSelector", id="selectors"),
    ],
)
def test_pod_template_that_exceeds_a_bound_gets_one_error(build: Callable[[Json], Json], pod: Json, words: str) -> None:
    """In the past, `plan` and the webhook failed with an exception on several kinds."""
    spec = pod_spec()
    spec |= {**pod, "nodeSelector": {**spec["nodeSelector"], **pod.get("nodeSelector", {})}}
    found = [finding for finding in judged(build(spec)) if finding.severity is ERROR]
    assert [words in finding.message for finding in found] == [True], found


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("where", ["metadata", "spec", "kind", "replicatedJobs", "labels", "chips"])
@pytest.mark.parametrize("value", [nested(1_500), 10**5000], ids=["nested deeper than Python calls", "many digits"])
def test_value_that_python_cannot_print_causes_no_error(where: str, value: Any) -> None:
    raw = raw_jobset(metadata={"labels": {}})
    (job,) = raw["spec"]["replicatedJobs"]
    holder = {
        "replicatedJobs": raw["spec"],
        "labels": raw["metadata"],
        "chips": job["template"]["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"],
    }.get(where, raw)
    holder[constants.TPU_RESOURCE if where == "chips" else where] = value
    assert isinstance(judged(raw), tuple)


def test_admission_does_not_import_yaml_or_the_command_line() -> None:
    script = (
        "import sys; import provisioner.slices.admission, provisioner.slices.suppliers.gke.rules; "
        "sys.exit(', '.join({'yaml', 'click', 'google', 'kubernetes', 'structlog'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


WHOLE = (raw_jobset(uid="", replicas=2), raw_lws(uid=""), raw_job(uid=""), raw_pod(), raw_stateful_set())


@given(st.data())
def test_any_json_gets_the_findings_of_the_plan(data: st.DataObject) -> None:
    found = judged(raw := spoilt(data, data.draw(st.sampled_from(WHOLE) | ANY_JSON)))
    for finding in found:
        assert finding.message
        assert isinstance(dotted(finding.path), str)
        assert str(finding)
    planned = forecast([Document(raw)], SERVING, GKE_RULES)
    said = {(remark.severity, remark.path, remark.message) for remark in planned.remarks}
    assert {(entry.severity, entry.path, entry.message) for entry in found} == said
