"""Time of day of a controller. If the machine's clock is set, this time jumps only at the start of a round."""

import time
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

_T = TypeVar("_T")

#: If wall clock minus monotonic clock changes by at least this many seconds, the wall clock was set.
_SET_SECONDS = 1.0
_NEVER = datetime.min.replace(tzinfo=UTC)


def wall_clock() -> datetime:
    """Return the machine's time of day."""
    return datetime.now(tz=UTC)


class FollowedClock:
    """Time of day at the last `follow` plus the monotonic time since then: the result jumps only in `follow`."""

    def __init__(
        self, wall: Callable[[], datetime] = wall_clock, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._offset_seconds = self._offset()

    def __call__(self) -> datetime:
        """Return the time of day."""
        return datetime.fromtimestamp(self._monotonic() + self._offset_seconds, tz=UTC)

    def follow(self) -> timedelta:
        """Adopt the machine's clock; return by how much it was set since the last call, zero for less than 1 s."""
        before, self._offset_seconds = self._offset_seconds, self._offset()
        by = self._offset_seconds - before
        return timedelta(seconds=by) if abs(by) >= _SET_SECONDS else timedelta()

    def _offset(self) -> float:
        return self._wall().timestamp() - self._monotonic()


def shifted(remembered: _T, by: timedelta) -> _T:
    """Return a copy with `by` added to times in nested dataclasses, mappings and tuples. Keeps `datetime.min`."""
    moved: Any = remembered
    if isinstance(remembered, datetime):
        moved = remembered if remembered == _NEVER else remembered + by
    elif isinstance(remembered, tuple):
        items = [shifted(item, by) for item in remembered]
        moved = remembered._make(items) if hasattr(remembered, "_make") else tuple(items)
    elif isinstance(remembered, Mapping):
        moved = {key: shifted(value, by) for key, value in remembered.items()}
    elif is_dataclass(remembered) and not isinstance(remembered, type):
        values = {field_.name: getattr(remembered, field_.name) for field_ in fields(remembered)}
        changes = {name: new for name, value in values.items() if (new := shifted(value, by)) is not value}
        moved = replace(remembered, **changes) if changes else remembered
    result: _T = moved
    return result
