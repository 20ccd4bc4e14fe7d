"""Gives the guests of all VMs their turns, with a few threads. Each guest is in the hands of one thread at a time."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from rehearsal.simulators.compute.faults import Fault
from rehearsal.simulators.compute.guests.client import HttpsClient
from rehearsal.simulators.compute.guests.guest import Guest
from rehearsal.simulators.compute.guests.joining import Connect
from rehearsal.simulators.compute.records import MachineView
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http.faults import FaultBook
from rehearsal.simulators.http.timeline import Clock

_log = structlog.get_logger(__name__)

_THREADS = 8
_AFTER_MISTAKE_SECONDS = 10.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Seat:
    """A guest, the VM as it was told of last, and the number of its turn: an older one in the heap no longer counts."""

    guest: Guest
    machine: MachineView
    turn: int = 0
    busy: bool = False
    changed: bool = False


class Crew:
    """Implements MachineObserver."""

    def __init__(
        self,
        *,
        settings: Callable[[], ComputeSettings],
        faults: FaultBook[Fault],
        clock: Clock,
        connect: Connect = HttpsClient,
    ) -> None:
        self._settings = settings
        self._faults = faults
        self._clock = clock
        self._connect = connect
        self._news = threading.Condition()
        self._seats: dict[tuple[str, int], _Seat] = {}
        self._due: list[tuple[datetime, int, _Seat]] = []
        self._numbers = itertools.count(1)
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to give turns."""
        for _ in range(_THREADS):
            thread = threading.Thread(target=self._work, name="simulator-guests", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End all threads; what the guests have told of themselves stays."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
        for thread in self._threads:
            thread.join()

    def changed(self, machine: MachineView) -> None:
        """Take note of a VM."""
        key = (machine.scope.path, machine.number)
        with self._news:
            seat = self._seats.get(key)
            if seat is None:
                if not machine.status:
                    return
                guest = Guest(settings=self._settings, faults=self._faults, connect=self._connect)
                seat = self._seats[key] = _Seat(guest=guest, machine=machine)
            seat.machine = machine
            if not machine.status:
                del self._seats[key]
            if seat.busy:
                seat.changed = True
            else:
                self._plan(seat, self._clock())

    def run_due(self) -> datetime | None:
        """Give the turns that are due, and return when the next one is."""
        while (seat := self._take()) is not None:
            self._give(seat)
        with self._news:
            return self._due[0][0] if self._due else None

    def _work(self) -> None:
        while True:
            with self._news:
                seat = self._next()
                while seat is None and not self._stopping:
                    wait = (self._due[0][0] - self._clock()).total_seconds() if self._due else None
                    self._news.wait(wait)
                    seat = self._next()
                if seat is None or self._stopping:
                    return
            self._give(seat)

    def _take(self) -> _Seat | None:
        with self._news:
            return self._next()

    def _next(self) -> _Seat | None:
        while self._due:
            when, turn, seat = self._due[0]
            if turn == seat.turn and when > self._clock():
                return None
            heapq.heappop(self._due)
            if turn == seat.turn:
                seat.busy, seat.changed = True, False
                return seat
        return None

    def _give(self, seat: _Seat) -> None:
        now = self._clock()
        try:
            seconds = seat.guest.turn(seat.machine, now)
        except Exception:  # noqa: BLE001 - logged with its traceback
            # One guest that cannot go on must not take its thread along.
            _log.exception("guest.turn_crashed", machine=seat.machine.name)
            seconds = _AFTER_MISTAKE_SECONDS
        with self._news:
            seat.busy = False
            if seat.changed:
                self._plan(seat, self._clock())
            elif seconds is not None:
                self._plan(seat, self._clock() + timedelta(seconds=seconds))

    def _plan(self, seat: _Seat, when: datetime) -> None:
        seat.turn = next(self._numbers)
        heapq.heappush(self._due, (when, seat.turn, seat))
        self._news.notify()
