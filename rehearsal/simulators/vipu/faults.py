"""Failures of V-IPU on demand, for selected calls and partitions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rehearsal.simulators.http import faults

LIST_ALLOCATIONS = "allocations.list"
LIST_IPUS = "ipus.list"
LIST_PARTITIONS = "partitions.list"
GET = "partitions.get"
CREATE = "partitions.create"
REMOVE = "partitions.remove"


class FaultKind(StrEnum):
    """Kinds of simulated failures."""

    REFUSED = "refused"
    """A call is refused with `message` and gRPC's `grpc_code` (empty: words alone), without effect."""

    CREATE_FAILS = "create_fails"
    """A create fails when it would have been done, and leaves nothing behind."""

    CREATE_LEAKS = "create_leaks"
    """A create fails when it would have been done; what it had made stays, broken, and keeps its IPUs."""

    CREATE_STUCK = "create_stuck"
    """A partition stays in its creating state until the fault is cleared."""

    ACTIVE_LATE = "active_late"
    """A create says that it is done `seconds` before the partition is active."""

    REMOVE_LATE = "remove_late"
    """A remove says that it is done `seconds` before it is; until then the partition looks as before."""

    REMOVE_LEAKS = "remove_leaks"
    """A remove fails, and leaves the partition broken."""

    HTTP_ERROR = faults.HTTP_ERROR
    """The server is out of order: the command says that it does not reach it. With code 0 the connection breaks."""

    HANG = faults.HANG
    """A call is answered only after `seconds`."""


CREATE_FAULTS = (FaultKind.CREATE_FAILS, FaultKind.CREATE_LEAKS, FaultKind.CREATE_STUCK, FaultKind.ACTIVE_LATE)
REMOVE_FAULTS = (FaultKind.REMOVE_LATE, FaultKind.REMOVE_LEAKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Attributes of a call or partition that a fault can match; None if unknown."""

    method: str | None = None
    #: ID of a partition.
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(faults.BaseFault):
    """A fault. A field that is not set matches any target. `name` is a regular expression for a whole partition ID."""

    kinds = FaultKind
    patterns = ("name",)

    kind: FaultKind
    name: str | None = None
    grpc_code: str = "Internal"
