"""Helpers for texts in messages, and the base classes of errors whose messages are written for users."""

from collections.abc import Sequence
from datetime import datetime

_NAMED = 3


class UserError(Exception):
    """Error that ends a command. The message contains the problem and, if known, the remedy."""


class ProblemError(ValueError):
    """Error in user input. `args` are the clauses of its message: the problem first, the next step last if known."""

    def __str__(self) -> str:
        return "; ".join(self.args)


def first_of(items: Sequence[str], separator: str = ", ") -> str:
    """Return the first three items as text, followed by the number of further items if there are any."""
    more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
    return f"{separator.join(items[:_NAMED])}{more}"


def clock(moment: datetime, now: datetime) -> str:
    """Return a time as text in UTC, with the date unless it is the date of `now`."""
    return f"{moment:%H:%M:%S} UTC" if moment.date() == now.date() else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
