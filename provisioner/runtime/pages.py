"""Pages and streams that an HTTP server adds to its own: what a product serves, without knowing HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


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


class Feed(Protocol):
    """What one client of a stream is sent."""

    def pending(self) -> bool:
        """Whether there may be something to send; called often, by the event loop: must not block."""

    def read(self) -> Sequence[bytes]:
        """Return what is to be sent, as server-sent events in parts; empty for nothing. Called in a thread.

        Parts that several clients are sent are best the same objects: they are kept until the slowest client has them.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A path that answers with server-sent events until the client goes."""

    path: str
    open: Callable[[], Feed]
    #: So many clients at once; more are answered 503 and may poll.
    at_once: int = 16
