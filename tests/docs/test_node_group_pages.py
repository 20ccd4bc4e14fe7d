"""Tests that the reasons and limits on the pages on node groups are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from provisioner.model import bounds
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.shape import MACHINE_TYPE_PREFIXES
from provisioner.nodegroups.api.statuses import Reason
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.planning import memory

_ROOT = Path(__file__).parents[2]
_PAGE, _TROUBLESHOOTING = (
    (_ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("node-groups/README", "node-groups/troubleshooting")
)
_SECTION = _TROUBLESHOOTING.partition("## A TPUNodeGroup is not Ready")[2].partition("\n## ")[0]


def test_every_reason_has_an_entry_in_troubleshooting() -> None:
    told = set(re.findall(r"`([A-Z][A-Za-z]+)`", "".join(re.findall(r"(?m)^\| ([^|]+) \|", _SECTION))))
    assert {reason.value for reason in Reason} <= told
    assert told - {reason.value for reason in Reason} - {"InstanceTemplateReady"} == set()


def test_limits_on_the_page_are_those_of_the_code() -> None:
    assert f"| name of a group | {names.NAME_BUDGET} characters" in _PAGE
    assert f"| machines of a group | {bounds.GROUP_NODES:,}" in _PAGE
    (row,) = re.findall(r"(?m)^\| machine types \| (.+) \|$", _PAGE)
    assert set(re.findall(r"`([a-z0-9]+-)`", row)) == set(MACHINE_TYPE_PREFIXES)
    assert f"valid for {tokens.LIFE.total_seconds() / 60:.0f} minutes" in _PAGE
    longest = max(longest for _, longest in memory.DELAYS.values())
    assert f"pauses of at most {longest / 60:.0f} minutes" in _PAGE
