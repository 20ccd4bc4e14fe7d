"""Which supplier the settings choose, put together with what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from provisioner import kube
from provisioner.settings import Settings
from provisioner.slices.supplier import IdentityCheck, Supplier
from provisioner.slices.suppliers.gke.identity_check import ClusterProof
from provisioner.slices.suppliers.gke.protocol import Gke
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from provisioner.slices.suppliers.nodegroup.supplier import NodeGroupSupplier


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A supplier, and the proof that it and Kubernetes are of one cluster."""

    supplier: Supplier
    identity: IdentityCheck


def choose(settings: Settings, api: kube.KubeApi, gke: Gke | None, clock: Callable[[], datetime]) -> Chosen:
    """Return the supplier of these settings; ValueError where that is GKE and there is no client for it."""
    if settings.on_gce:
        return Chosen(supplier=NodeGroupSupplier(api=api, settings=settings, clock=clock), identity=IdentityCheck())
    if gke is None:
        raise ValueError("PROVIDER=gke needs a client of GKE")
    proof = ClusterProof(
        gke=gke,
        api=api,
        trusted_ca_pem=api.ca_certificates_pem(),
        assume=settings.assume_same_cluster,
        auto_upgrade=settings.auto_upgrade,
        clock=clock,
    )
    return Chosen(supplier=GkeSupplier(gke=gke, clock=clock), identity=proof)
