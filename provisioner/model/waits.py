"""How long to wait after failures in a row."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta

#: Doubled more often, no first wait is below any cap.
_MOST_DOUBLINGS = 30
#: By how much of a wait those of several keys are spread.
_SPREAD = 0.2


def doubled_seconds(first_seconds: float, cap_seconds: float, failures: int, key: str) -> float:
    """Return the wait after so many failures in a row: doubled by each, up to a cap, and up to a fifth shorter.

    By how much follows from the key, so that those that failed together do not try again together.
    """
    doubled = min(cap_seconds, first_seconds * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
    return float(doubled * (1 - _SPREAD * share_of(f"{key}/{failures}")))


def share_of(key: str) -> float:
    """Return a number in [0, 1) that follows from a key, and looks like chance."""
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) / 2**32


def after(moment: datetime, seconds: float) -> datetime:
    """Return the moment so much later, or the last that there is: moments that users write may be any."""
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
