"""Sphinx' configuration of the documentation's site: `make site`.

The pages are plain Markdown that is read on GitHub too, so they hold no directives: the navigation is made from the
lists of docs/README.md and of the README.md of each folder below it, and links to files that are no pages become
downloads. The source folder is the repository.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

project = "tpu-provisioner"
root_doc = "docs/README"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
include_patterns = ["*.md", "docs/**.md", "deploy/charts/*/README.md"]
# Not only left out, but not even walked through.
exclude_patterns = [".*", "build", "dist", "benchmarks", "provisioner", "requirements", "tests"]
#: Anchors of all headings, made as GitHub makes them.
myst_heading_anchors = 6
highlight_language = "none"
# Colours are no reason to fail; and only the builder that writes pages would notice.
suppress_warnings = ["misc.highlighting_failure"]
# What people copy must have plain quotes.
smartquotes = False

html_theme = "furo"
html_title = "tpu-provisioner"
html_copy_source = False
html_show_sphinx = False
#: No address outside of the site: it is read without internet too.
html_theme_options = {"footer_icons": []}

_SECTION = re.compile(r"(?m)^## (?P<title>.+)$(?P<body>(?:\n(?!## ).*)*)")
_PAGE = re.compile(r"(?m)^- \[(?P<title>[^]]+)\]\((?P<path>[^)#]+)\.md\)")


def navigation(text: str) -> str:
    """Return one table of contents for each section of a page, of the pages that the items of its lists begin with."""
    tables = []
    for section in _SECTION.finditer(text):
        pages = [f"{page['title']} <{page['path']}>" for page in _PAGE.finditer(section["body"])]
        if pages:
            entries = "\n".join(pages)
            tables.append(f"\n```{{toctree}}\n:hidden:\n:caption: {section['title']}\n\n{entries}\n```\n")
    return "".join(tables)


def _add_navigation(_app: Sphinx, name: str, source: list[str]) -> None:
    # The front page, and the front pages of folders.
    if name.startswith("docs/") and name.endswith("/README"):
        source[0] += navigation(source[0])


def _write_entrance(app: Sphinx, problem: Exception | None) -> None:
    """Send whoever opens the site to its front page."""
    if problem is None:
        target = f"{root_doc}.html"
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a href="{target}">{project}</a>\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _add_navigation)
    app.connect("build-finished", _write_entrance)
