"""Derives the supply of IPUs in each allocation, and the queue of pods with the allocations that they may use. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cache, partial
from math import inf

from provisioner.model.capacity import FailureKind
from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.entry_status import MAX_REMOVES, MAX_TRIES, OVER, EntryStatus, Phase
from provisioner.partitions.planning.memory import IN_VAIN, Memory, Refusal, Site, failed
from provisioner.partitions.planning.round import Guard, Round
from provisioner.partitions.vipu.records import Allocation, Partition
from provisioner.settings.partitions import PartitionSettings

_TRIALS = frozenset({Phase.WANTED, Phase.CREATING, Phase.MISPLACED, Phase.LOST})


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSupply:
    """IPUs of one allocation, and their use."""

    site: Site
    #: Number of IPUs; None if the server does not report it.
    total: int | None
    #: IPUs of each partition in the ledger, and seconds until they should be free; infinite if unknown.
    ours: tuple[tuple[int, float], ...] = ()
    #: IPUs of listed partitions that the ledger does not record on this server, or whose allocation is unknown.
    others: int = 0
    #: IPUs except those of partitions that this controller cannot or must not remove; None if unknown.
    within_reach: int | None
    #: Whether the server can be read.
    usable: bool = True
    listed: frozenset[str] = frozenset()
    #: UIDs of pods whose partitions are not listed, but may be created: fewer than MAX_TRIES of their creates failed.
    trying: frozenset[str] = frozenset()
    #: Smallest size in IPUs that was rejected for lack of space and must not be retried yet; infinite if none.
    crowded_from: float = inf
    #: Smallest size in IPUs that was rejected for `crowded_seconds` or longer; infinite if none.
    tired_from: float = inf
    #: Smallest size in IPUs that may never fit (`Refusal.never_fits`); infinite if none.
    never_from: float = inf
    #: UIDs of pods whose creates were rejected for lack of space. During a retry, the allocation gets no other pod.
    refused: frozenset[str] = frozenset()

    @property
    def free(self) -> int:
        """IPUs in no listed or recorded partition; 0 if the total is unknown."""
        return max(0, (self.total or 0) - sum(ipus for ipus, _ in self.ours) - self.others)


def supply_of(statuses: Mapping[str, EntryStatus], ctx: Round) -> Mapping[Site, SiteSupply]:
    """Return the supply of all allocations that servers have listed, even if these servers cannot be read now."""
    supply: dict[Site, SiteSupply] = {}
    at: dict[Site, list[EntryStatus]] = {}
    on: dict[str, list[EntryStatus]] = {}
    for status in statuses.values():
        if status.phase not in OVER:
            at.setdefault(status.site, []).append(status)
            on.setdefault(status.entry.server, []).append(status)
    for address, view in sorted(ctx.servers.items()):
        if view.reading is None:
            continue
        foreign = [
            partition
            for partition in view.reading.partitions
            if (known := statuses.get(partition.id)) is None or known.entry.server != address
        ]
        named = {allocation.name for allocation in view.reading.allocations}
        adrift = [
            status.partition
            for status in on.get(address, ())
            if status.partition is not None and status.site[1] not in named
        ]
        for allocation in view.reading.allocations:
            site = (address, allocation.name)
            own = at.get(site, [])
            # Foreign partitions and partitions of unknown allocation count in each allocation that may contain them.
            theirs = [partition for partition in (*foreign, *adrift) if _may_be_in(partition, allocation)]
            listed = [status.partition.id for status in own if status.partition is not None]
            supply[site] = SiteSupply(
                site=site,
                total=allocation.ipus,
                ours=tuple((status.ipus, _ends_in(status, ctx)) for status in own),
                others=sum(partition.size for partition in theirs),
                within_reach=_within_reach(address, allocation, own, theirs, ctx),
                usable=view.failure is None,
                listed=frozenset((*listed, *(partition.id for partition in theirs))),
                trying=frozenset(status.entry.pod_uid for status in own if _is_tried(status)),
            )
    return supply


def _is_tried(status: EntryStatus) -> bool:
    wait = status.known.backoff
    is_trial = status.phase in _TRIALS and status.partition is None
    return is_trial and (wait is None or wait.failures < MAX_TRIES)


def _within_reach(
    address: str, allocation: Allocation, own: Iterable[EntryStatus], theirs: Iterable[Partition], ctx: Round
) -> int | None:
    if allocation.ipus is None:
        return None
    prefix, unreadable = names.id_prefix(ctx.snapshot.cluster_uid), ctx.ledger.unreadable
    stays = sum(status.ipus for status in own if status.stays)
    for partition in theirs:
        stray = ctx.memory.strays.get((address, partition.id))
        kept = stray is not None and stray.removing is not None and stray.removing.failures >= MAX_REMOVES
        if kept or partition.id in unreadable or not partition.id.startswith(prefix):
            stays += partition.size
    return max(0, allocation.ipus - stays)


def _may_be_in(partition: Partition, allocation: Allocation) -> bool:
    """Return whether a partition may be in an allocation. If its allocation is unknown, the clusters are compared."""
    if partition.allocation:
        return partition.allocation == allocation.name
    return not (partition.cluster and allocation.cluster) or partition.cluster == allocation.cluster


def deadline_of(pod: Pod) -> float:
    """Return the maximum run time of a pod in seconds from its start; infinite if there is no deadline."""
    return inf if pod.active_deadline_seconds is None else pod.active_deadline_seconds


def longest_of(pod: Pod, settings: PartitionSettings) -> float:
    """Return the maximum seconds for which a pod keeps a partition that it gets now, with the time to start and end."""
    return deadline_of(pod) + pod.grace_seconds + settings.backfill_allowance_seconds


def _ends_in(status: EntryStatus, ctx: Round) -> float:
    pod = status.pod
    if pod is None or status.phase is Phase.RELEASING:
        return inf if status.stays else 0.0
    since = status.entry.recorded_at
    # The start time is from the clock of the node, which may be ahead: a time in the future does not count.
    began = pod.started_at if pod.started_at is not None and pod.started_at <= ctx.now else since
    passed = max(0.0, (ctx.now - began).total_seconds())
    # The end of a pod that should have ended before now is unknown: the pod may never end.
    return max(0.0, deadline_of(pod) - passed) if passed < longest_of(pod, ctx.settings) else inf


class Wait(Enum):
    """Reason why a pod waits, and topic of its Event."""

    #: The pod may get a partition now, or waits for free IPUs or for pods that are earlier in the queue.
    QUEUE = "queue"
    #: The limit of the namespace leaves too few IPUs, or earlier pods of the namespace wait for the rest of the limit.
    LIMIT = "limit"
    #: The pod exceeds the limit of its namespace, or no server that it may use has a large enough allocation.
    IMPOSSIBLE = "impossible"
    #: Partitions that this controller cannot or must not remove leave too few IPUs.
    OTHERS = "others"
    #: The servers that may have enough IPUs for the pod cannot be read, or are not read yet.
    UNREADABLE = "unreadable"
    #: Scheduling gates of other controllers hold the pod.
    HELD = "held"
    #: In each possible allocation, an attempt failed for other reasons than space, or an old partition is not removed.
    REFUSED = "refused"


#: Reason why a pod waits, the reason as a sentence, and the allocations that the pod may use.
_Choice = tuple[Wait, str, tuple[Site, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A waiting pod."""

    pod: Pod
    wait: Wait
    why: str
    #: Allocations in which the pod may get a partition; empty unless `wait` is QUEUE.
    sites: tuple[Site, ...] = ()
    #: Time at which the next wait after a failed attempt ends; None if this time does not matter now.
    until: datetime | None = None


