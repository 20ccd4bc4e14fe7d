"""Which pods the provisioner buys for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from provisioner import constants
from provisioner.demand.serving import ServingPolicy
from tests.builders import make_jobset, make_requirements

ON, OFF = {constants.DISABLE: "true"}, {constants.DISABLE: "false"}
OPT_IN = ("team", "ml")


@pytest.mark.parametrize(
    ("policy", "pod", "jobset", "want"),
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
def test_serving(*, policy: Mapping[str, Any], pod: Mapping[str, Any], jobset: Mapping[str, Any], want: bool) -> None:
    """One table for all rules."""
    assert ServingPolicy(**policy).serves(make_jobset(**jobset), make_requirements(**pod)) is want
