"""Each kind of workload has a reader and templates, and any JSON is read as a record or raises an error."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.fields import MalformedObject, mapping
from provisioner.model import bounds
from provisioner.model.workloads import WorkloadKind
from provisioner.slices.offline.documents import value_at
from provisioner.slices.offline.expand import templates_of
from provisioner.workloads import KINDS, PLAIN_JOB, Kind, kinds_served
from provisioner.workloads.jobset import parse_jobset
from provisioner.workloads.parse_pod import claim_of
from tests.support.objects import RAW_OF_KIND, job_reference, raw_jobset
from tests.support.settings import settings
from tests.workloads.test_leaderworkerset import recorded

#: Values of each JSON type; each value is invalid in most fields of Kubernetes objects.
STRANGE: tuple[Any, ...] = (None, True, -1, 0, 10**30, 1.5, "", "x" * 1000, "-", "\ud800", [], [None], {}, {"": {}})


def test_every_kind_has_a_reader_and_jobs_come_last() -> None:
    """Plain Jobs come last, because pods of other kinds may also belong to a Job. Kind POD is read from pods only."""
    assert KINDS.keys() == {*WorkloadKind} - {WorkloadKind.POD}
    assert RAW_OF_KIND.keys() == KINDS.keys(), "tests/support/objects.py lacks an object of a kind"
    assert [*KINDS.values()][-1] is PLAIN_JOB


def test_kinds_on_request_are_not_served_by_default_settings() -> None:
    """The manifests always grant the rights to read the other kinds."""
    not_served = KINDS.keys() - kinds_served(settings()).keys()
    assert {kind for kind, described in KINDS.items() if described.on_request} == not_served


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.kind.has_pods], ids=lambda kind: kind.kind)
def test_templates_of_every_kind_are_found(kind: Kind) -> None:
    raw = RAW_OF_KIND[kind.kind]()
    workload, templates = kind.parse(raw), templates_of(kind.kind, raw)
    assert workload is not None
    assert [template.name for template in templates] == [group.name for group in workload.groups]
    assert all(mapping(value_at(raw, template.path)) for template in templates), "expand.py lacks a case for this kind"


@pytest.mark.parametrize(("completions", "pods"), [(None, 8), (2, 2), (16, 8)])
def test_no_more_pods_of_a_child_job_run_at_the_same_time_than_complete_it(completions: int | None, pods: int) -> None:
    """In the past, hosts for further pods were paid for and never used."""
    raw = raw_jobset(parallelism=8)
    raw["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] = completions
    assert parse_jobset(raw).groups[0].parallelism == pods


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _said(kind: Kind, raw: Any) -> str:
    try:
        found = kind.parse(raw)
    except MalformedObject as error:
        return str(error)
    return "; ".join(found.problem) if found is not None else ""


@pytest.mark.parametrize("kind", KINDS.values(), ids=[*KINDS])
def test_any_value_in_an_object_results_in_a_record_or_an_error(kind: Kind) -> None:
    whole = RAW_OF_KIND[kind.kind]()
    whole["metadata"]["ownerReferences"] = [job_reference("nightly", kind="CronJob")]
    whole["status"] = {"conditions": [{"type": "Complete", "status": "False"}]}
    for raw in (whole, recorded("Pod", "serve-1-1")):
        for path in _places(raw):
            for strange in STRANGE:
                broken: Any = copy.deepcopy(raw) if path else strange
                inner = broken
                for key in path[:-1]:
                    inner = inner[key]
                if path:
                    inner[path[-1]] = strange
                claim_of(mapping(mapping(broken).get("metadata")))
                assert len(_said(kind, broken)) < 2 * bounds.ANNOTATION


_MOMENT = "2026-06-01T12:00:00Z"
_CONDITION = {"type": "Suspended", "status": "False", "lastTransitionTime": _MOMENT}


@pytest.mark.parametrize(("succeeded", "want"), [(None, 0), (0, 0), (2, 2), ("2", 0)])
def test_succeeded_child_jobs_are_read_from_the_status(succeeded: object, want: int) -> None:
    metadata = {"namespace": "research", "name": "train", "uid": "u"}
    spec = {"replicatedJobs": [{"name": "a", "replicas": 1, "template": {"spec": {}}}]}
    status = {"replicatedJobsStatus": [{"name": "a"} if succeeded is None else {"name": "a", "succeeded": succeeded}]}
    (group,) = parse_jobset({"metadata": metadata, "spec": spec, "status": status}).groups
    assert group.succeeded == want


@pytest.mark.parametrize(
    ("spec", "want"),
    [({}, 0), ({"activeDeadlineSeconds": 3600}, 3600), ({"activeDeadlineSeconds": "3600"}, 0)],
)
def test_deadline_of_a_job_is_read(spec: dict[str, Any], want: int) -> None:
    metadata = {"namespace": "research", "name": "train", "uid": "u"}
    raw = {"metadata": metadata, "spec": {"replicatedJobs": [{"name": "a", "template": {"spec": spec}}]}}
    assert parse_jobset(raw).groups[0].deadline_seconds == want
    job = PLAIN_JOB.parse({"metadata": {**metadata, "annotations": {constants.SERVE: "true"}}, "spec": spec})
    assert job is not None
    assert job.groups[0].deadline_seconds == want


@pytest.mark.parametrize(
    ("status", "want"),
    [
        pytest.param({}, None, id="no conditions"),
        pytest.param({"conditions": "none"}, None, id="conditions of a wrong type"),
        pytest.param({"conditions": [{"type": "Completed", "lastTransitionTime": _MOMENT}]}, None, id="another one"),
        pytest.param({"conditions": [{**_CONDITION, "lastTransitionTime": 7}]}, None, id="no time"),
        pytest.param({"conditions": [_CONDITION]}, datetime(2026, 6, 1, 12, tzinfo=UTC), id="resumed"),
        pytest.param(
            {"conditions": [{**_CONDITION, "status": "True"}]}, datetime(2026, 6, 1, 12, tzinfo=UTC), id="suspended"
        ),
    ],
)
def test_time_of_suspension_is_that_of_the_condition(status: dict[str, Any], want: datetime | None) -> None:
    metadata = {"namespace": "research", "name": "train", "uid": "u"}
    assert parse_jobset({"metadata": metadata, "spec": {}, "status": status}).suspension_changed_at == want
