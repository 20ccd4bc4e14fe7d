"""The status page of partitions: HTML, script and style as they are, without a build step."""

from __future__ import annotations

from provisioner.runtime.pages import Page, file_pages

_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/style.css": ("style.css", "text/css; charset=utf-8"),
    "/page/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


def pages() -> tuple[Page, ...]:
    """Return the files of the page."""
    return file_pages(__name__, _FILES)
