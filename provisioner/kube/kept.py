"""Bounds the memory that objects take in the cache of a reflector, by namespace and in total. Used by one thread.

If all namespaces together exceed `_NAMESPACES` bounds, the bound of each namespace is lowered, so that only the largest
namespaces are above it. If a namespace exceeds its bound, records are replaced by reduced records with few fields:
first those of finished objects, then those of the newest objects. So new objects do not displace older unfinished
objects of the namespace unless its bound is lowered. Beyond `bounds.REDUCED` reduced records of a namespace, records
are left out. The provisioner then takes their objects for absent, except in live reads.
"""

import heapq
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from provisioner.model import bounds

T = TypeVar("T")
Key = tuple[str, str]

#: If less than this share remains of the records that were full after the last reduction, a new list restores full
#: records. 1.0 would cause a list at each delete.
_FULL = 0.9
#: All namespaces together may have as many full and reduced records as this many namespaces at their bounds.
_NAMESPACES = 2
#: Share of the total that remains when the bounds are lowered. Large records may leave less.
_LOWERED = 0.9
#: A heap is rebuilt when it has more entries than this number plus twice the number of full records. The number is
#: small, because there may be thousands of namespaces, and the bounds do not count outdated entries.
_MAX_OUTDATED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceBound(Generic[T]):
    """Bound on the number and memory of the full records of one namespace."""

    plural: str
    max_bytes: int
    #: Maximum number of objects; None if only the bytes are bounded.
    max_objects: int | None = None
    #: Returns the reduced record that replaces a full record. Takes the full record and `problem`.
    reduce: Callable[[T, tuple[str, ...]], T]
    is_finished: Callable[[T], bool] = lambda _: False

    @property
    def problem(self) -> tuple[str, ...]:
        """Clauses for users in reduced records: the namespace exceeds its bound."""
        limits = f"{self.max_bytes >> 20} MiB of memory"
        limits += f" or {self.max_objects:,} objects" if self.max_objects is not None else ""
        limits += f", or those of all namespaces {_NAMESPACES} times as much"
        return (
            f"the {self.plural} of its namespace exceed {limits}, and only its oldest are read",
            f"delete {self.plural} that are not needed",
        )


class _Entry(NamedTuple):
    """Entry of a full (not reduced) record in a heap. The record of the smallest entry is reduced or left out next."""

    #: Sort key: finished before unfinished objects, then newer before older ones, then by arrival, latest first.
    order: tuple[bool, float, int]
    key: Key
    size: int


@dataclass(slots=True)
class _Namespace:
    #: Bytes of all full records, the used share of the bound, and this share after the last reduction of a record.
    size: int = 0
    share: float = 0.0
    trimmed: float = 0.0
    full: dict[Key, _Entry] = field(default_factory=dict)
    #: The entries of `full`, and outdated entries, which `add` skips.
    heap: list[_Entry] = field(default_factory=list)
    reduced: set[Key] = field(default_factory=set)
    #: Whether records were left out.
    incomplete: bool = False


