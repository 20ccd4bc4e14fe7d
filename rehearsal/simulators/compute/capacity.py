"""Decides which groups get VMs, by stockouts, quotas, and counts of reservations.

For groups in bulk mode, "View or cancel bulk creation" names the codes ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS and
QUOTA_EXCEEDED. Errors of single VMs were seen with and without _WITH_DETAILS (sample-platform 1165,
fontbakery-dashboard 81), and with errorDetails (sample-platform 901), so both codes are returned here. The only
recorded code for a full reservation is that of a stockout.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rehearsal.simulators.compute.errors import Failure
from rehearsal.simulators.compute.faults import CAPACITY_FAULTS, Fault, FaultKind, Target
from rehearsal.simulators.compute.names import Scope
from rehearsal.simulators.compute.records import Group, Machine
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http import google
from rehearsal.simulators.http.faults import FaultBook
from rehearsal.simulators.machines import find_machine

_HELP = "https://cloud.google.com/compute/docs/resource-error"


class Market:
    """Decides whether groups get VMs. Not thread-safe: the model holds the lock."""

    def __init__(
        self,
        *,
        settings: Callable[[], ComputeSettings],
        faults: FaultBook[Fault],
        machines: Callable[[], Iterable[Machine]],
    ) -> None:
        self._settings = settings
        self._faults = faults
        self._machines = machines

    def refusal(self, group: Group, count: int) -> Failure | None:
        """Return the reason why a group does not get `count` VMs at the same time now; None if it gets them."""
        terms, zone = group.template.terms, group.scope.location
        if find_machine(terms.machine_type) is None:
            path = group.scope.resource("machineTypes", terms.machine_type)
            return Failure(code="RESOURCE_NOT_FOUND", message=f"The resource '{path}' was not found", http_code=404)
        fault = self._faults.take(
            CAPACITY_FAULTS,
            Target(
                name=group.name,
                location=zone,
                machine_type=terms.machine_type,
                model=terms.model,
                reservation=terms.reservation.partition("/")[2],
            ),
        )
        if fault is not None and fault.kind is FaultKind.QUOTA_EXCEEDED:
            return _quota_failure(group)
        if fault is not None:
            return stockout(group.scope, terms.machine_type, salt=group.name, message=fault.message)
        if terms.reservation:
            return self._reservation_refusal(group, count)
        return self._room_refusal(group, count)

    def _reservation_refusal(self, group: Group, count: int) -> Failure | None:
        terms = group.template.terms
        project, name = terms.reservation.split("/")
        zone, known = group.scope.location, self._settings().reservations
        found: Mapping[str, Any] | None = known.get(f"{project}/{zone}/{name}") or known.get(f"{zone}/{name}")
        if found is None:
            path = f"projects/{project}/zones/{zone}/reservations/{name}"
            return Failure(code="RESOURCE_NOT_FOUND", message=f"The resource '{path}' was not found", http_code=404)
        if found["machine_type"] != terms.machine_type:
            text = f"Specified reservation '{name}' does not match the machine type {terms.machine_type}."
            return Failure(code="INVALID_USAGE", message=text)
        if found.get("status", "READY") != "READY":
            return Failure(code="RESOURCE_NOT_READY", message=google.NOT_READY_TEXT)
        in_use = sum(
            machine.holds_capacity
            and machine.scope.location == zone
            and machine.template.terms.reservation == terms.reservation
            for machine in self._machines()
        )
        if in_use + count > int(found["count"]):
            text = google.full_reservation_text(name)
            return stockout(group.scope, terms.machine_type, salt=group.name, message=text)
        return None

    def _room_refusal(self, group: Group, count: int) -> Failure | None:
        terms, zone = group.template.terms, group.scope.location
        room = self._settings().capacity.get(f"{zone}/{terms.machine_type}")
        if room is None:
            return None
        taken = sum(
            machine.holds_capacity
            and machine.scope.location == zone
            and machine.template.terms.machine_type == terms.machine_type
            and not machine.template.terms.reservation
            for machine in self._machines()
        )
        return stockout(group.scope, terms.machine_type, salt=group.name) if taken + count > room else None


def stockout(scope: Scope, machine_type: str, *, salt: str, message: str | None = None) -> Failure:
    """Return the error for a zone without free machines; `salt` selects one of the two codes that were seen."""
    has_details = zlib.crc32(salt.encode()) % 2 == 0
    zone = f"projects/{scope.project}/zones/{scope.location}"
    text = f"The zone '{zone}' does not have enough resources available to fulfill the request."
    info = {
        "reason": "resource_availability",
        "domain": "compute.googleapis.com",
        "metadatas": {"zone": scope.location, "vmType": machine_type, "attachment": "", "zonesAvailable": ""},
    }
    links = {"links": [{"description": "Troubleshooting documentation", "url": _HELP}]}
    return Failure(
        code=f"ZONE_RESOURCE_POOL_EXHAUSTED{'_WITH_DETAILS' if has_details else ''}",
        message=message or f"{text}  " + ("'(resource type:compute)'." if has_details else "Try a different zone."),
        http_code=503,
        details=({"help": links}, {"errorInfo": info}),
    )


def _quota_failure(group: Group) -> Failure:
    metric = "PREEMPTIBLE_TPUS" if group.template.terms.is_preemptible else "TPUS"
    info = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limitName": metric,
        "dimensions": {"region": group.scope.region},
        "limit": 0.0,
    }
    text = f"Quota '{metric}' exceeded.  Limit: 0.0 in region {group.scope.region}."
    return Failure(code="QUOTA_EXCEEDED", message=text, http_code=403, details=({"quotaInfo": info},))
