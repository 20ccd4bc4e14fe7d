"""Rehearsals on one machine, with a real control plane, simulated clouds, and the controllers as processes."""

from rehearsal.demos.world import ProvisionerProcess, Rehearsal, RehearsalError, wait_for

__all__ = ["ProvisionerProcess", "Rehearsal", "RehearsalError", "wait_for"]
