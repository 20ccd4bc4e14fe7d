"""Why none is bought of the slices that start together: one of them cannot be had."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from provisioner.model.capacity import Zone
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch.feasibility import problem_of
from provisioner.slices.planning.launch.gangs import Turns
from provisioner.slices.planning.launch.limits import Budget
from provisioner.slices.planning.round import Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsatisfiable:
    """Why none is bought of the slices of a workload that start together."""

    why: str
    #: When that may be over by itself.
    until: datetime | None = None
    #: It waits for nothing but limits.
    limited: bool = False
    #: Those that try before all others, for GKE refused them before: the others would be held for nothing.
    first: frozenset[SliceId] = frozenset()


def find_unsatisfiable(
    round_: Round, unserved: Collection[Slice], turns: Turns, zones: Mapping[WorkloadUid, Zone], budget: Budget
) -> dict[WorkloadUid, Unsatisfiable]:
    """Say why of some workloads that start together not all slices can be had: none is bought then."""
    found: dict[WorkloadUid, Unsatisfiable] = {}
    budgets: dict[WorkloadUid, Budget] = {}
    for slice_ in unserved:
        uid = slice_.workload.uid
        if uid not in turns.members or uid in found:
            continue
        problem = problem_of(round_, slice_, zones)
        if problem:
            found[uid] = Unsatisfiable(
                why=f"no choice of capacity is available for slice {slice_.group_name}: {problem}"
            )
            continue
        own = budgets.get(uid) or budgets.setdefault(uid, budget.copy())
        refusal = own.refusal(slice_)
        if refusal is not None:
            found[uid] = Unsatisfiable(why=refusal.message, until=refusal.until, limited=True)
        own.take(slice_)
    refused = {refusal.slice_id for refusal in round_.memory.refusals.values()}
    for slice_ in unserved:
        uid = slice_.workload.uid
        if slice_.id in refused and uid in turns.members and (uid not in found or found[uid].first):
            first = (found[uid].first if uid in found else frozenset()) | {slice_.id}
            why = f"slice {slice_.group_name}, rejected before, tries first"
            found[uid] = Unsatisfiable(why=why, first=first)
    return found
