"""Calls and writes of a plan, and their answers. At most one call of a key is open at a time; each is answered once.

The `name` of a call or write is its name in metrics and in the log.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, NamedTuple

from provisioner.model.writes import AnsweredCall, AnsweredWrite
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.partitions.vipu.records import PartitionRequest
from provisioner.settings.partitions import Server

#: Key of writes of the ledger.
LEDGER = "ledger"


def partition_key(server: str, partition_id: str) -> str:
    """Return the key of calls that create or remove a partition."""
    return f"partition {server} {partition_id}"


def pod_key(pod: Pod) -> str:
    """Return the key of writes of a pod."""
    return f"Pod {pod.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadServer:
    """List the allocations and partitions of a server. The result is a Reading."""

    name: ClassVar = "read"
    server: str

    @property
    def key(self) -> str:
        """Key of the call, one for each server."""
        return f"read {self.server}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartition:
    """Create a partition that is in the ledger."""

    name: ClassVar = "create"
    server: str
    request: PartitionRequest

    @property
    def key(self) -> str:
        """Key of the call; a remove of this partition has the same key."""
        return partition_key(self.server, self.request.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePartition:
    """Remove a partition of this cluster. A plan contains no remove of a partition that a pod may still use.

    Right before the remove, the pod is read live. `pod` is the (namespace, name, UID) of the pod that had the
    partition. If it is None, all pods are searched for the pod that the partition's id belongs to. An existing pod
    with this UID that is neither finished nor released prevents the remove, unless

    - it is being deleted and its grace period is over: its deletionTimestamp is `past_deletion`;
    - its annotation names another partition (`Pod.told_partition`);
    - `unused` is set and its init container has not succeeded: no other container can have used the partition.
    """

    name: ClassVar = "remove"
    server: str
    id: str
    pod: tuple[str, str, str] | None
    unused: bool = False
    past_deletion: datetime | None = None

    @property
    def key(self) -> str:
        """Key of the call; a create of this partition has the same key."""
        return partition_key(self.server, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveLedger:
    """Replace the ledger, if its resourceVersion is still that of `before`."""

    name: ClassVar = "save_ledger"
    before: Ledger
    entries: tuple[Entry, ...]

    @property
    def key(self) -> str:
        """Key of the write."""
        return LEDGER


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfPod:
    """A write of a pod, with its UID and resourceVersion as preconditions."""

    pod: Pod
    partition_id: str

    @property
    def key(self) -> str:
        return pod_key(self.pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGate(_OfPod):
    """In one patch, add the partition to a pod's annotations, remove its gate, and select the nodes of the server."""

    name: ClassVar = "open_gate"
    server: Server


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBack(_OfPod):
    """Release a pod that has a partition but no node, as the REST API does. A pod with a node keeps its partition."""

    name: ClassVar = "take_back"


Call = ReadServer | CreatePartition | RemovePartition
Write = SaveLedger | OpenGate | TakeBack


class Wanted(NamedTuple):
    """A call to send. Reads are sent before changes; among each, the call with the earliest `due_at` is first."""

    call: Call
    due_at: datetime


#: Outcome of a call. The result of ReadServer is a Reading.
CallAnswer = AnsweredCall[Call]
#: Outcome of a write. The result of SaveLedger is the Ledger as it is now.
WriteAnswer = AnsweredWrite[Write]
Answer = CallAnswer | WriteAnswer
