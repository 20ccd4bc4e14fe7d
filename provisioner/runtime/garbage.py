"""How often Python looks for garbage that refers to itself.

Nearly all of ours goes by reference counts. With Python's defaults, a decision on a thousand slices is interrupted by a
look at every object of the process.
"""

from __future__ import annotations

import gc

_ALLOCATIONS = 20_000
_YOUNG = 10
_MIDDLE = 20


def look_less_often() -> None:
    """Look for such garbage seldom, and never at what is there already: modules, types, caches."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, _YOUNG, _MIDDLE)
