"""The resources of Compute Engine as frozen records, and the protocol `Compute` for calls. Knows no JSON.

One record is used for inserts and for reads; a field below `# --- only asked for` or `# --- only read` is empty in the
other. Statuses and modes are texts, so that a new one fails nothing. What callers of `Compute` can rely on:

- A method is one exchange (or one list), thread-safe, never waits for an operation, never retries, and raises only
  `ComputeError`.
- A change with the same request id has one effect, and returns the operation of the first, for at least some minutes.
- An insert of an existing name ends in ALREADY_EXISTS, a delete of a name that does not exist in NOT_FOUND.
- UNKNOWN_OUTCOME: the change was lost on its way and may take effect, also later. Other failures changed nothing.
- INVALID and PERMISSION last until a user changes something. OPERATION_IN_THE_WAY passes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeVar

from provisioner.model.capacity import HIGH_THROUGHPUT, Failure, OperationName
from provisioner.model.choices import ZONE
from provisioner.nodegroups.api.specs import InstanceConfig

#: What Google does on maintenance of a host, and when it takes a machine away.
TERMINATE = "TERMINATE"
STOP = "STOP"
DELETE = "DELETE"

READY = "READY"
#: The status of a machine with TPUs that waits for capacity, for hours with flex-start.
PENDING = "PENDING"
#: The current action of a machine that its manager leaves alone.
NO_ACTION = "NONE"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Scope:
    """Where a resource or an operation is: in a zone, in a region, or global where both are empty."""

    project: str
    region: str = ""
    zone: str = ""

    @property
    def path(self) -> str:
        """As in addresses: projects/P/zones/Z, projects/P/regions/R or projects/P/global."""
        if self.zone:
            return f"projects/{self.project}/zones/{self.zone}"
        if self.region:
            return f"projects/{self.project}/regions/{self.region}"
        return f"projects/{self.project}/global"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePolicy:
    """A workload policy, which gives the machines of a group the topology of one slice. Regional."""

    name: str
    description: str = ""
    #: Empty for a resource policy of another sort.
    type: str = HIGH_THROUGHPUT
    topology: str = ""

    # --- only read

    #: CREATING, READY, DELETING, INVALID, EXPIRED.
    status: str = ""
    url: str = ""


_NO_CONFIG = InstanceConfig(machine_type="", subnetwork="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """An instance template: what each machine of a group is. Global, or regional where a user names one."""

    name: str
    description: str = ""
    machine_type: str
    #: STANDARD, SPOT, RESERVATION_BOUND, FLEX_START; empty where it says none.
    provisioning_model: str = ""
    #: TERMINATE or MIGRATE; empty where it says none.
    on_host_maintenance: str = ""
    #: DELETE or STOP; empty where it says none.
    termination_action: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    # --- only asked for

    #: All else that each machine is.
    config: InstanceConfig = _NO_CONFIG

    # --- only read

    #: Whether it says anything of scheduling at all.
    has_scheduling: bool = True
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOperation:
    """The creation of all machines of a BULK group at once, as its last check of progress found it."""

    in_progress: bool
    #: What that check ran into, such as a stockout; Google tries on meanwhile.
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """A managed instance group: as many machines of one template as it is asked for. Zonal."""

    name: str
    description: str = ""
    template: str
    target_size: int
    #: BULK or INDIVIDUAL; empty where it says none, which is INDIVIDUAL.
    mode: str = ""
    #: URL of the workload policy; empty for none.
    policy: str = ""

    # --- only asked for

    #: DO_NOTHING or REPAIR; empty for Google's default, REPAIR.
    action_on_failure: str = ""

    # --- only read

    #: No machine is being created, restarted or deleted, and none will be.
    is_stable: bool = False
    #: None: Google says nothing of a bulk operation.
    bulk: BulkOperation | None = None
    created_at: datetime | None = None
    url: str = ""


Resource = ResourcePolicy | Template | Manager


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedInstance:
    """A machine that a group has or tries to have."""

    name: str
    scope: Scope
    #: PROVISIONING, STAGING, RUNNING, STOPPING, TERMINATED, ...; empty: a placeholder without a machine.
    status: str = ""
    #: What the group does with it: NONE, CREATING, RECREATING, DELETING, VERIFYING, ...
    action: str = NO_ACTION
    failures: tuple[Failure, ...] = ()
    #: Google's own number: another one under the same name is another machine. Empty for a placeholder.
    id: str = ""

    @property
    def has_machine(self) -> bool:
        """Whether there is a machine, other than one, or a placeholder for one, that waits for capacity."""
        return self.status not in ("", PENDING)

    @property
    def provider_id(self) -> str:
        """What the node of this machine has in spec.providerID."""
        return f"gce://{self.scope.project}/{self.scope.zone}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A machine."""

    name: str
    #: Items of its metadata, and the fingerprint that a change of them has to carry.
    items: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A long-running operation; done with a failure is a failure."""

    name: OperationName
    scope: Scope
    done: bool
    failure: Failure | None = None


_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
#: Project ids, those of a domain too, and project numbers.
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
    """What a URL points to."""

    scope: Scope
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
    scope = Scope(project=found["project"], region="" if in_zone else location, zone=location if in_zone else "")
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
        return f"{scope.project!r} is not a project"
    if scope.zone and not _NAME.fullmatch(scope.zone):
        return f"{scope.zone!r} is not a zone"
    if scope.region and not _NAME.fullmatch(scope.region):
        return f"{scope.region!r} is not a region"
    if not (_OPERATION if operation else _NAME).fullmatch(name):
        return f"{name!r} is not the name of {'an operation' if operation else 'a resource'}"
    return ""


R = TypeVar("R", bound=Resource)


class ComputeError(Exception):
    """The one exception of Compute Engine's boundary."""

    def __init__(
        self, failure: Failure, subject: str = "", *, retry_after_seconds: float | None = None, code: int = 0
    ) -> None:
        super().__init__(f"{subject}: {failure.message}" if subject else failure.message)
        self.failure = failure
        #: The object and the call, such as "delete of instance group manager 'a'".
        self.subject = subject
        #: Google's own wish, None for none.
        self.retry_after_seconds = retry_after_seconds
        #: The HTTP status of the answer; 0 where there was none.
        self.code = code


