"""That node pools and workloads are of one cluster, which is certain where both are objects of one API server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from provisioner.settings import Settings


@dataclass(frozen=True, slots=True)
class OneApiServer:
    """Implements `IdentityCheck`: there is nothing to prove."""

    proven: bool = True
    problem: str = ""

    def due_in_seconds(self, now: datetime) -> float:  # noqa: ARG002 - not needed
        """Implement `IdentityCheck.due_in_seconds`: never."""
        return float("inf")

    def attempt(self) -> bool:
        """Implement `IdentityCheck.attempt`."""
        return True

    def look_again(self, now: datetime) -> None:
        """Implement `IdentityCheck.look_again`: nothing of it can change."""

    def adapted(self, settings: Settings) -> Settings:
        """Implement `IdentityCheck.adapted`: nothing is left to the cluster."""
        return settings

    def clock_set(self, by: timedelta) -> None:
        """Implement `IdentityCheck.clock_set`."""
