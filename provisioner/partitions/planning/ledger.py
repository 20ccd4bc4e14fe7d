"""The ledger: which partitions were asked for, for whom, and where. It is written before a partition is made.

It is kept in a ConfigMap, so that nothing is lost or leaked by whoever leads next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

#: A ConfigMap holds 1 MiB; an entry takes at most 700 bytes.
MOST_ENTRIES = 1400


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
