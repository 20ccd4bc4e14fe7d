"""Orders requests of several parties that share a limit, so that the parties take turns. Pure."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")
PartyT = TypeVar("PartyT", bound=Hashable)

#: Time for which turns are remembered. A party that waits gets turns more often: 144 parties can have two changes in
#: flight that take 5 minutes each.
_KEPT = timedelta(hours=6)


def in_turns(
    items: Iterable[ItemT],
    party_of: Callable[[ItemT], PartyT],
    last_of: Callable[[PartyT], Any] = lambda _: 0,
    in_flight: Iterable[PartyT] = (),
) -> list[ItemT]:
    """Return the items by the number of items of the same party before them, `in_flight` included, then by `last_of`.

    `last_of` returns the time of a party's last turn. The order of the items is kept within a party and between equals.
    """
    counts = Counter(in_flight)
    ranked = []
    for item in items:
        party = party_of(item)
        ranked.append((counts[party], last_of(party), item))
        counts[party] += 1
    return [item for *_, item in sorted(ranked, key=lambda entry: entry[:2])]


def with_turns(
    turns: Mapping[PartyT, datetime], taken: Mapping[PartyT, datetime], now: datetime
) -> dict[PartyT, datetime]:
    """Return the times of the parties' last turns, after the turns in `taken`. Old turns are forgotten."""
    return {**{party: at for party, at in turns.items() if now - at < _KEPT}, **taken}
