"""What a V-IPU server has, as far as decisions go by it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class PartitionState(Enum):
    """What a partition is good for. V-IPU has more states, whose names are not published: those are OTHER."""

    ACTIVE = "active"
    #: It is being made, or anything else that is neither good nor known to be bad.
    OTHER = "other"
    #: It says that it failed.
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A group of IPU-Machines that partitions are made in; none reaches over two."""

    name: str
    #: Empty where it is not told.
    cluster: str = ""
    #: IPUs; None where it cannot be read.
    ipus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition as a V-IPU server lists it."""

    id: str
    size: int
    state: PartitionState
    #: The server's own word.
    state_text: str = ""
    cluster: str = ""
    #: Empty where it is not told.
    allocation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRequest:
    """A partition to be made."""

    id: str
    #: IPUs: a power of two.
    size: int
    #: Empty: the server's default.
    allocation: str = ""
    #: Its devices may be used one by one and in groups.
    reconfigurable: bool = True
