"""What the ledger is to say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from provisioner.model import bounds
from provisioner.model.writes import WriteFailure
from provisioner.partitions import names
from provisioner.partitions.planning.calls import LEDGER
from provisioner.partitions.planning.ledger import MOST_CHARACTERS, Entry, characters_of
from provisioner.partitions.planning.picture import Picture
from provisioner.partitions.planning.round import Round
from provisioner.partitions.planning.standing import OVER, Standing


def entries_of(picture: Picture, round_: Round) -> tuple[Entry, ...]:
    """Return all entries: those that stay, in their order, then those of pods that have a place now.

    Pods for which the ledger has no room wait.
    """
    kept = {
        standing.entry.id: picture.restored.get(standing.entry.id) or _as_listed(standing)
        for standing in picture.standings.values()
        if standing.phase not in OVER or standing.entry.id in picture.restored
    }
    kept |= {key: entry for key, entry in picture.restored.items() if key not in kept}
    room = MOST_CHARACTERS - sum(map(characters_of, kept.values()))
    room -= sum(len(key) + len(text) for key, text in round_.ledger.unreadable.items())
    for pod, (server, allocation) in picture.schedule.placed:
        entry = Entry(
            id=pod.told_partition or names.partition_id(round_.snapshot.cluster_uid, pod.uid, server),
            namespace=pod.namespace,
            pod=pod.name,
            pod_uid=pod.uid,
            size=pod.size,
            server=server,
            allocation=allocation,
            reconfigurable=round_.settings.reconfigurable,
            recorded_at=round_.now,
        )
        room -= characters_of(entry)
        if room < 0:
            break
        kept[entry.id] = entry
    return tuple(kept.values())


def unrecorded(entries: Iterable[Entry], picture: Picture, round_: Round) -> Mapping[str, str]:
    """Return why pods that have a place now wait all the same, by UID: the ledger does not take them."""
    write = round_.memory.writes.get(LEDGER)
    if write is not None and write.failure is WriteFailure.REFUSED:
        words = bounds.cut(write.message, bounds.HINTED_WORDS)
        why = f"There are IPUs for it, and the API server does not let the ledger be written: {words}"
        return {pod.uid: why for pod, _ in picture.schedule.placed}
    recorded = {entry.pod_uid for entry in entries}
    why = "There are IPUs for it, and the ledger is full."
    return {pod.uid: why for pod, _ in picture.schedule.placed if pod.uid not in recorded}


def _as_listed(standing: Standing) -> Entry:
    """Return an entry with the allocation that its partition is in, should that be another one."""
    entry, (_, allocation) = standing.entry, standing.site
    return entry if entry.allocation == allocation else replace(entry, allocation=allocation)
