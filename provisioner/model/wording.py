"""Helpers for texts in messages, and the base class of errors whose message is for the user."""

from collections.abc import Sequence
from datetime import datetime

#: Maximum number of items in a list in a message.
_NAMED = 3


class UserError(Exception):
    """Error that ends a command. The message describes the problem and the remedy to the user."""


def first_of(what: Sequence[str], separator: str = ", ") -> str:
    """Return the first items as text, and the number of the others."""
    more = f" and {len(what) - _NAMED} more" if len(what) > _NAMED else ""
    return f"{separator.join(what[:_NAMED])}{more}"


def clock(moment: datetime, now: datetime) -> str:
    """Return a time of day, with the date unless it is today."""
    return f"{moment:%H:%M:%S} UTC" if moment.date() == now.date() else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
