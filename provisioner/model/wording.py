"""Words that all messages have in common."""

from __future__ import annotations

from collections.abc import Sequence

#: More of the same would say nothing new.
_NAMED = 3


def first_of(what: Sequence[str], separator: str = ", ") -> str:
    """List the first few, and say how many more there are."""
    more = f" and {len(what) - _NAMED} more" if len(what) > _NAMED else ""
    return f"{separator.join(what[:_NAMED])}{more}"
