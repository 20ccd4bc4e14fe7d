"""Errors of calls and of operations, in the formats of Compute Engine.

A rejected call is an `ApiError`: HTTP status, and `error.errors[]` with a reason. A later error, of an operation or of
the attempt to create a VM, is a `Failure`: a code in capitals. Reasons and texts are those of public reports:
alreadyExists (409), notFound (404), invalid and required (400), forbidden (403), resourceNotReady and
resourceInUseByAnotherResource (400, terraform-provider-google 6277, terraform-google-vm 45), conditionNotMet (412, for
fingerprints by the reference of Metadata).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from rehearsal.simulators.http import google
from rehearsal.simulators.http.exchange import RefusalError

_REASONS = {
    400: "badRequest",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "conflict",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    501: "notImplemented",
}


@dataclass(eq=False)
class ApiError(RefusalError):
    """An error response."""

    http_code: int
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.http_code} {self.reason}: {self.message}"

    @property
    def code(self) -> int:
        """The HTTP status."""
        return self.http_code

    def body(self, *, request_id: str) -> dict[str, Any]:  # noqa: ARG002 - not in Compute Engine's errors
        """Return the JSON body."""
        return google.error_body(self.http_code, self.message, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Error of an operation, or of the attempt to create a VM."""

    code: str
    message: str
    http_code: int = 400
    details: tuple[Mapping[str, Any], ...] = ()

    def entry(self) -> dict[str, Any]:
        """Return the failure as an item of `errors`."""
        entry: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.details:
            entry["errorDetails"] = [dict(item) for item in self.details]
        return entry

    @property
    def http_message(self) -> str:
        """Text of the HTTP status."""
        try:
            return HTTPStatus(self.http_code).phrase.upper()
        except ValueError:
            return "ERROR"


def of_http_code(code: int, message: str) -> ApiError:
    """Return the usual error for an HTTP status."""
    return ApiError(code, _REASONS.get(code, "backendError"), message)


def not_found(path: str) -> ApiError:
    """Return the error for a resource that does not exist."""
    return ApiError(404, "notFound", f"The resource '{path}' was not found")


def not_ready(path: str) -> ApiError:
    """Return the error for the use of a resource that is being created or deleted."""
    return ApiError(400, "resourceNotReady", f"The resource '{path}' is not ready")


def invalid(name: str, value: object, rule: str) -> ApiError:
    """Return the error for an invalid value of a field with a name such as resource.targetSize."""
    return ApiError(400, "invalid", f"Invalid value for field '{name}': '{value}'. {rule}")


def required(name: str) -> ApiError:
    """Return the error for a request without a required field."""
    return ApiError(400, "required", f"Required field '{name}' not specified")


def malformed(message: str) -> ApiError:
    """Return the error for a body that is not a valid request."""
    return ApiError(400, "badRequest", message)


def not_played(what: str) -> ApiError:
    """Return the error for a feature of Compute Engine that the simulator lacks."""
    return ApiError(501, "notImplemented", f"The simulator does not play {what}.")


def condition_not_met(message: str) -> ApiError:
    """Return the error for an outdated fingerprint."""
    return ApiError(412, "conditionNotMet", message)
