"""The examples are groups that can be served."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from provisioner.constants import TPU_RESOURCE
from provisioner.nodegroups.api import names, shape
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.specs import SizePolicyMode
from provisioner.nodegroups.api.types import TpuNodeGroup
from provisioner.nodegroups.planning import nodes
from tests.support.nodegroups import UID

EXAMPLES = Path(__file__).parents[3] / "examples" / "nodegroups"


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("slice", (2, SizePolicyMode.BULK)),
        ("single-hosts-spot", (4, SizePolicyMode.INDIVIDUAL)),
        ("slice-flex-start", (4, SizePolicyMode.BULK)),
        ("own-template", (4, SizePolicyMode.BULK)),
    ],
)
def test_an_example_comes_to_what_its_comment_says(name: str, want: tuple[int, SizePolicyMode]) -> None:
    raw = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    raw["metadata"]["uid"] = UID
    group = parse(TpuNodeGroup, raw)
    assert group.meta.name == name
    config = group.spec.instance_config
    found = shape.resolve(group.spec, config.machine_type if config is not None else "tpu7x-standard-4t")
    assert (found.node_count, found.mode) == want


def test_every_example_is_looked_at() -> None:
    assert {path.stem for path in EXAMPLES.iterdir()} == {
        "slice",
        "single-hosts-spot",
        "slice-flex-start",
        "own-template",
        "jobset-on-slice",
    }


def test_the_pods_of_the_jobset_fill_the_slice_and_go_nowhere_else() -> None:
    raw = yaml.safe_load((EXAMPLES / "slice.yaml").read_text(encoding="utf-8"))
    group = parse(TpuNodeGroup, {**raw, "metadata": {**raw["metadata"], "uid": UID}})
    found = shape.resolve(group.spec, "tpu7x-standard-4t")
    jobset = yaml.safe_load((EXAMPLES / "jobset-on-slice.yaml").read_text(encoding="utf-8"))
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    labels = nodes.labels_of(group, found)
    assert jobset["metadata"]["namespace"] == group.meta.namespace
    assert (replicated["replicas"], job["parallelism"], job["completions"]) == (1, found.node_count, found.node_count)
    assert {**labels, **pod["nodeSelector"]} == labels
    assert set(names.group_labels(group.meta)) <= set(pod["nodeSelector"])
    assert pod["containers"][0]["resources"]["limits"] == {TPU_RESOURCE: found.chips_per_machine}
    assert {"key": TPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
