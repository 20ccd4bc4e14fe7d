"""Common parts of the simulated Google services: names, numbers, errors, settings."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rehearsal.simulators.http.settings import BaseSettings

COMPUTE_API = "https://www.googleapis.com/compute/v1"
NAME_PATTERN = "(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
RESERVATION_KEY = "compute.googleapis.com/reservation-name"
NOT_READY_TEXT = "The operation requires reservation to be in READY state"
#: google.rpc.Code by name: its number, its HTTP status, and the legacy `reason` that Google puts into `errors`. If
#: several codes have the same HTTP status, the first is the usual one.
STATUSES = {
    "INVALID_ARGUMENT": (3, 400, "badRequest"),
    "FAILED_PRECONDITION": (9, 400, "failedPrecondition"),
    "OUT_OF_RANGE": (11, 400, "outOfRange"),
    "UNAUTHENTICATED": (16, 401, "authError"),
    "PERMISSION_DENIED": (7, 403, "forbidden"),
    "NOT_FOUND": (5, 404, "notFound"),
    "ALREADY_EXISTS": (6, 409, "alreadyExists"),
    "ABORTED": (10, 409, "aborted"),
    "RESOURCE_EXHAUSTED": (8, 429, "rateLimitExceeded"),
    "CANCELLED": (1, 499, "cancelled"),
    "INTERNAL": (13, 500, "backendError"),
    "UNKNOWN": (2, 500, "backendError"),
    "UNIMPLEMENTED": (12, 501, "notImplemented"),
    "UNAVAILABLE": (14, 503, "backendError"),
    "DEADLINE_EXCEEDED": (4, 504, "backendError"),
}
_OF_HTTP = {http: status for status, (_, http, _) in reversed(STATUSES.items())} | {412: "FAILED_PRECONDITION"}
_NAME = re.compile(NAME_PATTERN)
_ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z][a-z0-9]*")
_RUN_SECONDS = (30, 120 * 24 * 3600)
_FLEX_RUN_SECONDS = (600, 7 * 24 * 3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleSettings(BaseSettings):
    """Settings that all simulated Google services have."""

    #: The only project that is served; None if all are.
    project: str | None = None
    #: Seconds for which an operation is PENDING before it is RUNNING.
    pending_seconds: float = 0.0
    #: Unusable service accounts: "forbidden" (the caller may not act as the account) or "missing".
    service_accounts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: IAM permissions that clients lack for all resources: calls that need them are rejected.
    denied_permissions: Collection[str] = ()

    def problems(self) -> list[str]:
        """Return the mistakes in the settings."""
        return [
            f"service_accounts: {account!r} has {state!r}, which is neither forbidden nor missing"
            for account, state in self.service_accounts.items()
            if state not in ("forbidden", "missing")
        ]


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a resource."""
    return _NAME.fullmatch(text) is not None


def is_zone(text: str) -> bool:
    """Return whether a text is a zone (us-east5-a, us-central1-ai1a) and not a region (us-east5)."""
    return _ZONE.fullmatch(text) is not None


def project_number(project: str) -> str:
    """Return the twelve-digit number of a project, which depends only on its name."""
    return str(100_000_000_000 + zlib.crc32(project.encode()) * 181 % 900_000_000_000)


def numbered(path: str, project: str) -> str:
    """Return a path with the project's number instead of its name."""
    return path.replace(f"projects/{project}/", f"projects/{project_number(project)}/", 1)


def default_account(project: str) -> str:
    """Return Compute Engine's default service account of a project."""
    return f"{project_number(project)}-compute@developer.gserviceaccount.com"


def number_of(text: str) -> int:
    """Return a nineteen-digit number that depends only on a text, for use as the ID of a resource."""
    return 10**18 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def run_seconds(*, flex_start: bool) -> tuple[int, int]:
    """Return the minimum and the maximum run duration in seconds that may be requested for VMs."""
    return _FLEX_RUN_SECONDS if flex_start else _RUN_SECONDS


def full_reservation_text(name: str) -> str:
    """Return the error message for a reservation that is used up."""
    return f"Specified reservation '{name}' does not have available resources for the request."


def canonical(status: str) -> tuple[int, int, str]:
    """Return code, HTTP status and reason of a canonical status, or those of UNKNOWN if the status does not exist."""
    return STATUSES.get(status, STATUSES["UNKNOWN"])


def status_of_http(code: int) -> str:
    """Return the canonical status for an HTTP status."""
    return _OF_HTTP.get(code, "UNKNOWN")


def error_body(code: int, message: str, reason: str, **more: Any) -> dict[str, Any]:
    """Return the JSON body of an error; `more` are further fields, such as `status` and `details`."""
    entry = {"message": message, "domain": "global", "reason": reason}
    return {"error": {"code": code, "message": message, "errors": [entry], **more}}
