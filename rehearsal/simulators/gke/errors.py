"""Refusals in the form that Google's REST APIs give them.

One exception, `ApiError`, carries what a body needs; `body_of` renders it. Texts of particular refusals live where they
are decided (validation, model), not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rehearsal.simulators.http.exchange import RefusalError

REQUEST_INFO = "type.googleapis.com/google.rpc.RequestInfo"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"

# HTTP status by canonical status, and the legacy `reason` that Google puts into `errors`.
_HTTP = {
    "INVALID_ARGUMENT": (400, "badRequest"),
    "FAILED_PRECONDITION": (400, "failedPrecondition"),
    "OUT_OF_RANGE": (400, "outOfRange"),
    "UNAUTHENTICATED": (401, "authError"),
    "PERMISSION_DENIED": (403, "forbidden"),
    "NOT_FOUND": (404, "notFound"),
    "ALREADY_EXISTS": (409, "alreadyExists"),
    "ABORTED": (409, "aborted"),
    "RESOURCE_EXHAUSTED": (429, "rateLimitExceeded"),
    "CANCELLED": (499, "cancelled"),
    "INTERNAL": (500, "backendError"),
    "UNKNOWN": (500, "backendError"),
    "UNIMPLEMENTED": (501, "notImplemented"),
    "UNAVAILABLE": (503, "backendError"),
    "DEADLINE_EXCEEDED": (504, "backendError"),
}
_STATUS_OF_HTTP = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}

# google.rpc.Code by name, as operations and conditions use it.
RPC_CODES = {
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}


class ClusterError(Exception):
    """The Kubernetes cluster that should get the Nodes can't be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldViolation:
    """One field that a request got wrong."""

    path: str
    description: str


@dataclass(eq=False)
class ApiError(RefusalError):
    """A refusal: its canonical status and Google's text."""

    status: str
    message: str
    violations: tuple[FieldViolation, ...] = field(default=(), kw_only=True)
    http_code: int | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"

    @property
    def code(self) -> int:
        """The HTTP status."""
        return self.http_code or _HTTP[self.status][0]

    def body(self, *, request_id: str) -> dict[str, Any]:
        """Return the JSON body."""
        return body_of(self, request_id=request_id)


def of_http_code(code: int, message: str, *, status: str | None = None) -> ApiError:
    """Return the refusal that goes with an HTTP status."""
    return ApiError(status or _STATUS_OF_HTTP.get(code, "UNKNOWN"), message, http_code=code)


def body_of(error: ApiError, *, request_id: str) -> dict[str, Any]:
    """Return the JSON body of a refusal."""
    details: list[dict[str, Any]] = []
    if error.violations:
        details.append(
            {
                "@type": BAD_REQUEST,
                "fieldViolations": [{"field": item.path, "description": item.description} for item in error.violations],
            }
        )
    details.append({"@type": REQUEST_INFO, "requestId": request_id})
    reason = "conditionNotMet" if error.code == 412 else _HTTP.get(error.status, (0, "backendError"))[1]
    return {
        "error": {
            "code": error.code,
            "message": error.message,
            "errors": [{"message": error.message, "domain": "global", "reason": reason}],
            "status": error.status,
            "details": details,
        }
    }
