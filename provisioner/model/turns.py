"""Orders requests of several parties that share a limit, so that the parties take turns. Pure."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")
PartyT = TypeVar("PartyT", bound=Hashable)

#: Time for which turns are remembered. With two concurrent changes of 5 minutes each, 144 parties get a turn.
_KEPT = timedelta(hours=6)


def in_turns(
    items: Iterable[ItemT],
    party_of: Callable[[ItemT], PartyT],
    last_of: Callable[[PartyT], Any] = lambda _: 0,
    in_flight: Iterable[PartyT] = (),
) -> list[ItemT]:
    """Return the items so that parties take turns: the first item of each party, then the second of each, and so on.

    `in_flight` has the parties of items in progress, which count as the first items of a party. All first items are
    ordered by `last_of`, such as the time of the last turn, and then as in `items`; so are all second items, and so on.
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
    """Return the times of last turns: times in `turns` that are younger than 6 hours, updated with those in `taken`."""
    return {**{party: at for party, at in turns.items() if now - at < _KEPT}, **taken}
