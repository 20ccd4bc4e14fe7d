"""What Compute Engine has and is asked for. Frozen; knows nothing of JSON.

One record says both what an insert asks for and what a get returns: fields below `# --- only asked for` and
`# --- only read` are empty in the other. Words that are Google's own (statuses, actions, modes) are texts as Google
spells them, so that one which is new fails nothing; the ones that decisions need have constants here or in the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from provisioner.model.capacity import HIGH_THROUGHPUT, Failure, OperationName
from provisioner.nodegroups.api.specs import InstanceConfig

#: What Google does on maintenance of a host, and when it takes a machine away.
TERMINATE = "TERMINATE"
STOP = "STOP"
DELETE = "DELETE"

#: The status of a resource policy that may be used.
READY = "READY"
#: Statuses of machines that are starting or run: their metadata can be set, and will be read.
STARTING_OR_RUNNING = frozenset({"PROVISIONING", "STAGING", "RUNNING"})
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
    #: The mark of ownership.
    description: str = ""
    #: Empty for a resource policy of another sort.
    type: str = HIGH_THROUGHPUT
    #: Such as 2x2x4.
    topology: str = ""

    # --- only read

    #: CREATING, READY, DELETING, INVALID, EXPIRED.
    status: str = ""
    url: str = ""


#: Of a template that was read.
_NO_CONFIG = InstanceConfig(machine_type="", subnetwork="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """An instance template: what each machine of a group is. Global, or regional where a user names one."""

    name: str
    #: The mark of ownership.
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
    #: The mark of ownership.
    description: str = ""
    #: URL of the template.
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
    #: The project and the zone that it is in.
    scope: Scope
    #: The machine's status, PROVISIONING, STAGING, RUNNING, STOPPING, TERMINATED, ...; empty: a placeholder without a
    #: machine behind it, which can neither be read nor changed.
    status: str = ""
    #: What the group does with it: NONE, CREATING, RECREATING, DELETING, VERIFYING, ...
    action: str = NO_ACTION
    #: What the last attempt to create or delete it ran into.
    failures: tuple[Failure, ...] = ()
    #: Google's own number: another one under the same name is another machine. Empty for a placeholder.
    id: str = ""

    @property
    def has_machine(self) -> bool:
        """Whether there is a machine, other than a placeholder that waits for one."""
        return bool(self.status)

    @property
    def provider_id(self) -> str:
        """What the node of this machine has in spec.providerID."""
        return f"gce://{self.scope.project}/{self.scope.zone}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A machine."""

    name: str
    #: PROVISIONING, STAGING, RUNNING, STOPPING, TERMINATED, ...
    status: str
    #: Items of its metadata, and the fingerprint that a change of them has to carry.
    items: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    #: Google's own number: another one under the same name is another machine.
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A long-running operation; done with a failure is a failure."""

    name: OperationName
    scope: Scope
    done: bool
    failure: Failure | None = None
