"""When a workload was last suspended or resumed, as its controller says in a condition of its status."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from provisioner.kube import fields
from provisioner.kube.quantities import parse_timestamp


def suspension_changed_at(status: dict[str, Any]) -> datetime | None:
    """Read the last transition of the condition Suspended; None where there is none, or no time."""
    for condition in fields.mappings(status.get("conditions")):
        if condition.get("type") == "Suspended":
            return parse_timestamp(condition.get("lastTransitionTime"))
    return None
