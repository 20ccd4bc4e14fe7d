"""Reads the ends of reservations: for listed pools on worker threads, so that no list waits, and before a create.

Reservations in calendar mode always have an end, others may have one. Without permission, the end is unknown.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import structlog

from provisioner.model.capacity import FailureKind, NodePool, NodePoolRequest, Zone
from provisioner.model.choices import choice_of, reservation_parts
from provisioner.slices.suppliers.gke.errors import GkeError

_log = structlog.get_logger(__name__)

#: Wait after a successful and after a failed read. The owner of a reservation may move its end at any time.
_REREAD, _RETRY = timedelta(minutes=10), timedelta(minutes=1)
_AT_ONCE = 4


class ReservationId(NamedTuple):
    """Project (empty for the cluster's project), zone and name of a reservation, whose blocks all end together."""

    project: str
    zone: Zone
    name: str


class _Reading(NamedTuple):
    due_at: datetime
    #: Last known end of the reservation; None if it has no end, or if no read has succeeded.
    ends_at: datetime | None
    failure: FailureKind | None


@dataclass(slots=True, kw_only=True)
class Reservations:
    """Reads and remembers the ends of reservations. Safe to use from many threads; only `read` blocks."""

    get_end: Callable[[ReservationId], datetime | None]
    clock: Callable[[], datetime]
    submit: Callable[[Callable[[], object]], object] = field(
        default_factory=lambda: ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="reservation").submit
    )
    _readings: dict[ReservationId, _Reading] = field(default_factory=dict)
    #: Reservations of the pools in the last call of `follow`.
    _used: frozenset[ReservationId] = frozenset()
    _submitted: set[ReservationId] = field(default_factory=set)

    def follow(self, pools: Iterable[NodePool]) -> None:
        """Start the reads that are due for the reservations of all listed pools, and do not wait for them."""
        self._used = frozenset(filter(None, map(_id_of, pools)))
        # Unused readings without an end are dropped when due: pods can name any reservation, and could fill the memory.
        for reservation_id, reading in self._readings.copy().items():
            if reading.ends_at is None and reservation_id not in self._used and self._is_due(reservation_id):
                self._readings.pop(reservation_id, None)
        for reservation_id in filter(self._is_due, sorted(self._used - self._submitted)):
            self._submitted.add(reservation_id)
            try:
                self.submit(partial(self._read, reservation_id))
            except RuntimeError:
                # No thread could be started; the next call of `follow` tries again.
                self._submitted.discard(reservation_id)

    def known_end(self, pool: NodePool) -> datetime | None:
        """Return the end of a pool's reservation; None if there is no reservation or end, or if the end is unknown."""
        reservation_id = _id_of(pool)
        reading = self._readings.get(reservation_id) if reservation_id is not None else None
        return reading.ends_at if reading is not None else None

    def are_unknown(self) -> bool:
        """Return whether a listed pool's reservation is unread, or its last read failed (except with NOT_FOUND)."""
        readings = map(self._readings.get, self._used)
        return any(reading is None or reading.failure not in (None, FailureKind.NOT_FOUND) for reading in readings)

    def read(self, request: NodePoolRequest) -> datetime | None:
        """Return the end of a request's reservation, or None like `known_end`. Blocks if a read is due."""
        reservation_id = _id_of(request)
        if reservation_id is None:
            return None
        # A single `get`, because `follow` may remove the entry in another thread between a test and a read.
        reading = self._readings.get(reservation_id)
        if reading is None or self.clock() >= reading.due_at:
            reading = self._read(reservation_id)
        return reading.ends_at

    def _read(self, reservation_id: ReservationId) -> _Reading:
        before, now = self._readings.get(reservation_id), self.clock()
        # A failed read does not change the last known end: after its end, a reservation is deleted and cannot be found.
        end, failure = before.ends_at if before is not None else None, None
        try:
            end = self.get_end(reservation_id)
        except GkeError as error:
            failure = error.failure.kind
            if before is None:
                advice = "grant compute.reservations.get on its project; otherwise its end is not reported"
                _log.warning(
                    "reservation.not_read", reservation="/".join(reservation_id), error=str(error), advice=advice
                )
        finally:
            self._submitted.discard(reservation_id)
        due_at = now + (_RETRY if failure is not None else _REREAD)
        # The next read is due at the end of the reservation at the latest, because the owner may have moved the end.
        due_at = min(due_at, end) if end is not None and end > now else due_at
        reading = self._readings[reservation_id] = _Reading(due_at, end, failure)
        return reading

    def _is_due(self, reservation_id: ReservationId) -> bool:
        reading = self._readings.get(reservation_id)
        return reading is None or self.clock() >= reading.due_at


def _id_of(pool: NodePool | NodePoolRequest) -> ReservationId | None:
    choice = choice_of(pool)
    project, name, _, _ = reservation_parts(choice.reservation)
    return ReservationId(project, choice.zone, name) if name else None
