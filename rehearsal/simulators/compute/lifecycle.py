"""What happens to groups and their VMs: the steps that time brings, and those that losses bring.

VMs go PROVISIONING, STAGING, RUNNING, STOPPING, and TERMINATED or away ("Instance life cycle"). In bulk mode managed
instances are there from the beginning and VMs only once there is room for all ("About bulk mode"). After a host error
or maintenance Compute Engine restarts VMs that have automaticRestart; of a multi-host slice all of them, for they can't
be rescheduled one by one ("Failure recovery of TPU instances"). A spot VM that is preempted is stopped or deleted, as
its termination action says, and a group repairs what is lost unless it is told to do nothing; here a slice that repairs
is made again as a whole. Not thread-safe: the model locks. A step first checks that it still applies, since whatever
came in between doesn't take it off the timeline.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from rehearsal.simulators.compute import names
from rehearsal.simulators.compute.capacity import Market
from rehearsal.simulators.compute.ledger import Ledger
from rehearsal.simulators.compute.names import Scope
from rehearsal.simulators.compute.records import (
    Action,
    Group,
    Loss,
    Machine,
    MachineStatus,
    MachineView,
    Member,
    Place,
    view_of,
)
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.compute.templates import items_of
from rehearsal.simulators.http import google
from rehearsal.simulators.http.world import Timeline

_LOSABLE = (MachineStatus.PROVISIONING, MachineStatus.STAGING, MachineStatus.RUNNING)


class MachineObserver(Protocol):
    """Is told of VMs, such as what plays their guests; calls come under the model's lock: it must only take note."""

    def changed(self, machine: MachineView) -> None:
        """A VM has another status or other metadata, or is gone: its status is empty then."""


