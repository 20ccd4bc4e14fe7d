"""A whole world on one machine: a real control plane, a simulated GKE, and the provisioner between them."""

from provisioner.rehearsal.world import ProvisionerProcess, Rehearsal

__all__ = ["ProvisionerProcess", "Rehearsal"]
