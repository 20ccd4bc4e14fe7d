"""Decides which repeated failures are logged, so that one failure cannot flood the log."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import inf

_EVERY_SECONDS = 60.0
#: Maximum number of counted kinds, and so of logged failures in 60 s, because clients can cause new kinds of failures.
_MAX_KINDS = 64
_MAX_LASTING = 4096


class Repeats:
    """Suppresses a failure if its kind, or _MAX_KINDS other kinds, were logged in the last 60 s. Thread-safe."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        #: Time of the last logged failure, and the number of failures since then, by kind.
        self._logged: dict[Hashable, tuple[float, int]] = {}

    def left_out(self, kind: Hashable) -> int | None:
        """Return None if a failure must be suppressed, otherwise the number counted since its kind was logged."""
        now = self._monotonic()
        with self._lock:
            logged_at, left_out = self._logged.get(kind, (-inf, 0))
            if now - logged_at < _EVERY_SECONDS:
                self._logged[kind] = logged_at, left_out + 1
                return None
            if kind not in self._logged and len(self._logged) >= _MAX_KINDS:
                oldest, (oldest_at, _) = next(iter(self._logged.items()))
                if now - oldest_at < _EVERY_SECONDS:
                    return None
                del self._logged[oldest]
            # The kind moves to the end, because the kinds are in the order of their last log line.
            self._logged.pop(kind, None)
            self._logged[kind] = now, 0
            return left_out


def place_of(error: BaseException) -> Hashable:
    """Return the type of an exception and the line that raised it, as the kind of the failure for `Repeats`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else None
    return type(error), where


@dataclass(slots=True)
class FailureLog:
    """The last _MAX_LASTING failing keys. While a key fails, only changed messages are logged. Used by one thread."""

    _messages: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def fails(self, key: str, message: str) -> bool:
        """Record a failure; return whether it must be logged, because the failure or its message is new."""
        is_new = self._messages.get(key) != message
        self._messages[key] = message
        self._messages.move_to_end(key)
        while len(self._messages) > _MAX_LASTING:
            self._messages.popitem(last=False)
        return is_new

    def ended(self, key: str) -> bool:
        """Record a success; return whether a failure of the key was recorded."""
        return self._messages.pop(key, None) is not None
