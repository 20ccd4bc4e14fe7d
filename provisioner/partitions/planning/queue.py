"""What V-IPU servers have, and which pods wait for it: in which order, and where each may have its partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cache, partial
from math import inf

from provisioner.model.capacity import FailureKind
from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.memory import IN_VAIN, Refusal, Site, failed
from provisioner.partitions.planning.round import Guard, Round
from provisioner.partitions.planning.standing import MOST_REMOVES, MOST_TRIES, OVER, Phase, Standing
from provisioner.partitions.vipu.protocol import Allocation, Partition
from provisioner.settings.partitions import PartitionSettings

_TRIALS = frozenset({Phase.WANTED, Phase.CREATING, Phase.MISPLACED, Phase.LOST})


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSupply:
    """One allocation."""

    site: Site
    #: IPUs; None: the server does not tell.
    total: int | None
    #: IPUs that each of our pods has, and in how many seconds they are free by its deadline; infinite: nobody knows.
    ours: tuple[tuple[int, float], ...] = ()
    #: IPUs of partitions that are not in the ledger.
    others: int = 0
    #: IPUs besides those of partitions that may stay for ever; None: the server does not tell the total.
    within_reach: int | None
    #: Its server can be read.
    usable: bool = True
    #: Ids of the partitions that are listed in it.
    listed: frozenset[str] = frozenset()
    #: UIDs of pods whose partitions are asked for and not seen yet, without those that have failed several times.
    trying: frozenset[str] = frozenset()
    #: The server has refused so many IPUs or more, and nothing has changed since; infinite: it has not.
    crowded_from: float = inf
    #: It has refused so many for long, or where nothing was: the second may never fit.
    tired_from: float = inf
    never_from: float = inf
    #: UIDs of pods that it has refused: while one is tried again, until the server has answered, nobody else is placed.
    refused: frozenset[str] = frozenset()

    @property
    def free(self) -> int:
        """IPUs that nobody has; 0 where the total is not known."""
        return max(0, (self.total or 0) - sum(ipus for ipus, _ in self.ours) - self.others)


def supply_of(standings: Mapping[str, Standing], round_: Round) -> Mapping[Site, SiteSupply]:
    """Return all allocations that servers have shown, also those that cannot be read now."""
    found: dict[Site, SiteSupply] = {}
    at: dict[Site, list[Standing]] = {}
    on: dict[str, list[Standing]] = {}
    for standing in standings.values():
        if standing.phase not in OVER:
            at.setdefault(standing.site, []).append(standing)
            on.setdefault(standing.entry.server, []).append(standing)
    for address, view in sorted(round_.servers.items()):
        if view.reading is None:
            continue
        foreign = [
            each
            for each in view.reading.partitions
            if (known := standings.get(each.id)) is None or known.entry.server != address
        ]
        named = {allocation.name for allocation in view.reading.allocations}
        adrift = [
            each.partition for each in on.get(address, ()) if each.partition is not None and each.site[1] not in named
        ]
        for allocation in view.reading.allocations:
            site = (address, allocation.name)
            own = at.get(site, [])
            # Where one of ours is that was recorded again may not be told either.
            theirs = [each for each in (*foreign, *adrift) if _may_be_in(each, allocation)]
            listed = [each.partition.id for each in own if each.partition is not None]
            found[site] = SiteSupply(
                site=site,
                total=allocation.ipus,
                ours=tuple((each.ipus, _ends_in(each, round_)) for each in own),
                others=sum(each.size for each in theirs),
                within_reach=_within_reach(address, allocation, own, theirs, round_),
                usable=view.failure is None,
                listed=frozenset((*listed, *(each.id for each in theirs))),
                trying=frozenset(each.entry.pod_uid for each in own if _is_tried(each)),
            )
    return found


def _is_tried(standing: Standing) -> bool:
    wait = standing.known.backoff
    is_trial = standing.phase in _TRIALS and standing.partition is None
    return is_trial and (wait is None or wait.failures < MOST_TRIES)


def _within_reach(
    address: str, allocation: Allocation, own: Iterable[Standing], theirs: Iterable[Partition], round_: Round
) -> int | None:
    """Leave out what is not this cluster's, and what cannot be removed: it may stay for ever."""
    if allocation.ipus is None:
        return None
    prefix, unreadable = names.id_prefix(round_.snapshot.cluster_uid), round_.ledger.unreadable
    stays = sum(each.ipus for each in own if each.stays)
    for each in theirs:
        stray = round_.memory.strays.get((address, each.id))
        kept = stray is not None and stray.removing is not None and stray.removing.failures >= MOST_REMOVES
        if kept or each.id in unreadable or not each.id.startswith(prefix):
            stays += each.size
    return max(0, allocation.ipus - stays)


