"""What may be asked of VMs: to be seen, and to get other metadata.

The fingerprint must be that of the metadata as it is, else 412 conditionNotMet (reference of Metadata). It is looked at
again when the change takes effect: an operation was seen to fail for it (bosh-google-cpi-release 159). A managed
instance that waits for capacity has a link and no VM, so its VM is not found ("About bulk mode").
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rehearsal.simulators.compute import errors
from rehearsal.simulators.compute.errors import Failure
from rehearsal.simulators.compute.ledger import Asked
from rehearsal.simulators.compute.names import Scope
from rehearsal.simulators.compute.parts import Parts
from rehearsal.simulators.compute.records import INSTANCES, Machine, MachineStatus, Operation
from rehearsal.simulators.compute.templates import items_of

_STALE = "Supplied fingerprint does not match current metadata fingerprint."


class Instances:
    """The VMs of the world."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def get(self, scope: Scope, name: str) -> Machine:
        """Return a VM."""
        with self._parts.lock:
            self._parts.now()
            machines = self._parts.store.machines()
            found = next((machine for machine in machines if machine.name == name and machine.scope == scope), None)
            if found is None:
                raise errors.not_found(scope.resource(INSTANCES, name))
            return found

    def in_zone(self, scope: Scope) -> list[Machine]:
        """Return the VMs of a zone."""
        with self._parts.lock:
            self._parts.now()
            return [machine for machine in self._parts.store.machines() if machine.scope == scope]

    def metadata(self, scope: Scope, name: str) -> dict[str, str]:
        """Return what a VM reads of itself from its metadata server, by key. Raises ApiError where there is none."""
        with self._parts.lock:
            return dict(self.get(scope, name).items)

    def set_metadata(self, scope: Scope, name: str, sent: Mapping[str, Any], asked: Asked) -> Operation:
        """Begin to replace the metadata of a VM."""
        parts = self._parts
        with parts.lock:
            machine = self.get(scope, name)
            items = items_of(sent, "metadata")
            if sent.get("fingerprint") != machine.fingerprint:
                raise errors.condition_not_met(_STALE)
            if machine.status is MachineStatus.STOPPING:
                raise errors.not_ready(machine.path)
            operation = parts.ledger.begin(asked, machine, parts.now())

            def effect(_when: datetime) -> Failure | None:
                if machine not in machine.group.machines:
                    text = f"The resource '{machine.path}' was not found"
                    return Failure(code="RESOURCE_NOT_FOUND", message=text, http_code=404)
                if sent["fingerprint"] != machine.fingerprint:
                    return Failure(code="CONDITION_NOT_MET", message=_STALE, http_code=412)
                parts.life.set_items(machine, items)
                return None

            parts.ledger.finish_later(operation, parts.settings().metadata_seconds, effect=effect)
            return operation
