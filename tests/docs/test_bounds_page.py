"""docs/security.md contains every limit in bounds.py."""

from __future__ import annotations

from pathlib import Path

from provisioner.kube.protocol import ANSWER_BYTES, PAGE_BYTES
from provisioner.model import bounds


def test_page_has_each_limit() -> None:
    """If a limit is changed, the page must be changed also."""
    text = Path("docs/security.md").read_text(encoding="utf-8")
    section = text.partition("## Bounds on what users write")[2].partition("\n## ")[0]
    numbers = [value for name, value in vars(bounds).items() if name.isupper()]
    assert len(numbers) > 15
    missing = [f"{number:,}" for number in numbers if f" {number:,}" not in section]
    assert missing == []
    assert f"{PAGE_BYTES // 2**20} MiB" in section
    assert f"{ANSWER_BYTES // 2**20} MiB" in section
