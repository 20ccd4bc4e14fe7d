"""The pages for contributors name places that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SLICES = _ROOT / "provisioner" / "slices"
_PATH = re.compile(r"`((?:[a-z_]+/)+[\w.-]*)`")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_path_of_a_page_is_there(page: str) -> None:
    """Whole, within the package, or within the product."""
    named = set(_PATH.findall((_ROOT / page).read_text(encoding="utf-8")))
    assert len(named) > 10
    assert [
        each for each in named if not any((top / each).exists() for top in (_ROOT, _ROOT / "provisioner", _SLICES))
    ] == []


@pytest.mark.parametrize(
    ("head", "first"), [("to add", "a kind of workloads"), ("to change", "what Google sells")], ids=["add", "change"]
)
def test_a_row_names_files_beside_its_first_that_are_there(head: str, first: str) -> None:
    """As `effective.py` beside a file that is named in full, or in a folder that is."""
    text = (_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition(f"| {head} |")[2].partition("\n\n")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ")]
    assert rows[0].startswith(f"| {first} ")
    for row in rows:
        folders = {Path(each) for each in _PATH.findall(row)}
        folders |= {each.parent for each in folders}
        for name in re.findall(r"`([\w-]+\.\w+)`", row):
            assert any((_ROOT / folder / name).exists() for folder in folders), f"{name} in: {row}"
