"""The documentation's site is built without a complaint: each link and anchor leads somewhere, each page is found."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from markdown_it import MarkdownIt

_ROOT = Path(__file__).parents[2]
#: As `make site` does.
_BUILD = (sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-c")
_PAGES = sorted([*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md"), *(_ROOT / "deploy" / "charts").rglob("*.md")])
_MARKDOWN = MarkdownIt("commonmark").enable("table")


def _build(source: Path, target: Path, builder: str) -> subprocess.CompletedProcess[str]:
    # Warnings of Sphinx go to its standard error.
    return subprocess.run(
        [*_BUILD, str(source / "docs"), "-b", builder, "-d", str(target / "cache"), str(source), str(target / "site")],
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.timeout(120)  # Starts Sphinx, which takes four seconds on a machine that does nothing else.
def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    """No broken link, no page that the navigation lacks; and nothing is fetched from elsewhere by who reads it."""
    made = _build(_ROOT, tmp_path, "html")

    assert made.stderr == ""
    assert made.returncode == 0
    site = tmp_path / "site"
    assert (site / "index.html").is_file()
    names = {page.relative_to(_ROOT).with_suffix(".html").as_posix() for page in _PAGES}
    assert {name for name in names if not (site / name).is_file()} == set()
    fetched = re.compile(
        r"<(?:script|img|iframe)[^>]*\bsrc=\"?https?:|<link[^>]*\bhref=\"?https?:|@import|url\(['\"]?http"
    )
    text = "\n".join(page.read_text("utf-8") for kind in ("*.html", "*.css") for page in site.rglob(kind))
    assert fetched.findall(text) == []


@pytest.mark.timeout(60)  # Starts Sphinx.
def test_what_is_broken_is_found(tmp_path: Path) -> None:
    """A page, an anchor, a file and a folder that are not there, and a page that nothing leads to."""
    docs = tmp_path / "source" / "docs"
    docs.mkdir(parents=True)
    shutil.copy(_ROOT / "docs" / "conf.py", docs)
    (docs / "README.md").write_text("# Front\n\n## A part\n\n- [One](one.md): a page\n", encoding="utf-8")
    (docs / "one.md").write_text(
        "# One\n\n[a](README.md#a-part) [b](nowhere.md) [c](README.md#nothing) [d](../no.yaml) [e](#none) [f](../no)\n",
        encoding="utf-8",
    )
    (docs / "lost.md").write_text("# Lost\n", encoding="utf-8")

    made = _build(tmp_path / "source", tmp_path, "dummy")

    assert made.returncode != 0
    found = [line.partition("WARNING: ")[2] for line in made.stderr.splitlines() if "WARNING: " in line]
    assert len(found) == 6
    for words in ("nowhere.md", "'nothing'", "../no.yaml", "'none'", "'../no'", "isn't included in any toctree"):
        assert any(words in line for line in found), words


def _external_links() -> list[tuple[str, str]]:
    links = []
    for page in _PAGES:
        for token in _MARKDOWN.parse(page.read_text("utf-8")):
            hrefs = (child.attrGet("href") for child in token.children or () if child.type == "link_open")
            links += [(page.name, str(href)) for href in hrefs if href and re.match(r"[a-z]+:", str(href))]
    return links


def test_links_to_elsewhere_are_well_formed() -> None:
    """There is no internet here to follow them; so at least they are addresses."""
    links = _external_links()
    assert links
    for page, link in links:
        parts = urlsplit(link)
        assert parts.scheme == "https", (page, link)
        assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", parts.netloc), (page, link)
        assert not re.search(r"[\s<>]|%20|[.,;)]$", link), (page, link)
