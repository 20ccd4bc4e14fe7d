"""Failures of Compute Engine on demand, for selected calls, operations and machines."""

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

    STOCKOUT = "stockout"
    """Asking for VMs meets ZONE_RESOURCE_POOL_EXHAUSTED; groups ask again and again."""

    QUOTA_EXCEEDED = "quota_exceeded"
    """Asking for VMs meets QUOTA_EXCEEDED; groups ask again and again."""

    KUBELET_SILENT = "kubelet_silent"
    """The kubelet of a VM that has joined, or joins, tells nothing until the fault is cleared."""

    CHIPS_MISSING = "chips_missing"
    """The device plugin of a VM finds no chips until the fault is cleared."""

    OPERATION_ERROR = "operation_error"
    """An operation ends with the given error code and message, and without effect."""

    OPERATION_NEVER_ENDS = "operation_never_ends"
    """An operation stays RUNNING, and without effect, until the fault is cleared."""

    HTTP_ERROR = faults.HTTP_ERROR
    """A call is answered with the given HTTP code, or not at all with code 0."""

    HANG = faults.HANG
    """A call is answered only after `seconds`."""


CAPACITY_FAULTS = (FaultKind.STOCKOUT, FaultKind.QUOTA_EXCEEDED)
OPERATION_FAULTS = (FaultKind.OPERATION_ERROR, FaultKind.OPERATION_NEVER_ENDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Attributes of a call, operation or machine that a fault can match; None or empty if unknown.

    `name` is the name of the resource of a call, of the group that needs VMs, or of the VM of a guest.
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
    of an operation. It fails after `after_seconds` or, by default, when it would have succeeded.
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
