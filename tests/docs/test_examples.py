"""Tests that `plan` shows the expected pools of each example in examples/, and that the index lists it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from provisioner.cli import main
from provisioner.cli.output import ExitCode
from provisioner.settings import OPTIONS
from tests.docs.shell import ROOT

EXAMPLES = ROOT / "examples"
#: Examples of node groups and partitions, which `plan` does not read.
_OTHER_PRODUCTS = {"nodegroups", "partitions"}


class Planned(NamedTuple):
    """Expected pools of an example."""

    pools: int
    machine_type: str
    topology: str
    hosts: int
    #: Kind of the first choice of capacity.
    capacity: str = "on-demand"


#: Expected pools by file, or by folder if its files belong together.
PLANS = {
    "all-or-nothing": Planned(2, "ct5p-hightpu-4t", "2x2x4", 4),
    "capacity-buffer": Planned(2, "ct6e-standard-4t", "4x4", 4),
    "capacity-choices": Planned(1, "ct6e-standard-4t", "2x4", 2),
    "job": Planned(1, "ct6e-standard-4t", "4x4", 4),
    "jobset.yaml": Planned(2, "ct5lp-hightpu-4t", "2x4", 2),
    "kubeflow-trainer": Planned(1, "ct6e-standard-4t", "4x4", 4),
    "kueue/one-slice.yaml": Planned(1, "ct6e-standard-4t", "2x4", 2),
    "kueue/two-slices.yaml": Planned(2, "ct6e-standard-4t", "4x4", 4),
    "leaderworkerset": Planned(2, "ct6e-standard-4t", "4x4", 4),
    "maxtext": Planned(2, "ct6e-standard-4t", "4x4", 4),
    "provisioning-request": Planned(2, "ct6e-standard-4t", "4x4", 4),
    "ray/raycluster.yaml": Planned(1, "ct6e-standard-4t", "4x4", 4),
    "ray/rayjob.yaml": Planned(1, "ct6e-standard-4t", "4x4", 4),
    "reservation-then-spot": Planned(2, "ct5p-hightpu-4t", "2x2x2", 2, "reservation"),
    "statefulset": Planned(1, "ct5lp-hightpu-4t", "4x4", 4),
    "three-teams": Planned(1, "ct6e-standard-4t", "4x4", 4),
    "tpu7-2x2x1": Planned(1, "tpu7-standard-4t", "2x2x1", 1),
    "tpu7x-2x2x2": Planned(1, "tpu7x-standard-4t", "2x2x2", 2),
    "training": Planned(2, "ct6e-standard-4t", "4x4", 4, "spot"),
    "v3-4x4": Planned(1, "ct3p-hightpu-4t", "4x4", 4),
    "v4-2x2x4": Planned(2, "ct4p-hightpu-4t", "2x2x4", 4),
    "v5e-2x4": Planned(1, "ct5lp-hightpu-8t", "2x4", 1),
    "v5e-4x4": Planned(2, "ct5lp-hightpu-4t", "4x4", 4),
    "v5p-2x2x2": Planned(1, "ct5p-hightpu-4t", "2x2x2", 2),
    "v6e-4x4-spot": Planned(2, "ct6e-standard-4t", "4x4", 4, "spot"),
    "vllm-deployment": Planned(1, "ct6e-standard-4t", "2x2", 1),
}
_WITHOUT_POOLS = {"argocd", "kueue/queue.yaml"}
_FILES = sorted(EXAMPLES.rglob("*.yaml"))
_OBJECTS = [(path, document) for path in _FILES for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without settings in the environment, except the setting that plain Jobs need."""
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.setenv("SERVE_JOBS", "true")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "want"), PLANS.items(), ids=PLANS)
def test_plan_of_an_example_has_its_pools(name: str, want: Planned, capsys: pytest.CaptureFixture[str]) -> None:
    settings = EXAMPLES / name / "settings.env"
    arguments = [f"--settings={settings}"] if settings.exists() else []
    code = main(["plan", "-f", str(EXAMPLES / name), "-o", "json", *arguments])
    planned = json.loads(capsys.readouterr().out)
    pools = planned["nodePools"]
    assert {(pool["machineType"], pool["topology"], pool["hosts"]) for pool in pools} == {want[1:4]}
    assert len(pools) == want.pools
    assert {pool["capacity"][0]["choice"].split()[0] for pool in pools} == {want.capacity}
    assert all(choice["possible"] for pool in pools for choice in pool["capacity"])
    assert code == ExitCode.OK


def test_each_example_is_planned() -> None:
    named = {*PLANS, *_WITHOUT_POOLS, *_OTHER_PRODUCTS}
    paths = [path.relative_to(EXAMPLES) for path in _FILES]
    assert [str(path) for path in paths if named.isdisjoint((str(path), path.parts[0]))] == []


def test_index_has_a_line_for_each_example() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)#:]+)\)", text))
    assert [link for link in linked if not (EXAMPLES / link).is_file()] == []
    first_parts = {Path(link).parts[0] for link in linked}
    assert first_parts == {path.relative_to(EXAMPLES).parts[0] for path in _FILES}
    assert len(re.findall(r"(?m)^\| \[", text)) > 15


@pytest.mark.parametrize(
    "path", [path for path in _FILES if path.parent.name not in _OTHER_PRODUCTS], ids=lambda path: str(path)[-40:]
)
def test_example_runs_without_privileges_and_downloads_no_packages(path: Path) -> None:
    """Many namespaces reject privileged pods and host networking, and many nodes cannot reach a package index."""
    text = path.read_text(encoding="utf-8")
    assert [word for word in ("privileged", "hostNetwork", "pip install", "apt-get") if word in text] == []
    # Each image has a tag, so that later images cannot change the tested example.
    assert [image for image in re.findall(r"image: (\S+)", text) if ":" not in image.rpartition("/")[2]] == []


def test_installation_waits_longer_than_gke_takes_to_report_a_stockout() -> None:
    """GKE may report a stockout only after 35 minutes; a shorter wait would end before the Event with the reason."""
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    (minutes,) = re.findall(r"kubectl wait .*jobset/tpu-demo --timeout=(\d+)m", text)
    assert int(minutes) > 40


def test_first_example_is_of_a_generation_that_most_regions_have() -> None:
    ((_, jobset),) = [object_ for object_ in _OBJECTS if object_[0] == EXAMPLES / "jobset.yaml"]
    (job,) = jobset["spec"]["replicatedJobs"]
    selector = job["template"]["spec"]["template"]["spec"]["nodeSelector"]
    assert selector["cloud.google.com/gke-tpu-accelerator"] in ("tpu-v5-lite-podslice", "tpu-v6e-slice")
