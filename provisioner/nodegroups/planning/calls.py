"""Calls to Compute Engine that a plan asks for, and their answers.

One call of a key is under way at a time. Whoever makes it answers it exactly once, whatever happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from provisioner.model.capacity import Failure, OperationName
from provisioner.nodegroups.api.statuses import OperationType
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute.records import (
    Instance,
    ManagedInstance,
    Manager,
    Operation,
    ResourcePolicy,
    Scope,
    Template,
)

Resource = ResourcePolicy | Template | Manager


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A resource of Compute Engine, and the object on whose behalf it is called."""

    #: UID of the child that stands for it, or of the group that names a template of its user's.
    uid: str
    kind: Kind
    scope: Scope
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Read the resource: `get_policy`, `get_template` or `get_manager`. The answer has a Resource, None for absent."""

    target: Target

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return f"read {self.target.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMachines:
    """`list_managed_instances`. The answer has a tuple of ManagedInstance, None where there is no such group."""

    target: Target

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return f"list machines {self.target.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """Create the resource. The answer has an Operation."""

    target: Target
    resource: Resource
    attempt: int
    request_id: str

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return f"insert {self.target.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What has to be read live, right before a managed instance group is deleted with its machines.

    The child is there with this UID and is being deleted; every node of these machines, and every ready node that
    carries the group's labels, is unschedulable; no pod on them that asks for chips, and before a deadline no other, is
    unfinished and within its grace.
    """

    namespace: str
    name: str
    uid: str
    #: The labels of its nodes; empty for a managed instance group that belongs to no TPUNodeGroup.
    group_labels: Mapping[str, str] = field(default_factory=dict)
    #: What the provider ids of all its machines have before their suffix; a labelled node of another does not count.
    place: str = ""
    #: Until then pods without chips keep the machines, too.
    deadline: datetime | None = None
    #: Of all machines that may run: their nodes may lack the labels.
    provider_ids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete the resource. The answer has an Operation, None where it is not there, or says why it is kept."""

    target: Target
    attempt: int
    request_id: str
    #: None: nothing has to be proven first.
    proof: Proof | None = None

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return f"delete {self.target.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """`get_operation`. The answer has an Operation, None where Google has forgotten it."""

    target: Target
    operation: OperationName
    type: OperationType

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return f"poll {self.target.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMachines:
    """`list_instances`, for machines of one group. The answer has a tuple of Instance, without those that are none."""

    target: Target
    machines: tuple[ManagedInstance, ...]
    #: Provider ids of those whose nodes are there.
    joined: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return f"read machines {self.target.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMetadata:
    """`set_metadata`: replace all items. The answer has an Operation, None where there is no such machine."""

    target: Target
    machine: ManagedInstance
    items: Mapping[str, str] = field(repr=False)
    fingerprint: str
    request_id: str

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return f"set metadata {self.machine.provider_id}"


Call = Read | ListMachines | Insert | Delete | Poll | ReadMachines | SetMetadata
Result = Resource | tuple[ManagedInstance, ...] | tuple[Instance, ...] | Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """How a call ended. `result` None without failure: what was asked for is not there (NOT_FOUND)."""

    call: Call
    #: When the request was sent, and when it was answered.
    asked_at: datetime
    at: datetime
    result: Result | None = None
    failure: Failure | None = None
    #: Google's own wish, None for none.
    retry_after_seconds: float | None = None
    #: Of a Delete that was not sent: why the proof failed, in words.
    kept: str = ""

    @property
    def key(self) -> str:
        """Names what is answered."""
        return self.call.key