class Compute(Protocol):
    """The resources of Compute Engine that a node group consists of. Request ids are UUIDs."""

    def get(self, sort: type[R], scope: Scope, name: str) -> R:
        """Return a resource policy of a region, an instance template as the scope says, or a group of a zone."""
        ...

    def insert(self, scope: Scope, resource: Resource, *, request_id: str) -> Operation:
        """Submit the creation of a resource; a policy may be used once READY, a group's machines come later."""
        ...

    def delete(self, sort: type[Resource], scope: Scope, name: str, *, request_id: str) -> Operation:
        """Submit the deletion of a resource, of a group with its machines; OPERATION_IN_THE_WAY: it is used."""
        ...

    def list_managers(self, scope: Scope) -> tuple[Manager, ...]:
        """Return the managed instance groups of all zones of a project that have a mark, of any cluster."""
        ...

    def list_managed_instances(self, scope: Scope, name: str) -> tuple[ManagedInstance, ...]:
        """Return all machines of a group by name, placeholders included; NOT_FOUND: no such group."""
        ...

    def list_instances(self, scope: Scope, names: Collection[str]) -> tuple[Instance, ...]:
        """Return the machines of a zone that have these names, as far as there are any, with metadata."""
        ...

    def set_metadata(
        self, scope: Scope, name: str, items: Mapping[str, str], *, fingerprint: str, request_id: str
    ) -> Operation:
        """Replace a machine's metadata; OPERATION_IN_THE_WAY: it has changed since the fingerprint's."""
        ...

    def get_operation(self, scope: Scope, name: OperationName) -> Operation:
        """Return an operation, done with a failure too; NOT_FOUND says nothing about how it ended."""
        ...
