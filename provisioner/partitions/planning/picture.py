"""Derives the state of pods, ledger entries and allocations in a round, and the view for users. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from math import inf

from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning import events, making, placing
from provisioner.partitions.planning.entry_status import OVER, EntryStatus, Phase, known_of, status_of_entry
from provisioner.partitions.planning.ledger import Entry
from provisioner.partitions.planning.making import Stray
from provisioner.partitions.planning.memory import Site
from provisioner.partitions.planning.placing import Schedule
from provisioner.partitions.planning.queue import Candidate, SiteSupply, crowded, queue_of, supply_of, with_refusals
from provisioner.partitions.planning.round import Guard, Round

#: Phase that is shown for a `Stray`.
ORPHAN = "orphan"
_NOT_PREPARED = (
    "The webhook did not prepare it: it was created without it, or has its IPUs from another program. Create it again."
)
_GIVEN_BACK = "Its partition was given back before it ran: delete it and create it again."
_UNREADABLE = f"ConfigMap {names.LEDGER_CONFIGMAP_NAME}: its entry {{id}} cannot be read; repair it, or remove it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """State of pods, entries and allocations in one round."""

    #: State of each entry by id, in the ledger's order.
    statuses: Mapping[str, EntryStatus]
    #: Strays that are not recorded again.
    strays: tuple[Stray, ...]
    #: Entries of strays that are recorded again, by id.
    restored: Mapping[str, Entry]
    supply: Mapping[Site, SiteSupply]
    queue: tuple[Candidate, ...]
    schedule: Schedule
    #: Reasons why pods are not served, by UID.
    rejected: Mapping[str, str] = field(default_factory=dict)


def look(ctx: Round, guard: Guard) -> tuple[Picture, Round]:
    """Return the picture of a round, and the round with updated refusals in its memory."""
    statuses = {
        entry.id: guard.run(f"entry {entry.id}", partial(status_of_entry, entry, ctx), _untouched(entry, ctx))
        for entry in ctx.ledger.entries
    }
    seen: Sequence[Stray] = guard.run("strays", partial(making.strays_of, ctx), ())
    restored: Mapping[str, Entry] = guard.run("strays", partial(making.restored, seen, ctx), {})
    supply: Mapping[Site, SiteSupply] = guard.run("supply", partial(supply_of, statuses, ctx), {})
    ctx = replace(ctx, memory=guard.run("refusals", partial(with_refusals, statuses, supply, ctx), ctx.memory))
    waiting, rejected = _demand(statuses, restored, ctx)
    queue = queue_of(waiting, statuses, supply, ctx, guard)
    used: Counter[str] = Counter()
    for status in statuses.values():
        # Unneeded partitions that cannot be removed, or whose server cannot be read, must not use up a limit.
        if status.phase not in OVER and not status.stays and (status.certain or status.phase is not Phase.RELEASING):
            used[status.entry.namespace] += status.entry.size
    for entry in restored.values():
        if entry.id not in statuses:
            used[entry.namespace] += entry.size
    # No pods are placed on servers with restored entries, because the supply has these entries only in the next round.
    moving = {entry.server for entry in restored.values()}
    settled = {site: site_supply for site, site_supply in crowded(supply, ctx).items() if site[0] not in moving}
    schedule = placing.schedule(queue, settled, used, ctx.settings, guard)
    picture = Picture(
        statuses=statuses,
        strays=tuple(
            stray
            for stray in seen
            if (again := restored.get(stray.partition.id)) is None or again.server != stray.server
        ),
        restored=restored,
        supply=supply,
        queue=tuple(queue),
        schedule=schedule,
        rejected=rejected,
    )
    return picture, ctx


def _untouched(entry: Entry, ctx: Round) -> EntryStatus:
    """Return an `EntryStatus` that causes no change, for an entry whose evaluation raised an exception."""
    known = known_of(entry, ctx)
    return EntryStatus(entry=entry, pod=None, phase=Phase.CREATING, known=known, certain=False)


def _demand(
    statuses: Mapping[str, EntryStatus], restored: Mapping[str, Entry], ctx: Round
) -> tuple[list[Pod], dict[str, str]]:
    served = {
        status.entry.pod_uid for status in statuses.values() if status.phase is not Phase.WITHDRAWN and not status.stays
    }
    served |= {entry.pod_uid for entry in restored.values()}
    unreadable = _owners_of_unreadable(ctx)
    namespaces = ctx.settings.namespaces
    waiting, rejected = [], {}
    for pod in ctx.pods.values():
        if pod.uid in served or pod.finished or pod.deletion_deadline is not None:
            continue
        if pod.released or pod.uid in unreadable:
            if not pod.node:
                rejected[pod.uid] = _GIVEN_BACK if pod.released else _UNREADABLE.format(id=unreadable[pod.uid])
        elif namespaces and pod.namespace not in namespaces:
            if pod.gated:
                rejected[pod.uid] = f"SERVED_NAMESPACES of the controller does not name {pod.namespace}."
        elif pod.problem:
            rejected[pod.uid] = pod.problem
        elif pod.size > ctx.settings.largest_size:
            rejected[pod.uid] = f"It asks for {pod.size} IPUs, and at most {ctx.settings.largest_size} are served."
        elif pod.size > 0 and not pod.injected:
            rejected[pod.uid] = _NOT_PREPARED
        elif pod.partition_annotation and not names.is_of(pod.partition_annotation, ctx.snapshot.cluster_uid, pod.uid):
            # A user wrote the annotation. If the controller used this id, it could overwrite the entry of another pod.
            rejected[pod.uid] = _NOT_PREPARED
        elif pod.size > 0:
            waiting.append(pod)
    return waiting, rejected


def _owners_of_unreadable(ctx: Round) -> Mapping[str, str]:
    """Return ids of unreadable ledger entries by UID of the pod: it is unknown whether these pods have a partition."""
    unreadable = ctx.ledger.unreadable
    if not unreadable:
        return {}
    by_owner = {names.owner_of(entry_id): entry_id for entry_id in unreadable}
    owners = {uid: names.owner_id(ctx.snapshot.cluster_uid, uid) for uid in ctx.pods}
    return {uid: by_owner[owner] for uid, owner in owners.items() if owner in by_owner}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLine:
    """A pod that waits for a partition."""

    namespace: str
    pod: str
    ipus: int
    #: Position in the queue; 1 is the first.
    place: int
    since: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedLine:
    """A pod that gets no partition, with the reason."""

    namespace: str
    pod: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """An entry of the ledger, or an orphan (`Stray`)."""

    id: str
    server: str
    allocation: str
    ipus: int
    #: Pod as NAMESPACE/NAME; empty for an orphan without a known pod.
    pod: str
    #: Value of a `Phase`, or ORPHAN.
    phase: str
    since: datetime
    #: Problem of the partition, or the reason why its create or ledger entry is delayed. May be empty.
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyLine:
    """IPUs of an allocation; `ipus` and `free` may be unknown (None)."""

    server: str
    allocation: str
    ipus: int | None
    ours: int
    others: int
    free: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Result of a decision for users and metrics. The lines are served as JSON."""

    waiting: tuple[WaitingLine, ...] = ()
    #: Youngest pod first.
    rejected: tuple[RejectedLine, ...] = ()
    partitions: tuple[PartitionLine, ...] = ()
    supply: tuple[SupplyLine, ...] = ()


