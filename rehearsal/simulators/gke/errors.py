"""Errors in the format of Google's REST APIs.

The messages of particular errors are in the modules that raise them (validation, model).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rehearsal.simulators.http import google
from rehearsal.simulators.http.exchange import RefusalError

REQUEST_INFO = "type.googleapis.com/google.rpc.RequestInfo"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldViolation:
    """An invalid field of a request."""

    path: str
    description: str


@dataclass(eq=False)
class ApiError(RefusalError):
    """An error response: its canonical status and Google's message."""

    status: str
    message: str
    violations: tuple[FieldViolation, ...] = field(default=(), kw_only=True)
    http_code: int | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"

    @property
    def code(self) -> int:
        """The HTTP status."""
        return self.http_code or google.STATUSES[self.status][1]

    def body(self, *, request_id: str) -> dict[str, Any]:
        """Return the JSON body."""
        details: list[dict[str, Any]] = []
        if self.violations:
            fields = [{"field": item.path, "description": item.description} for item in self.violations]
            details.append({"@type": BAD_REQUEST, "fieldViolations": fields})
        details.append({"@type": REQUEST_INFO, "requestId": request_id})
        reason = "conditionNotMet" if self.code == 412 else google.canonical(self.status)[2]
        return google.error_body(self.code, self.message, reason, status=self.status, details=details)


def of_http_code(code: int, message: str, *, status: str | None = None) -> ApiError:
    """Return the usual error for an HTTP status."""
    return ApiError(status or google.status_of_http(code), message, http_code=code)
