"""The check of a cluster without GKE: whether there can be TPUNodeGroups, and how many there are."""

from __future__ import annotations

from provisioner import kube
from provisioner.kube.live import list_all
from provisioner.slices.preflight.finding import Finding, failed, ok
from provisioner.slices.suppliers.nodegroup.supplier import groups_path

NODE_GROUPS = "TPUNodeGroups"


def check_node_groups(api: kube.Api, namespace: str) -> Finding:
    """List those of the namespace in which the provisioner makes them. Raises ClusterError."""
    try:
        found = list_all(api, groups_path(namespace), {}, lambda raw: raw, metadata_only=True)
    except kube.NotFound:
        return failed(
            NODE_GROUPS,
            "their CRD is not installed",
            "Install the controller of node groups, first: kubectl apply --server-side -k deploy/nodegroups/crds",
        )
    return ok(NODE_GROUPS, f"{len(found)} in namespace {namespace}, where the provisioner makes its own")
