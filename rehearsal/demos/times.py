"""How long what is rehearsed took."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Times:
    """When something reached each step for the first time, in seconds of one clock."""

    name: str
    entered: dict[str, float] = field(default_factory=dict)

    def enter(self, step: str, now: float) -> bool:
        """Note that it is at a step; return whether it was not before."""
        if step in self.entered:
            return False
        self.entered[step] = now
        return True

    def seconds(self, start: str, end: str) -> float | None:
        """Seconds from one step to another; None where one was not seen."""
        if start not in self.entered or end not in self.entered:
            return None
        return self.entered[end] - self.entered[start]
