"""The ledger: a ConfigMap that records the pod, size and server of each partition before the partition is created.

Each entry is a value of the ConfigMap, with the partition's id as key, so an unreadable entry does not affect others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from provisioner.partitions import names

#: Maximum number of characters of all entries: a ConfigMap holds 1 MiB, which is about 3,000 entries.
MAX_CHARACTERS = 1_000_000
#: Maximum number of characters of an entry's JSON without the ids, names and addresses in it.
_FRAME_CHARACTERS = 200
#: Maximum number of characters of an entry that is read. Usual entries have about 300.
_LONGEST_ENTRY = 2048
_LONGEST_NAME = 253
#: Fields of entries that have other names in the ConfigMap.
_STORED = {"pod_uid": "uid", "recorded_at": "recordedAt"}
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_NAME)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Record of a partition that may exist. A partition is created only after its entry was written."""

    id: str
    namespace: _Text
    pod: _Text
    pod_uid: _Text
    #: Number of IPUs.
    size: Annotated[int, msgspec.Meta(gt=0, le=1 << 20)]
    #: V-IPU server as HOST:PORT.
    server: _Text
    allocation: Annotated[str, msgspec.Meta(max_length=_LONGEST_NAME)] = ""
    reconfigurable: bool = True
    recorded_at: Annotated[datetime, msgspec.Meta(tz=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All entries of the ConfigMap, as last read or written."""

    entries: tuple[Entry, ...] = ()
    #: metadata.resourceVersion; empty if the ConfigMap does not exist.
    resource_version: str = ""
    #: Texts of entries that are invalid or of other clusters, by id. These entries and their partitions are kept.
    unreadable: dict[str, str] = field(default_factory=dict)


def characters_of(entry: Entry) -> int:
    """Return the maximum number of characters of an entry in the ConfigMap, if JSON needs no escapes for its texts."""
    texts = (entry.id, entry.namespace, entry.pod, entry.pod_uid, entry.server, entry.allocation)
    return _FRAME_CHARACTERS + sum(map(len, texts))


def encode(entries: Iterable[Entry]) -> dict[str, str]:
    """Return entries as the data of the ConfigMap: JSON texts by id."""
    return {entry.id: _text_of(entry) for entry in entries}


def ledger_of(data: object, *, resource_version: str) -> Ledger:
    """Read the data of the ConfigMap, which may be anything. Values that are not entries are in `unreadable`."""
    entries, unreadable = [], {}
    for key, text in sorted(data.items(), key=lambda item: str(item[0])) if isinstance(data, Mapping) else ():
        entry = _entry_of(key, text)
        if entry is not None:
            entries.append(entry)
        else:
            unreadable[str(key)] = text if isinstance(text, str) else repr(text)
    return Ledger(entries=tuple(entries), resource_version=resource_version, unreadable=unreadable)


def of_cluster(ledger: Ledger, cluster_uid: str) -> Ledger:
    """Return the ledger after moving entries of other clusters, such as from a restored backup, to `unreadable`."""
    ours, others = [], {}
    for entry in ledger.entries:
        if names.owner_of(entry.id) == names.owner_id(cluster_uid, entry.pod_uid):
            ours.append(entry)
        else:
            others[entry.id] = _text_of(entry)
    return replace(ledger, entries=tuple(ours), unreadable={**ledger.unreadable, **others}) if others else ledger


def _text_of(entry: Entry) -> str:
    fields = msgspec.to_builtins(replace(entry, recorded_at=entry.recorded_at.astimezone(UTC)))
    return msgspec.json.encode(
        {_STORED.get(name, name): value for name, value in fields.items() if name != "id"}
    ).decode()


def _entry_of(key: object, text: object) -> Entry | None:
    if not isinstance(text, str) or len(text) > _LONGEST_ENTRY:
        return None
    try:
        raw = msgspec.json.decode(text, type=dict[str, Any])
        fields = {name: raw[_STORED.get(name, name)] for name in Entry.__dataclass_fields__ if name != "id"}
        return msgspec.convert({**fields, "id": key}, Entry)
    except (msgspec.DecodeError, KeyError, RecursionError):
        return None
