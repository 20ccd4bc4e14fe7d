"""What V-IPU servers have: of each allocation how much is free, and when there may be more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf

from provisioner.partitions import names
from provisioner.partitions.demand import Order, Pod
from provisioner.partitions.planning.memory import Site
from provisioner.partitions.planning.round import Round
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.planning.standing import OVER, Phase, Standing
from provisioner.partitions.vipu.records import Allocation, Partition

_TRIALS = frozenset({Phase.WANTED, Phase.CREATING, Phase.MISPLACED, Phase.LOST})
_MOST_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """IPUs that somebody has."""

    ipus: int
    #: When they are free by the deadline, in seconds from now; infinite: nobody knows.
    ends_in_seconds: float
    #: When they are free at the latest, after what the pod may take to end.
    gone_in_seconds: float = inf
    #: Of the pod; None: it is not known.
    order: Order | None = None
    #: When it got them.
    since: datetime | None = None

    def passed(self, order: Order, created_at: datetime) -> bool:
        """Whether it got them while an older pod waited."""
        return self.order is not None and self.order > order and self.since is not None and self.since >= created_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """For how long a pod has its partition; infinite where it has no deadline."""

    #: Up to its deadline: what those may hope for that come after it.
    shortest_seconds: float
    #: With all that it may take to end.
    longest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSupply:
    """One allocation."""

    site: Site
    #: IPUs; None: the server does not tell.
    total: int | None
    ours: tuple[Holder, ...]
    others: tuple[Holder, ...]
    #: IPUs besides those of partitions that this cluster has no say in; None: the server does not tell the total.
    within_reach: int | None
    #: Its server can be read.
    usable: bool
    #: Sizes of partitions that are asked for and are not seen there.
    trials: tuple[int, ...]
    #: Sizes of those of them that have not failed several times.
    unanswered: tuple[int, ...]
    #: Ids of partitions that are in it or about to be.
    ids: frozenset[str]

    @property
    def free(self) -> int:
        """IPUs that nobody has; 0 where the total is not known."""
        taken = sum(holder.ipus for holder in (*self.ours, *self.others))
        return max(0, (self.total or 0) - taken)


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
            own = at.get(site, ())
            theirs = [each for each in foreign if _may_be_in(each, allocation)]
            # Where one of ours is that was recorded again may not be told either.
            theirs += [each for each in adrift if _may_be_in(each, allocation)]
            found[site] = SiteSupply(
                site=site,
                total=allocation.ipus,
                ours=tuple(_holder(each, round_) for each in own),
                others=tuple(Holder(ipus=each.size, ends_in_seconds=inf) for each in theirs),
                within_reach=_within_reach(allocation, theirs, round_),
                usable=view.failure is None,
                trials=tuple(each.entry.size for each in own if _is_trial(each)),
                unanswered=tuple(each.entry.size for each in own if _is_unanswered(each)),
                ids=frozenset((*(each.entry.id for each in own), *(each.id for each in theirs))),
            )
    return found


def _is_trial(standing: Standing) -> bool:
    return standing.phase in _TRIALS and standing.partition is None


def _is_unanswered(standing: Standing) -> bool:
    """Whether others are to leave it the choice of places: one that cannot be made does not hold them up for long."""
    wait = standing.known.backoff
    return _is_trial(standing) and (wait is None or wait.failures < _MOST_TRIES)


def _within_reach(allocation: Allocation, theirs: Iterable[Partition], round_: Round) -> int | None:
    if allocation.ipus is None:
        return None
    prefix, unreadable = names.id_prefix(round_.snapshot.cluster_uid), round_.ledger.unreadable
    strange = (each.size for each in theirs if each.id in unreadable or not each.id.startswith(prefix))
    return max(0, allocation.ipus - sum(strange))


def _may_be_in(partition: Partition, allocation: Allocation) -> bool:
    """Whether the IPUs of a partition may be of an allocation: one that is not told counts against all."""
    if partition.allocation:
        return partition.allocation == allocation.name
    return not (partition.cluster and allocation.cluster) or partition.cluster == allocation.cluster


def hold_of(pod: Pod, settings: PlanningSettings) -> Hold:
    """Return for how long a pod has a partition that it gets now."""
    if pod.active_deadline_seconds is None:
        return Hold(shortest_seconds=inf, longest_seconds=inf)
    shortest = pod.active_deadline_seconds
    return Hold(
        shortest_seconds=shortest, longest_seconds=shortest + pod.grace_seconds + settings.backfill_allowance_seconds
    )


def _holder(standing: Standing, round_: Round) -> Holder:
    pod, ipus = standing.pod, standing.ipus
    if pod is None or standing.phase is Phase.RELEASING:
        # It may be free at any moment; one that cannot be removed may stay.
        removing = standing.known.removing
        stays = removing is not None and removing.failures >= _MOST_TRIES
        return Holder(ipus=ipus, ends_in_seconds=0.0, gone_in_seconds=inf if stays else 0.0)
    since, hold = standing.entry.recorded_at, hold_of(pod, round_.settings)
    if pod.active_deadline_seconds is None:
        return Holder(ipus=ipus, ends_in_seconds=inf, order=pod.order, since=since)
    # By another clock, which may be ahead.
    began = pod.started_at if pod.started_at is not None and pod.started_at <= round_.now else since
    passed = max(0.0, (round_.now - began).total_seconds())
    # What should have ended long ago may never end.
    ends = max(0.0, hold.shortest_seconds - passed) if passed < hold.longest_seconds else inf
    gone = hold.longest_seconds - passed if passed < hold.longest_seconds else inf
    return Holder(ipus=ipus, ends_in_seconds=ends, gone_in_seconds=gone, order=pod.order, since=since)


def servers_of(pod: Pod, round_: Round) -> Iterable[str]:
    """Return the servers that a pod may have its partition on, in their order; that which it was told, if it was."""
    if pod.told_server in round_.servers:
        return (pod.told_server,)
    return [address for address in round_.servers if pod.servers is None or address in pod.servers]
