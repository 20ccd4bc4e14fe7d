"""Which pods wait for a partition, in which order, where they may have it, and which of them stand aside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cache, partial
from typing import NamedTuple

from provisioner.model.capacity import FailureKind
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning import backoff
from provisioner.partitions.planning.guard import Guard
from provisioner.partitions.planning.memory import Refusal, Site
from provisioner.partitions.planning.round import Round
from provisioner.partitions.planning.standing import Phase, Standing
from provisioner.partitions.planning.supply import SiteSupply


class Wait(Enum):
    """What a pod waits for; people are told of each once."""

    #: IPUs that others have, or that older pods are to have.
    QUEUE = "queue"
    #: Its namespace has, or its older pods wait for, all that it may have.
    LIMIT = "limit"
    #: No server has or may have an allocation that is large enough.
    IMPOSSIBLE = "impossible"
    #: IPUs of partitions that are not of this cluster, or cannot be removed, and may stay for ever.
    OTHERS = "others"
    #: The servers that it may use cannot be read.
    UNREADABLE = "unreadable"
    #: Somebody else's scheduling gates.
    HELD = "held"
    #: Where there was room, its partition could not be made.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A pod that waits."""

    pod: Pod
    wait: Wait
    why: str
    #: Allocations that it may use now.
    sites: tuple[Site, ...] = ()
    #: When it is tried again at the latest; None: nobody knows.
    until: datetime | None = None

    @property
    def aside(self) -> bool:
        """Whether it is passed by whoever can be served."""
        return self.wait is not Wait.QUEUE


def refusals_of(
    standings: Mapping[str, Standing], supply: Mapping[Site, SiteSupply], round_: Round
) -> dict[str, Mapping[Site, Refusal]]:
    """Return where partitions of pods that are there could not be made, until they are made somewhere."""
    found = {uid: each for uid, each in round_.memory.refusals.items() if uid in round_.pods}
    for standing in standings.values():
        known, uid = standing.known, standing.entry.pod_uid
        site = (standing.entry.server, standing.entry.allocation)
        if standing.phase is Phase.ACTIVE:
            found.pop(uid, None)
        if standing.phase is not Phase.WITHDRAWN or known.backoff is None:
            continue
        failure, before = known.backoff.failure, found.get(uid, {}).get(site)
        if before is not None and before.backoff.at >= known.backoff.at:
            continue
        again = backoff.failed if known.refused else backoff.in_vain
        at = known.backoff.at if known.refused else round_.now
        listed = supply[site].listed if failure.kind is FailureKind.STOCKOUT and site in supply else None
        refusal = Refusal(
            backoff=again(before.backoff if before is not None else None, failure, standing.entry.id, at),
            since=before.since if before is not None else round_.now,
            listed=listed,
            in_vain=(before.in_vain if before is not None else 0) + (listed == frozenset()),
        )
        found[uid] = {**found.get(uid, {}), site: refusal}
    return found


def crowded(supply: Mapping[Site, SiteSupply], round_: Round) -> dict[Site, SiteSupply]:
    """Note where servers had no place for so many IPUs, and where such pods are tried again."""
    found = dict(supply)
    for uid, refusals in round_.memory.refusals.items():
        for site, refusal in refusals.items():
            at = found.get(site)
            if at is None or refusal.listed is None:
                continue
            size, seconds = round_.pods[uid].size, (refusal.backoff.at - refusal.since).total_seconds()
            if refusal.never_fits:
                at = replace(at, never_from=min(at.never_from, size))
            elif seconds >= round_.settings.crowded_seconds:
                at = replace(at, tired_from=min(at.tired_from, size))
            if not (refusal.never_fits or round_.pods[uid].told_partition):
                at = replace(at, refused=at.refused | {uid})
            if uid not in at.trying and round_.now < refusal.backoff.until and refusal.listed <= at.listed:
                at = replace(at, crowded_from=min(at.crowded_from, size))
            found[site] = at
    return found


