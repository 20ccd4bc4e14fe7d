"""Whether the Kubernetes client and the GKE client speak of one cluster. Pure.

Every pool of another cluster would look unneeded here, so nothing is created or deleted before this is proven. It does
not prove that either client may do anything there.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

from provisioner.slices.suppliers.gke.protocol import Cluster

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_GROUP = re.compile(
    r"/projects/(?P<project>[^/]+)/zones/(?P<zone>[^/]+)/instanceGroup(Manager)?s/(?P<prefix>gke-[^/]+)-grp$"
)
_PROVIDER_ID = re.compile(r"gce://(?P<project>[^/]+)/(?P<zone>[^/]+)/(?P<prefix>gke-[^/]+)-[a-z0-9]{4}")
_ADVICE = (
    "Check GCP_PROJECT_ID, GCP_CLUSTER_LOCATION and GCP_CLUSTER against the current context of the kubeconfig; if they "
    "name the same cluster, set ASSUME_SAME_CLUSTER=true."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Whether the two are one cluster, and what shows it, or what to do."""

    proven: bool
    why: str


def prove_same_cluster(
    *, kubernetes_ca_pem: bytes | None, cluster: Cluster, node_provider_ids: Sequence[str], assume: bool
) -> Proof:
    """Return whether `cluster` is the one that the Kubernetes client talks to.

    `kubernetes_ca_pem` is what that client trusts, None for public roots. `assume` is the user's word for it, and the
    last resort.
    """
    name = f"cluster {cluster.name!r}"
    trusted = _certificates(kubernetes_ca_pem or b"")
    issued = _certificates(cluster.ca_certificate_pem)
    if trusted & issued:
        return Proof(proven=True, why=f"The Kubernetes client trusts the certificate authority of {name}.")
    if kubernetes_ca_pem is not None and issued:
        # Two authorities that differ: no node can outweigh that.
        doubt = f"The Kubernetes client does not trust the certificate authority of {name}."
    else:
        node = _node_of_groups(node_provider_ids, cluster.instance_group_urls)
        if node is not None:
            return Proof(proven=True, why=f"Node {node} is in an instance group of {name}.")
        doubt = (
            f"No certificate authority to compare with {name}, and none of the {len(node_provider_ids)} nodes "
            f"without TPUs that Kubernetes lists is in one of its {len(cluster.instance_group_urls)} instance groups."
        )
    if assume:
        return Proof(proven=True, why=f"Assumed because ASSUME_SAME_CLUSTER is set. {doubt}")
    return Proof(proven=False, why=f"{doubt} {_ADVICE}")


def _certificates(pem: bytes) -> frozenset[bytes]:
    """Return the DER bytes of all certificates, whatever the line ends, the text between them, and their order."""
    found = set()
    for body in _CERTIFICATE.findall(pem):
        try:
            der = base64.b64decode(b"".join(body.split()), validate=True)
        except binascii.Error:
            # A damaged certificate proves nothing; the others still may.
            continue
        if der:
            found.add(der)
    return frozenset(found)


def _node_of_groups(provider_ids: Sequence[str], group_urls: Sequence[str]) -> str | None:
    """Return the first node whose instance lies in one of the groups.

    GKE names group and instances alike (gke-CLUSTER-POOL-HASH-grp, gke-CLUSTER-POOL-HASH-xxxx); the hash tells apart
    clusters of one name.
    """
    groups = {match.group("project", "zone", "prefix") for url in group_urls if (match := _GROUP.search(url))}
    for provider_id in provider_ids:
        match = _PROVIDER_ID.fullmatch(provider_id)
        if match and match.group("project", "zone", "prefix") in groups:
            return provider_id
    return None
