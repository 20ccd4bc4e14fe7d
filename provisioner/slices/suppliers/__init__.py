"""Who supplies the capacity of slices, and whose rules hold for the pools of a provider."""

from __future__ import annotations

from provisioner.settings import forms
from provisioner.slices.supplier import PoolRules
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.slices.suppliers.nodegroup.rules import NODE_GROUP_RULES


def rules_of(provider: str) -> PoolRules:
    """Return the rules of the supplier that PROVIDER names; empty: GKE."""
    return NODE_GROUP_RULES if provider.strip().lower() == forms.GCE else GKE_RULES
