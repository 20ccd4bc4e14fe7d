"""What is asked of a V-IPU server. Implementations raise nothing but VipuError.

- Every method may be called from many threads, and ends within a stated time, whatever the server does.
- **Idempotent by id.** A second create of an id ends in ALREADY_EXISTS and changes nothing; a remove of an id that is
  not there ends in NOT_FOUND. So a call whose answer was lost may be sent again.
- **UNKNOWN_OUTCOME** is what a changing call ends in that was lost on its way, or took too long: it may have had its
  effect, also later. Every other failure means that nothing was changed.
- STOCKOUT is what a create ends in for which there are not enough free IPUs in one place.
- **Listed means all**, also partitions of others. What cannot be read is an error of the whole list.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol

from provisioner.model.capacity import Failure


class PartitionState(Enum):
    """What a partition is good for. V-IPU has more states, whose names are not published: those are OTHER."""

    ACTIVE = "active"
    #: It is being created, or anything else that is neither good nor known to be bad.
    OTHER = "other"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A group of IPU-Machines that partitions are made in; none reaches over two."""

    name: str
    #: Empty where it is not told.
    cluster: str = ""
    #: IPUs; None where it cannot be read.
    ipus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition as a V-IPU server lists it."""

    id: str
    size: int
    state: PartitionState
    #: The server's own word.
    state_text: str = ""
    cluster: str = ""
    #: Empty where it is not told.
    allocation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a V-IPU server has. A change that was answered after `asked_at` may or may not be in it."""

    asked_at: datetime
    at: datetime
    allocations: tuple[Allocation, ...]
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRequest:
    """A partition to be made."""

    id: str
    #: IPUs: a power of two.
    size: int
    #: Empty: the server's default.
    allocation: str = ""
    #: Its devices may be used one by one and in groups.
    reconfigurable: bool = True


class VipuError(Exception):
    """The one exception of this boundary."""

    def __init__(self, failure: Failure, subject: str = "") -> None:
        super().__init__(f"{subject}: {failure.message}" if subject else failure.message)
        self.failure = failure


class Vipu(Protocol):
    """One V-IPU server, as one of its users sees it."""

    def list_allocations(self) -> tuple[Allocation, ...]:
        """Return the allocations that this user may make partitions in. Changes nothing."""
        ...

    def list_partitions(self) -> tuple[Partition, ...]:
        """Return all partitions that this user sees. Changes nothing."""
        ...

    def create_partition(self, request: PartitionRequest) -> None:
        """Make a partition; it may become active some time later. Takes seconds to minutes."""
        ...

    def remove_partition(self, partition_id: str) -> None:
        """Remove a partition, whatever uses it."""
        ...

    def ipuof_config(self, partition_id: str) -> str:
        """Return the IPUoF configuration of a partition: a JSON document that the Poplar SDK reads. Changes nothing."""
        ...
