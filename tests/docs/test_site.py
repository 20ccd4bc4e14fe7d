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


@pytest.mark.timeout(60)  # Starts Sphinx, which takes three seconds on a machine that does nothing else.
def test_the_pages_make_a_site(tmp_path: Path) -> None:
    """Each link and anchor leads somewhere, and the navigation to each page. As `make site`, but nothing is drawn."""
    made = _build(_ROOT, tmp_path, "dummy")

    assert made.stderr == ""
    assert made.returncode == 0
    cached = {page.relative_to(tmp_path / "cache").as_posix() for page in (tmp_path / "cache").rglob("*.doctree")}
    assert cached == {page.relative_to(_ROOT).with_suffix(".doctree").as_posix() for page in _PAGES}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Make a site of two good pages, one that is broken, and one that nothing leads to; return it and the warnings."""
    path = tmp_path_factory.mktemp("small")
    docs = path / "source" / "docs"
    docs.mkdir(parents=True)
    shutil.copy(_ROOT / "docs" / "conf.py", docs)
    pages = {
        "README.md": "# Front\n\n## A part\n\n- [One](one.md): a page\n- [Two](two.md): another\n",
        "one.md": "# One\n\n[a](README.md#a-part) [b](settings.env)\n",
        "two.md": "# Two\n\n[a](nowhere.md) [b](README.md#nothing) [c](../no.yaml) [d](#none) [e](../no)\n",
        "lost.md": "# Lost\n",
        "settings.env": "A=1\n",
    }
    for name, text in pages.items():
        (docs / name).write_text(text, encoding="utf-8")
    made = _build(path / "source", path, "html")
    assert made.returncode != 0
    warnings = [line.partition("WARNING: ")[2] for line in made.stderr.splitlines() if "WARNING: " in line]
    return path / "site", warnings


@pytest.mark.timeout(60)  # Starts Sphinx.
def test_what_is_broken_is_found(small: tuple[Path, list[str]]) -> None:
    """A page, an anchor, a file and a folder that are not there, and a page that nothing leads to."""
    _, found = small
    assert len(found) == 6
    for words in ("nowhere.md", "'nothing'", "../no.yaml", "'none'", "'../no'", "isn't included in any toctree"):
        assert any(words in line for line in found), words


@pytest.mark.timeout(60)  # Starts Sphinx.
def test_a_site_needs_nothing_from_elsewhere(small: tuple[Path, list[str]]) -> None:
    """It is read without internet; the page that is opened first leads to the front page; files become downloads."""
    site, _ = small
    assert "url=docs/README.html" in (site / "index.html").read_text("utf-8")
    assert 'href="two.html"' in (site / "docs" / "README.html").read_text("utf-8")
    assert [path.read_text("utf-8") for path in site.rglob("settings.env")] == ["A=1\n"]
    text = "\n".join(page.read_text("utf-8") for kind in ("*.html", "*.css") for page in site.rglob(kind))
    fetched = re.compile(
        r"<(?:script|img|iframe)[^>]*\bsrc=\"?https?:|<link[^>]*\bhref=\"?https?:|@import|url\(['\"]?http"
    )
    assert fetched.findall(text) == []


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
