"""Tests that the bounds in docs/security.md are those of bounds.py."""

from __future__ import annotations

import re
from pathlib import Path

from provisioner.model import bounds

_ROOT = Path(__file__).parents[2]
#: Numbers in the table that are measured or typical sizes, not bounds.
_NO_BOUNDS = {3_000, 500_000}


def test_numbers_of_the_page_are_bounds() -> None:
    text = (_ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    table = text.partition("## Bounds on what users write")[2].partition("**The webhook server**")[0]
    rows = re.findall(r"(?m)^\| (?!objects|---).*$", table)
    numbers = {int(number.replace(",", "")) for row in rows for number in re.findall(r"\b\d[\d,]*\b", row)}
    known = {value for name, value in vars(bounds).items() if name.isupper()}
    assert len(numbers) > 15
    assert numbers - known - _NO_BOUNDS == set()
