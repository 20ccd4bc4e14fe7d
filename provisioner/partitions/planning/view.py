"""What people and metrics are shown of a decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from provisioner.partitions.planning.memory import Site
from provisioner.partitions.planning.placing import Schedule
from provisioner.partitions.planning.plan import Holding, Supply, View, Waiting
from provisioner.partitions.planning.queue import Candidate
from provisioner.partitions.planning.standing import Standing
from provisioner.partitions.planning.supply import SiteSupply
from provisioner.partitions.planning.sweeping import Stray

_ORPHAN = "orphan"


def view_of(
    queue: Sequence[Candidate],
    schedule: Schedule,
    standings: Iterable[Standing],
    strays: Iterable[Stray],
    supply: Mapping[Site, SiteSupply],
) -> View:
    """Put together what is shown."""
    holdings = [_holding(each) for each in standings]
    holdings += [
        Holding(
            id=each.partition.id,
            server=each.server,
            allocation=each.partition.allocation,
            size=each.partition.size,
            pod=f"{each.pod.namespace}/{each.pod.name}" if each.pod is not None else "",
            phase=_ORPHAN,
            since=each.known.since,
        )
        for each in strays
    ]
    return View(
        waiting=tuple(
            Waiting(pod=each.pod, place=place, why=_why(each, schedule)) for place, each in enumerate(queue, start=1)
        ),
        holdings=tuple(sorted(holdings, key=lambda each: (each.server, each.allocation, each.id))),
        supply=tuple(
            Supply(
                server=site[0],
                allocation=site[1],
                total=each.total,
                ours=sum(holder.ipus for holder in each.ours),
                others=sum(holder.ipus for holder in each.others),
            )
            for site, each in sorted(supply.items())
        ),
    )


def _holding(standing: Standing) -> Holding:
    entry = standing.entry
    return Holding(
        id=entry.id,
        server=entry.server,
        allocation=standing.site[1],
        size=entry.size,
        pod=f"{entry.namespace}/{entry.pod}",
        phase=standing.phase.value,
        since=standing.known.since,
    )


def _why(candidate: Candidate, schedule: Schedule) -> str:
    uid = candidate.pod.uid
    if uid in schedule.limited:
        return f"Namespace {candidate.pod.namespace} has all the IPUs that it may have."
    promised = schedule.promised.get(uid)
    if promised is None:
        return candidate.why
    return f"{candidate.why} By the deadlines of those that have them, that is in {promised:.0f} s at the latest."