def _may_be_in(partition: Partition, allocation: Allocation) -> bool:
    """Whether the IPUs of a partition may be of an allocation: one that is not told counts against all."""
    if partition.allocation:
        return partition.allocation == allocation.name
    return not (partition.cluster and allocation.cluster) or partition.cluster == allocation.cluster


def deadline_of(pod: Pod) -> float:
    """Return after how many seconds a pod has to end; infinite: it need not."""
    return inf if pod.active_deadline_seconds is None else pod.active_deadline_seconds


def longest_of(pod: Pod, settings: PartitionSettings) -> float:
    """Return for how long a pod may have a partition that it gets now, with all that it takes to end."""
    return deadline_of(pod) + pod.grace_seconds + settings.backfill_allowance_seconds


def _ends_in(standing: Standing, round_: Round) -> float:
    pod = standing.pod
    if pod is None or standing.phase is Phase.RELEASING:
        return inf if standing.stays else 0.0
    since = standing.entry.recorded_at
    # By another clock, which may be ahead.
    began = pod.started_at if pod.started_at is not None and pod.started_at <= round_.now else since
    passed = max(0.0, (round_.now - began).total_seconds())
    # What should have ended long ago may never end.
    return max(0.0, deadline_of(pod) - passed) if passed < longest_of(pod, round_.settings) else inf


# --- who waits ---


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


#: What a pod waits for, in words too, and the allocations that it may use.
_Choice = tuple[Wait, str, tuple[Site, ...]]


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
        last = before.backoff if before is not None else None
        at = known.backoff.at if known.refused else round_.now
        listed = supply[site].listed if failure.kind is FailureKind.STOCKOUT and site in supply else None
        refusal = Refusal(
            backoff=failed(last, failure, standing.entry.id, at, None if known.refused else IN_VAIN),
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
    ordered = sorted(pods, key=lambda pod: (-pod.priority, pod.created_at, pod.uid))
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
    wait, words, possible = choose(pod.servers, pod.told_server, pod.size)
    refusals = round_.memory.refusals.get(pod.uid, {})
    if wait is not Wait.QUEUE or not (refusals or stays):
        return Candidate(pod=pod, wait=wait, why=words, sites=possible)
    waits = {site: each for site, each in refusals.items() if each.backoff.until > round_.now}
    sites = tuple(
        site
        for site in possible
        if (site not in waits or waits[site].listed is not None) and (stays is None or site[0] != stays.entry.server)
    )
    first = min(waits.values(), key=lambda each: each.backoff.until, default=None)
    until = first.backoff.until if first is not None else None
    if sites:
        return Candidate(pod=pod, wait=Wait.QUEUE, why=words, sites=sites, until=until)
    failure = first.backoff.failure if first is not None else None
    why = f"Its partition could not be created: {failure.message}" if failure is not None else ""
    if stays is not None and stays.known.removing is not None:
        why = f"Partition {stays.entry.id} cannot be removed: {stays.known.removing.failure.message}"
    return Candidate(pod=pod, wait=Wait.REFUSED, why=why, until=until)


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
        return Wait.IMPOSSIBLE, "Its node selector or affinity allows the nodes of no V-IPU server.", ()
    large = [
        each
        for site, each in sorted(supply.items())
        if site[0] in servers and (each.total is None or each.total >= size)
    ]
    usable = [each for each in large if each.usable]
    sites = tuple(each.site for each in usable if each.within_reach is None or each.within_reach >= size)
    if sites:
        return Wait.QUEUE, f"{size} IPUs must be free in one allocation.", sites
    if usable:
        words = (
            f"Partitions of others, or that cannot be removed, leave no allocation {size} IPUs. It has its turn when "
            "they are gone; other pods go first meanwhile."
        )
        return Wait.OTHERS, words, ()
    unread = sorted({each.site[0] for each in large} | {a for a in servers if round_.servers[a].reading is None})
    if unread:
        # Just after a start nobody has tried yet.
        how = "cannot be read" if any(round_.servers[each].failure for each in unread) else "is not read yet"
        return Wait.UNREADABLE, f"V-IPU server {', '.join(unread)} {how}.", ()
    return Wait.IMPOSSIBLE, f"No allocation of the V-IPU servers that it may use has {size} IPUs.", ()
