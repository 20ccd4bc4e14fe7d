"""Tests of the checks of manifests before the demo of node groups starts."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from provisioner.cli.manifests import Manifests, read_documents
from rehearsal.commands.demo_gce import problem_with
from tests.support.nodegroup_controller import SPEC
from tests.support.objects import raw_jobset


def group(**spec: Any) -> dict[str, Any]:
    """Return a TPUNodeGroup with changed fields of its spec; the value None removes a field."""
    changed = {key: value for key, value in (SPEC | spec).items() if value is not None}
    return {
        "apiVersion": "tpu.google.com/v1alpha1",
        "kind": "TPUNodeGroup",
        "metadata": {"name": "slice"},
        "spec": changed,
    }


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param([{"kind": "Pod"}], "neither a TPUNodeGroup nor a JobSet in these files (only Pod)", id="a pod"),
        pytest.param([group(bootstrapKubernetes=None)], "slice has no bootstrapKubernetes", id="one that joins itself"),
        pytest.param([group(project=None)], "slice has no project or no nodeLocation", id="one without a project"),
        pytest.param([group() | {"spec": []}], "slice has no project", id="one without a spec"),
        pytest.param([raw_jobset()], "", id="a JobSet is enough"),
        pytest.param([group(), raw_jobset()], "", id="a group with a JobSet"),
        pytest.param([group()], "", id="a group alone"),
    ],
)
def test_invalid_manifests_are_reported_before_anything_is_started(raw: list[Any], words: str) -> None:
    """A TPUNodeGroup or a JobSet is enough, because the provisioner creates groups for JobSets."""
    documents, problems = read_documents("a.yaml", yaml.safe_dump_all(raw))
    found = problem_with(Manifests(documents=tuple(documents), problems=tuple(problems)))
    assert words in found if words else found == ""
