"""A request, the call that it means, and a refusal; whatever the service."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An API request: method and path, its query, its headers in lower case, its body."""

    http_method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A matched call: its name, and the parts of its path."""

    method: str
    parts: Mapping[str, str]


class RefusalError(Exception):
    """A request that is answered with an error, in the form of the service."""

    @property
    @abstractmethod
    def code(self) -> int:
        """The HTTP status."""

    @abstractmethod
    def body(self, *, request_id: str) -> dict[str, Any]:
        """Return the JSON body; `request_id` is what the server calls the request, unique and meaningless."""
