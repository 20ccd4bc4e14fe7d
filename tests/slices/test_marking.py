"""Tests of the marks (node selectors) and the node affinity that the webhook server adds to pods.

tests/e2e/test_placement_policy.py compares these changes with the changes by the admission policy, for more pods.
"""

from __future__ import annotations

import pytest
from hypothesis import given

from provisioner import constants
from provisioner.admission.review import Answer, Request
from provisioner.model.placement import SHARED, labels_of, slice_key
from provisioner.slices.marking import review_placement
from tests.support.any_json import ANY_JSON
from tests.support.objects import Json, pod_spec, reference
from tests.support.patches import apply_patch

_KEPT_OFF = {"key": constants.SLICE, "operator": "DoesNotExist"}
_GROUP = {"labels": {constants.JOB_KEY: "abc"}}
_LEADER = {"labels": {constants.LWS_NAME: "serve", constants.LWS_GROUP_KEY: "abc"}}
_CLAIMS: Json = {"resourceClaims": [{"name": "tpu"}]}


def _review(pod: Json, *, assigned: bool = True, **changes: str) -> Answer:
    asked = {"kind": "Pod", "operation": "CREATE", **changes}
    return review_placement(Request(namespace="research", object=pod, **asked), assigned=assigned)


def _required(*terms: Json) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("metadata", "spec", "assigned", "want"),
    [
        (_GROUP, pod_spec(), True, "marked"),
        (_GROUP, pod_spec(nodeSelector={constants.TPU_TOPOLOGY: "2x2x2", constants.SLICE: "j-b"}), True, "marked"),
        (_GROUP, pod_spec(chips=0, **_CLAIMS), True, "marked"),
        (_GROUP, pod_spec(), False, "kept off"),
        ({}, pod_spec(), True, "marked"),
        ({}, pod_spec(), False, "kept off"),
        (_GROUP, pod_spec(nodeSelector={}), True, "kept off"),
        (_GROUP, pod_spec(chips=0, nodeSelector={constants.TPU_TOPOLOGY: "2x2x2"}, **_CLAIMS), True, "kept off"),
        ({"labels": {constants.JOB_KEY: "abc", constants.DISABLE: "true"}}, pod_spec(), True, "kept off"),
        ({**_GROUP, "annotations": {constants.DISABLE: "true"}}, pod_spec(), True, "kept off"),
        ({**_GROUP, "annotations": {constants.SLICE_TOPOLOGY: "2x2x2"}}, pod_spec(), True, "kept off"),
        (_GROUP, pod_spec(chips=0), True, "unchanged"),
        (_LEADER, pod_spec(chips=0), True, "marked"),
        (_LEADER, pod_spec(chips=0), False, "kept off"),
        (_LEADER, pod_spec(chips=0, nodeSelector={constants.TPU_ACCELERATOR: "tpu-v4-podslice"}), True, "kept off"),
        (_LEADER, pod_spec(chips=0, nodeSelector={}), True, "unchanged"),
        (
            {**_LEADER, "annotations": {constants.LWS_SUBGROUP_POLICY_TYPE: "LeaderExcluded"}},
            pod_spec(chips=0),
            True,
            "unchanged",
        ),
    ],
    ids=[
        "pod of a group",
        "marks of the author",
        "claims of TPUs",
        "namespace that is not assigned",
        "pod without a group",
        "pod without a group in a namespace that is not assigned",
        "pod without a topology",
        "claims without an accelerator",
        "disabled by a label",
        "disabled by an annotation",
        "dynamic slice",
        "no chips",
        "leader without chips",
        "leader without chips in a namespace that is not assigned",
        "leader without a topology",
        "leader on other nodes",
        "leader in no subgroup",
    ],
)
def test_pod_is_marked_or_kept_off_slices_or_unchanged(metadata: Json, spec: Json, assigned: bool, want: str) -> None:
    """Marks select the nodes of one slice. A pod that is kept off avoids the nodes of assigned and free pools."""
    pod = {"metadata": metadata, "spec": spec}
    patched = apply_patch(pod, _review(pod, assigned=assigned).patch)
    if want == "marked":
        marks = labels_of(slice_key(metadata.get("labels", {})), "research")
        assert patched == {**pod, "spec": {**spec, "nodeSelector": {**spec.get("nodeSelector", {}), **marks}}}
    elif want == "kept off":
        assert patched == {**pod, "spec": {**spec, **_required({"matchExpressions": [_KEPT_OFF]})}}
    else:
        assert patched == pod
    assert _review(patched, assigned=assigned).patch == ()


