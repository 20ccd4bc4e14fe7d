"""Tests that the comparison in docs/upgrade.md names only existing reasons of Events."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.vocabulary import reasons_of_slices

_PAGE = (Path(__file__).parents[2] / "docs" / "upgrade.md").read_text(encoding="utf-8")
_COMPARISON = _PAGE.partition("### What is different")[2]


def test_named_reasons_of_events_exist() -> None:
    named = set(re.findall(r"`((?:NodePool|Slice)[A-Z][A-Za-z]+)`", _COMPARISON))
    assert len(named) >= 3
    assert named <= reasons_of_slices()
