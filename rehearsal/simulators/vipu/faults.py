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

    #: A call has no effect and is rejected with `message`, and with the gRPC code `grpc_code` unless that is empty.
    REFUSED = "refused"
    #: A create fails at its end and leaves nothing behind.
    CREATE_FAILS = "create_fails"
    #: A create fails at its end; a broken partition remains, and keeps its IPUs.
    CREATE_LEAKS = "create_leaks"
    #: A partition is not created completely until the fault is cleared.
    CREATE_STUCK = "create_stuck"
    #: The partition becomes active only `seconds` after its create has ended.
    ACTIVE_LATE = "active_late"
    #: The partition is removed only `seconds` after its remove has ended, and looks unchanged until then.
    REMOVE_LATE = "remove_late"
    #: A remove fails, and leaves the partition broken.
    REMOVE_LEAKS = "remove_leaks"
    #: The server is unavailable, which the command reports. With code 0, the connection is dropped.
    HTTP_ERROR = faults.HTTP_ERROR
    #: A call is answered only after `seconds`.
    HANG = faults.HANG


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
