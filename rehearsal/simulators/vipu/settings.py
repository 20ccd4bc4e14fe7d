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
    """Settings of the simulated server."""

    fixed = ("allocations",)

    #: Allocations by name, each with its "cluster" and its "agents": a list of their names in order, or their number.
    allocations: Mapping[str, Mapping[str, object]] = dataclasses.field(
        default_factory=lambda: {"alloc-1": {"cluster": "c16", "agents": 16}}
    )
    #: Users by ID, each with an access "key" and the "allocations" that the user may use.
    users: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    #: Whether callers must authenticate; otherwise every caller may use every allocation.
    secure: bool = False
    create_seconds: float = 5.0
    #: Maximum random addition to the duration of each create.
    create_jitter_seconds: float = 0.0
    remove_seconds: float = 1.0
    #: Maximum time for which the response to a create or remove waits for the end of the change.
    change_wait_seconds: float = 600.0
    #: Number of IPUs of the largest partition.
    largest_size: int = 64
    #: Maximum length of an ID in characters. The limit of the real server is unknown.
    longest_id: int = 32
    #: Whether a create that names no allocation uses the first with enough IPUs if the user has several.
    picks_allocation: bool = False
    #: Position of a new partition among those that fit: `first`, or `scattered` (random), which fragments the IPUs.
    placement: str = FIRST
    #: Whether the list of partitions contains their allocations.
    lists_allocations: bool = False

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
