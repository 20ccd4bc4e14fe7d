"""Decides the next steps for each entry of the ledger, and for each stray partition (`Stray`). Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning import actions, events
from provisioner.partitions.planning.entry_status import EntryStatus, Phase, cannot_be_removed
from provisioner.partitions.planning.events import Event
from provisioner.partitions.planning.ledger import Entry
from provisioner.partitions.planning.memory import PartitionMemory, Site
from provisioner.partitions.planning.round import Round
from provisioner.partitions.vipu.records import Partition, PartitionRequest

Step = actions.Wanted | actions.OpenGate | actions.TakeBack | Event | datetime


def steps_of(status: EntryStatus, ctx: Round) -> Iterator[Step]:
    """Yield the steps for an entry."""
    pod = status.pod
    if pod is not None:
        yield from _make(status, pod, ctx) if status.certain else _without_server(status, pod, ctx)
    yield from _release(status, ctx)


def _make(status: EntryStatus, pod: Pod, ctx: Round) -> Iterator[Step]:
    match status.phase:
        case Phase.WANTED:
            yield from _create(status, pod, ctx)
        case Phase.LOST:
            yield events.lost(pod, status.entry)
            yield from _create(status, pod, ctx)
        case Phase.CREATING:
            since = status.known.changed_at or status.known.since
            yield since + timedelta(seconds=ctx.settings.stuck_seconds)
        case Phase.ACTIVE:
            yield from _hand_over(status, pod, ctx)
        case Phase.BROKEN:
            yield from _make_anew(status, pod, ctx, events.broken(pod, status.entry, status.partition))
        case Phase.MISPLACED if status.partition is not None:
            yield from _make_anew(status, pod, ctx, events.misplaced(pod, status.entry))


def _without_server(status: EntryStatus, pod: Pod, ctx: Round) -> Iterator[Step]:
    entry, view = status.entry, ctx.servers.get(status.entry.server)
    if status.phase is not Phase.CREATING:
        return
    if view is None:
        yield events.unnamed(pod, entry)
    elif view.failure is not None and not pod.begun:
        yield events.unreadable(pod, entry, view.failure, ctx.settings.stuck_seconds)


def _create(status: EntryStatus, pod: Pod, ctx: Round) -> Iterator[Step]:
    entry, backoff = status.entry, status.known.backoff
    if backoff is not None:
        yield events.failed(pod, entry, backoff.failure)
        if backoff.until > ctx.now:
            yield backoff.until
            return
    # A retry is due when its back-off ends. If it were ordered by the age of its pod, it would precede younger pods.
    due_at = backoff.until if backoff is not None else pod.created_at
    request = PartitionRequest(
        id=entry.id, size=entry.size, allocation=entry.allocation, reconfigurable=entry.reconfigurable
    )
    owner = (entry.namespace, entry.pod, entry.pod_uid)
    call = actions.CreatePartition(server=entry.server, pod=owner, request=request)
    yield actions.Wanted(call, due_at, pod.priority)


def entry_of(pod: Pod, partition_id: str, site: Site, ctx: Round) -> Entry:
    """Return a new entry of the ledger for a pod's partition in the allocation `site`."""
    return Entry(
        id=partition_id,
        namespace=pod.namespace,
        pod=pod.name,
        pod_uid=pod.uid,
        size=pod.size,
        server=site[0],
        allocation=site[1],
        reconfigurable=ctx.settings.reconfigurable,
        recorded_at=ctx.now,
    )


def _hand_over(status: EntryStatus, pod: Pod, ctx: Round) -> Iterator[Step]:
    entry = status.entry
    if not pod.gated:
        if not pod.server_annotation:
            yield events.created(pod, entry)
        return
    # While a remove of the partition is open, the gate is kept: the active state may be from before the remove.
    is_being_removed = isinstance(ctx.change_of(entry), actions.RemovePartition)
    if pod.deletion_deadline is not None or is_being_removed or _is_being_dropped(entry, ctx):
        return
    yield actions.OpenGate(pod=pod, partition_id=entry.id, server=ctx.servers[entry.server].server)
    yield events.created(pod, entry)


def _is_being_dropped(entry: Entry, ctx: Round) -> bool:
    """Return whether an open write of the ledger lacks the entry, so that the entry may be deleted."""
    under_way = ctx.memory.writes.get(actions.LEDGER)
    if under_way is None or under_way.answered_at is not None or not isinstance(under_way.write, actions.SaveLedger):
        return False
    return entry.id not in {saved.id for saved in under_way.write.entries}


def _make_anew(status: EntryStatus, pod: Pod, ctx: Round, notice: Event) -> Iterator[Step]:
    yield notice
    write = ctx.memory.writes.get(actions.pod_key(pod))
    # While a write of the pod is open, no remove is sent: the write may remove the gate after the remove's check.
    is_being_told = write is not None and write.answered_at is None
    if not (pod.begun or is_being_told):
        yield from _remove(status, ctx, unused=True)


def _release(status: EntryStatus, ctx: Round) -> Iterator[Step]:
    pod = status.pod
    if status.phase is Phase.GONE:
        # No Event is emitted if the server is no longer in the settings, because the partition may still exist.
        if pod is not None and status.certain:
            yield events.released(pod, status.entry)
    elif status.phase is not Phase.RELEASING:
        lets_go_at = ctx.lets_go_at(pod) if pod is not None else None
        if lets_go_at is not None:
            yield lets_go_at
    elif status.certain and status.partition is not None and not status.outdated:
        # A pod that still has its gate does not use this partition.
        unused = pod is not None and pod.gated
        yield from _remove(status, ctx, unused=unused, past_deletion=ctx.past_deletion(pod))