class Kept(Generic[T]):
    """Determines which records of one collection are full, reduced or left out, for each namespace."""

    def __init__(self, bound: NamespaceBound[T]) -> None:
        self.bound = bound
        self._namespaces: dict[str, _Namespace] = defaultdict(_Namespace)
        #: Sum of the shares of all namespaces, maximum share of each namespace, and number of reduced records.
        self._used, self._max_share, self._reduced = 0.0, 1.0, 0
        #: Sum of the shares of all namespaces after the maximum for each namespace was lowered; 0 before.
        self._lowered = 0.0
        #: Number of reduced records at that time.
        self._lowered_reduced = 0
        self._numbers = itertools.count()

    def add(self, key: Key, record: T, created_at_seconds: float) -> dict[Key, bool]:
        """Count a new or changed record; return the keys of records to reduce (True) or to leave out (False)."""
        before = self._namespaces[key[0]].full.get(key)
        # A changed full record keeps its number, so that objects remain in the order of their first arrival.
        number = before.order[-1] if before is not None else -next(self._numbers)
        namespace = self._drop(key)
        order = (not self.bound.is_finished(record), -created_at_seconds, number)
        entry = _Entry(order, key, size_of(record))
        namespace.full[key] = entry
        self._resize(namespace, entry.size)
        heapq.heappush(namespace.heap, entry)
        exceeding = self._trim(namespace)
        if self._used > _NAMESPACES:
            self._lower()
            for lowered in self._namespaces.values():
                exceeding |= self._trim(lowered)
            self._lowered, self._lowered_reduced = self._used, self._reduced
        return exceeding

    def drop(self, key: Key) -> None:
        """Stop counting a record."""
        namespace = self._drop(key)
        if not (namespace.full or namespace.reduced):
            del self._namespaces[key[0]]

    def has_room(self, name: str) -> bool:
        """Whether a new list may restore full records, because a namespace or all namespaces take less memory.

        The memory is compared with the memory after the last reduction, not with a bound: few large records may leave
        much of a low bound unused, and a new list would restore none of the others.
        """
        if self._used < _FULL * self._lowered or self._reduced < _FULL * self._lowered_reduced:
            return True
        namespace = self._namespaces.get(name)
        if namespace is None or not (namespace.reduced or namespace.incomplete):
            return False
        return namespace.share < _FULL * namespace.trimmed

    def _resize(self, namespace: _Namespace, size: int) -> None:
        """Add to the size of a namespace whose full records have changed."""
        namespace.size += size
        objects = len(namespace.full) / self.bound.max_objects if self.bound.max_objects is not None else 0.0
        before, namespace.share = namespace.share, max(objects, namespace.size / self.bound.max_bytes)
        # Rounding must not leave less than nothing.
        self._used = max(0.0, self._used + namespace.share - before)

    def _trim(self, namespace: _Namespace) -> dict[Key, bool]:
        exceeding = {}
        while namespace.share > self._max_share:
            last = heapq.heappop(namespace.heap)
            if namespace.full.get(last.key) is last:
                self._drop(last.key)
                keep = len(namespace.reduced) < bounds.REDUCED and self._reduced < _NAMESPACES * bounds.REDUCED
                exceeding[last.key] = keep
                if keep:
                    namespace.reduced.add(last.key)
                    self._reduced += 1
                namespace.incomplete = namespace.incomplete or not keep
                namespace.trimmed = namespace.share
        return exceeding

    def _lower(self) -> None:
        """Lower the bound of each namespace so that all together use at most the share `_LOWERED` of the total."""
        room = _LOWERED * _NAMESPACES
        shares = sorted(namespace.share for namespace in self._namespaces.values())
        for index, share in enumerate(shares):
            self._max_share = room / (len(shares) - index)
            if share > self._max_share:
                break
            room -= share

    def _drop(self, key: Key) -> _Namespace:
        namespace = self._namespaces[key[0]]
        if key in namespace.reduced:
            namespace.reduced.remove(key)
            self._reduced -= 1
        entry = namespace.full.pop(key, None)
        if entry is not None:
            self._resize(namespace, -entry.size)
        if len(namespace.heap) > 2 * len(namespace.full) + _MAX_OUTDATED:
            namespace.heap = list(namespace.full.values())
            heapq.heapify(namespace.heap)
        return namespace


def size_of(record: object) -> int:
    """Return the bytes of memory of a record of dataclasses, dicts and tuples. Shared texts count in each record."""
    size = 0
    parts: list[Any] = [record]
    while parts:
        part = parts.pop()
        size += sys.getsizeof(part)
        if isinstance(part, dict):
            parts += [*part, *part.values()]
        elif isinstance(part, tuple):
            parts += part
        else:
            type_: Any = type(part)
            parts += [getattr(part, name) for name in _fields_of(type_)]
    return size


@lru_cache(maxsize=256)
def _fields_of(type_: Any) -> tuple[str, ...]:
    return tuple(field_.name for field_ in fields(type_)) if is_dataclass(type_) else ()
