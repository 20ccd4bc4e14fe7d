"""What one decision comes to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from provisioner.model.workloads import ObjectRef
from provisioner.nodegroups.planning.calls import Call, CallAnswer
from provisioner.nodegroups.planning.memory import Memory
from provisioner.nodegroups.planning.writes import Write, WriteAnswer

#: How something in a plan ended.
Answer = CallAnswer | WriteAnswer


if TYPE_CHECKING:
    from provisioner.nodegroups.planning.units import Derived


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that people are told once, when it happens."""

    object: ObjectRef
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """An object that could not be decided on, nor what belongs to it."""

    object: ObjectRef
    #: In a row.
    failures: int
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything to do, to say and to remember. What is to be done is already remembered as being under way."""

    memory: Memory
    #: Most urgent first.
    calls: tuple[Call, ...] = ()
    writes: tuple[Write, ...] = ()
    events: tuple[Event, ...] = ()
    crashed: tuple[Crashed, ...] = ()
    #: For the next decision.
    derived: Derived | None = None
    #: When to decide again at the latest, without any event; None: whenever something happens.
    wake_at: datetime | None = None
