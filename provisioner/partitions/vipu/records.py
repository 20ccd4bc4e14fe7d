"""Records of V-IPU servers."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from provisioner.model.capacity import CallError


class PartitionState(Enum):
    """Usability of a partition. OTHER includes partitions that are being created, and unknown states."""

    ACTIVE = "active"
    OTHER = "other"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A group of IPU-Machines in which partitions are created. A partition is in one allocation."""

    name: str
    #: Empty if the server does not report a cluster.
    cluster: str = ""
    ipus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition as a V-IPU server lists it."""

    id: str
    size: int
    state: PartitionState
    #: State in the spelling of the server.
    state_text: str = ""
    cluster: str = ""
    #: Empty if the server does not report an allocation.
    allocation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """State of a V-IPU server. A create or remove that was answered after `asked_at` may or may not be included."""

    asked_at: datetime
    at: datetime
    allocations: tuple[Allocation, ...]
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRequest:
    """A partition to create."""

    id: str
    #: Number of IPUs, a power of two.
    size: int
    #: Allocation in which to create the partition; empty for the server's default.
    allocation: str = ""
    #: Whether the devices may be used one by one and in groups.
    reconfigurable: bool = True


class VipuError(CallError):
    """The only exception that calls of V-IPU servers raise."""
