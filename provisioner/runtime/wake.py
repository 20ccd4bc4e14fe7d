"""An event that wakes a loop, and remembers when it was first asked to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Wake(threading.Event):
    """Set from any thread; taken by the loop's own."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._asked_at: float | None = None

    def set(self) -> None:
        """Wake the loop."""
        # Two threads at once differ by less than anybody measures.
        if self._asked_at is None:
            self._asked_at = self._monotonic()
        super().set()

    def asked_seconds_ago(self) -> float | None:
        """Return how long ago it was set first since this was last asked; None: it was not."""
        asked_at, self._asked_at = self._asked_at, None
        return None if asked_at is None else max(0.0, self._monotonic() - asked_at)
