"""Runs the guests of all VMs with a few threads. Only one thread at a time works on a guest.

On a VM, nothing runs until it has booted. Then it joins, with retries until it succeeds. Then the kubelet registers its
Node once, reports its state and renews its Lease. As with a real kubelet, a deleted Node is registered again only when
the VM restarts. Pods are not simulated: the kubelet only checks whether the device plugin runs, without which a Node
has no chips.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import structlog

from rehearsal.simulators.compute.guests import kubelet, startup
from rehearsal.simulators.compute.guests.client import (
    MERGE,
    STRATEGIC,
    Client,
    GuestError,
    HttpsClient,
    ServerError,
)
from rehearsal.simulators.compute.guests.joining import Connect, Join, Membership
from rehearsal.simulators.compute.guests.kubelet import LEASES, NODES, Readiness
from rehearsal.simulators.compute.guests.startup import Invitation
from rehearsal.simulators.compute.records import MachineStatus, MachineView
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http.world import Clock

_log = structlog.get_logger(__name__)

_THREADS = 8
_AFTER_MISTAKE_SECONDS = 10.0


_CERTIFICATE_LOOK_SECONDS = 0.25


#: Interval in seconds at which a kubelet reports its whole state even if nothing has changed.
_REPORT_SECONDS = 300.0
_FIRST_LOOK_SECONDS = 0.5
_NOT_FOUND, _CONFLICT = 404, 409


@dataclass(slots=True, kw_only=True)
class Kubelet:
    """Kubelet of a VM, from one boot until the VM stops."""

    machine: MachineView
    invitation: Invitation
    client: Client
    settings: Callable[[], ComputeSettings]
    _uid: str = ""
    _state: Readiness | None = None
    _reported: Readiness | None = None
    _reported_at: datetime | None = None
    _renewed_at: datetime | None = None
    _look_seconds: float = field(default=_FIRST_LOOK_SECONDS)

    def turn(self, now: datetime) -> float:
        """Do the work that is due; return the seconds until more is due. Raises ServerError."""
        if self._state is None:
            self._state = self._register(now)
            return 0.0
        self._state = state = self._seen(self._state, now)
        if state != self._reported or _is_older(self._reported_at, now, _REPORT_SECONDS):
            self._report(state, now)
        heartbeat_seconds = self.settings().heartbeat_seconds
        if _is_older(self._renewed_at, now, heartbeat_seconds):
            self._renew(state, now)
        if state.chips == self.machine.chips:
            self._look_seconds = _FIRST_LOOK_SECONDS
            return heartbeat_seconds
        # The interval of checks grows, because hundreds of nodes may wait for a device plugin.
        self._look_seconds = min(self._look_seconds * 2, heartbeat_seconds)
        return self._look_seconds

    def shut_down(self, now: datetime) -> None:
        """Report that the machine shuts down. Raises ServerError."""
        if self._state is not None:
            self._report(kubelet.shutting_down(self._state, now), now)

    def _register(self, now: datetime) -> Readiness:
        state = kubelet.starting(now)
        try:
            made = self.client.call("POST", NODES, kubelet.node_body(self.machine, self.invitation, state, now))
        except ServerError as error:
            if error.status != _CONFLICT:
                raise
            # The Node exists from an earlier start, or from another machine with the same name.
            made = self.client.call("GET", self._path)
        self._uid = made["metadata"]["uid"]
        return state

    def _seen(self, before: Readiness, now: datetime) -> Readiness:
        chips = self.machine.chips if self.machine.chips and self._has_device_plugin() else 0
        return replace(kubelet.ready(before, now), chips=chips, seen_chips=max(chips, before.seen_chips))

    def _has_device_plugin(self) -> bool:
        selector = self.settings().device_plugin
        if not selector:
            return True
        query = urlencode({"fieldSelector": f"spec.nodeName={self.machine.name}", "labelSelector": selector})
        pods = self.client.call("GET", f"/api/v1/pods?{query}")["items"]
        return any(pod.get("status", {}).get("phase") == "Running" for pod in pods)

    def _report(self, state: Readiness, now: datetime) -> None:
        status = kubelet.status_of(self.machine, self.invitation, state, now)
        self.client.call("PATCH", f"{self._path}/status", {"status": status}, content_type=STRATEGIC)
        self._reported, self._reported_at = state, now

    def _renew(self, state: Readiness, now: datetime) -> None:
        body = kubelet.lease_body(self.machine, now)
        path = f"{LEASES}/{self.machine.name}"
        try:
            self.client.call("PATCH", path, {"spec": body["spec"]}, content_type=MERGE)
        except ServerError as error:
            if error.status != _NOT_FOUND:
                raise
            # The Lease was never created, or was deleted with its Node. If the Node does not exist, the report fails.
            self._report(state, now)
            self.client.call("POST", LEASES, self._owned(body))
        self._renewed_at = now

    def _owned(self, lease: dict[str, Any]) -> dict[str, Any]:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.machine.name, "uid": self._uid}
        return {**lease, "metadata": {**lease["metadata"], "ownerReferences": [owner]}}

    @property
    def _path(self) -> str:
        return f"{NODES}/{self.machine.name}"


def _is_older(moment: datetime | None, now: datetime, seconds: float) -> bool:
    # Work that is due within half a second is done now, which saves a later call.
    return moment is None or (now - moment).total_seconds() >= seconds - 0.5


@dataclass(slots=True, kw_only=True)
class Guest:
    """Software of one VM. `membership` represents its disk; the other fields represent its memory."""

    settings: Callable[[], ComputeSettings]
    connect: Connect
    membership: Membership | None = None
    _join: Join = field(init=False)
    _kubelet: Kubelet | None = None
    _boots: int = 0
    _due: datetime | None = None
    _failures: int = 0
    _told: str = ""

    def __post_init__(self) -> None:
        self._join = Join(connect=self.connect)

    def turn(self, machine: MachineView, now: datetime) -> float | None:
        """Do the work that is due; return the seconds until the next work, None if it needs a change of the VM."""
        if machine.status != MachineStatus.RUNNING:
            self._go_down(machine, now)
            return None
        if self.membership is None and not startup.joins(machine):
            return None
        if machine.boots != self._boots:
            self._close()
            self._boots, self._failures = machine.boots, 0
            self._due = now + timedelta(seconds=self.settings().boot_seconds)
        # Changes of the VM other than its status, such as new metadata, do not shorten this wait.
        left_seconds = (self._due - now).total_seconds() if self._due is not None else 0.0
        if left_seconds > 0:
            return left_seconds
        seconds = self._try(machine, now)
        self._due = now + timedelta(seconds=seconds)
        return seconds

    def _try(self, machine: MachineView, now: datetime) -> float:
        try:
            seconds = self._step(machine, now)
        except GuestError as error:
            self._failures += 1
            if self._told != str(error):
                self._told = str(error)
                _log.info("guest.step_failed", machine=machine.name, problem=self._told)
            settings = self.settings()
            seconds = settings.join_retry_seconds * 2.0 ** min(self._failures - 1, 16)
            return min(seconds, settings.longest_join_retry_seconds)
        self._failures, self._told = 0, ""
        return seconds

    def _step(self, machine: MachineView, now: datetime) -> float:
        if self.membership is None:
            self.membership = self._join.step(machine, now)
            if self.membership is None:
                return _CERTIFICATE_LOOK_SECONDS
            _log.info("guest.joined", machine=machine.name)
        if self._kubelet is None:
            self._kubelet = Kubelet(
                machine=machine,
                invitation=self.membership.invitation,
                client=self.connect(self.membership.access),
                settings=self.settings,
            )
        return self._kubelet.turn(now)

    def _go_down(self, machine: MachineView, now: datetime) -> None:
        stops_in_order = machine.status == MachineStatus.STOPPING and self.settings().graceful_shutdown
        if self._kubelet is not None and stops_in_order:
            try:
                self._kubelet.shut_down(now)
            except ServerError as error:
                _log.info("guest.step_failed", machine=machine.name, problem=str(error))
        self._close()
        self._boots = 0

    def _close(self) -> None:
        self._join.abandon()
        if self._kubelet is not None:
            self._kubelet.client.close()
            self._kubelet = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Seat:
    """A guest and the last state of its VM. Entries of `Crew._due` with another number than `turn` are outdated."""

    guest: Guest
    machine: MachineView
    turn: int = 0
    busy: bool = False
    changed: bool = False


class Crew:
    """Runs the guests of all VMs. Implements MachineObserver."""

    def __init__(
        self,
        *,
        settings: Callable[[], ComputeSettings],
        clock: Clock,
        connect: Connect = HttpsClient,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._connect = connect
        self._news = threading.Condition()
        self._seats: dict[tuple[str, int], _Seat] = {}
        self._due: list[tuple[datetime, int, _Seat]] = []
        self._numbers = itertools.count(1)
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        for _ in range(_THREADS):
            thread = threading.Thread(target=self._work, name="simulator-guests", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End all threads. Nodes that the guests have registered remain."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
        for thread in self._threads:
            thread.join()

    def changed(self, machine: MachineView) -> None:
        """Record a change of a VM, and let its guest react."""
        key = (machine.scope.path, machine.number)
        with self._news:
            seat = self._seats.get(key)
            if seat is None:
                if not machine.status:
                    return
                guest = Guest(settings=self._settings, connect=self._connect)
                seat = self._seats[key] = _Seat(guest=guest, machine=machine)
            seat.machine = machine
            if not machine.status:
                del self._seats[key]
            if seat.busy:
                seat.changed = True
            else:
                self._plan(seat, self._clock())

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
            # An unexpected exception of one guest must not end its thread.
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
