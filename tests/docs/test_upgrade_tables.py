"""The tables of docs/upgrade.md name reasons of Events and metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

from provisioner import constants
from provisioner.observability.metrics import Metrics

_PAGE = (Path(__file__).parents[2] / "docs" / "upgrade.md").read_text(encoding="utf-8")
_TABLES = _PAGE.partition("### What is called differently")[2].partition("### Over")[0]


def test_reasons_of_events_are_those_of_the_code() -> None:
    """Whoever renames or adds one says so."""
    named = set(re.findall(r"`([A-Z][a-z]+[A-Za-z]*[a-z])`", _TABLES))
    reasons = {
        value
        for name, value in vars(constants).items()
        if name.isupper() and isinstance(value, str) and re.fullmatch(r"([A-Z]+[a-z]+){2,}[A-Za-z]*", value)
    }
    assert named & reasons == reasons
    assert {name for name in named if name.startswith(("NodePool", "Slice"))} <= reasons


def test_metrics_are_those_of_the_code() -> None:
    """With the endings that Prometheus adds."""
    named = set(re.findall(r"`((?:tpu_provisioner|process)_[a-z_]+[a-z])", _TABLES))
    families = list(Metrics(version="1").registry.collect())
    there = {family.name for family in families} | {family.name + "_total" for family in families}
    assert named
    assert {name.removesuffix("_count") for name in named} <= there
