"""Allocations whose free IPUs lie apart, and pods whose partitions were refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from provisioner.model.capacity import FailureKind
from provisioner.partitions.planning import backoff
from provisioner.partitions.planning.memory import Backoff, Crowding, Memory, Site
from provisioner.partitions.planning.queue import Candidate
from provisioner.partitions.planning.round import Round
from provisioner.partitions.planning.standing import Phase, Standing
from provisioner.partitions.planning.supply import SiteSupply

#: Refused so often where nothing is, a pod is passed by all: it may never start.
MOST_IN_VAIN = 3
_EMPTY_SECONDS = 30.0


def noted(supply: Mapping[Site, SiteSupply], round_: Round) -> dict[Site, Crowding]:
    """Return what is known of crowded allocations, with what they have now."""
    found = {}
    for site, crowding in round_.memory.crowding.items():
        at = supply.get(site)
        if at is None:
            continue
        # What others are only tried for is not there: where they are refused, too, nothing has changed.
        there = at.ids & round_.listed[site[0]].keys()
        found[site] = _now(crowding, there, round_.now)
    return found


def _now(crowding: Crowding, there: frozenset[str], now: datetime) -> Crowding:
    listed, in_vain = crowding.listed, crowding.in_vain
    if listed is None:
        listed = there - {crowding.refused}
        in_vain += not listed
    noted_ = replace(crowding, listed=listed, in_vain=in_vain)
    return replace(noted_, holds=listed <= there and now < _until(noted_))


def _until(crowding: Crowding) -> datetime:
    """Return when there may be room: where nothing is there any more that could be in the way, soon."""
    if crowding.listed or crowding.in_vain >= MOST_IN_VAIN:
        return crowding.backoff.until
    return min(crowding.backoff.until, crowding.backoff.at + timedelta(seconds=_EMPTY_SECONDS))


def still_minded(
    crowded: Mapping[Site, Crowding], queue: Iterable[Candidate], supply: Mapping[Site, SiteSupply]
) -> dict[Site, Crowding]:
    """Leave out what nobody has trouble with any more: nobody waits who was crowded out, and nobody is being tried.

    One that is tried elsewhere comes back when it is refused there, too.
    """
    if not crowded:
        return {}
    tried = max((size for each in supply.values() for size in each.trials), default=0)
    largest: dict[Site, int] = {}
    for candidate in queue:
        for site in candidate.sites:
            if site in crowded:
                largest[site] = max(largest.get(site, 0), candidate.pod.size)
    return {site: crowding for site, crowding in crowded.items() if max(largest.get(site, 0), tried) >= crowding.size}


def refusals_of(standings: Iterable[Standing], memory: Memory, round_: Round) -> dict[str, Mapping[Site, Backoff]]:
    """Return where partitions of pods that are there could not be made, for reasons that concern no other pod."""
    found = {uid: each for uid, each in memory.refusals.items() if uid in round_.pods}
    for standing in standings:
        wait, entry = standing.known.backoff, standing.entry
        if standing.phase is not Phase.WITHDRAWN or wait is None or wait.failure.kind is FailureKind.STOCKOUT:
            continue
        site = (entry.server, entry.allocation)
        before = found.get(entry.pod_uid, {})
        last = before.get(site)
        if last is None or last.at < wait.at:
            again = backoff.failed if standing.known.refused else backoff.in_vain
            at = wait.at if standing.known.refused else round_.now
            found[entry.pod_uid] = {**before, site: again(last, wait.failure, entry.id, at)}
    return found
