"""The status page: HTML, script and style as they are, without a build step."""

from __future__ import annotations

from provisioner.runtime.pages import Page, file_pages

_SCRIPTS = (
    "activity", "app", "board", "capacity", "detail", "dom", "poll", "query", "states", "store", "theme", "timeline",
    "times",
)  # fmt: skip
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/style.css": ("style.css", "text/css; charset=utf-8"),
    **{f"/page/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in _SCRIPTS},
}


def pages() -> tuple[Page, ...]:
    """Return the files of the page."""
    return file_pages(__name__, _FILES)
