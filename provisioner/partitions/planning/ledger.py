"""The ledger: which partitions were asked for, for whom, and where; written before a partition is made.

Each entry is a value of a ConfigMap, under the partition's id, so that one that cannot be read costs no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from provisioner.partitions import names

#: A ConfigMap holds 1 MiB, which is room for some 3,000 entries.
MOST_CHARACTERS = 1_000_000
#: Of an entry, besides its texts.
_FRAME_CHARACTERS = 200
#: Longer than any entry that was written here.
_LONGEST_ENTRY = 2048
_LONGEST_NAME = 253
_LARGEST_SIZE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A partition that may exist, because it is ours to make and to remove."""

    id: str
    namespace: str
    pod: str
    pod_uid: str
    #: IPUs.
    size: int
    #: HOST:PORT.
    server: str
    allocation: str = ""
    reconfigurable: bool = True
    recorded_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All entries, by id, as they were last read or written."""

    entries: tuple[Entry, ...] = ()
    #: metadata.resourceVersion; empty: there is no such ConfigMap.
    resource_version: str = ""
    #: Entries that could not be read, as they are stored: they stay as they are, and their partitions, too.
    unreadable: dict[str, str] = field(default_factory=dict)


def characters_of(entry: Entry) -> int:
    """Return how much of the ConfigMap an entry takes, at most; its texts are ASCII."""
    texts = (entry.id, entry.namespace, entry.pod, entry.pod_uid, entry.server, entry.allocation)
    return _FRAME_CHARACTERS + sum(map(len, texts))


def encode(entries: Iterable[Entry]) -> dict[str, str]:
    """Return entries as the data of the ConfigMap: JSON by id."""
    return {entry.id: _text_of(entry) for entry in entries}


def ledger_of(data: object, *, resource_version: str) -> Ledger:
    """Read the data of the ConfigMap, whatever is in it: what is no entry is among `unreadable`, by its key."""
    entries, unreadable = [], {}
    for key, text in sorted(data.items(), key=lambda item: str(item[0])) if isinstance(data, Mapping) else ():
        entry = _entry_of(key, text)
        if entry is not None:
            entries.append(entry)
        else:
            unreadable[str(key)] = text if isinstance(text, str) else repr(text)
    return Ledger(entries=tuple(entries), resource_version=resource_version, unreadable=unreadable)


def of_cluster(ledger: Ledger, cluster_uid: str) -> Ledger:
    """Count entries of other clusters, as of a backup that was restored here, among those that cannot be read."""
    ours, others = [], {}
    for entry in ledger.entries:
        if names.owner_of(entry.id) == names.owner_id(cluster_uid, entry.pod_uid):
            ours.append(entry)
        else:
            others[entry.id] = _text_of(entry)
    return replace(ledger, entries=tuple(ours), unreadable={**ledger.unreadable, **others}) if others else ledger


def _text_of(entry: Entry) -> str:
    fields = {
        "namespace": entry.namespace,
        "pod": entry.pod,
        "uid": entry.pod_uid,
        "size": entry.size,
        "server": entry.server,
        "allocation": entry.allocation,
        "reconfigurable": entry.reconfigurable,
        "recordedAt": entry.recorded_at.astimezone(UTC).isoformat(),
    }
    return json.dumps(fields, separators=(",", ":"))


def _entry_of(key: object, text: object) -> Entry | None:
    if not (isinstance(key, str) and isinstance(text, str) and len(text) <= _LONGEST_ENTRY):
        return None
    try:
        raw = json.loads(text)
        recorded_at = datetime.fromisoformat(raw["recordedAt"])
        texts = [raw[part] for part in ("namespace", "pod", "uid", "server")]
        size, allocation, reconfigurable = raw["size"], raw["allocation"], raw["reconfigurable"]
        recorded_at = recorded_at.astimezone(UTC)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    if not all(isinstance(each, str) and 0 < len(each) <= _LONGEST_NAME for each in texts):
        return None
    if type(size) is not int or not 0 < size <= _LARGEST_SIZE or not isinstance(reconfigurable, bool):
        return None
    if not isinstance(allocation, str) or len(allocation) > _LONGEST_NAME:
        return None
    namespace, pod, uid, server = texts
    return Entry(
        id=key,
        namespace=namespace,
        pod=pod,
        pod_uid=uid,
        size=size,
        server=server,
        allocation=allocation,
        reconfigurable=reconfigurable,
        recorded_at=recorded_at,
    )
