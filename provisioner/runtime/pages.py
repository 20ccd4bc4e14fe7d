"""What a product serves without knowing HTTP: answers, pages, files of a package."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources

#: Nothing but what is served here; not even a frame of somebody else's around it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The answer to one request."""

    body: bytes
    media_type: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A path, and what it answers, whatever the query; called in a thread, one page at a time."""

    path: str
    make: Callable[[], Content]


def text(words: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Content:
    """Return an answer in words."""
    return Content(body=words.encode(), media_type="text/plain; charset=utf-8", status=status, headers=headers or {})


def file_pages(package: str) -> tuple[Page, ...]:
    """Return the status page of a package: the files of its folder "page", as they are, index.html at the root."""
    folder = resources.files(package) / "page"
    pages = []
    for file in folder.iterdir():
        if media_type := _MEDIA_TYPES.get(file.name.rpartition(".")[2]):
            make = functools.partial(_content, file.read_bytes(), f"{media_type}; charset=utf-8")
            pages.append(Page(path="/" if file.name == "index.html" else f"/page/{file.name}", make=make))
    return tuple(pages)


def _content(body: bytes, media_type: str) -> Content:
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
