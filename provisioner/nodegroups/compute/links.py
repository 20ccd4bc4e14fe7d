"""Addresses of Compute Engine's resources: which names they can have, and what a URL points to. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.model.choices import ZONE
from provisioner.nodegroups.compute.records import Scope

#: Of resources, zones and regions.
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
#: Project ids, those of a domain too, and project numbers.
_PROJECT = re.compile(r"(?:[a-z0-9][-.a-z0-9]{0,62}:)?[a-z0-9][-a-z0-9]{0,62}")
_OPERATION = re.compile(r"[a-z0-9][-_a-z0-9]{0,254}")
_PATH = re.compile(
    r"(?:^|/)(?P<path>projects/(?P<project>[^/]+)/"
    r"(?:global|(?P<kind>zones|regions|locations)/(?P<location>[^/]+))/(?P<collection>[A-Za-z]+)/(?P<name>[^/?#]+))$"
)
#: Of a region.
REGION = re.compile(r"[a-z]{1,20}-[a-z]{1,20}[0-9]{1,3}")
#: A zone is its region and one letter.
_ZONE = re.compile(r".+-[a-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a URL points to."""

    scope: Scope
    #: Such as instanceTemplates.
    collection: str
    name: str


def region_of(zone: str) -> str:
    """Return the region of a zone; empty where it is none."""
    return zone.rpartition("-")[0] if ZONE.fullmatch(zone) else ""


def parse_link(url: str) -> Link | None:
    """Read a URL of any host and version, or a path that begins with projects/; None where it is none."""
    found = _PATH.search(url)
    if found is None:
        return None
    location, kind = found["location"] or "", found["kind"]
    in_zone = kind == "zones" or (kind == "locations" and _ZONE.fullmatch(location) is not None)
    scope = Scope(
        project=found["project"],
        region="" if in_zone else location,
        zone=location if in_zone else "",
    )
    return Link(scope=scope, collection=found["collection"], name=found["name"])


def same_resource(url: str, other: str) -> bool:
    """Whether two URLs point to one resource, whatever their hosts and versions."""
    if url == other:
        return True
    first, second = parse_link(url), parse_link(other)
    return first is not None and second is not None and first == second


def address_problem(scope: Scope, name: str, *, operation: bool = False) -> str:
    """Say why there can be no resource, or operation, of this name in this scope; empty where there can."""
    if not _PROJECT.fullmatch(scope.project):
        return f"{scope.project!r} is no project"
    if scope.zone and not _NAME.fullmatch(scope.zone):
        return f"{scope.zone!r} is no zone"
    if scope.region and not _NAME.fullmatch(scope.region):
        return f"{scope.region!r} is no region"
    if not (_OPERATION if operation else _NAME).fullmatch(name):
        return f"{name!r} is no name of {'an operation' if operation else 'a resource'}"
    return ""
