"""What tells a cluster from all others."""

from __future__ import annotations

from provisioner.kube import errors, fields
from provisioner.kube.protocol import Api, Timeouts, object_path

_NAMESPACE = "kube-system"


def read_cluster_uid(api: Api, *, timeouts: Timeouts) -> str:
    """Return the UID of the namespace kube-system, made with the cluster and never anew; raise ClusterError."""
    namespace = api.get(object_path("namespaces", _NAMESPACE), timeouts=timeouts)
    uid = fields.name(fields.mapping(namespace.get("metadata")).get("uid"))
    if not uid:
        raise errors.Malformed(f"namespace {_NAMESPACE} has no uid")
    return uid
