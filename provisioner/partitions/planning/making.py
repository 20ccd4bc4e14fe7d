"""What is to be done for each entry of the ledger, and about partitions with our prefix where the ledger has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning import actions, events
from provisioner.partitions.planning.events import Event
from provisioner.partitions.planning.ledger import Entry
from provisioner.partitions.planning.memory import PartitionMemory, Site
from provisioner.partitions.planning.round import Round
from provisioner.partitions.planning.standing import Phase, Standing, cannot_be_removed
from provisioner.partitions.vipu.protocol import Partition, PartitionRequest

#: A call, a write of a pod, words for its people, or when to look again.
Step = actions.Wanted | actions.OpenGate | actions.TakeBack | Event | datetime


def steps_of(standing: Standing, round_: Round) -> Iterator[Step]:
    """Say what is to be done for an entry."""
    pod = standing.pod
    if pod is not None:
        yield from _make(standing, pod, round_) if standing.certain else _without_server(standing, pod, round_)
    yield from _release(standing, round_)


def _make(standing: Standing, pod: Pod, round_: Round) -> Iterator[Step]:
    match standing.phase:
        case Phase.WANTED:
            yield from _create(standing, pod, round_)
        case Phase.LOST:
            yield events.lost(pod, standing.entry)
            yield from _create(standing, pod, round_)
        case Phase.CREATING:
            since = standing.known.changed_at or standing.known.since
            yield since + timedelta(seconds=round_.settings.stuck_seconds)
        case Phase.ACTIVE:
            yield from _hand_over(standing, pod, round_)
        case Phase.BROKEN:
            yield from _make_anew(standing, pod, round_, events.broken(pod, standing.entry, standing.partition))
        case Phase.MISPLACED if standing.partition is not None:
            yield from _make_anew(standing, pod, round_, events.misplaced(pod, standing.entry))


def _without_server(standing: Standing, pod: Pod, round_: Round) -> Iterator[Step]:
    entry, view = standing.entry, round_.servers.get(standing.entry.server)
    if standing.phase is not Phase.CREATING:
        return
    if view is None:
        yield events.unnamed(pod, entry)
    elif view.failure is not None and not pod.begun:
        yield events.unreadable(pod, entry, view.failure, round_.settings.stuck_seconds)


def _create(standing: Standing, pod: Pod, round_: Round) -> Iterator[Step]:
    entry, backoff = standing.entry, standing.known.backoff
    if backoff is not None:
        yield events.failed(pod, entry, backoff.failure)
        if backoff.until > round_.now:
            yield backoff.until
            return
    # The oldest pod has its turn first; who has failed comes after those that had none yet.
    due_at = backoff.until if backoff is not None else pod.created_at
    request = PartitionRequest(
        id=entry.id, size=entry.size, allocation=entry.allocation, reconfigurable=entry.reconfigurable
    )
    yield actions.Wanted(actions.CreatePartition(server=entry.server, request=request), due_at)


def entry_of(pod: Pod, partition_id: str, site: Site, round_: Round) -> Entry:
    """Return a new entry for a pod."""
    return Entry(
        id=partition_id,
        namespace=pod.namespace,
        pod=pod.name,
        pod_uid=pod.uid,
        size=pod.size,
        server=site[0],
        allocation=site[1],
        reconfigurable=round_.settings.reconfigurable,
        recorded_at=round_.now,
    )


def _hand_over(standing: Standing, pod: Pod, round_: Round) -> Iterator[Step]:
    """Tell the pod, as soon as a reading shows that its partition is active."""
    entry = standing.entry
    if not pod.gated:
        if not pod.told_server:
            yield events.created(pod, entry)
        return
    # A remove may be under way: a reading that shows it active meanwhile is no promise.
    is_being_removed = isinstance(round_.change_of(entry), actions.RemovePartition)
    if pod.deletion_deadline is not None or is_being_removed or _is_being_dropped(entry, round_):
        return
    yield actions.OpenGate(pod=pod, partition_id=entry.id, server=round_.servers[entry.server].server)
    yield events.created(pod, entry)


def _is_being_dropped(entry: Entry, round_: Round) -> bool:
    """Whether the ledger is being written without the entry: a partition that appears late is recorded again first."""
    under_way = round_.memory.writes.get(actions.LEDGER)
    if under_way is None or under_way.answered_at is not None or not isinstance(under_way.write, actions.SaveLedger):
        return False
    return entry.id not in {each.id for each in under_way.write.entries}


def _make_anew(standing: Standing, pod: Pod, round_: Round, notice: Event) -> Iterator[Step]:
    """Remove what is of no use, as long as nothing of the pod but its init container has run."""
    yield notice
    write = round_.memory.writes.get(actions.pod_key(pod))
    # While its gate is being opened, a pod that is read live has it still, and not a moment later.
    is_being_told = write is not None and write.answered_at is None
    if not (pod.begun or is_being_told):
        yield from _remove(standing, round_, unused=True)


def _release(standing: Standing, round_: Round) -> Iterator[Step]:
    """Say what is to be done for an entry whose pod has ended, or is gone; and when one that ends has."""
    pod = standing.pod
    if standing.phase is Phase.GONE:
        # Where no setting names the server nobody has seen that it is not there.
        if pod is not None and standing.certain:
            yield events.released(pod, standing.entry)
    elif standing.phase is not Phase.RELEASING:
        lets_go_at = round_.lets_go_at(pod) if pod is not None else None
        if lets_go_at is not None:
            yield lets_go_at
    elif standing.certain and standing.partition is not None and not standing.outdated:
        # The pod of one that is unused waits for another one.
        unused = pod is not None and pod.gated
        yield from _remove(standing, round_, unused=unused, past_deletion=round_.past_deletion(pod))


def _remove(
    standing: Standing, round_: Round, *, unused: bool, past_deletion: datetime | None = None
) -> Iterator[Step]:
    entry, known = standing.entry, standing.known
    if standing.pod is not None and known.removing is not None and cannot_be_removed(known):
        yield events.not_removed(standing.pod, entry, known.removing.failure)
    call = actions.RemovePartition(
        server=entry.server,
        id=entry.id,
        pod=(entry.namespace, entry.pod, entry.pod_uid),
        unused=unused,
        past_deletion=past_deletion,
    )
    yield _at(known.removing.until if known.removing is not None else known.since, call, round_)


def _at(due_at: datetime, call: actions.RemovePartition, round_: Round) -> Step:
    return actions.Wanted(call, due_at) if due_at <= round_.now else due_at


# --- partitions where the ledger has none ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A partition of ours that is not where the ledger has it, or that the ledger does not have."""

    server: str
    partition: Partition
    #: Where the ledger has a partition of this id.
    entry: Entry | None
    #: The pod whose id it is; None: none is seen.
    pod: Pod | None
    known: PartitionMemory


