"""What the demo of node groups says before it starts anything, and at its end."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from provisioner.cli.manifests import Manifests, read_documents
from provisioner.cli.output import ExitCode
from rehearsal.commands.demo_gce import problem_with, summary
from rehearsal.commands.main import main
from rehearsal.demos.groups import GroupTimes
from tests.support.nodegroup_controller import SPEC
from tests.support.objects import raw_jobset

STEPS = ("wanted", "made", "running", "joined", "ready", "deleting", "gone")
CALLS = {"instances.get": {"200": 4}, "instances.setMetadata": {"200": 3, "412": 1}}


def times(name: str, *, until: str = "gone") -> GroupTimes:
    """Return a group that has come as far as a step, each 1,234.5 s after the other."""
    reached = STEPS[: STEPS.index(until) + 1]
    return GroupTimes(name=name, machines=256, entered={step: 1234.5 * at for at, step in enumerate(reached)})


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


def test_what_came_and_went_is_told_with_its_times() -> None:
    """On 80 columns whatever the names are."""
    lines = list(summary([times(f"default/{'long-name-' * 4}"), times("a/b")], CALLS, []))
    assert lines[-1] == "512 machines, created, joined and deleted."
    assert max(map(len, lines)) <= 80
    assert any(line.split() == ["a/b", "256", *["1234.5"] * 6] for line in lines)
    assert any(line.split() == ["total", "8"] for line in lines)


def test_what_is_left_is_named() -> None:
    """And nothing is called deleted."""
    lines = list(summary([times("a/b", until="joined")], CALLS, ["Node n-1", "machine n-1"]))
    assert "Left:\n  Node n-1\n  machine n-1\nThey were simulated" in "\n".join(lines)
    assert not any("deleted." in line for line in lines)
    assert any(line.split() == ["a/b", "256", *["1234.5"] * 3] for line in lines)


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


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """As by the other demo."""
    assert main(["demo-gce", "nowhere.yaml"]) == ExitCode.USAGE
    assert capsys.readouterr().out.strip() == "no such file: nowhere.yaml"
