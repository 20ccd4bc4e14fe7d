"""The brake on deletes: when many workloads vanish without a trace, their pools go one at a time.

Something else is wrong then: a list that left them out, a restored etcd.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.plan import Alert, Delete
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.supply import Supply

#: With more pools than this, and than half of all, whose workloads vanished, the brake is on.
_VANISHED_AT_ONCE = 3
#: Then such pools go so far apart.
_BRAKED_SECONDS = 60.0
#: What such a pool waits for.
HELD_BACK = (
    "its turn: the workloads of many node pools vanished at once, so that one node pool every "
    f"{_BRAKED_SECONDS:.0f} s is deleted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Braked:
    """What the brake leaves of the deletes."""

    deletes: tuple[Delete, ...]
    alerts: tuple[Alert, ...] = ()
    #: When the next may go.
    due_at: tuple[datetime, ...] = ()
    #: The pools that it is on for; of those that would go now, when each may at the earliest.
    vanished: frozenset[PoolName] = frozenset()
    held_back: Mapping[PoolName, datetime] = field(default_factory=dict)
    #: For `Memory.braked_delete_at`.
    last_at: datetime | None = None


def brake(round_: Round, deletes: Sequence[Delete], unneeded: Collection[PoolName]) -> Braked:
    """Hold back deletes of pools whose workloads vanished, where these are many; `unneeded` are all that are to go."""
    now, last_at = round_.now, round_.memory.braked_delete_at
    supply = round_.supply.values()
    vanished = frozenset(
        each.name for each in supply if each.name in unneeded and not each.leaving and _vanished(each, round_)
    )
    few = max(_VANISHED_AT_ONCE, len(supply) // 2)
    if len(vanished) <= few:
        return Braked(deletes=tuple(deletes), last_at=last_at)
    next_at = now if last_at is None else max(now, last_at + timedelta(seconds=_BRAKED_SECONDS))
    # Those that were held up come last, or one of them could keep all others waiting.
    queue = sorted(
        (delete for delete in deletes if delete.name in vanished), key=lambda delete: _failures(round_.memory, delete)
    )
    let_go = queue[:1] if next_at <= now else []
    pause = timedelta(seconds=_BRAKED_SECONDS)
    next_at = now + pause if let_go else next_at
    # When so many more have gone it is off, and the rest goes at once.
    steps = len(vanished) - len(let_go) - few
    return Braked(
        deletes=tuple(delete for delete in deletes if delete.name not in vanished or delete in let_go),
        alerts=(_mass_disappearance(vanished, len(supply)),),
        due_at=(next_at,) if queue else (),
        vanished=vanished,
        held_back={
            each.name: next_at + min(place, steps - 1) * pause if steps else now
            for place, each in enumerate(queue[len(let_go) :])
        },
        last_at=now if let_go else last_at,
    )


def _vanished(each: Supply, round_: Round) -> bool:
    """Whether its workload is not there, and was seen neither to be deleted nor to be replaced by a namesake.

    Of a namespace that is not watched none is there, and that is no wonder.
    """
    if each.unwatched:
        return False
    workloads = round_.workloads
    there = each.workload_uid in workloads.by_uid or each.workload_name in workloads.uid_of_name
    return (
        not there
        and each.workload_uid not in round_.snapshot.deleted_workloads
        and each.pool.status is not PoolStatus.ERROR
    )


def _failures(memory: Memory, delete: Delete) -> int:
    call = memory.deletes.get(delete.name)
    return 0 if call is None else call.failures


def _mass_disappearance(vanished: Collection[PoolName], pools: int) -> Alert:
    return Alert(
        kind="mass_disappearance",
        message=f"The workloads of {len(vanished)} of {pools} node pools are gone, but the provisioner did not see "
        "them being deleted. "
        "Check the API server (a restored etcd?). The provisioner confirms each pool by a read of its workload, and "
        f"deletes one pool every {_BRAKED_SECONDS:.0f} s.",
    )
