"""Records of a simulated V-IPU server, and its errors.

Errors have gRPC's codes. Their messages are invented, because no document shows the real messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from rehearsal.simulators.http.exchange import RefusalError

#: Codes of gRPC as its Go library writes them, each with an HTTP status for the protocol between server and command.
_STATUSES = {
    "InvalidArgument": 400,
    "Unauthenticated": 401,
    "PermissionDenied": 403,
    "NotFound": 404,
    "AlreadyExists": 409,
    "FailedPrecondition": 412,
    "ResourceExhausted": 429,
    "Internal": 500,
    "Unavailable": 503,
}


@dataclass(eq=False)
class VipuRefusalError(RefusalError):
    """An error response: a gRPC code, and a message."""

    grpc_code: str
    message: str

    def __str__(self) -> str:
        return f"{self.grpc_code}: {self.message}"

    @property
    def code(self) -> int:
        """The HTTP status."""
        return _STATUSES.get(self.grpc_code, 500)

    def body(self, *, request_id: str) -> dict[str, Any]:  # noqa: ARG002 - not in V-IPU's errors
        """Return the JSON body."""
        return {"code": self.grpc_code, "message": self.message}


def invalid(message: str) -> VipuRefusalError:
    """Return the error for an invalid request."""
    return VipuRefusalError("InvalidArgument", message)


class Phase(Enum):
    """State of a partition."""

    CREATING = "creating"
    ACTIVE = "active"
    REMOVING = "removing"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Credentials of a caller, unverified."""

    user: str = ""
    key: str = ""


ANYBODY = Caller()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request to create a partition."""

    id: str
    size: int
    #: Name of the allocation; empty if the server may choose.
    allocation: str = ""
    cluster: str = ""
    reconfigurable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationView:
    """An allocation; each agent has four IPUs."""

    name: str
    cluster: str
    agents: tuple[str, ...]
    #: Number of IPUs without a partition.
    free: int

    @property
    def ipus(self) -> int:
        """Number of all IPUs of the allocation."""
        return 4 * len(self.agents)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """State of a partition at one time."""

    id: str
    #: Number of the create; it distinguishes a partition from a removed one with the same ID.
    number: int
    size: int
    allocation: str
    cluster: str
    reconfigurable: bool
    #: User that created the partition; empty outside of secure mode.
    user: str
    phase: Phase
    #: Text for the phase in lists.
    state: str
    created_at: datetime
    #: IPUs of the partition, as agent and index.
    ipus: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a create or remove."""

    #: Time at which the change ended or will end; None if it does not end before its fault is cleared.
    at: datetime | None
    done: bool
    #: Error message; empty if the change succeeded or has not ended.
    failure: str = ""
