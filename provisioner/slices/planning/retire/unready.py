"""Which pools are given up: GKE calls them up, and not all their nodes have become ready."""

from __future__ import annotations

from provisioner.model.capacity import PoolName
from provisioner.model.workloads import Pod
from provisioner.slices.demand import Slice
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.memory.state import CallState
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.supply import Supply


def give_up(round_: Round, matching: Matching) -> frozenset[PoolName]:
    """Name the pools that have been unready for too long, as many as may be replaced at once.

    Never one on which something can run, nor one of which nobody knows whom it serves: it would stay, and count among
    those that are being replaced. GKE repairs nodes by itself, and what is wrong with many pools at once is hardly the
    pools: with a zone or a device plugin out of order, replacing everything would make it worse.
    """
    supply, settings = round_.supply, round_.settings
    calls = round_.memory.deletes
    held_up = {name for name, call in calls.items() if call.state is CallState.POSTPONED}
    # One that is used again after all is nobody's to replace. Neither it nor one that cannot be deleted for now keeps
    # others from being replaced.
    still = {
        name
        for name in (round_.memory.given_up & supply.keys()) - held_up
        if not supply[name].ready and _is_useless(supply[name], round_, matching)
    }
    waiting = sorted(
        (name in held_up, each.unready_since, name)
        for name, each in supply.items()
        if each.unready_since is not None
        and each.unready_seconds >= settings.ready_timeout_seconds
        and each.pool.hosts > 0
        and not each.leaving
        and name not in still
        and _is_useless(each, round_, matching)
    )
    listed = sum(each.listed for each in supply.values())
    most = max(1, listed * settings.replaced_share_percent // 100)
    return frozenset(still | {name for *_, name in waiting[: max(0, most - len(still))]})


def unschedulable(slice_: Slice) -> tuple[Pod, ...]:
    """Return the pods of a slice that the scheduler finds no node for."""
    return tuple(pod for pod in slice_.pods if pod.unschedulable_since is not None and pod.deletion_deadline is None)


def is_one_unit(slice_: Slice) -> bool:
    """Whether nothing of a slice runs unless all of it does: the pods of single hosts run each by itself."""
    return slice_.shape is not None and slice_.shape.multi_host


def _is_useless(each: Supply, round_: Round, matching: Matching) -> bool:
    """Whether nothing can run on a pool that is not ready as a whole."""
    holders = matching.holders.get(each.name)
    if not holders:
        return each.name in matching.claimed or not each.unwatched
    holder, *others = holders
    slice_ = round_.slices.get(holder) if holder is not None else None
    # What of it is bound waits for the rest.
    return not others and slice_ is not None and slice_.served and is_one_unit(slice_) and bool(unschedulable(slice_))
