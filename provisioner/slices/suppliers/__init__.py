"""Suppliers of node pools: GKE, and TPUNodeGroups on Compute Engine."""

from provisioner.settings import forms
from provisioner.slices.supplier import PoolRules
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.slices.suppliers.nodegroup.rules import NODE_GROUP_RULES


def rules_of(provider: str) -> PoolRules:
    """Return the rules of the supplier for a value of PROVIDER: TPUNodeGroups for gce, GKE for all other values."""
    return NODE_GROUP_RULES if provider.strip().lower() == forms.GCE else GKE_RULES
