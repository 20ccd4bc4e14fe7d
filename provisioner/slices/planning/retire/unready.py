"""Which pools are given up: GKE calls them up, and not all their nodes have become ready."""

from __future__ import annotations

from provisioner.model.capacity import PoolName
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.round import Round


def give_up(round_: Round, matching: Matching) -> frozenset[PoolName]:
    """Name the pools that have been unready for too long, as many as may be replaced at once.

    Never one that pods are on, nor one of which nobody knows whom it serves: it would stay, and count among those that
    are being replaced. GKE repairs nodes by itself, and what is wrong with many pools at once is hardly the
    pools: with a zone or a device plugin out of order, replacing everything would make it worse.
    """
    supply, settings = round_.supply, round_.settings
    replaceable = {
        name
        for name, each in supply.items()
        if not matching.holders.get(name) and (name in matching.claimed or not each.unwatched)
    }
    # One that is used again after all is nobody's to replace, and must not keep others from being replaced.
    still = {name for name in round_.memory.given_up if name in replaceable and not supply[name].ready}
    waiting = sorted(
        (each.unready_since, name)
        for name, each in supply.items()
        if each.unready_since is not None
        and each.unready_seconds >= settings.ready_timeout_seconds
        and each.pool.hosts > 0
        and name in replaceable
        and not each.leaving
        and name not in still
    )
    listed = sum(each.listed for each in supply.values())
    most = max(1, listed * settings.replaced_share_percent // 100)
    return frozenset(still | {name for _, name in waiting[: max(0, most - len(still))]})
