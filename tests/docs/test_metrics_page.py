"""docs/metrics.md says what the code exports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.nodegroups.metrics import Metrics as NodeGroupMetrics
from provisioner.partitions.metrics import Metrics as PartitionMetrics
from provisioner.runtime.metrics import LoopMetrics
from provisioner.slices.metrics import Metrics

#: A test starts Python.
pytestmark = pytest.mark.timeout(60)

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "metrics.md"
_ALL: tuple[LoopMetrics, ...] = (
    Metrics(version="test"),
    NodeGroupMetrics(version="test"),
    PartitionMetrics(version="test"),
)


def test_the_page_of_metrics_is_what_the_code_makes() -> None:
    """Whoever changes a metric runs `make docs`."""
    made = subprocess.run(
        [sys.executable, str(_ROOT / "docs" / "metrics_table.py")],
        # Of this checkout, whatever the virtual environment has installed.
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )

    assert made.stdout == _PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "of", [Metrics, NodeGroupMetrics, PartitionMetrics], ids=["the provisioner", "node groups", "partitions"]
)
def test_every_family_is_described_with_its_labels(of: type[Metrics | NodeGroupMetrics | PartitionMetrics]) -> None:
    """What is told of a metric is what it has: also where no sample shows its labels yet."""
    metrics = of(version="test")
    described = {each.name: each for each in metrics.registry.described}
    families = {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in metrics.registry.collect()
        if not family.name.startswith("process_")
    }

    assert described.keys() == families.keys()
    for name, family in families.items():
        assert (described[name].kind, described[name].text) == (family.type, family.documentation)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(described[name].labels)


def test_every_exported_name_is_on_the_page() -> None:
    """Those of the process too, which a client library exports."""
    rows = re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram) \|", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    exported = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for metrics in _ALL
        for family in metrics.registry.collect()
    }
    assert len(rows) == len(set(rows))
    # Outside of Linux a process exports fewer of its own.
    assert exported <= set(rows)
    assert {name for name in set(rows) - exported if not name.startswith("process_")} == set()


def test_every_label_is_explained() -> None:
    """With its values, where they are few."""
    explained = set(re.findall(r"^\| `(\w+)` \| (?!counter|gauge|histogram)", _PAGE.read_text("utf-8"), re.MULTILINE))
    used = {label for metrics in _ALL for each in metrics.registry.described for label in each.labels}
    assert used - explained == {"version", "scope"}
