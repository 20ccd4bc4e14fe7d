"""What a simulated V-IPU server has, and what it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum


class Phase(Enum):
    """How far a partition is."""

    CREATING = "creating"
    ACTIVE = "active"
    REMOVING = "removing"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, as the request says."""

    user: str = ""
    key: str = ""


ANYBODY = Caller()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A partition to be made."""

    id: str
    size: int
    #: Empty: the server's choice.
    allocation: str = ""
    cluster: str = ""
    reconfigurable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationView:
    """An allocation; each agent has four IPUs."""

    name: str
    cluster: str
    agents: tuple[str, ...]
    #: IPUs that no partition has.
    free: int

    @property
    def ipus(self) -> int:
        """All its IPUs."""
        return 4 * len(self.agents)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition as it was at one moment."""

    id: str
    #: Counts creates, so that one that was removed and made again can be told from the one before.
    number: int
    size: int
    allocation: str
    cluster: str
    reconfigurable: bool
    #: Who made it; empty outside of secure mode.
    user: str
    phase: Phase
    #: The word that lists have for it.
    state: str
    created_at: datetime
    #: Its IPUs, as agent and index.
    ipus: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a create or remove ended, or that it has not."""

    #: When it was, or will be, answered; None: not before somebody intervenes.
    at: datetime | None
    #: It is over.
    done: bool
    #: Empty: it succeeded, or is not done.
    failure: str = ""