def with_refusals(statuses: Mapping[str, EntryStatus], supply: Mapping[Site, SiteSupply], ctx: Round) -> Memory:
    """Return the memory with updated `refusals` and `stockouts`."""
    by_pod = {uid: refusals for uid, refusals in ctx.memory.refusals.items() if uid in ctx.pods}
    stockouts = {
        key: refusal
        for key, refusal in ctx.memory.stockouts.items()
        if (ctx.now - refusal.backoff.at).total_seconds() < ctx.settings.crowded_seconds
    }
    for status in statuses.values():
        known, uid = status.known, status.entry.pod_uid
        site = (status.entry.server, status.entry.allocation)
        key = (status.entry.namespace, site)
        if status.phase is Phase.ACTIVE and site in by_pod.pop(uid, {}):
            stockouts.pop(key, None)
        if status.phase is not Phase.WITHDRAWN or known.backoff is None:
            continue
        failure, before = known.backoff.failure, by_pod.get(uid, {}).get(site)
        if before is not None and before.backoff.at >= known.backoff.at:
            continue
        last = before.backoff if before is not None else None
        at = known.backoff.at if known.refused else ctx.now
        listed = supply[site].listed if failure.kind is FailureKind.STOCKOUT and site in supply else None
        first = before or (stockouts.get(key) if listed is not None else None)
        refusal = Refusal(
            backoff=failed(last, failure, status.entry.id, at, None if known.refused else IN_VAIN),
            since=first.since if first is not None else ctx.now,
            listed=listed,
            in_vain=(before.in_vain if before is not None else 0) + (listed == frozenset()),
        )
        by_pod[uid] = {**by_pod.get(uid, {}), site: refusal}
        if listed is not None:
            stockouts[key] = refusal
    return replace(ctx.memory, refusals=by_pod, stockouts=stockouts)


