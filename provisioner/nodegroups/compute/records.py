"""Resources of Compute Engine as frozen records. Statuses and modes are strings, so unknown values are no errors."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from provisioner.model.capacity import CallError, Failure
from provisioner.model.choices import ZONE

#: Value of onHostMaintenance: a machine is stopped before the maintenance of its host.
TERMINATE = "TERMINATE"
#: Values of instanceTerminationAction: Google stops or deletes a machine that it reclaims.
STOP = "STOP"
DELETE = "DELETE"

READY = "READY"
#: Status of a TPU machine that waits for capacity. With flex-start, it may wait for hours.
PENDING = "PENDING"
#: Current action of a machine that its managed instance group is not changing.
NO_ACTION = "NONE"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Scope:
    """Location of a resource or an operation: a zone, a region, or global if both are empty."""

    project: str
    region: str = ""
    zone: str = ""

    @property
    def path(self) -> str:
        """Prefix of addresses: projects/P/zones/Z, projects/P/regions/R or projects/P/global."""
        if self.zone:
            return f"projects/{self.project}/zones/{self.zone}"
        if self.region:
            return f"projects/{self.project}/regions/{self.region}"
        return f"projects/{self.project}/global"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePolicy:
    """A regional resource policy. If it is a workload policy, it wires the machines of one slice of `topology`."""

    name: str
    description: str = ""
    #: Type of the workload policy; empty if the resource policy is of another kind.
    type: str = ""
    topology: str = ""
    #: CREATING, READY, DELETING, INVALID or EXPIRED.
    status: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """An instance template. Templates that the provisioner creates are global; a user's template may be regional."""

    name: str
    description: str = ""
    machine_type: str
    #: STANDARD, SPOT, RESERVATION_BOUND or FLEX_START; empty if not set.
    provisioning_model: str = ""
    #: TERMINATE or MIGRATE; empty if not set.
    on_host_maintenance: str = ""
    #: DELETE or STOP; empty if not set.
    termination_action: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOperation:
    """Creation of all machines of a BULK group in one operation."""

    in_progress: bool
    #: Failures in Google's last check of the progress, such as a stockout. Google continues to try.
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """A managed instance group, which creates `target_size` machines from a template. Zonal."""

    name: str
    description: str = ""
    template: str
    target_size: int
    #: BULK or INDIVIDUAL; empty if not set, which means INDIVIDUAL.
    mode: str = ""
    #: URL of the workload policy; empty if the group has none.
    policy: str = ""
    #: Whether all creates, restarts and deletes of machines have ended, and no further change is scheduled.
    is_stable: bool = False
    bulk: BulkOperation | None = None
    created_at: datetime | None = None
    url: str = ""


Resource = ResourcePolicy | Template | Manager


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedInstance:
    """A machine of a managed instance group, or a placeholder for a machine that is not created yet."""

    name: str
    scope: Scope
    #: PROVISIONING, STAGING, RUNNING, STOPPING, TERMINATED, ...; empty for a placeholder.
    status: str = ""
    #: Action of the group on the machine: NONE, CREATING, RECREATING, DELETING, VERIFYING, ...
    action: str = NO_ACTION
    failures: tuple[Failure, ...] = ()
    #: Google's number of the machine, which changes if the machine is recreated. Empty for a placeholder.
    id: str = ""

    @property
    def has_machine(self) -> bool:
        """Whether the machine exists: it is neither a placeholder nor waiting for capacity."""
        return self.status not in ("", PENDING)

    @property
    def provider_id(self) -> str:
        """Value of spec.providerID in the node of this machine."""
        return f"gce://{self.scope.project}/{self.scope.zone}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A machine with its metadata."""

    name: str
    #: Items of the metadata. A change of the items must contain the fingerprint in the next field.
    items: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    id: str = ""


_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
#: Project ids, also those with a domain (example.com:project), and project numbers.
_PROJECT = re.compile(r"(?:[a-z0-9][-.a-z0-9]{0,62}:)?[a-z0-9][-a-z0-9]{0,62}")
_OPERATION = re.compile(r"[a-z0-9][-_a-z0-9]{0,254}")
_PATH = re.compile(
    r"(?:^|/)(?P<path>projects/(?P<project>[^/]+)/"
    r"(?:global|(?P<kind>zones|regions|locations)/(?P<location>[^/]+))/(?P<collection>[A-Za-z]+)/(?P<name>[^/?#]+))$"
)
REGION = re.compile(r"[a-z]{1,20}-[a-z]{1,20}[0-9]{1,3}")
_ZONE = re.compile(r".+-[a-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Resource that a URL refers to."""

    scope: Scope
    collection: str
    name: str


def region_of(zone: str) -> str:
    """Return the region of a zone, empty if `zone` is not the name of a zone."""
    return zone.rpartition("-")[0] if ZONE.fullmatch(zone) else ""


def parse_link(url: str) -> Link | None:
    """Read a URL of any host and API version, or a path that begins with projects/. Return None for other texts."""
    parts = _PATH.search(url)
    if parts is None:
        return None
    location, kind = parts["location"] or "", parts["kind"]
    in_zone = kind == "zones" or (kind == "locations" and _ZONE.fullmatch(location) is not None)
    scope = Scope(project=parts["project"], region="" if in_zone else location, zone=location if in_zone else "")
    return Link(scope=scope, collection=parts["collection"], name=parts["name"])


def same_resource(url: str, other: str) -> bool:
    """Return whether two URLs refer to the same resource. Host and API version may differ."""
    if url == other:
        return True
    first, second = parse_link(url), parse_link(other)
    return first is not None and second is not None and first == second


def address_problem(scope: Scope, name: str, *, operation: bool = False) -> str:
    """Return the reason why a resource or operation cannot have this name and scope, empty if it can."""
    if not _PROJECT.fullmatch(scope.project):
        return f"{scope.project!r} is not a project"
    if scope.zone and not _NAME.fullmatch(scope.zone):
        return f"{scope.zone!r} is not a zone"
    if scope.region and not _NAME.fullmatch(scope.region):
        return f"{scope.region!r} is not a region"
    if not (_OPERATION if operation else _NAME).fullmatch(name):
        return f"{name!r} is not the name of {'an operation' if operation else 'a resource'}"
    return ""


class ComputeError(CallError):
    """The only exception that calls of Compute Engine raise."""
