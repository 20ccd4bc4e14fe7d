"""The last decisions and what came of them, as sentences: bounded, and lost with the process."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from threading import Lock

from provisioner.slices.view.types import Entry

#: So many are kept.
MOST_ENTRIES = 500


class Journal:
    """The last entries; any thread may write and read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries: deque[Entry] = deque(maxlen=MOST_ENTRIES)
        #: The number of the last entry.
        self.last = 0

    def write(
        self, at: datetime, kind: str, message: str, *, warning: bool = False, pool: str = "", workload: str = ""
    ) -> None:
        """Add one entry."""
        with self._lock:
            self.last += 1
            self._entries.append(
                Entry(
                    number=self.last, at=at, kind=kind, message=message, warning=warning, pool=pool, workload=workload
                )
            )

    def since(self, number: int = 0) -> list[Entry]:
        """Return the entries after one, oldest first."""
        with self._lock:
            return [each for each in self._entries if each.number > number]
