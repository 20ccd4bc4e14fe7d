"""Finds slices that do not have one node pool to themselves. Pure.

A slice of several hosts is split if its pods are on several node pools, or if its node pool has pods of another slice.
If the workload has no exclusive placement and the placement policy is not installed, the scheduler binds pods to any
nodes that fit. Slices of one host cannot be split.
"""

from collections import defaultdict
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from provisioner.model.capacity import PoolName
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.round import Round


class Splits(NamedTuple):
    """Slices that do not have one node pool to themselves."""

    #: Slices of several hosts whose pods are on more than one node pool.
    slices: AbstractSet[SliceId]
    #: Node pools with pods of several slices, at least one of which has several hosts.
    pools: AbstractSet[PoolName]
    #: Slices of several hosts that are in `slices` or in `pools`.
    affected: AbstractSet[SliceId]
    affected_pools: AbstractSet[PoolName]


def find_splits(ctx: Round, matching: Matching) -> Splits:
    """Find split slices that are served. Pods that are being deleted do not count: new pods may be bound elsewhere."""
    held = matching.held
    users: dict[PoolName, set[SliceId]] = defaultdict(set)
    multi_host: set[SliceId] = set()
    for slice_id in held.keys() & ctx.slices.keys():
        slice_ = ctx.slices[slice_id]
        for name in held[slice_id]:
            users[name].add(slice_id)
        if slice_.served and slice_.shape is not None and slice_.shape.multi_host:
            multi_host.add(slice_id)
    split = {slice_id for slice_id in multi_host if len(held[slice_id]) > 1}
    shared = {name for name, slices in users.items() if len(slices) > 1 and not multi_host.isdisjoint(slices)}
    affected = split.union(*(users[name] for name in shared)) & multi_host
    return Splits(split, shared, affected, affected_pools=shared.union(*(held[slice_id] for slice_id in split)))