def _remove(status: EntryStatus, ctx: Round, *, unused: bool, past_deletion: datetime | None = None) -> Iterator[Step]:
    entry, known = status.entry, status.known
    if status.pod is not None and known.removing is not None and cannot_be_removed(known):
        yield events.not_removed(status.pod, entry, known.removing.failure)
    call = actions.RemovePartition(
        server=entry.server,
        id=entry.id,
        pod=(entry.namespace, entry.pod, entry.pod_uid),
        unused=unused,
        past_deletion=past_deletion,
    )
    yield _at(known.removing.until if known.removing is not None else known.since, call, ctx)


def _at(due_at: datetime, call: actions.RemovePartition, ctx: Round) -> Step:
    return actions.Wanted(call, due_at) if due_at <= ctx.now else due_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A partition of this cluster that the ledger does not record, or records on another server."""

    server: str
    partition: Partition
    #: Entry of the ledger with this id, on another server; None if the ledger has no entry with this id.
    entry: Entry | None
    #: Pod that the id belongs to; None if no such pod is known.
    pod: Pod | None
    known: PartitionMemory


def strays_of(ctx: Round) -> Sequence[Stray]:
    """Return the strays on all servers that can be read."""
    prefix = names.id_prefix(ctx.snapshot.cluster_uid)
    listed = [
        (address, partition)
        for address in sorted(ctx.servers)
        if ctx.reading(address) is not None
        for partition in ctx.listed[address].values()
        if partition.id.startswith(prefix)
        and partition.id not in ctx.ledger.unreadable
        and ((entry := ctx.entries.get(partition.id)) is None or entry.server != address)
    ]
    if not listed:
        return []
    owners = {names.owner_id(ctx.snapshot.cluster_uid, uid): pod for uid, pod in ctx.pods.items()}
    return [
        Stray(
            server=address,
            partition=partition,
            entry=ctx.entries.get(partition.id),
            pod=owners.get(names.owner_of(partition.id)),
            known=ctx.memory.strays.get((address, partition.id)) or PartitionMemory(since=ctx.now),
        )
        for address, partition in listed
    ]


def restored(strays: Iterable[Stray], ctx: Round) -> Mapping[str, Entry]:
    """Return ledger entries by id, at most one for each pod, for strays that pods may still use."""
    has_place = {entry.pod_uid for entry in ctx.ledger.entries if entry.server in ctx.servers}
    entries: dict[str, Entry] = {}
    for stray in strays:
        pod = stray.pod
        if pod is None or not _may_be_in_use(stray, ctx) or ctx.uses_other_server(pod, stray.server):
            continue
        # The server in the pod's annotation takes precedence over the ledger: the pod uses the partition there.
        is_told_here = pod.server_annotation == stray.server
        if is_told_here or (pod.uid not in entries and pod.uid not in has_place):
            entries[pod.uid] = _restored(stray, pod, ctx)
    return {entry.id: entry for entry in entries.values()}


def clear(stray: Stray, ctx: Round) -> Iterator[Step]:
    """Yield the remove of a stray that no pod may use, or the time at which this remove is due."""
    known, reading = stray.known, ctx.reading(stray.server)
    if _may_be_in_use(stray, ctx):
        return
    if known.changed_at is not None and reading is not None and reading.asked_at < known.changed_at:
        return
    ended = stray.pod is not None and not ctx.wants(stray.pod)
    due_at = known.since if ended else known.since + timedelta(seconds=ctx.settings.orphan_seconds)
    if known.removing is not None:
        due_at = max(due_at, known.removing.until)
    call = actions.RemovePartition(
        server=stray.server, id=stray.partition.id, pod=_proof_of(stray), past_deletion=ctx.past_deletion(stray.pod)
    )
    yield _at(due_at, call, ctx)


def _may_be_in_use(stray: Stray, ctx: Round) -> bool:
    """Return whether a pod may still use the stray. Servers are not compared, because a server may have two names."""
    return stray.pod is not None and ctx.may_use(stray.pod, stray.partition.id)


def _proof_of(stray: Stray) -> tuple[str, str, str] | None:
    if stray.pod is not None:
        return stray.pod.namespace, stray.pod.name, stray.pod.uid
    if stray.entry is not None:
        return stray.entry.namespace, stray.entry.pod, stray.entry.pod_uid
    return None


def _restored(stray: Stray, pod: Pod, ctx: Round) -> Entry:
    site = stray.server, _allocation_of(stray, ctx)
    if stray.entry is not None:
        return replace(stray.entry, server=site[0], allocation=site[1], recorded_at=ctx.now)
    entry = entry_of(pod, stray.partition.id, site, ctx)
    return entry if pod.size else replace(entry, size=stray.partition.size)


def _allocation_of(stray: Stray, ctx: Round) -> str:
    reading = ctx.reading(stray.server)
    if stray.partition.allocation or reading is None:
        return stray.partition.allocation
    possible = [
        allocation.name for allocation in reading.allocations if stray.partition.cluster in ("", allocation.cluster)
    ]
    return possible[0] if len(possible) == 1 else ""
