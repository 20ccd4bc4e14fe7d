"""Records the states of each node pool over time, also before the create. The records are lost at a restart."""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from provisioner.model.capacity import PoolName
from provisioner.runtime.clock import shifted
from provisioner.slices.planning.plan import PoolState
from provisioner.slices.view.types import State, slice_of_pool, state_of, workload_of_pool

#: Maximum time for which the track of a pool that no longer exists is kept.
_KEPT = timedelta(hours=24)
#: Maximum number of segments of a track; the oldest ones are dropped.
_MAX_SEGMENTS = 50
#: Total number of segments above which tracks of deleted pools are dropped, because a response may contain them all.
_MAX_SEGMENTS_IN_ALL = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Period in which a pool was in one state for one slice."""

    state: State
    #: Id of the slice; empty if the pool was for none. `workload` is the id of its workload.
    slice: str
    workload: str
    since: datetime
    #: End of the period; None if it has not ended.
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """History of one node pool, which several slices may use one after the other."""

    pool: str
    segments: tuple[Segment, ...]

    @property
    def is_of_interest(self) -> bool:
        """Whether the pool exists or is wanted, or its create was sent. `explain` also shows other tracks."""
        last = self.segments[-1]
        return last.until is None or any(segment.state is not State.WAITING for segment in self.segments)


class Timeline:
    """Tracks of all pools. One thread calls `follow` and `shift`; any thread may call `tracks`."""

    def __init__(self) -> None:
        self._tracks: dict[PoolName, Track] = {}
        #: Phase, state and slice of each pool, and whether its workload is known. Only a change can begin a segment.
        self._marks: dict[PoolName, Hashable] = {}
        #: Times at which pools were first missing in a decision, earliest first.
        self._ended: dict[PoolName, datetime] = {}

    def follow(self, pools: Iterable[PoolState], now: datetime) -> None:
        """Record the changes since the last call."""
        before, self._marks = self._marks, {}
        for pool in pools:
            mark = self._marks[pool.name] = (pool.phase, state_of(pool), pool.slice_id, pool.workload is None)
            if before.get(pool.name) != mark:
                self._begin(pool, now)
        for name in [pool_name for pool_name in before if pool_name not in self._marks]:
            self._tracks[name], self._ended[name] = _ended(self._tracks[name], now), now
        while self._ended and self._ended[first := next(iter(self._ended))] <= now - _KEPT:
            self._forget(first)
        self._shorten()

    def tracks(self) -> list[Track]:
        """Return all tracks."""
        return list(self._tracks.values())

    def shift(self, by: timedelta) -> None:
        """Shift all times after the clock was set."""
        self._tracks, self._ended = shifted(self._tracks, by), shifted(self._ended, by)

    def _begin(self, pool: PoolState, now: datetime) -> None:
        self._ended.pop(pool.name, None)
        before = self._tracks.get(pool.name)
        segment = Segment(state=state_of(pool), slice=slice_of_pool(pool), workload=workload_of_pool(pool), since=now)
        if before is None:
            # An idle pool may have been idle before this process started: the hints contain the time.
            self._tracks[pool.name] = Track(pool=pool.name, segments=(replace(segment, since=min(now, pool.since)),))
            return
        last = before.segments[-1]
        if last == replace(segment, since=last.since):
            return
        segments = (*_ended(before, now).segments, segment)[-_MAX_SEGMENTS:]
        self._tracks[pool.name] = Track(pool=pool.name, segments=segments)

    def _shorten(self) -> None:
        total = sum(len(track.segments) for track in self._tracks.values())
        if total <= _MAX_SEGMENTS_IN_ALL:
            return
        of_namespaces: Counter[str] = Counter()
        for name in self._ended:
            of_namespaces[_namespace_of(self._tracks[name])] += len(self._tracks[name].segments)
        while self._ended and total > _MAX_SEGMENTS_IN_ALL:
            ((largest, _),) = of_namespaces.most_common(1)
            first = next(name for name in self._ended if _namespace_of(self._tracks[name]) == largest)
            segments = len(self._forget(first).segments)
            of_namespaces[largest] -= segments
            total -= segments

    def _forget(self, name: PoolName) -> Track:
        del self._ended[name]
        return self._tracks.pop(name)


def _namespace_of(track: Track) -> str:
    return next((segment.workload.split("/")[1] for segment in reversed(track.segments) if segment.workload), "")


def _ended(track: Track, now: datetime) -> Track:
    last = track.segments[-1]
    if last.until is not None:
        return track
    return replace(track, segments=(*track.segments[:-1], replace(last, until=now)))
