"""Tests that docs/metrics.md explains the exported metrics, and that pages name only existing metrics."""

from __future__ import annotations

import re
from pathlib import Path

from provisioner.nodegroups.metrics import Metrics as NodeGroupMetrics
from provisioner.partitions.metrics import Metrics as PartitionMetrics
from provisioner.slices.metrics import Metrics
from provisioner.webhook.app import Metrics as WebhookMetrics
from tests.docs.shell import PAGES
from tests.support.metrics_table import described

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "metrics.md"
_ALL = (Metrics, NodeGroupMetrics, PartitionMetrics)


def test_every_label_is_explained() -> None:
    explained = set(re.findall(r"^\| `(\w+)` \| (?!counter|gauge|histogram)", _PAGE.read_text("utf-8"), re.MULTILINE))
    used = {label for of in _ALL for metric in described(of(version="test").registry) for label in metric.labels}
    assert used - explained == {"version"}


def test_every_metric_on_a_page_exists() -> None:
    """Pages may name a metric with an ending such as _total, which the exposition format adds."""
    there = {family.name for of in (*_ALL, WebhookMetrics) for family in of(version="test").registry.collect()}
    there |= {f"{name}_{end}" for name in there for end in ("total", "bucket", "count", "sum")}
    pages = [page.read_text("utf-8") for page in PAGES if page.name != "CHANGELOG.md"]
    named = {name for text in pages for name in re.findall(r"`(tpu_provisioner_[a-z_]+[a-z])[`{]", text)}
    assert len(named) > 20
    assert named - there == set()
