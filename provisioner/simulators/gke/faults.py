"""Failures on demand: what to break, for which pools and calls, how often.

A `FaultBook` hands out faults and counts them down; what a fault does is up to the model (pools and operations) and the
server (calls). It keeps no history.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from provisioner.simulators.gke.capacity import Capacity, reservation_parts


class FaultKind(StrEnum):
    """Everything that can be made to go wrong."""

    STOCKOUT = "stockout"
    """The create ends with GCE_STOCKOUT, its pool in ERROR. A pool made empty runs, without nodes until the fault is
    cleared: so flex-start waits for capacity."""

    QUOTA_EXCEEDED = "quota_exceeded"
    """The create ends with GCE_QUOTA_EXCEEDED, its pool in ERROR. A pool made empty waits as in a stockout."""

    CREATE_ERROR = "create_error"
    """The create ends with the given status and message, its pool in ERROR."""

    CREATE_NEVER_ENDS = "create_never_ends"
    """The pool stays PROVISIONING until the fault is cleared."""

    NODES_NEVER_REGISTER = "nodes_never_register"
    """The pool gets RUNNING while `hosts` (default: all) of its nodes never register."""

    NODES_WITHOUT_CHIPS = "nodes_without_chips"
    """`hosts` (default: all) of the nodes register without chips."""

    DELETE_FAILS = "delete_fails"
    """The delete ends with an error; the pool is RUNNING_WITH_ERROR with half of its nodes."""

    DELETE_NEVER_ENDS = "delete_never_ends"
    """The pool stays STOPPING until the fault is cleared."""

    HTTP_ERROR = "http_error"
    """A call is answered with the given HTTP code, or not at all with code 0."""

    HANG = "hang"
    """A call is answered only after `seconds`."""


CREATE_FAULTS = (
    FaultKind.STOCKOUT,
    FaultKind.QUOTA_EXCEEDED,
    FaultKind.CREATE_ERROR,
    FaultKind.CREATE_NEVER_ENDS,
)
#: Of CREATE_FAULTS those that strike a pool made empty when it should get its nodes.
CAPACITY_FAULTS = (FaultKind.STOCKOUT, FaultKind.QUOTA_EXCEEDED)
NODE_FAULTS = (FaultKind.NODES_NEVER_REGISTER, FaultKind.NODES_WITHOUT_CHIPS)
DELETE_FAULTS = (FaultKind.DELETE_FAILS, FaultKind.DELETE_NEVER_ENDS)
CALL_FAULTS = (FaultKind.HTTP_ERROR, FaultKind.HANG)


class FaultError(ValueError):
    """A fault is not understood; the text names each mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a fault may strike: a call, the pool that it is about, or a pool; None and empty where it isn't known."""

    method: str | None = None
    pool: str | None = None
    zones: Collection[str] = ()
    machine_type: str | None = None
    topology: str | None = None
    capacity: Capacity | None = None
    reservation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing to break; what is None matches everything.

    `pool` is a regular expression for the whole name, `method` (for HTTP_ERROR and HANG) a call's name such as
    nodePools.create, `topology` such as 4x8, `capacity` one of Capacity's values, `reservation` a name, or all of what
    pools send. `count` is how often it strikes (None: until cleared). `after_seconds` delays the end of a failed
    create or delete (None: as long as a good one takes). `before_effect` False lets the call take effect first, so
    that only its answer is lost.
    """

    kind: FaultKind
    zone: str | None = None
    machine_type: str | None = None
    topology: str | None = None
    capacity: str | None = None
    reservation: str | None = None
    pool: str | None = None
    method: str | None = None
    count: int | None = None
    after_seconds: float | None = None
    status: str = "INTERNAL"
    message: str | None = None
    code: int = 503
    body: str | None = None
    before_effect: bool = True
    seconds: float = 60.0
    hosts: int | None = None
    fault_id: str = ""

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Fault:
        """Read a fault; mistakes are all named in one FaultError."""
        known = {item.name: str(item.type) for item in dataclasses.fields(cls) if item.name != "fault_id"}
        problems = [f"{name}: no such field; known are {', '.join(known)}" for name in raw if name not in known]
        kinds = [kind.value for kind in FaultKind]
        if raw.get("kind") not in kinds:
            problems.append(f"kind: {raw.get('kind')!r} is not one of {', '.join(kinds)}")
        capacities = [capacity.value for capacity in Capacity]
        if isinstance(raw.get("capacity"), str) and raw["capacity"] not in capacities:
            problems.append(f"capacity: {raw['capacity']!r} is not one of {', '.join(capacities)}")
        problems += [
            f"{name}: {raw[name]!r} is not of type {known[name]}"
            for name in known
            if name in raw and name != "kind" and not _fits(raw[name], known[name])
        ]
        if isinstance(raw.get("pool"), str):
            try:
                re.compile(raw["pool"])
            except re.error as error:
                problems.append(f"pool: {raw['pool']!r} is not a regular expression: {error}")
        if problems:
            raise FaultError("; ".join(problems))
        return cls(**{**raw, "kind": FaultKind(raw["kind"])})

    def as_json(self) -> dict[str, Any]:
        """Return the fault's fields as JSON values."""
        return dataclasses.asdict(self)

    def strikes(self, target: Target) -> bool:
        """Tell whether the fault is meant for such a call or pool."""
        return (
            (self.method is None or self.method == target.method)
            and (self.zone is None or self.zone in target.zones)
            and (self.machine_type is None or self.machine_type == target.machine_type)
            and (self.topology is None or self.topology == target.topology)
            and (self.capacity is None or self.capacity == target.capacity)
            and (self.reservation is None or self.reservation in _names_of(target.reservation))
            and (self.pool is None or (target.pool is not None and re.fullmatch(self.pool, target.pool) is not None))
        )


def _names_of(reservation: str) -> tuple[str, str]:
    return reservation, reservation_parts(reservation)[1]


def _fits(value: object, annotation: str) -> bool:
    if value is None:
        return "None" in annotation
    base = annotation.split(" | ", maxsplit=1)[0]
    if base == "bool" or isinstance(value, bool):
        return base == "bool" and isinstance(value, bool)
    accepted: dict[str, tuple[type, ...]] = {"float": (int, float), "int": (int,), "str": (str,)}
    return isinstance(value, accepted[base]) and (base == "str" or value >= 0)  # type: ignore[operator]


class FaultBook:
    """The faults that are in force; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: dict[str, Fault] = {}
        self._numbers = itertools.count(1)

    def add(self, fault: Fault) -> Fault:
        """Put a fault in force and return it with its id."""
        with self._lock:
            named = dataclasses.replace(fault, fault_id=f"fault-{next(self._numbers)}")
            self._faults[named.fault_id] = named
            return named

    def remove(self, fault_id: str) -> bool:
        """Take one fault back; False where there is none of that id."""
        with self._lock:
            return self._faults.pop(fault_id, None) is not None

    def clear(self) -> None:
        """Take all faults back."""
        with self._lock:
            self._faults.clear()

    def all(self) -> tuple[Fault, ...]:
        """Return the faults in force, with what is left of their counts."""
        with self._lock:
            return tuple(self._faults.values())

    def take(self, kinds: Collection[FaultKind], target: Target) -> Fault | None:
        """Return the oldest fault that strikes here, and count it down."""
        with self._lock:
            for fault in self._faults.values():
                if fault.kind in kinds and fault.count != 0 and fault.strikes(target):
                    if fault.count is not None:
                        self._faults[fault.fault_id] = dataclasses.replace(fault, count=fault.count - 1)
                    return fault
        return None
