"""Tests of which workloads are served: opt-in, opt-out, and JobSets that request Slice resources instead."""

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
        pytest.param({}, {}, {}, True, id="pod with the selectors of a slice"),
        pytest.param({}, {"node_selector": {}}, {}, False, id="pod without topology selector"),
        pytest.param({}, {"labels": ON}, {}, False, id="pod opted out by label"),
        pytest.param({}, {"annotations": ON}, {}, False, id="pod opted out by annotation"),
        pytest.param({}, {}, {"labels": ON}, False, id="JobSet opted out by label"),
        pytest.param({}, {}, {"annotations": ON}, False, id="JobSet opted out by annotation"),
        pytest.param({}, {"labels": OFF}, {"annotations": OFF}, True, id="other value of the opt-out"),
        pytest.param({}, {"annotations": {constants.SLICE_TOPOLOGY: "4x4x4"}}, {}, False, id="dynamic slicing"),
        pytest.param({"namespaces": frozenset({"default"})}, {}, {}, True, id="listed namespace"),
        pytest.param({"namespaces": frozenset({"other"})}, {}, {}, False, id="unlisted namespace"),
        pytest.param({"opt_in_label": OPT_IN}, {}, {}, False, id="no opt-in label"),
        pytest.param({"opt_in_label": OPT_IN}, {"labels": {"team": "ml"}}, {}, True, id="pod opted in"),
        pytest.param(
            {"opt_in_label": OPT_IN}, {"labels": {"team": "web"}}, {}, False, id="another value of the opt-in label"
        ),
        pytest.param(
            {"opt_in_label": OPT_IN, "namespace_labels": {"default": {"team": "ml"}}},
            {},
            {},
            True,
            id="namespace opted in",
        ),
        pytest.param(
            {"opt_in_label": OPT_IN, "namespace_labels": {"other": {"team": "ml"}}},
            {},
            {},
            False,
            id="another namespace opted in",
        ),
        pytest.param(
            {"opt_in_label": OPT_IN, "namespace_labels": {"default": {"team": "ml"}}},
            {"labels": ON},
            {},
            False,
            id="namespace opted in, pod opted out",
        ),
    ],
)
def test_pod_is_served_depending_on_opt_in_opt_out_and_namespace(
    *, policy: Mapping[str, Any], pod: Mapping[str, Any], workload: Mapping[str, Any], want: bool
) -> None:
    assert ServingPolicy(**policy).serves(make_jobset(**workload), make_requirements(**pod)) is want


def test_reason_for_not_serving_names_the_missing_opt_in_label() -> None:
    for labels, known in (({"default": {}}, ""), ({}, ", as far as the namespace is known,")):
        policy = ServingPolicy(opt_in_label=OPT_IN, namespace_labels=labels)
        found = policy.why_not(make_jobset(), make_requirements())
        assert found is not None
        assert found.why == (f"neither its pods nor its namespace have{known} the label team=ml",)


@pytest.mark.parametrize(
    ("workload", "policy", "told"),
    [
        pytest.param({"labels": {constants.SLICE_AUTOPROVISIONING: "sync"}}, {}, True, id="sync"),
        pytest.param({"labels": {constants.SLICE_AUTOPROVISIONING: "async"}}, {}, True, id="async"),
        pytest.param(
            {"annotations": {constants.SLICE_AUTOPROVISIONING: "true"}}, {}, True, id="annotation of early releases"
        ),
        pytest.param(
            {"labels": {constants.SLICE_AUTOPROVISIONING: "sync"}},
            {"namespaces": ("other",)},
            False,
            id="unlisted namespace, not reported",
        ),
        pytest.param(
            {"labels": {constants.SLICE_AUTOPROVISIONING: "sync"}, "annotations": ON},
            {},
            False,
            id="opted out, not reported",
        ),
        pytest.param(
            {"labels": {constants.SLICE_AUTOPROVISIONING: "sync"}, "suspended": True},
            {},
            False,
            id="suspended, not reported",
        ),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_jobset_with_slice_autoprovisioning_is_not_served(
    *, dynamic: bool, workload: dict[str, Any], policy: dict[str, Any], told: bool
) -> None:
    """The Go provisioner serves such JobSets by Slice resources, whether or not they have SLICE_TOPOLOGY."""
    changes = {"node_selector": {}, "annotations": {constants.SLICE_TOPOLOGY: "4x4x4"}} if dynamic else {}
    owner = make_jobset(template=make_requirements(**changes), **workload)
    assert not ServingPolicy(**policy).serves(owner, make_requirements())
    assert told_of(owner, **policy) == ([owner.name] if told else [])


@pytest.mark.parametrize("value", ["", "off", "true"])
def test_unknown_value_of_the_autoprovisioning_label_has_no_effect(value: str) -> None:
    owner = make_jobset(labels={constants.SLICE_AUTOPROVISIONING: value})
    assert ServingPolicy().serves(owner, make_requirements())
    assert told_of(owner) == []
