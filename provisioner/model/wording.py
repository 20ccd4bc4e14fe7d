"""Words that all messages have in common, and errors whose words are for the user."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

#: More of the same would say nothing new.
_NAMED = 3


class UserError(Exception):
    """What keeps a command from its work: its words say to the user what is wrong and what to do."""


def first_of(what: Sequence[str], separator: str = ", ") -> str:
    """List the first few, and say how many more there are."""
    more = f" and {len(what) - _NAMED} more" if len(what) > _NAMED else ""
    return f"{separator.join(what[:_NAMED])}{more}"


def clock(moment: datetime, now: datetime) -> str:
    """Return a time of day, with the date where that is not today's."""
    return f"{moment:%H:%M:%S} UTC" if moment.date() == now.date() else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
