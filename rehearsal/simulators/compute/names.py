"""Creates and parses names, links, numbers and times in the formats of Compute Engine.

Names: 1 to 63 characters by RFC 1035 (reference of instanceTemplates, field `name`). A base instance name has at most
58, because a hyphen and four random characters are added to it (instanceGroupManagers, field `baseInstanceName`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from rehearsal.simulators.http import google

BASE_NAME_LENGTH = 58
GLOBAL = "global"
ZONES = "zones"
REGIONS = "regions"

_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
_SERVICE = re.compile(r"https?://[^/]+/compute/(?:v1|beta)/")
_SUFFIX_ALPHABET = "0123456789bcdfghjklmnpqrstvwxz"
# Compute Engine writes times in Google's own time zone.
_OFFSET = timezone(timedelta(hours=-7))


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """Scope of a resource: a zone, a region, or the whole project, for which `location` is empty."""

    project: str
    kind: str
    location: str = ""

    @property
    def path(self) -> str:
        """Path of the scope, as in texts of errors."""
        return f"projects/{self.project}/{GLOBAL}" if not self.location else self._located

    @property
    def _located(self) -> str:
        return f"projects/{self.project}/{self.kind}/{self.location}"

    @property
    def link(self) -> str:
        """Link of the zone or region itself."""
        return f"{google.COMPUTE_API}/{self.path}"

    @property
    def region(self) -> str:
        """Region of a zone or region; empty for the whole project."""
        return self.location.rpartition("-")[0] if self.kind == ZONES else self.location

    @property
    def regional(self) -> Scope:
        """Region that contains the zone."""
        return Scope(self.project, REGIONS, self.region)

    def resource(self, collection: str, name: str) -> str:
        """Return the full name of a resource."""
        return f"{self.path}/{collection}/{name}"


def is_region(text: str) -> bool:
    """Return whether a text has the format of a region."""
    return _REGION.fullmatch(text) is not None


def read_reference(text: str, collection: str, within: Scope) -> tuple[Scope, str] | None:
    """Return the scope and name in a full or partial link to a resource; None if it is not such a link.

    Partial links are read within a scope's project: projects/P/zones/Z/..., zones/Z/..., global/....
    """
    path = _SERVICE.sub("", text)
    if "://" in path:
        return None
    parts = path.split("/")
    project = within.project
    if parts[0] == "projects" and len(parts) > 2:
        project, parts = parts[1], parts[2:]
    if parts[0] == GLOBAL and len(parts) == 3 and parts[1] == collection:
        return Scope(project, GLOBAL), parts[2]
    if parts[0] in (ZONES, REGIONS) and len(parts) == 4 and parts[2] == collection:
        return Scope(project, parts[0], parts[1]), parts[3]
    return None


def service_agent(project: str) -> str:
    """Return the service account with which groups act."""
    return f"{google.project_number(project)}@cloudservices.gserviceaccount.com"


def operation_name(now: datetime, rng: random.Random) -> str:
    """Return a new name for an operation."""
    return (
        f"operation-{int(now.timestamp() * 1000)}-{rng.getrandbits(52):013x}-"
        f"{rng.getrandbits(32):08x}-{rng.getrandbits(32):08x}"
    )


def instance_name(base: str, rng: random.Random) -> str:
    """Return a name for a managed instance."""
    return f"{base}-{''.join(rng.choices(_SUFFIX_ALPHABET, k=4))}"


def fingerprint(content: object, revision: int) -> str:
    """Return a fingerprint; it differs between revisions, even if their content is the same."""
    text = json.dumps([content, revision], sort_keys=True, default=str)
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def timestamp(moment: datetime) -> str:
    """Return a time as Compute Engine writes it, with milliseconds and an offset."""
    return moment.astimezone(_OFFSET).isoformat(timespec="milliseconds")
