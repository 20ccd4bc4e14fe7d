"""Reservations of Compute Engine, as far as clients look at them."""

from __future__ import annotations

from typing import Any

from rehearsal.simulators.gke import names
from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.gke.settings import FULL, SimulatorSettings


def reservation_body(settings: SimulatorSettings, project: str, zone: str, name: str) -> dict[str, Any]:
    """Return the body of a reservation; no project is out of scope, for reservations are shared."""
    path = f"projects/{project}/zones/{zone}/reservations/{name}"
    if "compute.reservations.get" in settings.denied_permissions:
        raise ApiError("PERMISSION_DENIED", f"Required 'compute.reservations.get' permission for '{path}'")
    known = settings.reservations
    if known is not None and f"{zone}/{name}" not in known:
        raise ApiError("NOT_FOUND", f"The resource '{path}' was not found")
    state = "READY" if known is None else known[f"{zone}/{name}"]
    used = {"specificReservation": {"count": "1", "inUseCount": "1"}} if state == FULL else {}
    return {
        "kind": "compute#reservation",
        "id": str(names.number_of(path)),
        "selfLink": f"{names.COMPUTE_API}/{path}",
        "zone": f"{names.COMPUTE_API}/projects/{project}/zones/{zone}",
        "name": name,
        "status": "READY" if state == FULL else state,
        "specificReservationRequired": True,
        **used,
    }
