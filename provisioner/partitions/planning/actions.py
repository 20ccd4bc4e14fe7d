"""What a plan asks to be done, and the answers. One call of a key is under way at a time; each is answered once.

The name of a call or a write is that which metrics and the log have.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, NamedTuple

from provisioner.model.writes import Answered, AnsweredCall
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.partitions.vipu.protocol import PartitionRequest, Reading
from provisioner.settings.partitions import Server

#: What a write of the ledger is known by.
LEDGER = "ledger"


def partition_key(server: str, partition_id: str) -> str:
    """Return what a call that makes or removes a partition is known by."""
    return f"partition {server} {partition_id}"


def pod_key(pod: Pod) -> str:
    """Return what a write of a pod is known by."""
    return f"Pod {pod.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadServer:
    """List allocations and partitions of a server. The answer has a Reading."""

    name: ClassVar = "read"
    server: str

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return f"read {self.server}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartition:
    """Make a partition that is in the ledger."""

    name: ClassVar = "create"
    server: str
    request: PartitionRequest

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return partition_key(self.server, self.request.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePartition:
    """Remove a partition of ours. Of one whose pod may still use it, nothing of this kind is ever asked for.

    `pod` is read live right before: (namespace, name, UID) of the pod that had it, None for an orphan of which no pod
    is known (then the pod whose id it is, if there is one). A pod that is there with that UID, unfinished and not
    released keeps it, except that

    - one that is being deleted has had its grace, if its deletionTimestamp is `past_deletion`;
    - one that was told of another partition (`Pod.told_partition`) does not use this one;
    - with `unused`, one whose init container has not ended does not use it: it is broken, and recreated.
    """

    name: ClassVar = "remove"
    server: str
    id: str
    pod: tuple[str, str, str] | None
    unused: bool = False
    past_deletion: datetime | None = None

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return partition_key(self.server, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveLedger:
    """Replace the ledger, with the resource version of the one that was decided on as precondition."""

    name: ClassVar = "save_ledger"
    before: Ledger
    entries: tuple[Entry, ...]

    @property
    def key(self) -> str:
        """Names what is written."""
        return LEDGER


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfPod:
    """A write of a pod, with its UID and resource version as preconditions."""

    pod: Pod
    partition_id: str

    @property
    def key(self) -> str:
        return pod_key(self.pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGate(_OfPod):
    """Tell a pod its partition and let it be scheduled to the nodes of the server, all in one patch."""

    name: ClassVar = "open_gate"
    server: Server


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBack(_OfPod):
    """Release a pod that has its partition and no node, as the REST API does; one with a node by then keeps it."""

    name: ClassVar = "take_back"


Call = ReadServer | CreatePartition | RemovePartition
Write = SaveLedger | OpenGate | TakeBack


class Wanted(NamedTuple):
    """A call that is to be made; of equal kind whatever has been due for longest comes first."""

    call: Call
    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer(AnsweredCall[Call]):
    """How a call ended."""

    reading: Reading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAnswer(Answered[Write]):
    """How a write ended."""

    #: Of a SaveLedger that is done: the ledger as it is now.
    ledger: Ledger | None = None


Answer = CallAnswer | WriteAnswer
