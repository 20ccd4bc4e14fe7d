"""When servers are read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from provisioner.partitions.planning.calls import ReadServer
from provisioner.partitions.planning.round import Round
from provisioner.partitions.planning.standing import Phase, Standing
from provisioner.partitions.planning.step import Step, Urgency, Wanted
from provisioner.partitions.planning.sweeping import Stray

#: However much depends on it, a server is not read more often.
_SHORTEST_SECONDS = 1.0
_SETTLED = frozenset({Phase.ACTIVE, Phase.GONE})


def step_of(
    address: str, standings: Iterable[Standing], strays: Iterable[Stray], round_: Round, *, waits: bool
) -> Step:
    """Say when a server is read next; `standings` and `strays` are those on it, `waits`: somebody waits for IPUs."""
    settings, view = round_.settings, round_.servers[address]
    backoff = round_.memory.servers.get(address)
    here, theirs = tuple(standings), tuple(strays)
    if backoff is not None:
        due_at = backoff.until
    elif view.reading is None or view.failure is not None:
        due_at = round_.now
    else:
        if any(each.reads for each in here) or any(each.known.changed_at is not None for each in theirs):
            seconds = _SHORTEST_SECONDS
        elif waits or theirs or any(each.phase not in _SETTLED for each in here):
            seconds = settings.busy_read_seconds
        else:
            seconds = settings.idle_read_seconds
        due_at = view.reading.asked_at + timedelta(seconds=seconds)
    if due_at > round_.now:
        return Step(moments=(due_at,))
    return Step(calls=(Wanted(call=ReadServer(server=address), urgency=Urgency.READ, due_at=due_at),))
