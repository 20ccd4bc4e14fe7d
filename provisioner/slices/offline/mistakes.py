"""All that is wrong with a slice, where the decision tells the first thing only: it has one Event at a time.

What is wrong is found by the decision's own parts, so it has the words of the Event that would come next.
"""

from __future__ import annotations

from dataclasses import replace

from provisioner import constants
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, allowlists
from provisioner.slices.planning.launch.specification import Candidates
from provisioner.slices.supplier import ImpossibleError, PoolRules, UnmeetableError

#: More than a manifest has of what can be wrong.
_MOST = 24
#: Without these nothing is a slice.
_NEEDED = (constants.TPU_ACCELERATOR, constants.TPU_TOPOLOGY)
_SHORTEST = 4


def problems_of(slice_: Slice, settings: Settings, rules: PoolRules) -> dict[str, bool]:
    """Return what is wrong, as the Event has it after "No TPU node pool is created:", and whether it is impossible."""
    found = {words: True for _, words in slice_.wishes.problems}
    namespace = allowlists.namespace_problem(slice_.workload.namespace, settings)
    if namespace:
        found[namespace] = False
    settings = replace(settings, allowed_namespaces=None)
    mended: Slice | None = replace(slice_, wishes=replace(slice_.wishes, problems=()))
    for _ in range(_MOST):
        problem, impossible = _problem(mended, settings, rules) if mended is not None else ("", False)
        if mended is None or not problem:
            break
        found.setdefault(problem, impossible)
        mended = _without(mended, problem)
    return found


def _problem(slice_: Slice, settings: Settings, rules: PoolRules) -> tuple[str, bool]:
    """Say why there is no node pool for a slice, empty where there is one, and whether there can be none."""
    candidates = Candidates(settings, rules)
    problems: dict[str, bool] = {}
    try:
        for choice in candidates.choices(slice_).open:
            try:
                candidates.specification(slice_, choice)
            except UnmeetableError as error:
                problems[str(error)] = isinstance(error, ImpossibleError)
            else:
                return "", False
    except UnmeetableError as error:
        return str(error), isinstance(error, ImpossibleError)
    return "; ".join(problems), all(problems.values())


def _without(slice_: Slice, problem: str) -> Slice | None:
    """Return the slice without what a problem is about; None where that cannot be told."""
    if f"has {slice_.pods_field} {slice_.parallelism}," in problem:
        return replace(slice_, parallelism=slice_.nodes)
    asked = slice_.requirements
    selector = {
        key: value for key, value in asked.node_selector.items() if key in _NEEDED or not _is_about(problem, key, value)
    }
    annotations = {key: value for key, value in asked.annotations.items() if not _is_about(problem, key, value)}
    if len(selector) == len(asked.node_selector) and len(annotations) == len(asked.annotations):
        return None
    return replace(slice_, requirements=replace(asked, node_selector=selector, annotations=annotations))


def _is_about(problem: str, key: str, value: str) -> bool:
    return key in problem or (len(value) >= _SHORTEST and value in problem)
