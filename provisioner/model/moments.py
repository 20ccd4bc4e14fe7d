"""Moments in words."""

from __future__ import annotations

from datetime import datetime


def clock(moment: datetime, now: datetime) -> str:
    """Return a time of day, with the date where that is not today's."""
    return f"{moment:%H:%M:%S} UTC" if moment.date() == now.date() else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
