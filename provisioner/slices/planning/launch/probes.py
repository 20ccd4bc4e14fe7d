"""Pools that are created to see whether there is stock again: one at a time of each capacity."""

from __future__ import annotations

from dataclasses import dataclass

from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.model.choices import capacity_key
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.round import Round


@dataclass(slots=True, kw_only=True)
class Probes:
    """The capacities of which a pool is being made, each with the first such pool."""

    making: dict[str, PoolName]
    memory: Memory
    #: How many of those in the making may be of capacity that was out of stock last time; None: any number.
    most: int | None

    @classmethod
    def of(cls, round_: Round) -> Probes:
        """Look at the pools that there are."""
        making: dict[str, PoolName] = {}
        for name in sorted(round_.supply):
            pool = round_.supply[name].pool
            if pool.status is PoolStatus.PROVISIONING:
                making.setdefault(capacity_key(pool), name)
        limit = round_.memory.operations.limit
        return cls(making=making, memory=round_.memory, most=None if limit is None else (limit + 1) // 2)

    def add(self, capacity: str, name: PoolName) -> None:
        """Take note of one that is about to be made."""
        self.making.setdefault(capacity, name)

    def full(self, capacity: str) -> bool:
        """Whether a pool would take an operation that others need, only to see whether there is stock again.

        A create that runs into a stockout holds one of GKE's few operations for up to half an hour.
        """
        if self.most is None or backoff.probing(self.memory.backoffs, capacity) is None:
            return False
        probing = sum(backoff.probing(self.memory.backoffs, key) is not None for key in self.making)
        return probing >= self.most
