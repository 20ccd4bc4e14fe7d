"""What is remembered by the time of day, moved along when somebody sets the clock.

Only the time that has passed counts for a delay, a back-off or the age of a look-up. Without this, a clock that is set
back by two hours would stop all of them for two hours, and one that is set forward would end them at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

_T = TypeVar("_T")


def shifted(remembered: _T, by: timedelta) -> _T:
    """Return a copy in which every moment, however deep inside mappings and dataclasses, is later by `by`."""
    moved: Any = remembered
    if isinstance(remembered, datetime):
        moved = remembered + by
    elif isinstance(remembered, Mapping):
        moved = {key: shifted(value, by) for key, value in remembered.items()}
    elif is_dataclass(remembered) and not isinstance(remembered, type):
        changes = {}
        for each in fields(remembered):
            value = getattr(remembered, each.name)
            new = shifted(value, by)
            if new is not value:
                changes[each.name] = new
        moved = replace(remembered, **changes) if changes else remembered
    result: _T = moved
    return result
