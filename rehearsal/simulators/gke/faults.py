"""Failures of GKE on demand, for selected pools and calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from rehearsal.simulators.gke.capacity import Capacity
from rehearsal.simulators.http import faults


class FaultKind(StrEnum):
    """Kinds of simulated failures."""

    #: The create ends with GCE_STOCKOUT, and its pool is in ERROR. A pool that is created empty, as for flex-start,
    #: becomes RUNNING and gets its nodes only when the fault is cleared.
    STOCKOUT = "stockout"
    #: The create ends with GCE_QUOTA_EXCEEDED, and its pool is in ERROR. A pool created empty waits as for STOCKOUT.
    QUOTA_EXCEEDED = "quota_exceeded"
    #: The create ends with the given status and message, and its pool is in ERROR.
    CREATE_ERROR = "create_error"
    #: The pool remains PROVISIONING until the fault is cleared.
    CREATE_NEVER_ENDS = "create_never_ends"
    #: The pool becomes RUNNING while `hosts` (default: all) of its nodes never register.
    NODES_NEVER_REGISTER = "nodes_never_register"
    #: `hosts` (default: all) of the nodes register without chips.
    NODES_WITHOUT_CHIPS = "nodes_without_chips"
    #: The delete ends with an error; the pool is RUNNING_WITH_ERROR with half of its nodes.
    DELETE_FAILS = "delete_fails"
    #: The pool remains STOPPING until the fault is cleared.
    DELETE_NEVER_ENDS = "delete_never_ends"
    #: A call gets the given HTTP status, or no response if the code is 0.
    HTTP_ERROR = faults.HTTP_ERROR
    #: A call is answered only after `seconds`.
    HANG = faults.HANG


CREATE_FAULTS = (
    FaultKind.STOCKOUT,
    FaultKind.QUOTA_EXCEEDED,
    FaultKind.CREATE_ERROR,
    FaultKind.CREATE_NEVER_ENDS,
)
#: Kinds of CREATE_FAULTS that affect a pool created empty only when it should get its nodes.
CAPACITY_FAULTS = (FaultKind.STOCKOUT, FaultKind.QUOTA_EXCEEDED)
NODE_FAULTS = (FaultKind.NODES_NEVER_REGISTER, FaultKind.NODES_WITHOUT_CHIPS)
DELETE_FAULTS = (FaultKind.DELETE_FAILS, FaultKind.DELETE_NEVER_ENDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Attributes of a call or pool that a fault can match; None or empty if unknown.

    `reservation` contains the reservation as the pool names it, and only its name.
    """

    method: str | None = None
    pool: str | None = None
    zone: Collection[str] = ()
    machine_type: str | None = None
    topology: str | None = None
    capacity: Capacity | None = None
    reservation: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(faults.BaseFault):
    """A fault. A field that is not set matches any target.

    `pool` is a regular expression for the whole name, `topology` such as 4x8, `capacity` one of Capacity's values,
    `reservation` a name, or the whole text that pools send. `after_seconds` is the time until a failed create or delete
    ends; by default, the usual time. CREATE_ERROR, DELETE_FAILS and HTTP_ERROR use `status`.
    """

    kinds = FaultKind
    choices: ClassVar[Mapping[str, Collection[str]]] = {"capacity": tuple(Capacity)}
    matched = ("method", "zone", "machine_type", "topology", "capacity", "reservation")
    patterns = ("pool",)

    kind: FaultKind
    zone: str | None = None
    machine_type: str | None = None
    topology: str | None = None
    capacity: str | None = None
    reservation: str | None = None
    pool: str | None = None
    after_seconds: float | None = None
    status: str = "INTERNAL"
    hosts: int | None = None
