"""The node pools that could be created for slices: choices of capacity, each specified once in a round.

Slices that ask for the same share most of the work. Only the name and the attempt are stamped on later.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from provisioner.model.capacity import Zone
from provisioner.model.choices import CapacityChoice
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch import allowlists, wishes
from provisioner.slices.planning.launch.capacity import Choices, choices_of
from provisioner.slices.planning.launch.specification import (
    Blueprint,
    Specification,
    blueprint,
    blueprint_key,
    check_fit,
    check_shape,
    copied_labels,
    specify,
)
from provisioner.slices.supplier import PoolRules, UnmeetableError

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Unmeetable:
    """What was found out to be impossible, and why."""

    why: str
    kind: type[UnmeetableError]


class Candidates:
    """What one round knows of the pools that it may create. Every method raises UnmeetableError where there is none."""

    def __init__(self, settings: Settings, rules: PoolRules) -> None:
        self._settings = settings
        self._rules = rules
        self._choices: dict[Hashable, Choices | _Unmeetable] = {}
        self._blueprints: dict[Hashable, Blueprint | _Unmeetable] = {}
        #: By slice, and the identity of the choice: of equal slices and zones it is the same.
        self._specifications: dict[tuple[SliceId, int], Specification | _Unmeetable] = {}

    def choices(self, slice_: Slice, zone: Zone | None = None) -> Choices:
        """Return what may be tried for a slice, in the one zone of its workload where there is one to keep to."""
        settings = self._settings
        wishes.check(slice_, settings)
        check_shape(slice_)
        problem = allowlists.namespace_problem(slice_.workload.namespace, settings)
        if problem:
            raise UnmeetableError(problem)
        key = (frozenset(slice_.requirements.node_selector.items()), id(slice_.wishes), id(slice_.shape))
        choices = _once(self._choices, key, lambda: choices_of(slice_, settings))
        if zone is None or not wishes.wants_one_zone(slice_, settings):
            return choices
        there = tuple(choice for choice in choices.open if choice.zone == zone)
        if not there:
            raise UnmeetableError(
                f"all pools of {slice_.workload} must be in one zone, {zone}, but this slice may only be "
                f"in {', '.join(sorted({choice.zone for choice in choices.open}))}"
            )
        return Choices(open=there, left_out=choices.left_out)

    def specification(self, slice_: Slice, choice: CapacityChoice) -> Specification:
        """Specify the pool of a choice; only one that the leader pod would fit."""
        return _once(self._specifications, (slice_.id, id(choice)), lambda: self._specified(slice_, choice))

    def _specified(self, slice_: Slice, choice: CapacityChoice) -> Specification:
        rules, copied = self._rules, copied_labels(slice_, self._settings, self._rules, choice)
        key = blueprint_key(slice_, choice, copied)

        def draw() -> Blueprint:
            drawn = blueprint(slice_, self._settings, rules, choice, copied)
            request = specify(slice_, drawn, rules).stamped(rules.pool_name(slice_.workload.name, slice_.id, 0), 0)
            check_fit(slice_, request, self._settings, rules)
            return drawn

        return specify(slice_, _once(self._blueprints, key, draw), rules)


def _once(known: dict[_K, _T | _Unmeetable], key: _K, find: Callable[[], _T]) -> _T:
    """Find something out, or find out that it cannot be, once for each key."""
    found = known.get(key)
    if found is None:
        try:
            found = find()
        except UnmeetableError as error:
            found = _Unmeetable(str(error), type(error))
        known[key] = found
    if isinstance(found, _Unmeetable):
        raise found.kind(found.why)
    return found