def crowded(supply: Mapping[Site, SiteSupply], ctx: Round) -> dict[Site, SiteSupply]:
    """Return the supply, completed with the sizes and pods that servers rejected for lack of space."""
    completed = dict(supply)
    for uid, refusals in ctx.memory.refusals.items():
        for site, refusal in refusals.items():
            at = completed.get(site)
            if at is None or refusal.listed is None:
                continue
            size, seconds = ctx.pods[uid].size, (refusal.backoff.at - refusal.since).total_seconds()
            if refusal.never_fits:
                at = replace(at, never_from=min(at.never_from, size))
            elif seconds >= ctx.settings.crowded_seconds:
                at = replace(at, tired_from=min(at.tired_from, size))
            at = replace(at, refused=at.refused | {uid})
            if uid not in at.trying and ctx.now < refusal.backoff.until and refusal.listed <= at.listed:
                at = replace(at, crowded_from=min(at.crowded_from, size))
            completed[site] = at
    return completed


def queue_of(
    pods: Iterable[Pod],
    statuses: Mapping[str, EntryStatus],
    supply: Mapping[Site, SiteSupply],
    ctx: Round,
    guard: Guard,
) -> list[Candidate]:
    """Return the waiting pods in the order in which they are served."""
    ordered = sorted(pods, key=lambda pod: (-pod.priority, pod.created_at, pod.uid))
    choose = cache(partial(_choose, supply, ctx))
    # A new partition on the server of a pod's old partition would have the same id. If a pod has several old
    # partitions, only the last one counts.
    stay = {status.entry.pod_uid: status for status in statuses.values() if status.phase is Phase.RELEASING}
    candidates = []
    for pod in ordered:
        part = partial(_candidate, pod, stay.get(pod.uid), choose, ctx)
        candidates.append(guard.run(f"pod {pod.uid}", part, None))
    return [candidate for candidate in candidates if candidate is not None]


def _candidate(pod: Pod, stays: EntryStatus | None, choose: Callable[..., _Choice], ctx: Round) -> Candidate:
    if pod.held_by_others:
        return Candidate(pod=pod, wait=Wait.HELD, why="Other scheduling gates hold it.")
    limit = ctx.settings.limit_of(pod.namespace)
    if limit is not None and pod.size > limit:
        why = (
            f"{pod.size} IPUs are more than namespace {pod.namespace} may have by the setting NAMESPACE_IPU_LIMITS: "
            f"{limit}. Request fewer IPUs, or ask the administrator to raise the limit."
        )
        return Candidate(pod=pod, wait=Wait.IMPOSSIBLE, why=why)
    wait, words, possible = choose(pod.servers, pod.server_annotation, pod.size)
    refusals = ctx.memory.refusals.get(pod.uid, {})
    if wait is not Wait.QUEUE or not (refusals or stays):
        return Candidate(pod=pod, wait=wait, why=words, sites=possible)
    waits = {site: refusal for site, refusal in refusals.items() if refusal.backoff.until > ctx.now}
    sites = tuple(
        site
        for site in possible
        if (site not in waits or waits[site].listed is not None) and (stays is None or site[0] != stays.entry.server)
    )
    first = min(waits.values(), key=lambda refusal: refusal.backoff.until, default=None)
    until = first.backoff.until if first is not None else None
    if sites:
        return Candidate(pod=pod, wait=Wait.QUEUE, why=words, sites=sites, until=until)
    failure = first.backoff.failure if first is not None else None
    why = f"Its partition could not be created: {failure.message}" if failure is not None else ""
    if stays is not None and stays.known.removing is not None:
        why = f"Partition {stays.entry.id} cannot be removed: {stays.known.removing.failure.message}"
    return Candidate(pod=pod, wait=Wait.REFUSED, why=why, until=until)


def _choose(
    supply: Mapping[Site, SiteSupply], ctx: Round, allowed: frozenset[str] | None, server_annotation: str, size: int
) -> _Choice:
    """Return why a pod waits, and its possible allocations. Only `server_annotation` counts if the settings name it."""
    servers = {
        server
        for server in ctx.servers
        if (server == server_annotation if server_annotation in ctx.servers else allowed is None or server in allowed)
    }
    if not servers:
        return Wait.IMPOSSIBLE, "Its node selector or affinity allows the nodes of no V-IPU server.", ()
    large = [
        site_supply
        for site, site_supply in sorted(supply.items())
        if site[0] in servers and (site_supply.total is None or site_supply.total >= size)
    ]
    usable = [site_supply for site_supply in large if site_supply.usable]
    sites = tuple(
        site_supply.site
        for site_supply in usable
        if site_supply.within_reach is None or site_supply.within_reach >= size
    )
    if sites:
        return Wait.QUEUE, f"{size} IPUs must be free in one allocation.", sites
    if usable:
        words = (
            f"Partitions of others, or that cannot be removed, leave no allocation {size} IPUs. It has its turn when "
            "they are gone; other pods go first meanwhile."
        )
        return Wait.OTHERS, words, ()
    unread = sorted(
        {site_supply.site[0] for site_supply in large} | {a for a in servers if ctx.servers[a].reading is None}
    )
    if unread:
        how = "cannot be read" if any(ctx.servers[address].failure for address in unread) else "is not read yet"
        return Wait.UNREADABLE, f"V-IPU server {', '.join(unread)} {how}.", ()
    return Wait.IMPOSSIBLE, f"No allocation of the V-IPU servers that it may use has {size} IPUs.", ()
