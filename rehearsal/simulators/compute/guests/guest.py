"""What runs on one VM: nothing before it has booted, then the join until it succeeds, then the kubelet."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from rehearsal.simulators.compute.faults import Fault, FaultKind, Target
from rehearsal.simulators.compute.guests import startup
from rehearsal.simulators.compute.guests.errors import GuestError, JoinError, ServerError
from rehearsal.simulators.compute.guests.joining import Connect, Join, Membership
from rehearsal.simulators.compute.guests.running import Kubelet
from rehearsal.simulators.compute.records import MachineStatus, MachineView
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http.faults import FaultBook

_log = structlog.get_logger(__name__)

_CERTIFICATE_LOOK_SECONDS = 0.25


@dataclass(slots=True, kw_only=True)
class Guest:
    """The software of one VM; `membership` is on its disk, the rest in its memory."""

    settings: Callable[[], ComputeSettings]
    faults: FaultBook[Fault]
    connect: Connect
    membership: Membership | None = None
    _join: Join = field(init=False)
    _kubelet: Kubelet | None = None
    _boots: int = 0
    _due: datetime | None = None
    _failures: int = 0
    _told: str = ""
    _held: dict[FaultKind, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._join = Join(connect=self.connect)

    def turn(self, machine: MachineView, now: datetime) -> float | None:
        """Do what is due; return after how many seconds there is more, None: not before the VM changes."""
        if machine.status != MachineStatus.RUNNING:
            self._go_down(machine, now)
            return None
        if self.membership is None and not startup.joins(machine):
            return None
        if machine.boots != self._boots:
            self._close()
            self._boots, self._failures = machine.boots, 0
            self._due = now + timedelta(seconds=self.settings().boot_seconds)
        # What is waited for is not hurried by other news of the VM, such as new metadata.
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
            fault = self.faults.take((FaultKind.JOIN_FAILS,), _target(machine))
            if fault is not None:
                self._join.abandon()
                raise JoinError(fault.message or "kubeadm join failed")
            self.membership = self._join.step(machine, now)
            if self.membership is None:
                return _CERTIFICATE_LOOK_SECONDS
            _log.info("guest.joined", machine=machine.name)
        if self._is_struck(FaultKind.KUBELET_SILENT, machine):
            return self.settings().heartbeat_seconds
        if self._kubelet is None:
            self._kubelet = Kubelet(
                machine=machine,
                invitation=self.membership.invitation,
                client=self.connect(self.membership.access),
                settings=self.settings,
            )
        chips_work = not self._is_struck(FaultKind.CHIPS_MISSING, machine)
        return self._kubelet.turn(now, chips_work=chips_work)

    def _is_struck(self, kind: FaultKind, machine: MachineView) -> bool:
        """Tell whether a fault of this kind is in force here; one that has struck once stays until it is cleared."""
        in_force: Collection[str] = {fault.fault_id for fault in self.faults.all()}
        if self._held.get(kind) in in_force:
            return True
        fault = self.faults.take((kind,), _target(machine))
        if fault is None:
            self._held.pop(kind, None)
            return False
        self._held[kind] = fault.fault_id
        return True

    def _go_down(self, machine: MachineView, now: datetime) -> None:
        stops_in_order = machine.status == MachineStatus.STOPPING and self.settings().graceful_shutdown
        if self._kubelet is not None and stops_in_order and not self._is_struck(FaultKind.KUBELET_SILENT, machine):
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


def _target(machine: MachineView) -> Target:
    return Target(name=machine.name, location=machine.scope.location, machine_type=machine.machine_type)
