"""Tests of the warning for manifests that do not keep the pods of each slice on one node pool."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.slices.offline.documents import Document, Severity
from provisioner.slices.offline.forecast import Forecast, forecast
from provisioner.slices.offline.placement import NOT_PLACED
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.objects import Json, pod_spec, raw_buffer, raw_job, raw_jobset, raw_lws, raw_raycluster
from tests.support.settings import settings

_ALONE: Json = {"annotations": None}
_AFFINITY = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": constants.NODE_POOL}]}}

_INJECTED = {"metadata": {"labels": {constants.INJECT: "enabled"}}, "spec": pod_spec()}


def _plan(*raws: Json) -> Forecast:
    return forecast([Document(raw, "f") for raw in raws], settings(serve_jobs=True), GKE_RULES)


def _warnings(*raws: Json) -> list[str]:
    return [remark.message for remark in _plan(*raws).remarks if remark.message.startswith(NOT_PLACED)]


def _with_subgroups(**annotations: str) -> Json:
    raw = raw_lws(size=4, metadata={"annotations": annotations})
    raw["spec"]["leaderWorkerTemplate"]["subGroupPolicy"] = {"subGroupSize": 2}
    return raw


def _selecting(**selector: str) -> Json:
    return pod_spec(nodeSelector={**pod_spec()["nodeSelector"], **selector})


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (raw_jobset(replicas=3, metadata=_ALONE), f"; add the annotation {constants.EXCLUSIVE_TOPOLOGY}: cloud."),
        (raw_lws(metadata=_ALONE), f"; add the annotation {constants.LWS_EXCLUSIVE_TOPOLOGY}: {constants.NODE_POOL}"),
        (_with_subgroups(), f"; add the annotation {constants.LWS_SUBGROUP_EXCLUSIVE_TOPOLOGY}: {constants.NODE_POOL}"),
        (raw_job(), ", unless the placement policy assigns the slices of namespace default"),
        (raw_raycluster(), "or a webhook places the pods of RayClusters; ask the administrator"),
    ],
    ids=["JobSet", "LeaderWorkerSet", "subgroups", "Job", "RayCluster"],
)
def test_slices_without_placement_get_one_warning_and_their_pools(raw: Json, words: str) -> None:
    found = _plan(raw)
    assert found.pools
    assert found.all_served
    (remark,) = [finding for finding in found.remarks if finding.message.startswith(NOT_PLACED)]
    assert words in remark.message
    assert f"(its label {constants.PLACEMENT}={constants.PLACEMENT_ASSIGN})" in remark.message
    assert (remark.severity, remark.impossible, remark.slices) == (Severity.WARNING, False, len(found.pools))


def _jobset(pod: Json | None = None, pod_metadata: Json | None = None) -> Json:
    return raw_jobset(pod=pod, pod_metadata=pod_metadata, metadata=_ALONE)


def _with_strategy() -> Json:
    raw = _jobset()
    return {**raw, "metadata": {**raw["metadata"], "annotations": {constants.NODE_SELECTOR_STRATEGY: "true"}}}


def _with_namespace(value: str) -> list[Json]:
    labels = {constants.PLACEMENT: value}
    return [_jobset(), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}}]


@pytest.mark.parametrize(
    "raws",
    [
        pytest.param([raw_jobset()], id="exclusive placement"),
        pytest.param([_jobset(pod_metadata={"annotations": {constants.EXCLUSIVE_TOPOLOGY: "x"}})], id="of the pods"),
        pytest.param([raw_lws()], id="a LeaderWorkerSet with exclusive placement"),
        pytest.param([_with_subgroups(**{constants.LWS_SUBGROUP_EXCLUSIVE_TOPOLOGY: "x"})], id="subgroups"),
        pytest.param([raw_job(pod=pod_spec(affinity=_AFFINITY))], id="affinity between pods"),
        pytest.param([raw_raycluster(template=_INJECTED)], id="affinity of the webhook that sets TPU variables"),
        pytest.param([_jobset(_selecting(**{constants.LEGACY_POOL_ID: "train"}))], id="a selector of its only slice"),
        pytest.param([_jobset(_selecting(**{"job-key": "abc"}))], id="the selector of the webhook"),
        pytest.param(
            [_jobset(pod_metadata={"annotations": {"kueue.x-k8s.io/podset-required-topology": "x"}})],
            id="topology-aware scheduling",
        ),
        pytest.param([_jobset(pod_spec(topology="2x2x1"))], id="slices of one host"),
        pytest.param(_with_namespace("assign"), id="a namespace in the files that the policy serves"),
        pytest.param([_jobset(pod_spec(topology="9x9x9"))], id="slices that get no pool"),
    ],
)
def test_manifest_gets_no_warning_if_each_slice_is_kept_on_one_pool(raws: list[Any]) -> None:
    assert _warnings(*raws) == []


@pytest.mark.parametrize(
    "raws",
    [
        pytest.param(
            [raw_jobset(replicas=2, pod=_selecting(**{constants.LEGACY_POOL_ID: "train"}), metadata=_ALONE)],
            id="a selector that two slices share",
        ),
        pytest.param(_with_namespace("other"), id="another value of the namespace's label"),
        pytest.param([_jobset(pod_metadata=_INJECTED["metadata"])], id="TPU variables of another kind"),
        pytest.param(
            [raw_raycluster(template={**_INJECTED, "spec": pod_spec(affinity={"podAntiAffinity": {}})})],
            id="TPU variables of a RayCluster with anti-affinity",
        ),
        pytest.param([_with_strategy()], id="JobSet's selectors without exclusive placement"),
    ],
)
def test_manifest_gets_a_warning_if_slices_may_mix(raws: list[Any]) -> None:
    assert len(_warnings(*raws)) == 1


def test_buffer_gets_no_warning_because_it_has_no_pods() -> None:
    assert _warnings(raw_buffer()) == []
