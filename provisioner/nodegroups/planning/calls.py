"""Calls to Compute Engine that a plan asks for, and their answers.

One call of a key is under way at a time. Whoever makes it answers it exactly once, whatever happens.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from provisioner.model.capacity import Failure, OperationName
from provisioner.nodegroups.api.statuses import OperationType
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute.records import (
    Instance,
    ManagedInstance,
    Operation,
    Resource,
    Scope,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A resource of Compute Engine, and the object on whose behalf it is called."""

    #: UID of the child that stands for it, or of the group that names a template of its user's.
    uid: str
    kind: Kind
    scope: Scope
    name: str


@functools.cache
def words_of(name: str) -> str:
    """Return the name of a class in words: ReadMachines -> read machines."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfTarget:
    """A call."""

    target: Target

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return f"{words_of(type(self).__name__)} {self.target.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(_OfTarget):
    """Read the resource. The answer has a Resource, None for absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMachines(_OfTarget):
    """`list_managed_instances`. The answer has a tuple of ManagedInstance, None where there is no such group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert(_OfTarget):
    """Create the resource. The answer has an Operation."""

    resource: Resource
    attempt: int
    request_id: str


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
class Delete(_OfTarget):
    """Delete the resource. The answer has an Operation, None where it is not there, or says why it is kept."""

    attempt: int
    request_id: str
    #: None: nothing has to be proven first.
    proof: Proof | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(_OfTarget):
    """`get_operation`. The answer has an Operation, None where Google has forgotten it."""

    operation: OperationName
    type: OperationType


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMachines(_OfTarget):
    """`list_instances`, for machines of one group. The answer has a tuple of Instance, without those that are none."""

    machines: tuple[ManagedInstance, ...]
    #: Provider ids of those whose nodes are there.
    joined: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMetadata(_OfTarget):
    """`set_metadata`: replace all items. The answer has an Operation, None where there is no such machine."""

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
    #: A `Result` as the call says.
    result: Any = None
    failure: Failure | None = None
    #: Google's own wish, None for none.
    retry_after_seconds: float | None = None
    #: Of a Delete that was not sent: why the proof failed, in words.
    kept: str = ""

    @property
    def key(self) -> str:
        """Names what is answered."""
        return self.call.key
