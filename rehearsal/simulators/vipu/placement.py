"""Where partitions go: as in a buddy system, on contiguous IPUs of one allocation, aligned to their size. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

Ipu = tuple[str, int]


def is_power_of_two(number: int) -> bool:
    """Tell whether there can be a partition of so many IPUs at all."""
    return number >= 1 and number & (number - 1) == 0


def places(ipus: Sequence[Ipu], taken: Collection[Ipu], size: int) -> list[int]:
    """Return where in the IPUs of an allocation a partition of that size would fit, lowest first."""
    return [
        start
        for start in range(0, len(ipus) - size + 1, size)
        if all(ipu not in taken for ipu in ipus[start : start + size])
    ]
