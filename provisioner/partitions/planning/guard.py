"""The boundary between those that are decided about: a mistake that one of them brings out costs no other its turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from provisioner.model import bounds
from provisioner.partitions.planning.plan import Fault

_T = TypeVar("_T")
#: More of one round tell nothing new.
_MOST_FAULTS = 20


class Guard:
    """Runs parts of a decision, and takes note of what they raise."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What went wrong so far."""
        return tuple(self._faults)

    def run(self, subject: str, part: Callable[[], _T], instead: _T) -> _T:
        """Return what a part comes to, and `instead` where it raises."""
        try:
            return part()
        except Exception as error:  # noqa: BLE001 - whatever the mistake is, others must have their turn
            if len(self._faults) < _MOST_FAULTS:
                self._faults.append(Fault(subject=subject, error=bounds.cut(repr(error), bounds.CONDITION_MESSAGE)))
            return instead
