"""Files of a package as pages: what a product shows people in a browser, without a build step."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from importlib import resources

from provisioner.runtime.pages import Content, Page

#: Nothing but what is served here; not even a frame of somebody else's around it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def file_pages(package: str, files: Mapping[str, tuple[str, str]]) -> tuple[Page, ...]:
    """Return pages: by path, the name of a file in the package, and its media type."""
    return tuple(
        Page(path=path, make=functools.partial(_content, package, name, media_type))
        for path, (name, media_type) in files.items()
    )


@functools.cache
def _content(package: str, name: str, media_type: str) -> Content:
    body = resources.files(package).joinpath(name).read_bytes()
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
