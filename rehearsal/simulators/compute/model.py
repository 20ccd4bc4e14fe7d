"""The simulated Compute Engine's memory: policies, templates, groups, VMs, operations, and what may be asked."""

from __future__ import annotations

import random
from typing import Any

from rehearsal.simulators.compute import policies, templates
from rehearsal.simulators.compute.capacity import Market
from rehearsal.simulators.compute.faults import Fault
from rehearsal.simulators.compute.instances import Instances
from rehearsal.simulators.compute.ledger import Asked, Ledger
from rehearsal.simulators.compute.lifecycle import Lifecycle, MachineObserver
from rehearsal.simulators.compute.managers import Managers
from rehearsal.simulators.compute.names import Scope
from rehearsal.simulators.compute.parts import Parts, check_name
from rehearsal.simulators.compute.records import (
    POLICIES,
    TEMPLATES,
    Loss,
    MachineView,
    Operation,
    Policy,
    Reservation,
    Resource,
    Template,
    view_of,
)
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.compute.store import Store
from rehearsal.simulators.http.timeline import Clock
from rehearsal.simulators.http.world import BaseWorld


class World(BaseWorld[ComputeSettings, Fault]):
    """Everything that the simulated Compute Engine knows."""

    def __init__(self, settings: ComputeSettings, *, clock: Clock, rng: random.Random | None = None) -> None:
        super().__init__(settings, clock=clock, rng=rng)
        now = self._current_settings
        self._ledger = Ledger(settings=now, timeline=self.timeline, faults=self.faults, rng=self._rng)
        self._store = Store(settings=now, ledger=self._ledger)
        self._market = Market(settings=now, faults=self.faults, machines=self._store.machines)
        self._life = Lifecycle(
            settings=now,
            taken_names=self._store.instance_names,
            market=self._market,
            ledger=self._ledger,
            timeline=self.timeline,
            faults=self.faults,
            rng=self._rng,
        )
        parts = Parts(
            lock=self._lock, settings=now, now=self.now, store=self._store, ledger=self._ledger, life=self._life
        )
        self.groups = Managers(parts)
        self.instances = Instances(parts)

    def attach(self, observer: MachineObserver) -> None:
        """Tell an observer of VMs from now on; `instances.metadata` is what their guests can read."""
        self._life.observer = observer

    # -- policies and templates ----------------------------------------------------------------------------------

    def policy(self, scope: Scope, name: str) -> Policy:
        """Return a resource policy."""
        with self._lock:
            self.now()
            return self._store.get(self._store.policies, scope.resource(POLICIES, name))

    def policies(self, scope: Scope) -> list[Policy]:
        """Return the resource policies of a region."""
        with self._lock:
            self.now()
            return self._store.listed(self._store.policies, scope)

    def insert_policy(self, scope: Scope, body: dict[str, Any], asked: Asked) -> Operation:
        """Begin to make a resource policy."""
        with self._lock:
            now = self.now()
            check_name(body)
            templates.check_description(body)
            policies.check_policy(body)
            policy = Policy(scope=scope, name=body["name"], body=body, created=now)
            return self._store.insert(self._store.policies, policy, asked)

    def delete_policy(self, scope: Scope, name: str, asked: Asked) -> Operation:
        """Begin to delete a resource policy that no group uses."""
        with self._lock:
            now = self.now()
            policy = self._store.usable(self._store.policies, scope.resource(POLICIES, name))
            return self._store.delete(self._store.policies, policy, asked, now)

    def template(self, scope: Scope, name: str) -> Template:
        """Return an instance template."""
        with self._lock:
            self.now()
            return self._store.get(self._store.templates, scope.resource(TEMPLATES, name))

    def templates(self, scope: Scope) -> list[Template]:
        """Return the instance templates of a region, or the global ones."""
        with self._lock:
            self.now()
            return self._store.listed(self._store.templates, scope)

    def insert_template(self, scope: Scope, body: dict[str, Any], asked: Asked) -> Operation:
        """Begin to make an instance template."""
        with self._lock:
            now = self.now()
            check_name(body)
            templates.check_description(body)
            terms = templates.check_template(body, scope.project)
            template = Template(scope=scope, name=body["name"], body=body, created=now, terms=terms)
            return self._store.insert(self._store.templates, template, asked)

    def delete_template(self, scope: Scope, name: str, asked: Asked) -> Operation:
        """Begin to delete an instance template that no group uses."""
        with self._lock:
            now = self.now()
            template = self._store.usable(self._store.templates, scope.resource(TEMPLATES, name))
            return self._store.delete(self._store.templates, template, asked, now)

    # -- reservations and operations -----------------------------------------------------------------------------

    def reservation(self, scope: Scope, name: str) -> Reservation:
        """Return a reservation."""
        with self._lock:
            self.now()
            return self._market.reservation(scope, name)

    def reservations(self, scope: Scope) -> list[Reservation]:
        """Return the reservations of a zone."""
        with self._lock:
            self.now()
            return self._market.reservations(scope)

    def operation(self, scope: Scope, name: str) -> Operation:
        """Return an operation of a scope."""
        with self._lock:
            self.now()
            return self._ledger.find(scope, name)

    def operations(self, scope: Scope) -> list[Operation]:
        """Return the operations of a scope."""
        with self._lock:
            self.now()
            return self._ledger.in_scope(scope)

    def all_operations(self) -> list[Operation]:
        """Return every operation that is remembered."""
        with self._lock:
            self.now()
            return self._ledger.all()

    def repeated(self, project: str, request_id: str, content: object) -> Operation | None:
        """Return the operation that the same request began before; None for a new one."""
        with self._lock:
            self.now()
            return self._ledger.repeated(project, request_id, content)

    # -- what a rehearsal sees and does --------------------------------------------------------------------------

    def release(self) -> None:
        """Let go on what was held by faults that are no longer in force."""
        with self._lock:
            now = self.now()
            self._ledger.release(now)
            in_force = {fault.fault_id for fault in self.faults.all()}
            for machine in self._store.machines():
                if machine.stuck_by is not None and machine.stuck_by not in in_force:
                    self._life.unstick(machine, now)

    def lose(self, name: str, loss: Loss) -> bool:
        """Take away the VMs of that name; False where there is none that could go."""
        with self._lock:
            now = self.now()
            found = [machine for machine in self._store.machines() if machine.name == name]
            lost = [self._life.lose(machine, loss, now) for machine in found]
            return any(lost)

    def resources(self) -> tuple[Resource, ...]:
        """Return all policies, templates and groups, as they are."""
        with self._lock:
            self.now()
            return tuple(self._store)

    def machines(self) -> tuple[MachineView, ...]:
        """Return frozen pictures of all VMs."""
        with self._lock:
            self.now()
            return tuple(view_of(machine) for machine in self._store.machines())
