"""Pauses that grow with each failure; jittered, so that many clients don't come back together."""

from __future__ import annotations

import random


class Backoff:
    """Exponential, capped pauses; each is drawn between a half and the whole of its step."""

    def __init__(self, *, first_seconds: float, cap_seconds: float, rng: random.Random) -> None:
        self._first_seconds = first_seconds
        self._cap_seconds = cap_seconds
        self._rng = rng
        self._failures = 0

    def next_seconds(self) -> float:
        """Count a failure; return how long to wait."""
        # The exponent is bounded because 2.0 ** 1024 overflows after a long outage.
        step = min(self._cap_seconds, self._first_seconds * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return step * self._rng.uniform(0.5, 1.0)

    def first_delay_seconds(self) -> float:
        """Return the shortest pause, without counting a failure."""
        return self._first_seconds * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Forget the failures."""
        self._failures = 0
