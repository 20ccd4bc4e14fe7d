"""Which pools hang: nothing becomes of them by itself, and somebody has to look."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.slices.planning.memory.state import DeleteCall
from provisioner.slices.planning.moments import clock
from provisioner.slices.planning.plan import Alert
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.supply import Supply

#: How long a pool may have each status. A create that finds no capacity ends within 35 min, on Compute Engine when a
#: setting says so; capacity that comes late is waited for by pools that are up.
_LONGEST: Mapping[PoolStatus, timedelta] = MappingProxyType(
    {
        PoolStatus.PROVISIONING: timedelta(minutes=60),
        PoolStatus.STOPPING: timedelta(minutes=30),
        # A repair, or a change that somebody else makes.
        PoolStatus.RECONCILING: timedelta(minutes=30),
        PoolStatus.UNKNOWN: timedelta(minutes=10),
    }
)
#: A group of machines that are out of stock for longer than the setting says fails so much later, at the latest.
_TO_FAIL = timedelta(minutes=10)
#: A delete may be held up for so long.
_HELD_UP = timedelta(minutes=10)


def statuses_since(round_: Round) -> dict[tuple[PoolName, PoolStatus], datetime]:
    """Return since when pools have had a status that should pass."""
    since, now = round_.memory.status_since, round_.now
    statuses = ((name, each.pool.status) for name, each in round_.supply.items() if each.listed)
    return {key: min(now, since.get(key, now)) for key in statuses if key[1] in _LONGEST}


def find_hanging(round_: Round) -> dict[PoolName, datetime]:
    """Find the pools that have had such a status for too long, and since when."""
    stockout = timedelta(seconds=round_.settings.capacity_wait_seconds) + _TO_FAIL
    longest = {**_LONGEST, PoolStatus.PROVISIONING: max(stockout, _LONGEST[PoolStatus.PROVISIONING])}
    since = round_.memory.status_since
    return {name: at for (name, status), at in since.items() if round_.now - at >= longest[status]}


def how_it_hangs(each: Supply, since: datetime, now: datetime) -> str:
    """Say since when a pool has its status."""
    status = each.pool.status
    what = "a status that this release does not know" if status is PoolStatus.UNKNOWN else f"status {status.value}"
    return f"has had {what} since {clock(since, now)}"


def alerts_of_pools(
    round_: Round, hanging: Mapping[PoolName, datetime], unneeded: Collection[PoolName]
) -> tuple[Alert, ...]:
    """Report the pools whose delete is held up, and those that hang in a status."""
    deletes, supply, now = round_.memory.deletes, round_.supply, round_.now
    messages = {
        name: f"Node pool {name} should be deleted, but is not, since {clock(call.postponed_since, now)}: {call.reason}"
        for name, call in deletes.items()
        if name in unneeded
        and call.postponed_since is not None
        and call.postponed_since <= now - _HELD_UP
        and not _is_kept(call, supply[name])
    }
    for name, since in hanging.items():
        supplier = round_.rules.supplier_name
        messages.setdefault(
            name,
            f"Node pool {name} {how_it_hangs(supply[name], since, now)}; look at it and at its operations in "
            f"{supplier}",
        )
    return tuple(Alert(kind="pool_stuck", pool=name, message=message) for name, message in messages.items())


def _is_kept(call: DeleteCall, each: Supply) -> bool:
    """Whether a workload that nobody watches lives, perhaps for ever: that is no trouble."""
    return call.needed and each.unwatched