def queue_of(
    pods: Iterable[Pod],
    standings: Mapping[str, Standing],
    supply: Mapping[Site, SiteSupply],
    round_: Round,
    guard: Guard,
) -> list[Candidate]:
    """Return pods that wait, first those that are served first."""
    ordered = sorted(pods, key=lambda pod: pod.order)
    choose = cache(partial(_choose, supply, round_))
    # Another one on the same server would have the same id.
    stay = {each.entry.pod_uid: each for each in standings.values() if each.phase is Phase.RELEASING}
    found = []
    for pod in ordered:
        part = partial(_candidate, pod, stay.get(pod.uid), choose, round_)
        found.append(guard.run(f"pod {pod.uid}", part, None))
    return [candidate for candidate in found if candidate is not None]


def _candidate(pod: Pod, stays: Standing | None, choose: Callable[..., _Choice], round_: Round) -> Candidate:
    if pod.held_by_others:
        return Candidate(pod=pod, wait=Wait.HELD, why="Other scheduling gates hold it.")
    choice = choose(pod.servers, pod.told_server, pod.size)
    refusals = round_.memory.refusals.get(pod.uid, {})
    if choice.wait is not Wait.QUEUE or not (refusals or stays):
        return Candidate(pod=pod, wait=choice.wait, why=choice.why, sites=choice.sites)
    waits = {site: each for site, each in refusals.items() if each.backoff.until > round_.now}
    sites = tuple(
        site
        for site in choice.sites
        if (site not in waits or waits[site].listed is not None) and (stays is None or site[0] != stays.entry.server)
    )
    first = min(waits.values(), key=lambda each: each.backoff.until, default=None)
    until = first.backoff.until if first is not None else None
    if sites:
        return Candidate(pod=pod, wait=Wait.QUEUE, why=choice.why, sites=sites, until=until)
    failure = first.backoff.failure if first is not None else None
    why = f"Its partition could not be made: {failure.message}" if failure is not None else ""
    if stays is not None and stays.known.removing is not None:
        why = f"Partition {stays.entry.id} cannot be removed: {stays.known.removing.failure.message}"
    return Candidate(pod=pod, wait=Wait.REFUSED, why=why, until=until)


class _Choice(NamedTuple):
    wait: Wait
    why: str
    sites: tuple[Site, ...] = ()


def _choose(
    supply: Mapping[Site, SiteSupply], round_: Round, allowed: frozenset[str] | None, told: str, size: int
) -> _Choice:
    """Say where pods may have their partitions; one that was told a server, only there."""
    servers = {
        each
        for each in round_.servers
        if (each == told if told in round_.servers else allowed is None or each in allowed)
    }
    if not servers:
        return _Choice(Wait.IMPOSSIBLE, "Its node selector or affinity allows the nodes of no V-IPU server.")
    large = [
        each
        for site, each in sorted(supply.items())
        if site[0] in servers and (each.total is None or each.total >= size)
    ]
    usable = [each for each in large if each.usable]
    sites = tuple(each.site for each in usable if each.within_reach is None or each.within_reach >= size)
    if sites:
        return _Choice(Wait.QUEUE, f"{size} IPUs have to be free in one allocation.", sites)
    if usable:
        return _Choice(
            Wait.OTHERS,
            f"Partitions of others, or that cannot be removed, leave no allocation {size} IPUs: it has its turn when "
            "they are gone, and others pass it meanwhile.",
        )
    unread = sorted({each.site[0] for each in large} | {a for a in servers if round_.servers[a].reading is None})
    if unread:
        # Just after a start nobody has tried yet.
        how = "cannot be read" if any(round_.servers[each].failure for each in unread) else "is not read yet"
        return _Choice(Wait.UNREADABLE, f"V-IPU server {', '.join(unread)} {how}.")
    return _Choice(Wait.IMPOSSIBLE, f"No allocation of the V-IPU servers that it may use has {size} IPUs.")
