"""Tests that the site builds without warnings, that links and navigation are complete, and that tables are whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.docs.shell import PAGES, ROOT

_BUILD = (sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-c")
_MARKDOWN = MarkdownIt("commonmark").enable("table")


def test_table_row_is_indented_like_its_table() -> None:
    """Otherwise the row ends the table and is shown as text."""
    found = [
        f"{page.relative_to(ROOT)}:{token.map[0] + 1}: {token.content}"
        for page in PAGES
        for token in _MARKDOWN.parse(page.read_text("utf-8"))
        if token.type == "inline" and token.map and re.search(r"(?m)^\|", token.content)
    ]
    assert found == []


@pytest.mark.timeout(60)  # Starts Sphinx, which takes three seconds on a machine that does nothing else.
def test_pages_are_a_valid_site(tmp_path: Path) -> None:
    """Sphinx checks links, anchors and navigation as in `make site`, but writes no pages."""
    cache = tmp_path / "cache"
    made = subprocess.run(
        [*_BUILD, str(ROOT / "docs"), "-b", "dummy", "-d", str(cache), str(ROOT), str(tmp_path / "site")],
        check=False,
        capture_output=True,
        text=True,
    )

    # Sphinx writes warnings to standard error.
    assert made.stderr == ""
    assert made.returncode == 0
    cached = {page.relative_to(cache).as_posix() for page in cache.rglob("*.doctree")}
    assert cached == {page.relative_to(ROOT).with_suffix(".doctree").as_posix() for page in PAGES}
