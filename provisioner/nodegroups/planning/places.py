"""Regions and zones, as far as their names tell."""

from __future__ import annotations

import re

from provisioner.model.choices import ZONE

#: A zone without its last part.
REGION = re.compile(r"[a-z]{1,20}-[a-z]{1,20}[0-9]{1,3}")


def region_of(zone: str) -> str:
    """Return the region of a zone; empty where it is none."""
    return zone.rpartition("-")[0] if ZONE.fullmatch(zone) else ""
