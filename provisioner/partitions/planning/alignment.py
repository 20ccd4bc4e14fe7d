"""Whether a partition surely has a place, wherever the others lie: which IPUs they have the servers do not tell.

Sizes are powers of two, and a partition begins at a multiple of its size. A server that places them otherwise may
refuse what is sure here; then the refusal is what is gone by (`Crowding`).
"""

from __future__ import annotations

from collections.abc import Mapping


def surely_fits(size: int, held: Mapping[int, int], total: int) -> bool:
    """Whether a partition of `size` has a place among `total` IPUs that others have in the worst places.

    `held` has how many partitions of each size there are, this one among them.
    """
    return sum(count * places_taken(ipus, size) for ipus, count in held.items()) <= total // size


def places_taken(ipus: int, size: int) -> int:
    """Return how many places for partitions of `size` one partition can take away."""
    places = -(-ipus // size)
    # One of another size may not be aligned, and reach into one more.
    return places if ipus & (ipus - 1) == 0 else places + 1
