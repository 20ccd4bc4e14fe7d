"""Interface of a V-IPU server. Implementations raise only VipuError.

- Any thread may call any method. Each method ends within a stated time, even if the server does not respond.
- **Idempotent by id.** A second create of an id ends in ALREADY_EXISTS and changes nothing; a remove of an unknown id
  ends in NOT_FOUND. A call whose answer was lost may therefore be sent again.
- **UNKNOWN_OUTCOME**: a create or remove was lost on its way or took too long. It may have taken effect, or may take
  effect later. Any other failure means that nothing was changed.
- STOCKOUT: a create found too few free IPUs in one place.
- **Lists are complete**, including partitions of other users. If a part cannot be read, the whole list fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol

from provisioner.model.capacity import CallError


class PartitionState(Enum):
    """Usability of a partition. V-IPU has more states, whose names are not published: these are OTHER."""

    ACTIVE = "active"
    #: The partition is being created, or has an unknown state.
    OTHER = "other"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A group of IPU-Machines in which partitions are created. A partition is in one allocation."""

    name: str
    #: Empty if the server does not report it.
    cluster: str = ""
    #: Number of IPUs; None if unknown.
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
    #: Empty if the server does not report it.
    allocation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """State of a V-IPU server. A change that was answered after `asked_at` may or may not be included."""

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
    #: Empty for the server's default.
    allocation: str = ""
    #: Whether the devices may be used one by one and in groups.
    reconfigurable: bool = True


class VipuError(CallError):
    """The only exception of this interface."""


class Vipu(Protocol):
    """One V-IPU server, as one of its users sees it."""

    def list_allocations(self) -> tuple[Allocation, ...]:
        """Return the allocations in which this user may create partitions. Changes nothing."""
        ...

    def list_partitions(self) -> tuple[Partition, ...]:
        """Return all partitions that this user may see. Changes nothing."""
        ...

    def create_partition(self, request: PartitionRequest) -> None:
        """Create a partition, which may become active later. Takes seconds to minutes."""
        ...

    def remove_partition(self, partition_id: str) -> None:
        """Remove a partition, even if it is in use."""
        ...

    def ipuof_config(self, partition_id: str) -> str:
        """Return the IPUoF configuration of a partition: a JSON document for the Poplar SDK. Changes nothing."""
        ...
