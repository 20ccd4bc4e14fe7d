"""Whether a pool can be had for a slice at all, whatever there is in stock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from provisioner.model.capacity import Zone
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import Slice
from provisioner.slices.planning.launch import blockers, limits
from provisioner.slices.planning.round import Round
from provisioner.slices.supplier import UnmeetableError


def problem_of(round_: Round, slice_: Slice, zones: Mapping[WorkloadUid, Zone]) -> str:
    """Say why no pool can be had for a slice, empty where one can; `zones` are those that workloads keep to."""
    problems: dict[str, None] = {}
    try:
        choices = round_.candidates.choices(slice_, zones.get(slice_.workload.uid))
    except UnmeetableError as error:
        return str(error)
    for choice in choices.open:
        try:
            digest = round_.candidates.specification(slice_, choice).digest
        except UnmeetableError as error:
            problems.setdefault(str(error))
            continue
        refused = blockers.of_request(choice, digest, round_.memory, round_.now)
        if refused is None:
            return ""
        problems.setdefault(f"{round_.rules.supplier_name} rejects {choice}: {refused.failure.message}")
    return "; ".join(problems)


def problem_of_all(round_: Round, slices: Iterable[Slice]) -> str:
    """Say why slices that start together can never be had all at once, empty where they can."""
    slices = tuple(slices)
    for each in slices:
        problem = problem_of(round_, each, {})
        if problem:
            return f"slice {each.group_name}: {problem}"
    return limits.problem_of(slices, round_.settings)
