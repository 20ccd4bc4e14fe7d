"""Texts of others, as far as people read them: one of them stands in each slice that it concerns."""

from __future__ import annotations

#: Twice what an Event may have.
MOST_CHARACTERS = 2048


def shortened(text: str) -> str:
    """Return a text, cut with an ellipsis where it is too long."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