def strays_of(round_: Round) -> Sequence[Stray]:
    """Find them on all servers that can be read."""
    prefix = names.id_prefix(round_.snapshot.cluster_uid)
    found = [
        (address, partition)
        for address in sorted(round_.servers)
        if round_.reading(address) is not None
        for partition in round_.listed[address].values()
        if partition.id.startswith(prefix)
        and partition.id not in round_.ledger.unreadable
        and ((entry := round_.entries.get(partition.id)) is None or entry.server != address)
    ]
    if not found:
        return []
    owners = {names.owner_id(round_.snapshot.cluster_uid, uid): pod for uid, pod in round_.pods.items()}
    return [
        Stray(
            server=address,
            partition=partition,
            entry=round_.entries.get(partition.id),
            pod=owners.get(names.owner_of(partition.id)),
            known=round_.memory.strays.get((address, partition.id)) or PartitionMemory(since=round_.now),
        )
        for address, partition in found
    ]


def restored(strays: Iterable[Stray], round_: Round) -> Mapping[str, Entry]:
    """Return entries of living pods that the ledger is to have, by id, for those that it has lost or has elsewhere."""
    has_place = {entry.pod_uid for entry in round_.ledger.entries if entry.server in round_.servers}
    #: By the pod's UID: each has one.
    found: dict[str, Entry] = {}
    for stray in strays:
        pod = stray.pod
        if pod is None or not _may_be_in_use(stray, round_) or round_.told_elsewhere(pod, stray.server):
            continue
        # A pod that was told of it has it there, whatever the ledger says.
        told = pod.told_server == stray.server
        if told or (pod.uid not in found and pod.uid not in has_place):
            found[pod.uid] = _restored(stray, pod, round_)
    return {entry.id: entry for entry in found.values()}


def clear(stray: Stray, round_: Round) -> Iterator[Step]:
    """Say what is to be done about one that is not recorded again."""
    known, reading = stray.known, round_.reading(stray.server)
    if _may_be_in_use(stray, round_):
        return
    if known.changed_at is not None and reading is not None and reading.asked_at < known.changed_at:
        return
    ended = stray.pod is not None and not round_.wants(stray.pod)
    due_at = known.since if ended else known.since + timedelta(seconds=round_.settings.orphan_seconds)
    if known.removing is not None:
        due_at = max(due_at, known.removing.until)
    call = actions.RemovePartition(
        server=stray.server, id=stray.partition.id, pod=_proof_of(stray), past_deletion=round_.past_deletion(stray.pod)
    )
    yield _at(due_at, call, round_)


def _may_be_in_use(stray: Stray, round_: Round) -> bool:
    """Whether a living pod was told of this partition or may be: it may be seen by another name of its server."""
    return stray.pod is not None and round_.may_use(stray.pod, stray.partition.id)


def _proof_of(stray: Stray) -> tuple[str, str, str] | None:
    if stray.pod is not None:
        return stray.pod.namespace, stray.pod.name, stray.pod.uid
    if stray.entry is not None:
        return stray.entry.namespace, stray.entry.pod, stray.entry.pod_uid
    return None


def _restored(stray: Stray, pod: Pod, round_: Round) -> Entry:
    site = stray.server, _allocation_of(stray, round_)
    if stray.entry is not None:
        return replace(stray.entry, server=site[0], allocation=site[1], recorded_at=round_.now)
    entry = entry_of(pod, stray.partition.id, site, round_)
    return entry if pod.size else replace(entry, size=stray.partition.size)


def _allocation_of(stray: Stray, round_: Round) -> str:
    """Return the allocation that a partition is in; empty where nobody can tell."""
    reading = round_.reading(stray.server)
    if stray.partition.allocation or reading is None:
        return stray.partition.allocation
    possible = [each.name for each in reading.allocations if stray.partition.cluster in ("", each.cluster)]
    return possible[0] if len(possible) == 1 else ""
