"""Partitions with our prefix where the ledger has none: of living pods they are recorded again, others are removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.calls import RemovePartition
from provisioner.partitions.planning.ledger import Entry
from provisioner.partitions.planning.memory import StrayMemory
from provisioner.partitions.planning.round import Round
from provisioner.partitions.planning.step import Step, Urgency, Wanted
from provisioner.partitions.vipu.records import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A partition of ours that is not where the ledger has it, or that the ledger does not have."""

    server: str
    partition: Partition
    #: Where the ledger has a partition of this id.
    entry: Entry | None
    #: The pod whose id it is; None: none is seen.
    pod: Pod | None
    known: StrayMemory


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
        and not _is_recorded(partition.id, address, round_)
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
            known=round_.memory.strays.get((address, partition.id)) or StrayMemory(since=round_.now),
        )
        for address, partition in found
    ]


def _is_recorded(partition_id: str, address: str, round_: Round) -> bool:
    entry = round_.entries.get(partition_id)
    return entry is not None and entry.server == address


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
            found[pod.uid] = _entry_of(stray, pod, round_)
    return {entry.id: entry for entry in found.values()}


def step_of(stray: Stray, round_: Round) -> Step:
    """Say what is to be done about one that is not recorded again."""
    known = stray.known
    if _may_be_in_use(stray, round_):
        return Step()
    reading = round_.reading(stray.server)
    if known.changed_at is not None and reading is not None and reading.asked_at < known.changed_at:
        return Step()
    ended = stray.pod is not None and not round_.wants(stray.pod)
    due_at = known.since if ended else known.since + timedelta(seconds=round_.settings.orphan_seconds)
    if known.backoff is not None:
        due_at = max(due_at, known.backoff.until)
    if due_at > round_.now:
        return Step(moments=(due_at,))
    call = RemovePartition(
        server=stray.server,
        id=stray.partition.id,
        pod=_proof_of(stray),
        past_deletion=round_.past_deletion(stray.pod),
    )
    return Step(calls=(Wanted(call=call, urgency=Urgency.CHANGE, due_at=due_at),))


def _may_be_in_use(stray: Stray, round_: Round) -> bool:
    """Whether a living pod was told of this partition or may be: it may be seen by another name of its server."""
    return stray.pod is not None and round_.may_use(stray.pod, stray.partition.id)


def _proof_of(stray: Stray) -> tuple[str, str, str] | None:
    if stray.pod is not None:
        return stray.pod.namespace, stray.pod.name, stray.pod.uid
    if stray.entry is not None:
        return stray.entry.namespace, stray.entry.pod, stray.entry.pod_uid
    return None


def _entry_of(stray: Stray, pod: Pod, round_: Round) -> Entry:
    allocation = _allocation_of(stray, round_)
    if stray.entry is not None:
        return replace(stray.entry, server=stray.server, allocation=allocation, recorded_at=round_.now)
    return Entry(
        id=stray.partition.id,
        namespace=pod.namespace,
        pod=pod.name,
        pod_uid=pod.uid,
        size=pod.size or stray.partition.size,
        server=stray.server,
        allocation=allocation,
        reconfigurable=round_.settings.reconfigurable,
        recorded_at=round_.now,
    )


def _allocation_of(stray: Stray, round_: Round) -> str:
    """Return the allocation that a partition is in; empty where nobody can tell."""
    reading = round_.reading(stray.server)
    if stray.partition.allocation or reading is None:
        return stray.partition.allocation
    possible = [each.name for each in reading.allocations if stray.partition.cluster in ("", each.cluster)]
    return possible[0] if len(possible) == 1 else ""
