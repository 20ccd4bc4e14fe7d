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

from typing import Protocol

from provisioner.model.capacity import Failure
from provisioner.partitions.vipu.records import Allocation, Partition, PartitionRequest


class VipuError(Exception):
    """The one exception of this boundary."""

    def __init__(self, failure: Failure, subject: str = "") -> None:
        super().__init__(f"{subject}: {failure.message}" if subject else failure.message)
        self.failure = failure
        #: The call, such as "create partition tpup-1".
        self.subject = subject


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
