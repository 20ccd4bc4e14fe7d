"""Pages that an HTTP server adds to its own: what a product serves, without knowing HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


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
    #: So many requests are served at once; more are answered 503.
    at_once: int = 8
