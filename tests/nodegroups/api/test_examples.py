"""The examples are groups that can be served."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from provisioner.nodegroups.api import shape
from provisioner.nodegroups.api.parse import parse_group
from provisioner.nodegroups.api.types import SizePolicyMode
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
    group = parse_group(raw)
    assert group.problem == ""
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
    }
