"""Requests, routes, errors and the log of answered calls of all simulated services."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An API request; names of headers are in lower case."""

    http_method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A recognized call: its name, and the variable parts of its path."""

    method: str
    parts: Mapping[str, str]


class RefusalError(Exception):
    """The service rejects a request with an error in its own format."""

    @property
    @abstractmethod
    def code(self) -> int:
        """The HTTP status."""

    @abstractmethod
    def body(self, *, request_id: str) -> dict[str, Any]:
        """Return the JSON body; `request_id` is a unique random ID of the request, as servers include it in errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call. Status 0 means that the connection was dropped instead of a response."""

    when: datetime
    method: str
    http_method: str
    path: str
    status: int
    latency_seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return the call as JSON values."""
        return {
            "time": f"{self.when:%Y-%m-%dT%H:%M:%S.%f}000Z",
            "method": self.method,
            "httpMethod": self.http_method,
            "path": self.path,
            "status": self.status,
            "latencySeconds": round(self.latency_seconds, 6),
        }


class CallLog:
    """Keeps the newest calls. Thread-safe."""

    def __init__(self, *, kept: int) -> None:
        self._lock = threading.Lock()
        self._calls: deque[Call] = deque(maxlen=kept)
        self._counts: Counter[tuple[str, int]] = Counter()

    def add(self, call: Call) -> None:
        """Add a call."""
        with self._lock:
            self._calls.append(call)
            self._counts[call.method, call.status] += 1

    def all(self) -> tuple[Call, ...]:
        """Return the calls in the log, oldest first."""
        with self._lock:
            return tuple(self._calls)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of calls by method and HTTP status."""
        with self._lock:
            counts: dict[str, dict[str, int]] = {}
            for (method, status), number in sorted(self._counts.items()):
                counts.setdefault(method, {})[str(status)] = number
            return counts

    def reset(self) -> None:
        """Clear calls and counts."""
        with self._lock:
            self._calls.clear()
            self._counts.clear()
