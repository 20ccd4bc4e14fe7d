"""What people and metrics are shown of a decision."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from provisioner.partitions.planning.events import why_limited
from provisioner.partitions.planning.picture import Picture
from provisioner.partitions.planning.placing import Schedule
from provisioner.partitions.planning.plan import Holding, Supply, View, Waiting
from provisioner.partitions.planning.queue import Candidate
from provisioner.partitions.planning.standing import Phase, Standing

_ORPHAN = "orphan"


def view_of(picture: Picture, unrecorded: Mapping[str, str]) -> View:
    """Put together what is shown; `unrecorded` says by UID what the ledger has against pods that have a place."""
    holdings = [_holding(each) for each in picture.standings.values()]
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
        for each in picture.strays
    ]
    return View(
        waiting=tuple(
            Waiting(pod=each.pod, place=place, why=unrecorded.get(each.pod.uid) or _why(each, picture.schedule))
            for place, each in enumerate(picture.queue, start=1)
        ),
        holdings=tuple(sorted(holdings, key=lambda each: (each.server, each.allocation, each.id))),
        supply=tuple(
            Supply(
                server=site[0],
                allocation=site[1],
                total=each.total,
                ours=sum(holder.ipus for holder in each.ours),
                others=each.others,
            )
            for site, each in sorted(picture.supply.items())
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
        why=_in_the_way(standing),
    )


def _in_the_way(standing: Standing) -> str:
    known, entry = standing.known, standing.entry
    if not standing.certain:
        return f"V-IPU server {entry.server} cannot be read."
    if standing.phase in (Phase.RELEASING, Phase.BROKEN, Phase.MISPLACED):
        return known.kept or (known.removing.failure.message if known.removing is not None else "")
    if standing.phase in (Phase.WANTED, Phase.LOST) and known.backoff is not None:
        return known.backoff.failure.message
    return ""


def _why(candidate: Candidate, schedule: Schedule) -> str:
    uid = candidate.pod.uid
    if uid in schedule.limited:
        return why_limited(candidate.pod)
    shadow_seconds = schedule.shadows.get(uid, inf)
    if shadow_seconds == inf:
        return candidate.why
    return f"{candidate.why} By the deadlines of those that have them, that is in {shadow_seconds:.0f} s at the latest."
