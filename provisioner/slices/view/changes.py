"""Which pools began, changed or ended from one round to the next, as far as people are shown it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from provisioner.model.capacity import PoolName
from provisioner.slices.planning.plan import PoolState
from provisioner.slices.view.states import state_of


class Changes(NamedTuple):
    """What has changed since the last round."""

    begun: tuple[PoolState, ...]
    #: In another phase or state, or for another slice, than before.
    changed: tuple[PoolState, ...]
    #: There no more.
    ended: tuple[PoolName, ...]


class Follower:
    """Compares the pools of each round with those of the last one."""

    def __init__(self) -> None:
        self._marks: dict[PoolName, Hashable] = {}

    def follow(self, pools: Iterable[PoolState]) -> Changes:
        """Take note of the pools of a round; return what has changed."""
        marks: dict[PoolName, Hashable] = {}
        begun, changed = [], []
        for pool in pools:
            mark = marks[pool.name] = (pool.phase, state_of(pool), pool.slice_id, pool.workload is None)
            before = self._marks.get(pool.name)
            if before is None:
                begun.append(pool)
            elif before != mark:
                changed.append(pool)
        ended = tuple(name for name in self._marks if name not in marks)
        self._marks = marks
        return Changes(tuple(begun), tuple(changed), ended)