def view_of(picture: Picture, reasons: Mapping[str, str], ctx: Round) -> View:
    """Return the view. `reasons` has the reasons, by UID of the pod, why an entry or a create of the pod is delayed."""
    partitions = [_line(status, reasons) for status in picture.statuses.values()]
    partitions += [
        PartitionLine(
            id=stray.partition.id,
            server=stray.server,
            allocation=stray.partition.allocation,
            ipus=stray.partition.size,
            pod=f"{stray.pod.namespace}/{stray.pod.name}" if stray.pod is not None else "",
            phase=ORPHAN,
            since=stray.known.since,
        )
        for stray in picture.strays
    ]
    youngest = sorted(
        (ctx.pods[uid] for uid in picture.rejected), key=lambda pod: (pod.created_at, pod.uid), reverse=True
    )
    return View(
        waiting=tuple(
            WaitingLine(
                namespace=candidate.pod.namespace,
                pod=candidate.pod.name,
                ipus=candidate.pod.size,
                place=place,
                since=candidate.pod.created_at,
                why=reasons.get(candidate.pod.uid) or _why(candidate, picture.schedule),
            )
            for place, candidate in enumerate(picture.queue, start=1)
        ),
        rejected=tuple(
            RejectedLine(namespace=pod.namespace, pod=pod.name, why=picture.rejected[pod.uid]) for pod in youngest
        ),
        partitions=tuple(sorted(partitions, key=lambda line: (line.server, line.allocation, line.id))),
        supply=tuple(
            SupplyLine(
                server=site[0],
                allocation=site[1],
                ipus=supply.total,
                ours=sum(ipus for ipus, _ in supply.ours),
                others=supply.others,
                free=supply.free if supply.total is not None else None,
            )
            for site, supply in sorted(picture.supply.items())
        ),
    )


def _line(status: EntryStatus, reasons: Mapping[str, str]) -> PartitionLine:
    entry = status.entry
    return PartitionLine(
        id=entry.id,
        server=entry.server,
        allocation=status.site[1],
        ipus=entry.size,
        pod=f"{entry.namespace}/{entry.pod}",
        phase=status.phase.value,
        since=status.known.since,
        why=_in_the_way(status) or reasons.get(entry.pod_uid, ""),
    )


def _in_the_way(status: EntryStatus) -> str:
    known, entry = status.known, status.entry
    if not status.certain:
        return f"V-IPU server {entry.server} cannot be read."
    if status.phase in (Phase.RELEASING, Phase.BROKEN, Phase.MISPLACED):
        return known.kept or (known.removing.failure.message if known.removing is not None else "")
    if status.phase in (Phase.WANTED, Phase.LOST) and known.backoff is not None:
        return known.backoff.failure.message
    return ""


def _why(candidate: Candidate, schedule: Schedule) -> str:
    uid = candidate.pod.uid
    if uid in schedule.limited:
        return events.why_limited(candidate.pod)
    shadow_seconds = schedule.shadows.get(uid, inf)
    if shadow_seconds == inf:
        return candidate.why
    return f"{candidate.why} By the deadlines of those that have them, that is in {shadow_seconds:.0f} s at the latest."
