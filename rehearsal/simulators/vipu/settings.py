"""Settings of a simulated V-IPU server, for its start and while it runs. Times are in seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rehearsal.simulators.http.settings import BaseSettings

#: Number of IPUs of an IPU-Machine, in every generation so far.
IPUS_OF_AGENT = 4
FIRST = "first"
SCATTERED = "scattered"
PLACEMENTS = (FIRST, SCATTERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class VipuSettings(BaseSettings):
    """Options of the simulator."""

    fixed = ("allocations",)

    allocations: Mapping[str, Mapping[str, object]] = dataclasses.field(
        default_factory=lambda: {"alloc-1": {"cluster": "c16", "agents": 16}}
    )
    """The allocations by name, each with its "cluster" and its "agents": their names in order, or how many."""

    users: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    """Users by id, each with an access "key" and the "allocations" that it may use."""

    secure: bool = False
    """Callers prove who they are; else everybody may use every allocation."""

    create_seconds: float = 5.0
    """From a create to its answer."""

    create_jitter_seconds: float = 0.0
    """At most this much is added to each create at random."""

    remove_seconds: float = 1.0
    """From a remove to its answer."""

    change_wait_seconds: float = 600.0
    """How long the answer of a create or a remove is waited for; what is under way goes on after that."""

    largest_size: int = 64
    """IPUs of the largest partition."""

    longest_id: int = 32
    """Characters of the longest id. The real limit is not known, but there is one."""

    picks_allocation: bool = False
    """A create that names no allocation gets the first that has room, also where the user has several."""

    placement: str = FIRST
    """Where among the places that fit: the `first`, or `scattered`, which is the worst for those that come later."""

    lists_allocations: bool = False
    """The list of partitions says in which allocation each is."""

    def problems(self) -> list[str]:
        """Return the mistakes in the settings."""
        problems = [
            f"{name}: {value} is less than 1"
            for name, value in (("largest_size", self.largest_size), ("longest_id", self.longest_id))
            if value < 1
        ]
        if self.placement not in PLACEMENTS:
            problems.append(f"placement: {self.placement!r} is not one of {', '.join(PLACEMENTS)}")
        for name, allocation in self.allocations.items():
            if not isinstance(allocation.get("cluster"), str):
                problems.append(f'allocations: {name!r} needs a "cluster"')
            if not _are_agents(allocation.get("agents")):
                problems.append(f'allocations: {name!r} needs "agents", a list of names or a number from 1')
        for name, user in self.users.items():
            if not isinstance(user.get("key"), str) or not isinstance(user.get("allocations"), list | tuple):
                problems.append(f'users: {name!r} needs a "key" and a list of "allocations"')
        return problems


def _are_agents(value: object) -> bool:
    if isinstance(value, Collection) and not isinstance(value, str):
        return bool(value) and all(isinstance(item, str) for item in value)
    return isinstance(value, int) and value >= 1
