"""Calls and writes of a plan. At most one call or write with the same key is open at a time."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, NamedTuple

from provisioner.model.writes import AnsweredCall, AnsweredWrite
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.partitions.vipu.records import PartitionRequest
from provisioner.settings.partitions import Server

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
    pod: ClassVar[None] = None
    server: str

    @property
    def key(self) -> str:
        """Key of the call, one for each server."""
        return f"read {self.server}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartition:
    """Create a partition that is in the ledger. `pod` is the namespace, name and UID of its pod."""

    name: ClassVar = "create"
    server: str
    pod: tuple[str, str, str]
    request: PartitionRequest

    @property
    def key(self) -> str:
        """Key of the call; a remove of this partition has the same key."""
        return partition_key(self.server, self.request.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePartition:
    """Remove a partition of this cluster, unless a check of its pod blocks the remove.

    Right before the remove, the pod is read from the API server. `pod` is the namespace, name and UID of the pod; None
    if the pod has to be found by the id of the partition. A pod that is neither finished nor released blocks the
    remove, unless

    - the pod is being deleted and its grace period is over: its deletionTimestamp is `past_deletion`;
    - the pod's annotation names another partition (`Pod.partition_annotation`);
    - `unused` is set and the pod's main containers may not use the partition yet (`Pod.begun`).
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
    """Replace the entries of the ledger, if its ConfigMap has not changed since `before` was read."""

    name: ClassVar = "save_ledger"
    before: Ledger
    entries: tuple[Entry, ...]

    @property
    def key(self) -> str:
        """Key of the write."""
        return LEDGER


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfPod:
    """A write of a pod. The UID of the pod is a precondition."""

    pod: Pod
    partition_id: str

    @property
    def key(self) -> str:
        return pod_key(self.pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGate(_OfPod):
    """In one patch, annotate a pod with its partition, remove the gate, and add the server's node selector, if any."""

    name: ClassVar = "open_gate"
    server: Server


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBack(_OfPod):
    """Set the annotation RELEASE of a pod without a node, to release its partition. Fails if `pod` is out of date."""

    name: ClassVar = "take_back"


Change = CreatePartition | RemovePartition
Call = ReadServer | Change
Write = SaveLedger | OpenGate | TakeBack


class Wanted(NamedTuple):
    """A call to send."""

    call: Call
    due_at: datetime
    #: Priority of the pod of a create; 0 for reads, and for removes, which free IPUs for any pod.
    priority: int = 0


CallAnswer = AnsweredCall[Call]
#: Outcome of a write. The result of SaveLedger is the written Ledger.
WriteAnswer = AnsweredWrite[Write]
Answer = CallAnswer | WriteAnswer
