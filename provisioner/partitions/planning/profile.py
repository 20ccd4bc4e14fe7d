"""The free IPUs of one allocation over time, as far as it is known."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from math import inf

from provisioner.partitions.planning.supply import Holder

#: What may end at any moment does not end now.
SOON_SECONDS = 0.001


class Profile:
    """A step function: from each moment (seconds from now) on, so many IPUs are free."""

    def __init__(self, total: int, holders: Iterable[Holder]) -> None:
        ends: dict[float, int] = {}
        free = total
        for holder in holders:
            free -= holder.ipus
            if holder.ends_in_seconds < inf:
                end = max(holder.ends_in_seconds, SOON_SECONDS)
                ends[end] = ends.get(end, 0) + holder.ipus
        self._times = [0.0]
        self._free = [free]
        for end in sorted(ends):
            free += ends[end]
            self._times.append(end)
            self._free.append(free)

    @property
    def free_now(self) -> int:
        """The IPUs that are free now."""
        return self._free[0]

    def earliest(self, ipus: int, seconds: float, *, not_before: float = 0.0) -> float:
        """Return the first moment from which on so many IPUs are free for so long; infinite: none is known."""
        first = self._step_at(not_before) if 0.0 < not_before < inf else 0
        times, free, count = self._times, self._free, len(self._times)
        while first < count:
            if free[first] < ipus:
                first += 1
                continue
            end = times[first] + seconds
            last = first + 1
            while last < count and times[last] < end and free[last] >= ipus:
                last += 1
            if last == count or times[last] >= end:
                return times[first]
            first = last + 1
        return inf

    def take(self, ipus: int, start: float, seconds: float) -> None:
        """Take so many IPUs from a moment on, for so long."""
        first = self._step_at(start)
        last = self._step_at(start + seconds) if seconds < inf else len(self._times)
        for step in range(first, last):
            self._free[step] -= ipus

    def close(self, start: float) -> None:
        """Leave nothing free from a moment on."""
        first = self._step_at(start)
        self._free[first:] = [min(0, free) for free in self._free[first:]]

    def _step_at(self, moment: float) -> int:
        """Return the step that begins at a moment, made where there is none."""
        place = bisect_left(self._times, moment)
        if place == len(self._times) or self._times[place] != moment:
            self._times.insert(place, moment)
            self._free.insert(place, self._free[place - 1])
        return place
