"""Failures that repeat: which of them are worth a line of the log, so that a flood of one does not flood the log."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

_EVERY_SECONDS = 60.0
#: Kinds of failures that are told apart; of more the one that was heard of first is forgotten.
_MOST = 64
#: Failures that last which are remembered.
_MOST_LASTING = 4096


@dataclass(slots=True)
class _Told:
    at: float
    left_out: int = 0


class Repeats:
    """Counts failures by kind; used from any thread."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._told: dict[Hashable, _Told] = {}

    def left_out(self, kind: Hashable) -> int | None:
        """Return how many of a kind were left out before this failure; None: leave it out, one was told lately."""
        now = self._monotonic()
        with self._lock:
            told = self._told.get(kind)
            if told is not None and now - told.at < _EVERY_SECONDS:
                told.left_out += 1
                return None
            if told is None and len(self._told) >= _MOST:
                del self._told[next(iter(self._told))]
            self._told[kind] = _Told(now)
            return told.left_out if told is not None else 0


def place_of(error: BaseException) -> Hashable:
    """Return the type of an exception and the line that raised it: equal for the repeats of one failure."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else None
    return type(error), where


@dataclass(slots=True)
class Lasting:
    """Failures that last, each told once: by what fails, the words that were told. Used by one thread."""

    _words: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def fails(self, key: str, words: str, tell: Callable[[], None]) -> None:
        """Tell a failure, unless it was told in the same words and has lasted since."""
        if self._words.get(key) != words:
            tell()
        self._words[key] = words
        self._words.move_to_end(key)
        while len(self._words) > _MOST_LASTING:
            self._words.popitem(last=False)

    def ended(self, key: str) -> bool:
        """Take note of a success; return whether it failed before."""
        return self._words.pop(key, None) is not None
