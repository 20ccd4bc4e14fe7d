"""Which workloads and pods are served: opt-in, opt-out, and slice resources of the Go release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from provisioner import constants
from provisioner.slices.demand.allowlists import ServingPolicy
from tests.support.models import make_jobset, make_requirements
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
def test_pod_is_served_depending_on_opt_in_opt_out_and_namespace(
    *, policy: Mapping[str, Any], pod: Mapping[str, Any], workload: Mapping[str, Any], want: bool
) -> None:
    assert ServingPolicy(**policy).serves(make_jobset(**workload), make_requirements(**pod)) is want


def test_reason_for_not_serving_names_the_missing_opt_in_label() -> None:
    """If the namespace has not been read, its labels are unknown, and the message says so."""
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
def test_jobset_with_slice_autoprovisioning_is_not_served(
    *, dynamic: bool, workload: dict[str, Any], policy: dict[str, Any], told: bool
) -> None:
    """This applies to pods with the node selector of a pool and to those with the annotation of dynamic slicing."""
    changes = {"node_selector": {}, "annotations": {constants.SLICE_TOPOLOGY: "4x4x4"}} if dynamic else {}
    owner = make_jobset(template=make_requirements(**changes), **workload)
    assert not ServingPolicy(**policy).serves(owner, make_requirements())
    assert told_of(owner, **policy) == ([owner.name] if told else [])


@pytest.mark.parametrize("value", ["", "off", "true"])
def test_unknown_value_of_the_autoprovisioning_label_has_no_effect(value: str) -> None:
    owner = make_jobset(labels={constants.SLICE_AUTOPROVISIONING: value})
    assert ServingPolicy().serves(owner, make_requirements())
    assert told_of(owner) == []