@pytest.mark.parametrize(
    ("topology", "chips", "kind", "key"),
    [
        ("2x2x2", 4, "StatefulSet", "s-uid-of-a"),
        ("2x4", 4, "StatefulSet", "s-uid-of-a"),
        ("2x2x1", 4, "StatefulSet", SHARED),
        ("2x4", 8, "StatefulSet", SHARED),
        ("2x4x", 4, "StatefulSet", SHARED),
        ("2x2x2", 4, "ReplicaSet", SHARED),
    ],
)
def test_pods_of_a_stateful_set_are_a_group_if_its_slice_has_several_hosts(
    topology: str, chips: int, kind: str, key: str
) -> None:
    """Pods with equal marks may be bound to any pool with them, so a slice of several hosts has its own marks."""
    pod = {"metadata": {"ownerReferences": [reference(kind, "a")]}, "spec": pod_spec(topology=topology, chips=chips)}
    patched = apply_patch(pod, _review(pod).patch)
    assert labels_of(key, "research").items() <= patched["spec"]["nodeSelector"].items()


def test_each_node_selector_term_of_the_author_excludes_slices() -> None:
    """An empty term matches no node, and remains empty."""
    zone, node = ({"key": key, "operator": "In", "values": ["a"]} for key in (constants.ZONE, "metadata.name"))
    given_terms = [{"matchExpressions": [zone]}, {"matchFields": [node]}, {}, {"matchExpressions": [zone, _KEPT_OFF]}]
    pod = {"metadata": {}, "spec": pod_spec(**_required(*given_terms))}
    patched = apply_patch(pod, _review(pod, assigned=False).patch)
    assert patched["spec"]["affinity"] == _required(
        {"matchExpressions": [zone, _KEPT_OFF]},
        {"matchFields": [node], "matchExpressions": [_KEPT_OFF]},
        {},
        {"matchExpressions": [zone, _KEPT_OFF]},
    )["affinity"]  # fmt: skip


def test_other_affinity_of_the_author_is_kept() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
    affinity = {"podAffinity": {}, "nodeAffinity": preferred}
    pod = {"metadata": {}, "spec": pod_spec(affinity=affinity)}
    node_affinity = _required({"matchExpressions": [_KEPT_OFF]})["affinity"]["nodeAffinity"]
    assert apply_patch(pod, _review(pod, assigned=False).patch)["spec"]["affinity"] == {
        "podAffinity": {},
        "nodeAffinity": {**preferred, **node_affinity},
    }


@pytest.mark.parametrize(
    "changes",
    [{"kind": "Job"}, {"operation": "UPDATE"}, {"subresource": "binding"}],
    ids=["another kind", "an update", "a subresource"],
)
def test_review_changes_only_pods_that_are_created(changes: dict[str, str]) -> None:
    assert _review({"metadata": _GROUP, "spec": pod_spec()}, **changes) == Answer()


@pytest.mark.parametrize(
    "container",
    [
        {"resources": {"limits": {"deviceclass.resource.kubernetes.io/tpu.google.com": "4"}}},
        {"resources": {"limits": {constants.TPU_RESOURCE: "many"}}},
    ],
    ids=["device class", "unreadable amount"],
)
def test_pod_that_may_get_chips_is_kept_off_slices(container: Json) -> None:
    assert _review({"metadata": {}, "spec": {"containers": [], "initContainers": [container]}}).patch


@given(ANY_JSON)
def test_review_never_fails(raw: object) -> None:
    _review({"metadata": raw, "spec": {"resourceClaims": [1], "affinity": raw, "nodeSelector": raw}})
