"""Finds slices that do not have one node pool to themselves, and reports them. Pure.

A slice of several hosts is whole if all its pods are on one node pool that has no pods of another slice.
Without exclusive placement and without the placement policy, the scheduler binds the pods of a group to any nodes that
fit them. Slices of one host cannot be split.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from provisioner.model.capacity import PoolName
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.round import Round


class Splits(NamedTuple):
    """The slices of one round that do not have one node pool to themselves."""

    #: Node pools by slice, for slices of several hosts with pods on more than one node pool.
    slices: Mapping[SliceId, frozenset[PoolName]]
    #: Slices by node pool, for pools with pods of several slices, one of which has several hosts.
    pools: Mapping[PoolName, frozenset[SliceId]]
    #: Slices of several hosts, and pools, in either of the two mappings.
    affected: frozenset[SliceId]
    affected_pools: frozenset[PoolName]


def find_splits(round_: Round, matching: Matching) -> Splits:
    """Find the served slices of several hosts that span node pools, or share one with another slice.

    Pods that are being deleted do not count: during a restart they are on a node pool next to their successors.
    """
    users: dict[PoolName, set[SliceId]] = defaultdict(set)
    split: dict[SliceId, frozenset[PoolName]] = {}
    multi_host: set[SliceId] = set()
    for slice_id, held in matching.held.items():
        slice_ = round_.slices.get(slice_id)
        if slice_ is None:
            continue
        # For a node that belongs to no node pool, the name of the pool is empty.
        names = held - {PoolName("")}
        for name in names:
            users[name].add(slice_id)
        if slice_.served and slice_.shape is not None and slice_.shape.multi_host:
            multi_host.add(slice_id)
            if len(names) > 1:
                split[slice_id] = names
    shared = {
        name: frozenset(slices)
        for name, slices in users.items()
        if len(slices) > 1 and not multi_host.isdisjoint(slices)
    }
    affected = frozenset(split).union(*shared.values()) & multi_host
    return Splits(split, shared, affected, affected_pools=frozenset(shared).union(*split.values()))
