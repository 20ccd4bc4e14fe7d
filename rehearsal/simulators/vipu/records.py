"""What a simulated V-IPU server has, and what it is asked.

Refusals of a simulated V-IPU server: gRPC's codes, and words, since no document shows the real ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from rehearsal.simulators.http.exchange import RefusalError

#: Codes of gRPC as its Go library writes them, each with an HTTP status for the wire between server and command.
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
    """A refusal: one of gRPC's codes, and words."""

    grpc_code: str
    message: str

    def __str__(self) -> str:
        return f"{self.grpc_code}: {self.message}"

    @property
    def code(self) -> int:
        """The HTTP status."""
        return _STATUSES.get(self.grpc_code, 500)

    def body(self, *, request_id: str) -> dict[str, Any]:  # noqa: ARG002 - V-IPU does not tell it
        """Return the JSON body."""
        return {"code": self.grpc_code, "message": self.message}


def invalid(message: str) -> VipuRefusalError:
    """Refuse what no server would do."""
    return VipuRefusalError("InvalidArgument", message)


def unauthenticated() -> VipuRefusalError:
    """Refuse a caller that has not proved who it is."""
    return VipuRefusalError("Unauthenticated", "invalid user id or access key")


def no_allocation(name: str) -> VipuRefusalError:
    """Refuse an allocation that is not there, or not for this user: they look the same."""
    return VipuRefusalError("NotFound", f"allocation '{name}' not found")


def not_found(partition_id: str) -> VipuRefusalError:
    """Refuse a partition that is not there, or not for this user."""
    return VipuRefusalError("NotFound", f"partition '{partition_id}' not found")


def already_exists(partition_id: str) -> VipuRefusalError:
    """Refuse an id that is taken."""
    return VipuRefusalError("AlreadyExists", f"partition '{partition_id}' already exists")


def no_room(size: int, where: str) -> VipuRefusalError:
    """Refuse a partition for which there are no aligned free IPUs in one allocation."""
    return VipuRefusalError("ResourceExhausted", f"not enough IPUs available in {where} for a partition of size {size}")


def busy(partition_id: str) -> VipuRefusalError:
    """Refuse to touch a partition that is being created or removed."""
    return VipuRefusalError("FailedPrecondition", f"another operation on partition '{partition_id}' is in progress")


def down() -> VipuRefusalError:
    """Refuse everything while the server starts."""
    return VipuRefusalError("Unavailable", "connection refused")


class Phase(Enum):
    """How far a partition is."""

    CREATING = "creating"
    ACTIVE = "active"
    REMOVING = "removing"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, as the request says."""

    user: str = ""
    key: str = ""


ANYBODY = Caller()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A partition to be made."""

    id: str
    size: int
    #: Empty: the server's choice.
    allocation: str = ""
    cluster: str = ""
    reconfigurable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationView:
    """An allocation; each agent has four IPUs."""

    name: str
    cluster: str
    agents: tuple[str, ...]
    #: IPUs that no partition has.
    free: int

    @property
    def ipus(self) -> int:
        """All its IPUs."""
        return 4 * len(self.agents)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition as it was at one moment."""

    id: str
    #: Counts creates, so that one that was removed and made again can be told from the one before.
    number: int
    size: int
    allocation: str
    cluster: str
    reconfigurable: bool
    #: Who made it; empty outside of secure mode.
    user: str
    phase: Phase
    #: The word that lists have for it.
    state: str
    created_at: datetime
    #: Its IPUs, as agent and index.
    ipus: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a create or remove ended, or that it has not."""

    #: When it was, or will be, answered; None: not before somebody intervenes.
    at: datetime | None
    #: It is over.
    done: bool
    #: Empty: it succeeded, or is not done.
    failure: str = ""
