"""The rights that the provisioner uses in Kubernetes.

The one list: the manifests in deploy/ grant exactly these, and `tpu-provisioner check` asks the API server for each.
"""

from __future__ import annotations

from dataclasses import replace

from provisioner import constants
from provisioner.kube.rights import Right
from provisioner.settings import Settings
from provisioner.workloads import kinds_served

_COORDINATION = "coordination.k8s.io"
_NODE_GROUPS, _PLURAL = "tpu.google.com", "tpunodegroups"


def rights_used(settings: Settings) -> tuple[Right, ...]:
    """Return every right that is used.

    With served namespaces workloads are read, and pods are watched, in these alone. Pods are listed on nodes, and
    Events are written, in all.
    """
    watched = [
        *(
            Right(kind.api_group, kind.resource, verb, optional=kind.optional)
            for kind in kinds_served(settings).values()
            for verb in ("get", "list", "watch")
        ),
        Right("", "pods", "watch"),
    ]
    if settings.namespaces:
        watched = [replace(right, namespace=namespace) for right in watched for namespace in settings.namespaces]
    own_namespace = settings.own_namespace
    used = [
        *watched,
        Right("", "pods", "list"),
        *(Right("", "nodes", verb) for verb in ("get", "list", "watch", "patch")),
        *(Right("", "events", verb) for verb in ("create", "patch")),
        Right(_COORDINATION, "leases", "create", own_namespace),
        *(
            Right(_COORDINATION, "leases", verb, own_namespace, name)
            for name in (constants.LEASE_NAME, constants.ORIGINAL_LEASE_NAME)
            for verb in ("get", "update")
        ),
        *(Right("", "configmaps", verb, own_namespace, constants.PAUSE_CONFIGMAP_NAME) for verb in ("list", "watch")),
        *(Right("", "configmaps", verb, own_namespace, constants.HINTS_CONFIGMAP_NAME) for verb in ("get", "update")),
    ]
    if settings.on_gce:
        used += [
            Right(_NODE_GROUPS, _PLURAL, verb, settings.node_groups_in) for verb in ("get", "list", "create", "delete")
        ]
    if settings.opt_in_label is not None:
        # The label may be on namespaces.
        used += [Right("", "namespaces", "list"), Right("", "namespaces", "watch")]
    return tuple(used)
