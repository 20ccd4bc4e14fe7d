"""What the demo of node groups says before it starts anything, and at its end."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from provisioner.cli.manifests import Manifests, read_documents
from rehearsal.commands.demo_gce import problem_with
from tests.support.nodegroup_controller import SPEC
from tests.support.objects import raw_jobset


def group(**spec: Any) -> dict[str, Any]:
    """Return a group; None removes a field."""
    changed = {key: value for key, value in (SPEC | spec).items() if value is not None}
    return {
        "apiVersion": "tpu.google.com/v1alpha1",
        "kind": "TPUNodeGroup",
        "metadata": {"name": "slice"},
        "spec": changed,
    }


def manifests(*raw: Any) -> Manifests:
    """Return manifests as they are read from a file."""
    documents, problems = read_documents("a.yaml", yaml.safe_dump_all(raw))
    return Manifests(documents=tuple(documents), problems=tuple(problems))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param([{"kind": "Pod"}], "neither a TPUNodeGroup nor a JobSet in these files (only Pod)", id="a pod"),
        pytest.param([group(bootstrapKubernetes=None)], "slice has no bootstrapKubernetes", id="one that joins itself"),
        pytest.param([group(project=None)], "slice has no project or no nodeLocation", id="one without a project"),
        pytest.param([group() | {"spec": []}], "slice has no project", id="one without a spec"),
    ],
)
def test_manifests_with_which_nothing_would_happen_are_refused(raw: list[Any], words: str) -> None:
    """Before anything is started."""
    assert words in problem_with(manifests(*raw))


def test_a_group_and_a_jobset_are_enough() -> None:
    """So is each alone: the provisioner makes the groups of JobSets."""
    assert problem_with(manifests(raw_jobset())) == ""
    assert problem_with(manifests(group(), raw_jobset())) == ""
    assert problem_with(manifests(group())) == ""
