"""Changes of groups and their VMs over time, and after losses.

The statuses of a VM are PROVISIONING, STAGING, RUNNING, STOPPING, and TERMINATED or none ("Instance life cycle"). In
bulk mode, managed instances exist immediately, and VMs when there is capacity for all of them ("About bulk mode").
After a host error or maintenance, Compute Engine restarts VMs that have automaticRestart. In a multi-host slice it
restarts all, because they cannot be rescheduled one by one ("Failure recovery of TPU instances"). A preempted spot VM
is stopped or deleted, by its termination action. A group recreates lost VMs unless its policy is to do nothing; here, a
slice or a group in bulk mode is recreated as a whole. A scheduled step first checks whether it still applies, because
other changes do not remove it from the timeline. Not thread-safe: the model holds the lock.
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
    """Receives changes of VMs. Methods are called while the model's lock is held, so they only record the change."""

    def changed(self, machine: MachineView) -> None:
        """Record that a VM has a new status or new metadata, or is deleted, which an empty status shows."""


class Lifecycle:
    """Performs the changes of groups and VMs."""

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
        """Add the missing managed instances of a group, and begin to create their VMs."""
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
        """Request the missing VMs of a group. VMs that the group does not get are requested again later."""
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
                    # Only the first of equal failures is recorded as an operation; Compute Engine records each attempt.
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
        """Create the VMs of managed instances again, with the same names."""
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
        """Delete the remaining instances of a deleted group."""
        for machine in group.machines:
            self._gone(machine, when)
        group.members.clear()

    def _settle(self, group: Group) -> None:
        if all(member.action is Action.NONE for member in group.members):
            group.bulk_running = False

    # -- creation of VMs -----------------------------------------------------------------------------------------

    def _create(self, group: Group, member: Member, now: datetime) -> None:
        settings, template = self._settings(), group.template
        machine = Machine(
            scope=group.scope,
            name=member.name,
            group=group,
            template=template,
            created=now,
            address=f"10.{self._rng.randrange(256)}.{self._rng.randrange(256)}.{self._rng.randrange(2, 255)}",
            # Groups set these two items only now, so a client that replaces the metadata without them removes them.
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

    # -- end of VMs ----------------------------------------------------------------------------------------------

    def lose(self, machine: Machine, loss: Loss, now: datetime) -> bool:
        """Take a VM away; return False if it is already stopping or lost."""
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
        self.recreate(group, [member for member in members if member.action is not Action.DELETING], now)

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
