"""Sphinx configuration of the documentation's site: `make site`.

The pages are plain Markdown that is also read on GitHub, so they contain no directives. The navigation is generated
from the lists in docs/README.md and in the README.md of each folder below it. Links to files that are no pages become
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
include_patterns = ["*.md", "docs/**.md", "deploy/charts/*/README.md", "examples/README.md"]
# Sphinx does not enter these folders.
exclude_patterns = [".*", "build", "dist", "benchmarks", "provisioner", "requirements", "tests"]
#: Anchors of all headings, as GitHub creates them.
myst_heading_anchors = 6
highlight_language = "none"
# Wrong colours are not worth a failure, and only the builder of the pages would notice them.
suppress_warnings = ["misc.highlighting_failure"]
# Text that users copy must have plain quotes.
smartquotes = False

html_theme = "furo"
html_title = "tpu-provisioner"
html_copy_source = False
html_show_sphinx = False
#: No address outside of the site, because it is also read without internet access.
html_theme_options = {"footer_icons": []}

_SECTION = re.compile(r"(?m)^## (?P<title>.+)$(?P<body>(?:\n(?!## ).*)*)")
_PAGE = re.compile(r"(?m)^- \[(?P<title>[^]]+)\]\((?P<path>[^)#]+)\.md\)")


def navigation(text: str) -> str:
    """Return a table of contents for each section of a page, with the pages that begin the items of its lists."""
    tables = []
    for section in _SECTION.finditer(text):
        pages = [f"{page['title']} <{page['path']}>" for page in _PAGE.finditer(section["body"])]
        if pages:
            entries = "\n".join(pages)
            tables.append(f"\n```{{toctree}}\n:hidden:\n:caption: {section['title']}\n\n{entries}\n```\n")
    return "".join(tables)


def _add_navigation(_app: Sphinx, name: str, source: list[str]) -> None:
    # The front pages of docs and of its folders.
    if name.startswith("docs/") and name.endswith("/README"):
        source[0] += navigation(source[0])


def _write_entrance(app: Sphinx, problem: Exception | None) -> None:
    """Redirect visitors of the site to its front page."""
    if problem is None:
        target = f"{root_doc}.html"
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a href="{target}">{project}</a>\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connect the hooks; called by Sphinx."""
    app.connect("source-read", _add_navigation)
    app.connect("build-finished", _write_entrance)
