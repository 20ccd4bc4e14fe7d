"""Finds all nodes on which a pod can run. Pure. Uses indexes instead of one call of `fit.misfit` for each node."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from itertools import accumulate, groupby
from operator import or_
from typing import TypeVar

from provisioner import constants
from provisioner.model import fit
from provisioner.model.capacity import Taint
from provisioner.model.fit import NEED_A_LABEL, NodeView, number, offered, requested, tolerated
from provisioner.model.workloads import Expression, Requirements

_K = TypeVar("_K", bound=Hashable)
#: Amount of a resource that a node does not report: larger than any request that `fields.parse_quantity` accepts.
_ENOUGH = 2**80


class Fits:
    """Index of nodes. Methods return nodes as an integer: bit n is set if node n, counted from 0, is in the result."""

    def __init__(self, views: Sequence[NodeView]) -> None:
        self._views = views
        self._all = (1 << len(views)) - 1
        self._values: dict[str, _Values] = {}

    def fitting(self, requirements: Requirements) -> int:
        """Return the nodes for which `misfit` returns no reason."""
        if not self._views:
            return 0
        fitting = self._with_room(requirements) & self.selected(requirements) & self._reaching_volumes(requirements)
        for taint, nodes in self._tainted.items():
            if not tolerated(taint, requirements.tolerations):
                fitting &= ~nodes
        return fitting

    def selected(self, requirements: Requirements) -> int:
        """Return the nodes for which `label_misfit` returns no reason."""
        selected, driver = self._all, constants.TPU_DRA_DRIVER
        if requirements.node_selector.get(driver) != "true":
            selected &= ~self._label_values(driver).among(("true",))
        for key, value in requirements.node_selector.items():
            by_value = self._label_values(key)
            selected &= by_value.among((value,)) | self._may_carry(key, by_value)
        if selected and requirements.affinity_terms:
            selected &= reduce(or_, [self._matching(term) for term in requirements.affinity_terms])
        return selected

    def _reaching_volumes(self, requirements: Requirements) -> int:
        volumes = requirements.volumes
        if volumes is None or (volumes.zones is None and not volumes.problem):
            return self._all
        zones = self._label_values(constants.ZONE)
        return 0 if volumes.problem else zones.among(volumes.zones or ()) | zones.lacking

    def _matching(self, term: Iterable[Expression]) -> int:
        matching = self._all
        for expression in term:
            matching &= self._holding(expression)
            if not matching:
                break
        return matching

    def _holding(self, expression: Expression) -> int:
        operator, values = expression.operator, expression.values
        by_value = self._names if expression.on_field else self._label_values(expression.key)
        match operator:
            case "In":
                holding = by_value.among(values)
            case "NotIn":
                holding = self._all ^ by_value.among(values)
            case "Exists":
                holding = self._all ^ by_value.lacking
            case "DoesNotExist":
                holding = by_value.lacking
            case "Gt" | "Lt":
                bound = number("".join(values))
                numbers = by_value.numbers
                holding = 0 if bound is None else numbers.above(bound) if operator == "Gt" else numbers.below(bound)
            case _:
                holding = 0
        if operator in NEED_A_LABEL and not expression.on_field:
            holding |= self._may_carry(expression.key, by_value)
        return holding

    def _may_carry(self, key: str, by_value: _Values) -> int:
        lacking = self._predicted & by_value.lacking
        return lacking if lacking and fit.may_be_there(key) else 0

    def _with_room(self, requirements: Requirements) -> int:
        with_room = self._all
        for resource, amount in requested(requirements):
            if resource in self._room:
                with_room &= self._room[resource].above(amount - 1)
        return with_room

    def _label_values(self, key: str) -> _Values:
        if key not in self._keys:
            return self._nowhere
        by_value = self._values.get(key)
        if by_value is None:
            by_value = self._values[key] = _Values([view.labels.get(key) for view in self._views])
        return by_value

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset().union(*(view.labels for view in self._views))

    @cached_property
    def _nowhere(self) -> _Values:
        """Index of a label that no node has, shared by all such labels to save memory."""
        return _Values([None] * len(self._views))

    @cached_property
    def _names(self) -> _Values:
        return _Values([view.name for view in self._views])

    @cached_property
    def _predicted(self) -> int:
        return _masks([view.predicted for view in self._views]).get(True, 0)

    @cached_property
    def _room(self) -> dict[str, _Ordered]:
        offers = [offered(view) for view in self._views]
        resources = {resource for offer in offers for resource in offer}
        return {key: _Ordered(_masks([offer.get(key, _ENOUGH) for offer in offers])) for key in resources}

    @cached_property
    def _tainted(self) -> dict[Taint, int]:
        by_taint: dict[Taint, int] = defaultdict(int)
        for taints, nodes in _masks([view.taints for view in self._views]).items():
            for taint in taints:
                by_taint[taint] |= nodes
        return {taint: nodes for taint, nodes in by_taint.items() if taint.effect != "PreferNoSchedule"}


class _Values:
    """Nodes by value of one label, or by name. None is the value of nodes without the label."""

    def __init__(self, values: Sequence[str | None]) -> None:
        self._by_value = _masks(values)
        self.lacking = self._by_value.get(None, 0)

    def among(self, values: Iterable[str]) -> int:
        union = 0
        for value in values:
            nodes = self._by_value.get(value)
            if nodes is not None:
                union |= nodes
        return union

    @cached_property
    def numbers(self) -> _Ordered:
        by_number: dict[int, int] = defaultdict(int)
        for value, nodes in self._by_value.items():
            amount = number(value or "")
            if amount is not None:
                by_number[amount] |= nodes
        return _Ordered(by_number)


class _Ordered:
    """Nodes by amount of a resource, or by the integer value of a label."""

    def __init__(self, by_amount: Mapping[int, int]) -> None:
        self._amounts = sorted(by_amount)
        #: Entry i has the nodes with less than the i-th amount; the last entry has all nodes with an amount.
        self._below = [*accumulate((by_amount[amount] for amount in self._amounts), or_, initial=0)]

    def below(self, amount: int) -> int:
        return self._below[bisect_left(self._amounts, amount)]

    def above(self, amount: int) -> int:
        return self._below[-1] & ~self._below[bisect_right(self._amounts, amount)]


def _masks(values: Iterable[_K]) -> dict[_K, int]:
    """Return the nodes by value, as bits. A run of equal values, such as the nodes of a pool, is added in one step."""
    masks: dict[_K, int] = defaultdict(int)
    start = 0
    for value, run in groupby(values):
        length = sum(1 for _ in run)
        masks[value] |= ((1 << length) - 1) << start
        start += length
    return dict(masks)
