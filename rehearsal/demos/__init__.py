"""A whole world on one machine: a real control plane, a simulated GKE, and the provisioner between them."""

from rehearsal.demos.world import ProvisionerProcess, Rehearsal, RehearsalError, wait_for

__all__ = ["ProvisionerProcess", "Rehearsal", "RehearsalError", "wait_for"]
