"""Pods that the scheduler may be binding right now, to pools that nothing seems to need.

Nothing in the API tells of the scheduler's choice of a node before the binding is there, and a cordon does not stop it.
So a pending leader holds the idle pools whose nodes it fits, for a bounded time: from its creation, or from the moment
at which the pool became idle, for then the scheduler looks once more at all that waits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model.capacity import PoolName
from provisioner.model.fit import demand_key, misfit, room_misfit, view_of_node
from provisioner.model.workloads import Requirements
from provisioner.slices.demand import Slice
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.supply import Supply

#: Far longer than the scheduler takes from its choice to the binding.
BINDING_SECONDS = 60.0


def held_for_arrivals(round_: Round, matching: Matching) -> dict[PoolName, datetime]:
    """Return until when idle pools are held for pods that may be on their way to them."""
    now = round_.now
    binding = timedelta(seconds=BINDING_SECONDS)
    pending = _Pending(_latest_of_each_kind(round_.slices.values()))
    held: dict[PoolName, datetime] = {}
    for each in round_.supply.values():
        # One that a slice counts on stays anyway.
        if matching.holders.get(each.name) or each.name in matching.claimed or not each.usable or not each.nodes:
            continue
        since = min(now, round_.memory.unneeded_since.get(each.name, now))
        for requirements, created_at in pending.for_nodes_of(each):
            until = max(since, min(now, created_at)) + binding
            if until > max(now, held.get(each.name, now)) and _fits_a_node(requirements, each):
                held[each.name] = until
    return held


def _latest_of_each_kind(slices: Iterable[Slice]) -> list[tuple[Requirements, datetime]]:
    """List what pending leaders ask for, those that ask for the same once, with the latest creation."""
    latest: dict[Hashable, tuple[Requirements, datetime]] = {}
    for each in slices:
        leader = each.leader
        if leader is None or leader.node_name:
            continue
        asked = leader.requirements
        key = demand_key(asked)
        if key not in latest or latest[key][1] < leader.created_at:
            latest[key] = asked, leader.created_at
    return list(latest.values())


class _Pending:
    """What pending leaders ask for, by the rarest of the labels that each selects: a pool looks at few of them."""

    def __init__(self, kinds: Iterable[tuple[Requirements, datetime]]) -> None:
        kinds = tuple(kinds)
        asked = Counter(label for requirements, _ in kinds for label in requirements.node_selector.items())
        self._by_label: dict[tuple[str, str], list[tuple[Requirements, datetime]]] = defaultdict(list)
        for requirements, created_at in kinds:
            # One that selects no topology is no slice, and fits no pool.
            rarest = min(requirements.node_selector.items(), key=lambda label: (asked[label], label), default=None)
            if rarest is not None:
                self._by_label[rarest].append((requirements, created_at))

    def for_nodes_of(self, each: Supply) -> Iterator[tuple[Requirements, datetime]]:
        """Yield what may fit a pool's nodes."""
        for label in {label for node in each.nodes for label in node.labels.items()}:
            yield from self._by_label.get(label, ())


def _fits_a_node(requirements: Requirements, each: Supply) -> bool:
    topology = requirements.node_selector.get(constants.TPU_TOPOLOGY)
    if topology != each.view.labels.get(constants.TPU_TOPOLOGY):
        return False
    views = (view_of_node(node) for node in each.nodes if node.ready)
    return any(not room_misfit(requirements, view) and not misfit(requirements, view) for view in views)
