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
        #: By their numbers, oldest first.
        self._entries: dict[int, Entry] = {}
        #: The numbers of each namespace, oldest first.
        self._numbers: defaultdict[str, deque[int]] = defaultdict(deque)
        #: The namespaces that have so many entries, and the highest of these counts: a write costs the same however
        #: many namespaces there are.
        self._having: defaultdict[int, dict[str, None]] = defaultdict(dict)
        self._highest = 0
        #: The number of the last entry.
        self.last = 0

    def write(
        self, at: datetime, kind: str, message: str, *, warning: bool = False, pool: str = "", workload: str = ""
    ) -> None:
        """Add one entry."""
        with self._lock:
            self.last += 1
            self._add(
                Entry(
                    number=self.last, at=at, kind=kind, message=message, warning=warning, pool=pool, workload=workload
                )
            )
            if len(self._entries) > self._most_entries:
                self._drop_one()

    def since(self, number: int = 0) -> list[Entry]:
        """Return the entries after one, oldest first."""
        with self._lock:
            return [each for each in self._entries.values() if each.number > number]

    def _add(self, entry: Entry) -> None:
        namespace = _namespace_of(entry)
        numbers = self._numbers[namespace]
        self._entries[entry.number] = entry
        numbers.append(entry.number)
        self._move(namespace, len(numbers) - 1, len(numbers))

    def _drop_one(self) -> None:
        """Drop the oldest entry of the namespace that has the most."""
        namespace = next(iter(self._having[self._highest]))
        numbers = self._numbers[namespace]
        del self._entries[numbers.popleft()]
        self._move(namespace, len(numbers) + 1, len(numbers))
        if not numbers:
            del self._numbers[namespace]

    def _move(self, namespace: str, before: int, now: int) -> None:
        """Take note that a namespace has one entry more or less."""
        if before:
            del self._having[before][namespace]
        if now:
            self._having[now][namespace] = None
        if before and not self._having[before]:
            del self._having[before]
        # The highest count changes with the namespace that has it, by one.
        if now > self._highest or self._highest not in self._having:
            self._highest = now


def _namespace_of(entry: Entry) -> str:
    """Return the namespace of the workload, kind/namespace/name; empty for none."""
    return entry.workload.split("/")[1] if entry.workload else ""
