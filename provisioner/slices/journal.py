"""The last decisions and what came of them, as sentences: bounded, fair to namespaces, and lost with the process."""

from __future__ import annotations

from collections import defaultdict, deque
from datetime import datetime
from threading import Lock

from provisioner.slices.view.types import Entry

#: So many are kept.
MOST_ENTRIES = 500


class Journal:
    """The last entries; any thread may write and read.

    When it is full, the namespace that has the most entries loses its oldest one: a workload that flaps does not push
    out what is known of others. Entries of no namespace count as those of one.
    """

    def __init__(self, *, most: int = MOST_ENTRIES) -> None:
        self._most_entries = most
        self._lock = Lock()
        #: By namespace, oldest first.
        self._entries: defaultdict[str, deque[Entry]] = defaultdict(deque)
        #: The number of the last entry.
        self._last = 0

    def write(
        self, at: datetime, kind: str, message: str, *, warning: bool = False, pool: str = "", workload: str = ""
    ) -> None:
        """Add one entry; the workload is kind/namespace/name, empty for none."""
        namespace = workload.split("/")[1] if workload else ""
        with self._lock:
            self._last += 1
            entry = Entry(
                number=self._last, at=at, kind=kind, message=message, warning=warning, pool=pool, workload=workload
            )
            self._entries[namespace].append(entry)
            if sum(map(len, self._entries.values())) > self._most_entries:
                most = max(self._entries, key=lambda each: (len(self._entries[each]), -self._entries[each][0].number))
                self._entries[most].popleft()
                if not self._entries[most]:
                    del self._entries[most]

    def entries(self) -> list[Entry]:
        """Return the entries, oldest first."""
        with self._lock:
            return sorted((entry for each in self._entries.values() for entry in each), key=lambda each: each.number)
