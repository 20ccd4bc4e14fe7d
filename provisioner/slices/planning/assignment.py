"""Chooses the labels of the nodes of each pool, so that only the intended pods can be bound there.

A pool is assigned to one slice, free, or open. Only marked pods can be bound to an assigned pool, no pods with chips
to a free one, and unmarked pods to an open one, whose nodes have no labels. The labels are read back from the nodes in
each round, so a restart needs no memory of them. If labels contradict each other, running pods decide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from provisioner import constants
from provisioner.model.capacity import Node
from provisioner.model.placement import FREE, MARKS, job_labels, labels_of
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import Slice
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.plan import Assignment
from provisioner.slices.planning.round import Round, Supply

#: Labels of the nodes of an open pool: none.
OPEN: Mapping[str, None] = dict.fromkeys(MARKS)


def assignments(round_: Round, matching: Matching, partial: Collection[WorkloadUid]) -> tuple[Assignment, ...]:
    """Return the nodes whose labels have to change; `partial` are workloads that wait until all their slices are ready.

    A pool goes from one slice to another in three steps. First all its nodes become free, so that no further pod of the
    first slice is bound there. Then one node is assigned, after the caller has verified live that no pod with chips is
    on any node of the pool, because the cached pods may be old. Then each other node is assigned after the same check.
    """
    found: list[Assignment] = []
    occupied = {pod.node_name for pod in round_.snapshot.pods if not pod.finished}
    for pool in round_.supply.values():
        if (wanted := _wanted(pool, round_, matching, partial)) is None:
            continue
        nodes = [node for node in pool.nodes if not _has(node, wanted)]
        if not nodes:
            continue
        names, used = [node.name for node in nodes], bool(matching.holders.get(pool.name))
        others = [node.name for node in nodes if not _has(node, FREE)]
        if wanted == FREE or (others and not used):
            found += [Assignment(name, FREE) for name in others]
        elif used:
            found += [Assignment(name, wanted, () if name in occupied else (name,)) for name in names]
        elif round_.made_for.get(pool.name) == matching.claimed.get(pool.name):
            # Every pod bound since the create of the pool is of this slice, so no check is needed.
            found += [Assignment(name, wanted) for name in names]
        elif wanted != OPEN and len(names) == len(pool.nodes):
            found.append(Assignment(min(names), wanted, tuple(sorted(names))))
        else:
            found += [Assignment(name, wanted, (name,)) for name in names]
    return tuple(found)


def _has(node: Node, labels: Mapping[str, str | None]) -> bool:
    return all(node.labels.get(key) == value for key, value in labels.items())


def _wanted(
    pool: Supply, round_: Round, matching: Matching, partial: Collection[WorkloadUid]
) -> Mapping[str, str | None] | None:
    """Return the labels that the nodes of a pool should have; None if no label is to be changed."""
    if pool.undecided:
        # The caches may lack pods that use the pool, so its labels stay.
        return None
    holders = matching.holders.get(pool.name, frozenset())
    if holders:
        slice_, *others = (round_.slices.get(holder) if holder is not None else None for holder in holders)
        # The labels stay if pods of an unknown workload, or of several slices that share no pools, are on the pool.
        if slice_ is None or any(each is None or not _share_labels(slice_, each) for each in others):
            return None
        if slice_.mark:
            return _labels_of(slice_)
        # The other nodes are opened as well: the leader may have been bound to the first open node. Labels of its slice
        # stay for its marked pods, which were created while the policy was installed, and may be missing now.
        return OPEN if pool.assigned_to is None or _is_foreign(pool, slice_) else None
    claimant = matching.claimed.get(pool.name)
    if claimant is None:
        # A pool that no slice needs becomes free, so that no pod is bound to it; an open pool stays open.
        return FREE if any(key in node.labels for node in pool.nodes for key in MARKS) else None
    slice_ = round_.slices[claimant]
    if not slice_.workload.kind.has_pods or claimant.workload_uid in partial:
        return FREE
    if slice_.leader is None:
        # Between two attempts of a workload, its pool keeps or gets back this slice's labels; other labels are removed.
        created = _labels_at_create(pool) if round_.made_for.get(pool.name) == claimant else None
        return created if created is not None or not _is_foreign(pool, slice_) else FREE
    return _labels_of(slice_)


def _share_labels(first: Slice, second: Slice) -> bool:
    """Whether two slices share pools, and need the same labels on the nodes."""
    return None not in (first.share, second.share) and _labels_of(first) == _labels_of(second)


def _is_foreign(pool: Supply, slice_: Slice) -> bool:
    """Whether the nodes have the labels of another slice."""
    if pool.assigned_to is None:
        return False
    namespace, key = pool.assigned_to
    return namespace != slice_.workload.namespace or not key.endswith(slice_.id.group_key)


def _labels_at_create(pool: Supply) -> Mapping[str, str] | None:
    """Return the labels of the slice that a pool was created for; None if it was created free or open."""
    labels = {key: pool.pool.labels.get(key, "") for key in MARKS}
    return labels if labels[constants.SLICE] not in ("", constants.SLICE_FREE) else None


def _labels_of(slice_: Slice) -> Mapping[str, str | None]:
    return labels_of(slice_.mark, slice_.workload.namespace) if slice_.mark else OPEN


def label_job_nodes(round_: Round) -> Iterator[Assignment]:
    """Yield the child Job's label for each node that lacks it, so that pods with JobSet's node selector fit the node.

    Pools that were created for one child Job have the label from their create; nodes that GKE recreates lack it.
    """
    for supply in round_.supply.values():
        labels = {} if supply.going else job_labels(supply.pool.labels, supply.pool.taints)
        if labels:
            yield from (Assignment(node.name, labels) for node in supply.nodes if not _has(node, labels))
