"""What V-IPU servers have: of each allocation how much is free, and when there may be more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.memory import Site
from provisioner.partitions.planning.round import Round
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.planning.standing import MOST_REMOVES, MOST_TRIES, OVER, Phase, Standing
from provisioner.partitions.vipu.records import Allocation, Partition

_TRIALS = frozenset({Phase.WANTED, Phase.CREATING, Phase.MISPLACED, Phase.LOST})


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """IPUs that one of our pods has."""

    ipus: int
    #: When they are free by the deadline, in seconds from now; infinite: nobody knows.
    ends_in_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSupply:
    """One allocation."""

    site: Site
    #: IPUs; None: the server does not tell.
    total: int | None
    ours: tuple[Holder, ...] = ()
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
        return max(0, (self.total or 0) - sum(holder.ipus for holder in self.ours) - self.others)


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
                ours=tuple(Holder(ipus=each.ipus, ends_in_seconds=_ends_in(each, round_)) for each in own),
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
        kept = stray is not None and stray.backoff is not None and stray.backoff.failures >= MOST_REMOVES
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


def longest_of(pod: Pod, settings: PlanningSettings) -> float:
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