class Lifecycle:
    """Moves groups and VMs along."""

    def __init__(
        self,
        *,
        settings: Callable[[], ComputeSettings],
        taken_names: Callable[[Scope], set[str]],
        market: Market,
        ledger: Ledger,
        timeline: Timeline,
        rng: random.Random,
    ) -> None:
        self.observer: MachineObserver | None = None
        self._settings = settings
        self._taken_names = taken_names
        self._market = market
        self._ledger = ledger
        self._timeline = timeline
        self._rng = rng

    # -- groups --------------------------------------------------------------------------------------------------

    def fill(self, group: Group, now: datetime) -> None:
        """Add the managed instances that a group has too few of, and begin to make their VMs."""
        staying = [member for member in group.members if member.action is not Action.DELETING]
        taken = self._taken_names(group.scope)
        for _ in range(group.size - len(staying)):
            name = names.instance_name(group.base_name, self._rng)
            while name in taken:
                name = names.instance_name(group.base_name, self._rng)
            taken.add(name)
            group.members.append(Member(name=name))
        if group.is_bulk and any(member.wants_machine for member in group.members):
            group.bulk_running = True
        self.attempt(group, now)

    def attempt(self, group: Group, now: datetime) -> None:
        """Ask for the VMs that a group waits for, and ask again later for those that it does not get."""
        waiting = [member for member in group.members if member.wants_machine]
        if not waiting or not group.is_ready:
            return
        if group.is_bulk:
            self._attempt_all(group, waiting, now)
        else:
            for member in waiting:
                failure = self._market.refusal(group, 1)
                if failure is None:
                    self._create(group, member, now)
                elif failure not in member.errors:
                    # Each attempt is an operation in reality; the first of those that fail alike is enough here.
                    self._ledger.note("instances.insert", Place(group, member.name), now, failure)
                member.errors = (failure,) if failure is not None else ()
        if any(member.wants_machine for member in group.members):
            self._ask_again(group, now)

    def _attempt_all(self, group: Group, waiting: Sequence[Member], now: datetime) -> None:
        if any(machine.is_replaced for machine in group.machines):
            return
        before, failure = group.check_failure, self._market.refusal(group, len(waiting))
        group.checked, group.check_failure = now, failure
        if failure is None:
            for member in waiting:
                self._create(group, member, now)
        elif failure != before:
            self._ledger.note("instances.bulkInsert", group, now, failure)

    def _ask_again(self, group: Group, now: datetime) -> None:
        due = now + timedelta(seconds=self._settings().retry_seconds)
        group.retry_due = due

        def retry(when: datetime) -> None:
            if group.retry_due == due:
                self.attempt(group, when)

        self._timeline.at(due, retry)

    def recreate(self, group: Group, members: Sequence[Member], now: datetime) -> None:
        """Make the VMs of managed instances again, under the same names."""
        group.bulk_running = group.bulk_running or group.is_bulk
        for member in members:
            member.action, member.errors = Action.RECREATING, ()
            if member.machine is not None:
                member.machine.is_replaced = True
                self._stop(member.machine, now, self._gone)
        self.attempt(group, now)

    def remove(self, group: Group, members: Sequence[Member], now: datetime) -> None:
        """Delete managed instances and their VMs."""
        for member in members:
            member.action = Action.DELETING
            if member.machine is None:
                group.members.remove(member)
            else:
                self._stop(member.machine, now, self._gone)
        self._settle(group)

    def end(self, group: Group, when: datetime) -> None:
        """Let go of whatever a group that is deleted still has."""
        for machine in group.machines:
            self._gone(machine, when)
        group.members.clear()

    def _settle(self, group: Group) -> None:
        if all(member.action is Action.NONE for member in group.members):
            group.bulk_running = False

    # -- VMs: coming ---------------------------------------------------------------------------------------------

    def _create(self, group: Group, member: Member, now: datetime) -> None:
        settings, template = self._settings(), group.template
        machine = Machine(
            scope=group.scope,
            name=member.name,
            group=group,
            template=template,
            created=now,
            address=f"10.{self._rng.randrange(256)}.{self._rng.randrange(256)}.{self._rng.randrange(2, 255)}",
            # Groups leave these two behind; whoever replaces metadata without them takes them away.
            items={
                **items_of(template.properties.get("metadata", {}), "metadata"),
                "created-by": google.numbered(group.path, group.scope.project),
                "instance-template": google.numbered(template.path, template.scope.project),
            },
        )
        member.machine = machine
        self._ledger.note("instances.insert", machine, now, None)
        self._tell(machine)
        jitter = self._rng.random() * settings.machine_jitter_seconds
        self._after(machine, settings.provisioning_seconds + jitter, now, self._stage)

    def _stage(self, machine: Machine, when: datetime) -> None:
        self._set(machine, MachineStatus.STAGING)
        self._after(machine, self._settings().staging_seconds, when, self._run)

    def _run(self, machine: Machine, when: datetime) -> None:
        machine.started, machine.stopped = when, None
        machine.boots += 1
        seconds = machine.template.scheduling.get("maxRunDuration", {}).get("seconds")
        if seconds is not None:
            machine.ends_at = when + timedelta(seconds=seconds)
            self._after(machine, seconds, when, lambda ended, at: self.lose(ended, Loss.RUN_TIME_OVER, at))
        self._set(machine, MachineStatus.RUNNING)
        member = _member_of(machine)
        member.action, member.errors = Action.NONE, ()
        self._settle(machine.group)

    # -- VMs: going ----------------------------------------------------------------------------------------------

    def lose(self, machine: Machine, loss: Loss, now: datetime) -> bool:
        """Take a VM away; False where it is going already."""
        if machine.status not in _LOSABLE:
            return False
        if loss in (Loss.HOST_ERROR, Loss.MAINTENANCE) and machine.restarts:
            together = machine.group.machines if machine.group.is_slice else [machine]
            for affected in together:
                if affected.status in _LOSABLE:
                    self._restart(affected, loss, now)
        elif loss is Loss.HOST_ERROR:
            self._terminated(machine, now)
        elif loss is Loss.MAINTENANCE:
            self._stop(machine, now, self._terminated)
        else:
            deleted = loss is Loss.DELETED or machine.deleted_at_end
            self._stop(machine, now, self._gone if deleted else self._terminated)
        return True

    def _restart(self, machine: Machine, loss: Loss, now: datetime) -> None:
        def repair(repaired: Machine, when: datetime) -> None:
            self._set(repaired, MachineStatus.REPAIRING)
            self._after(repaired, self._settings().host_repair_seconds, when, self._stage)

        if loss is Loss.MAINTENANCE:
            self._stop(machine, now, repair)
        else:
            repair(machine, now)

    def _stop(self, machine: Machine, now: datetime, then: Callable[[Machine, datetime], None]) -> None:
        if machine.status is not MachineStatus.STOPPING:
            self._set(machine, MachineStatus.STOPPING)
        self._after(machine, self._settings().stopping_seconds, now, then)

    def _terminated(self, machine: Machine, when: datetime) -> None:
        machine.stopped, machine.ends_at = when, None
        machine.step += 1
        self._set(machine, MachineStatus.TERMINATED)
        self._lost(machine.group, _member_of(machine), when)

    def _gone(self, machine: Machine, when: datetime) -> None:
        group, member = machine.group, _member_of(machine)
        member.machine = None
        machine.step += 1
        if self.observer is not None:
            self.observer.changed(view_of(machine, gone=True))
        if member.action is Action.DELETING:
            group.members.remove(member)
            self._settle(group)
        elif machine.is_replaced:
            self.attempt(group, when)
        else:
            self._lost(group, member, when)

    def _lost(self, group: Group, member: Member, when: datetime) -> None:
        member.action = Action.NONE
        self._settle(group)
        if group.repairs and group.is_ready:
            due = when + timedelta(seconds=self._settings().group_repair_seconds)
            self._timeline.at(due, lambda now: self._repair(group, member, now))

    def _repair(self, group: Group, member: Member, now: datetime) -> None:
        is_back = member.machine is not None and member.machine.status is not MachineStatus.TERMINATED
        if not group.is_ready or member not in group.members or member.action is not Action.NONE or is_back:
            return
        members = group.members if group.is_slice or group.is_bulk else [member]
        self.recreate(group, [each for each in members if each.action is not Action.DELETING], now)

    # -- shared --------------------------------------------------------------------------------------------------

    def _after(
        self, machine: Machine, seconds: float, now: datetime, step: Callable[[Machine, datetime], object]
    ) -> None:
        machine.step += 1
        number = machine.step

        def take(when: datetime) -> None:
            if machine.step == number:
                step(machine, when)

        self._timeline.at(now + timedelta(seconds=seconds), take)

    def _set(self, machine: Machine, status: MachineStatus) -> None:
        machine.status = status
        self._tell(machine)

    def _tell(self, machine: Machine) -> None:
        if self.observer is not None:
            self.observer.changed(view_of(machine))

    def set_items(self, machine: Machine, items: dict[str, str]) -> None:
        """Replace the metadata of a VM."""
        machine.items = items
        machine.revision += 1
        self._tell(machine)


def _member_of(machine: Machine) -> Member:
    return next(member for member in machine.group.members if member.machine is machine)
