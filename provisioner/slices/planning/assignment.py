"""Chooses the labels of the nodes of each pool, so that only the intended pods can be bound there. Pure.

Admission adds a mark, which is a node selector, to the pods of slices, and keeps other pods with chips off nodes with
labels for marks. The nodes of an assigned pool have the labels of one mark, the nodes of a free pool have labels that
match no mark, and the nodes of an open pool have no such labels.
"""

from collections.abc import Collection, Iterator, Mapping

from provisioner import constants
from provisioner.model.capacity import Node
from provisioner.model.placement import FREE, MARKS, job_labels, labels_of
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import Slice
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.plan import Assignment
from provisioner.slices.planning.round import OwnedPool, Round
from provisioner.slices.planning.seats import may_share

#: Labels of an open pool: None means that its nodes do not have the label.
OPEN: Mapping[str, None] = dict.fromkeys(MARKS)


def assignments(ctx: Round, matching: Matching, partial: Collection[WorkloadUid]) -> tuple[Assignment, ...]:
    """Return the label changes of nodes. Workloads in `partial` wait until all their slices are ready.

    A pool without pods that was created for another slice is assigned in three steps. First all its nodes become free,
    so that no further pod of the other slice is bound there. Then one node is assigned, after a live check that no node
    of the pool has a pod with chips: caches may be outdated. Then each further node is assigned after a live check.
    """
    due: list[tuple[OwnedPool, Mapping[str, str | None], list[Node]]] = []
    for pool in ctx.owned.values():
        wanted = _wanted(pool, ctx, matching, partial)
        if wanted is not None and (nodes := [node for node in pool.nodes if not _has(node, wanted)]):
            due.append((pool, wanted, nodes))
    changes: list[Assignment] = []
    pods = ctx.snapshot.pods if due else ()
    occupied = {pod.node_name for pod in pods if not pod.finished and pod.requirements.has_chips}
    for pool, wanted, nodes in due:
        names, used = [node.name for node in nodes], bool(matching.holders.get(pool.name))
        unmarked = [node.name for node in nodes if not _has(node, FREE)]
        if wanted == FREE or (unmarked and not used):
            changes += [Assignment(name, FREE) for name in unmarked]
        elif used:
            changes += [Assignment(name, wanted, () if name in occupied else (name,)) for name in names]
        elif ctx.created_for.get(pool.name) == matching.claimed.get(pool.name):
            # The pool was created for the slice that counts on it, so no pods of other slices are expected there.
            changes += [Assignment(name, wanted) for name in names]
        elif wanted != OPEN and len(names) == len(pool.nodes):
            changes.append(Assignment(min(names), wanted, tuple(sorted(names))))
        else:
            changes += [Assignment(name, wanted, (name,)) for name in names]
    return tuple(changes)


def _has(node: Node, labels: Mapping[str, str | None]) -> bool:
    return all(node.labels.get(key) == value for key, value in labels.items())


def _wanted(
    pool: OwnedPool, ctx: Round, matching: Matching, partial: Collection[WorkloadUid]
) -> Mapping[str, str | None] | None:
    """Return the labels that the nodes of a pool should have; None if the nodes keep their labels."""
    if pool.undecided:
        # The pool may be in use although it looks idle, so its labels are kept.
        return None
    holders = matching.holders.get(pool.name, frozenset())
    if holders:
        slice_, *sharers = (ctx.slices.get(holder) if holder is not None else None for holder in holders)
        # The labels are kept for pods of a slice that is not in `ctx`, or of several slices that may not share a pool.
        if slice_ is None or any(sharer is None or not may_share(slice_, sharer) for sharer in sharers):
            return None
        # New pods of slices that share a pool may have a mark that older pods lack, so marked slices are preferred.
        waiting = (ctx.slices[seat] for seat in matching.seats.get(pool.name, ()))
        users = slice_, *filter(None, sharers), *(user for user in waiting if may_share(slice_, user))
        slice_ = next((user for user in users if user.mark), slice_)
        if slice_.mark:
            return _labels_of(slice_)
        # An unmarked slice needs open nodes. Labels with the key of its group are kept: its earlier pods had marks.
        return OPEN if pool.assigned_to is None or _is_foreign(pool, slice_) else None
    claimant = matching.claimed.get(pool.name)
    if claimant is None:
        # An unneeded pool with the labels of a slice becomes free, so that no further pod of the slice is bound to it.
        return FREE if any(key in node.labels for node in pool.nodes for key in MARKS) else None
    slice_ = ctx.slices[claimant]
    if not slice_.workload.kind.has_pods or claimant.workload_uid in partial:
        return FREE
    if slice_.leader is None:
        # Without a leader pod, as in a restart, labels of the create or with the group's key are kept or restored.
        created = _labels_at_create(pool) if ctx.created_for.get(pool.name) == claimant else None
        if created is not None or pool.assigned_to is None:
            return created
        namespace, mark = pool.assigned_to
        return FREE if _is_foreign(pool, slice_) else labels_of(mark, namespace)
    return _labels_of(slice_)


def _is_foreign(pool: OwnedPool, slice_: Slice) -> bool:
    if pool.assigned_to is None:
        return False
    namespace, key = pool.assigned_to
    return namespace != slice_.workload.namespace or not key.endswith(slice_.id.group_key)


def _labels_at_create(pool: OwnedPool) -> Mapping[str, str] | None:
    labels = {key: pool.pool.labels.get(key, "") for key in MARKS}
    return labels if labels[constants.SLICE] not in ("", constants.SLICE_FREE) else None


def _labels_of(slice_: Slice) -> Mapping[str, str | None]:
    return labels_of(slice_.mark, slice_.workload.namespace) if slice_.mark else OPEN


def label_job_nodes(ctx: Round) -> Iterator[Assignment]:
    """Yield the label that the pods of a child Job select, for nodes of the Job's pool that lack the label."""
    for owned in ctx.owned.values():
        labels = {} if owned.going else job_labels(owned.pool.labels, owned.pool.taints)
        if labels:
            yield from (Assignment(node.name, labels) for node in owned.nodes if not _has(node, labels))
