"""The status page: HTML, script and style as they are, without a build step."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources

from provisioner.runtime.pages import Content, Page

#: Nothing but what is served here; not even a frame of somebody else's around it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SCRIPTS = (
    "activity", "app", "board", "capacity", "dom", "query", "states", "store", "stream", "theme", "timeline", "times"
)  # fmt: skip
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/style.css": ("style.css", "text/css; charset=utf-8"),
    **{f"/page/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in _SCRIPTS},
}


def pages() -> tuple[Page, ...]:
    """Return the files of the page."""
    return tuple(
        Page(path=path, make=lambda name=name, media_type=media_type: _content(name, media_type))  # type: ignore[misc]
        for path, (name, media_type) in _FILES.items()
    )


@functools.cache
def _content(name: str, media_type: str) -> Content:
    body = resources.files(__name__).joinpath(name).read_bytes()
    headers = {
        # A browser asks each time: a new release is seen at once.
        "Cache-Control": "no-cache",
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # The same, compressed or not.
        "ETag": f'W/"{hashlib.sha256(body).hexdigest()[:16]}"',
    }
    return Content(body=body, media_type=media_type, headers=headers)
