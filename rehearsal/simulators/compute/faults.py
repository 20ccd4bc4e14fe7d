"""Failures of Compute Engine on demand, for selected calls, operations and groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from rehearsal.simulators.http import faults

#: Values of Scheduling.provisioningModel.
STANDARD = "STANDARD"
SPOT = "SPOT"
RESERVATION_BOUND = "RESERVATION_BOUND"
FLEX_START = "FLEX_START"
PROVISIONING_MODELS = (STANDARD, SPOT, RESERVATION_BOUND, FLEX_START)


class FaultKind(StrEnum):
    """Kinds of simulated failures."""

    #: Creates of VMs fail with ZONE_RESOURCE_POOL_EXHAUSTED, some with _WITH_DETAILS; groups retry them.
    STOCKOUT = "stockout"
    #: Creates of VMs fail with QUOTA_EXCEEDED; groups retry them.
    QUOTA_EXCEEDED = "quota_exceeded"
    #: An operation ends with the given error code and message, without effect.
    OPERATION_ERROR = "operation_error"
    #: A call gets the given HTTP status, or no response if the code is 0.
    HTTP_ERROR = faults.HTTP_ERROR
    #: A call is answered only after `seconds`.
    HANG = faults.HANG


CAPACITY_FAULTS = (FaultKind.STOCKOUT, FaultKind.QUOTA_EXCEEDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Attributes of a call, operation or group that a fault can match; None or empty if unknown.

    `name` is the name of the resource of a call, or of the group that needs VMs.
    """

    method: str | None = None
    name: str | None = None
    location: str | None = None
    machine_type: str | None = None
    model: str | None = None
    reservation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(faults.BaseFault):
    """A fault. A field that is not set matches any target.

    `method` also matches operations, as in instanceGroupManagers.insert. `location` is a zone or region, `name` a
    regular expression for a whole name, `model` a provisioning model, `reservation` a name. `error_code` is the error
    of an operation, which fails after `after_seconds` or, by default, when it would have succeeded.
    """

    kinds = FaultKind
    choices: ClassVar[Mapping[str, Collection[str]]] = {"model": PROVISIONING_MODELS}
    matched = ("method", "location", "machine_type", "model", "reservation")
    patterns = ("name",)

    kind: FaultKind
    location: str | None = None
    name: str | None = None
    machine_type: str | None = None
    model: str | None = None
    reservation: str | None = None
    error_code: str = "INTERNAL_ERROR"
    after_seconds: float | None = None
