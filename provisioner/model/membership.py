"""Determines the node pool of a node. Pure. The label gke-nodepool does not suffice, because users can edit it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import Node, NodePool, PoolName


def reported_pool(labels: Mapping[str, object], annotations: Mapping[str, object]) -> PoolName:
    """Return the node pool in GKE's annotation of a node, otherwise in the node's label; empty if both are missing."""
    label, applied = labels.get(constants.NODE_POOL), annotations.get(constants.APPLIED_LABELS)
    entries = applied.split(",") if isinstance(applied, str) else ()
    recorded = dict(entry.partition("=")[::2] for entry in entries).get(constants.NODE_POOL)
    name = recorded or label
    return PoolName(bounds.cut(name, bounds.OBJECT_NAME)) if isinstance(name, str) else PoolName("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Mapping from nodes to node pools."""

    #: Node pool by prefix of node names (`NodePool.node_prefixes`).
    by_prefix: Mapping[str, PoolName] = field(default_factory=dict)
    listed: Collection[PoolName] = frozenset()
    #: Last determined node pool of each existing node, by node name.
    seen: Mapping[str, PoolName] = field(default_factory=dict)

    @classmethod
    def of(cls, pools: Iterable[NodePool], nodes: Iterable[Node] = (), before: Membership | None = None) -> Membership:
        """Return the membership of existing nodes in pools. `before` is the previous result, None if there was none."""
        by_name = {pool.name: pool for pool in pools}
        by_prefix = {prefix: pool.name for pool in by_name.values() for prefix in pool.node_prefixes}
        membership = cls(by_prefix=by_prefix, listed=by_name.keys(), seen=before.seen if before is not None else {})
        pool_of = ((node.name, membership.pool_of(node.name, node.pool_name)) for node in nodes)
        return replace(membership, seen={name: pool for name, pool in pool_of if pool})

    def pool_of(self, node: str, reported: PoolName) -> PoolName:
        """Return the node pool of a node, empty if unknown; `reported` is the result of `reported_pool`.

        The name of the node, with or without a domain, takes precedence, because users cannot edit it. A reported pool
        that is not listed may come from an edited label, so the pool that was determined before is preferred.
        """
        by_name = self.by_prefix.get(node.partition(".")[0].rpartition("-")[0])
        return by_name or (reported if reported in self.listed else self.seen.get(node) or reported)

    def correct(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Return the nodes whose pool is in `seen`, each with this pool as `pool_name`."""
        pool_of = ((node, self.seen.get(node.name)) for node in nodes)
        return tuple(
            node if pool == node.pool_name else replace(node, pool_name=pool) for node, pool in pool_of if pool
        )
