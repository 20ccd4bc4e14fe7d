"""Failures on demand, common to all services. Each service defines its kinds of faults and the targets they can match.

A `FaultBook` returns matching faults and counts them down, without a history. The model and, for calls, the server
implement the effects of faults.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Generic, Self, TypeVar

from rehearsal.simulators.http.settings import type_problem

#: Faults of calls, which every service includes in its kinds.
HTTP_ERROR = "http_error"
HANG = "hang"
CALL_FAULTS = (HTTP_ERROR, HANG)


class FaultError(ValueError):
    """A fault is invalid; the text names each mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFault:
    """A fault. A field that is not set matches any target.

    `method` is the name of a call, such as nodePools.create. The fault occurs `count` times, or by default until it is
    cleared. If `before_effect` is False, the call takes effect first, so only its response is lost. `code` 0 drops the
    connection. `message` and `body` replace the usual error; `seconds` is the duration of a hanging call.
    """

    kinds: ClassVar[type[StrEnum]]
    #: Allowed values by field; None is always allowed.
    choices: ClassVar[Mapping[str, Collection[str]]] = {}
    #: Fields that must be None, or equal to the target's value or one of its values.
    matched: ClassVar[Collection[str]] = ("method",)
    #: Fields with a regular expression that must match the whole name of a target.
    patterns: ClassVar[Collection[str]] = ()
    kind: StrEnum
    method: str | None = None
    count: int | None = None
    message: str | None = None
    code: int = 503
    body: str | None = None
    before_effect: bool = True
    seconds: float = 60.0
    fault_id: str = ""

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Parse a fault. Raises FaultError with all mistakes."""
        known = [item.name for item in dataclasses.fields(cls) if item.name != "fault_id"]
        problems = [f"{name}: no such field; known are {', '.join(known)}" for name in raw if name not in known]
        kinds = [str(kind.value) for kind in cls.kinds]
        if raw.get("kind") not in kinds:
            problems.append(f"kind: {raw.get('kind')!r} is not one of {', '.join(kinds)}")
        problems += [
            f"{name}: {raw[name]!r} is not one of {', '.join(values)}"
            for name, values in cls.choices.items()
            if isinstance(raw.get(name), str) and raw[name] not in values
        ]
        given = {name: raw[name] for name in known if name in raw and name != "kind"}
        problems += [problem for name, value in given.items() if (problem := type_problem(cls, name, value))]
        problems += [
            f"{name}: {value} is negative"
            for name, value in given.items()
            if isinstance(value, int | float) and value < 0
        ]
        problems += [problem for name in cls.patterns if (problem := _pattern_problem(name, raw.get(name)))]
        if problems:
            raise FaultError("; ".join(problems))
        return cls(**{**raw, "kind": cls.kinds(raw["kind"])})

    def as_json(self) -> dict[str, Any]:
        """Return the fault's fields as JSON values."""
        return dataclasses.asdict(self)

    def strikes(self, target: Any) -> bool:
        """Return whether the fault matches a target, by the fields that `matched` and `patterns` name."""
        return all(self._meets(name, getattr(target, name)) for name in self.matched) and all(
            self._fits(name, getattr(target, name)) for name in self.patterns
        )

    def _meets(self, name: str, found: Any) -> bool:
        wanted = getattr(self, name)
        return wanted is None or wanted in ((found,) if found is None or isinstance(found, str) else found)

    def _fits(self, name: str, found: str | None) -> bool:
        wanted = getattr(self, name)
        return wanted is None or (found is not None and re.fullmatch(wanted, found) is not None)


def _pattern_problem(name: str, value: object) -> str | None:
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            return f"{name}: {value!r} is not a regular expression: {error}"
    return None


_Fault = TypeVar("_Fault", bound=BaseFault)


class FaultBook(Generic[_Fault]):
    """The active faults. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: dict[str, _Fault] = {}
        self._numbers = itertools.count(1)

    def add(self, fault: _Fault) -> _Fault:
        """Activate a fault; return it with its ID."""
        with self._lock:
            named = dataclasses.replace(fault, fault_id=f"fault-{next(self._numbers)}")
            self._faults[named.fault_id] = named
            return named

    def remove(self, fault_id: str) -> bool:
        """Remove a fault; return False if no fault has that ID."""
        with self._lock:
            return self._faults.pop(fault_id, None) is not None

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def all(self) -> tuple[_Fault, ...]:
        """Return the active faults, with their remaining counts."""
        with self._lock:
            return tuple(self._faults.values())

    def take(self, kinds: Collection[str], target: Any) -> _Fault | None:
        """Return the oldest fault that matches, and count it down; None if no fault matches."""
        with self._lock:
            for fault in self._faults.values():
                if fault.kind in kinds and fault.count != 0 and fault.strikes(target):
                    if fault.count is not None:
                        self._faults[fault.fault_id] = dataclasses.replace(fault, count=fault.count - 1)
                    return fault
        return None
