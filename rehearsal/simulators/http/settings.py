"""Settings of a simulator for its start and while it runs: a frozen dataclass that can be changed by JSON.

Invalid JSON raises one SettingsError with all mistakes. The environment is not read.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import msgspec


class SettingsError(ValueError):
    """One or more settings are unknown or out of range; the text names each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSettings:
    """Settings that all simulators have. Subclasses add fields, and their checks in `problems`."""

    #: Settings that cannot be changed after the start.
    fixed: ClassVar[Collection[str]] = ()
    #: Additional latency of every API call in seconds.
    request_seconds: float = 0.0
    #: Maximum number of API calls in the log.
    calls_kept: int = 10_000

    def __post_init__(self) -> None:
        problems = [*self._range_problems(), *self.problems()]
        if problems:
            raise SettingsError("; ".join(problems))

    def problems(self) -> list[str]:
        """Return the mistakes in the subclass's settings; each text names the setting and its value."""
        return []

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with the changes, which are JSON values. Raises SettingsError."""
        known = {item.name for item in dataclasses.fields(self)}
        problems = []
        for name, value in changes.items():
            if name not in known:
                problems.append(f"{name}: no such setting; known are {', '.join(sorted(known))}")
            elif name in self.fixed and value != getattr(self, name):
                problems.append(f"{name}: can be set only at startup")
            elif (problem := type_problem(type(self), name, value)) is not None:
                problems.append(problem)
        if problems:
            raise SettingsError("; ".join(problems))
        return dataclasses.replace(self, **changes)

    def as_json(self) -> dict[str, Any]:
        """Return all settings as JSON values."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}

    def _range_problems(self) -> list[str]:
        problems = []
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name.endswith("_seconds") and value is not None and not 0 <= value < 1e7:
                problems.append(f"{item.name}: {value!r} is not a number of seconds from 0 to 10,000,000")
            if item.name.endswith("_kept") and value < 1:
                problems.append(f"{item.name}: {value} is less than 1")
        return problems


def type_problem(owner: type, name: str, value: object) -> str | None:
    """Return the reason why a JSON value is invalid for a field of a dataclass; None if it is valid."""
    try:
        msgspec.convert(value, typing.get_type_hints(owner)[name])
    except msgspec.ValidationError as error:
        return f"{name}: {value!r} is not valid: {error}"
    return None
