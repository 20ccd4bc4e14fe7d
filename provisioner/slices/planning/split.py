"""Finds slices that do not have one node pool to themselves. Pure.

A slice of several hosts is split if its pods are on several node pools, or if its node pool has pods of another slice.
If the workload has no exclusive placement and the placement policy is not installed, the scheduler binds pods to any
nodes that fit. Slices of one host cannot be split.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from provisioner.model.capacity import PoolName
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.round import Round


class Splits(NamedTuple):
    """Slices that do not have one node pool to themselves."""

    #: Node pools of each slice of several hosts whose pods are on more than one node pool.
    slices: Mapping[SliceId, frozenset[PoolName]]
    #: Slices on each node pool with pods of several slices, at least one of which has several hosts.
    pools: Mapping[PoolName, frozenset[SliceId]]
    #: Slices of several hosts that are in `slices` or in `pools`.
    affected: frozenset[SliceId]
    affected_pools: frozenset[PoolName]


def find_splits(ctx: Round, matching: Matching) -> Splits:
    """Find split slices that are served. Pods that are being deleted do not count: new pods may be bound elsewhere."""
    users: dict[PoolName, set[SliceId]] = defaultdict(set)
    split: dict[SliceId, frozenset[PoolName]] = {}
    multi_host: set[SliceId] = set()
    for slice_id, held in matching.held.items():
        slice_ = ctx.slices.get(slice_id)
        if slice_ is None:
            continue
        for name in held:
            users[name].add(slice_id)
        if slice_.served and slice_.shape is not None and slice_.shape.multi_host:
            multi_host.add(slice_id)
            if len(held) > 1:
                split[slice_id] = held
    shared = {
        name: frozenset(slices)
        for name, slices in users.items()
        if len(slices) > 1 and not multi_host.isdisjoint(slices)
    }
    affected = frozenset(split).union(*shared.values()) & multi_host
    return Splits(split, shared, affected, affected_pools=frozenset(shared).union(*split.values()))
