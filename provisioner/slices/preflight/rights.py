"""The rights that the provisioner uses in Kubernetes.

The one list: the manifests in deploy/ grant exactly these, and `tpu-provisioner check` asks the API server for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from provisioner import constants
from provisioner.kube.errors import Malformed
from provisioner.kube.protocol import Api
from provisioner.settings import Settings
from provisioner.workloads import kinds_served

ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_COORDINATION = "coordination.k8s.io"
_NODE_GROUPS, _PLURAL = "tpu.google.com", "tpunodegroups"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource, by name where RBAC says so; namespace "" where it holds in all."""

    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""
    #: Without it a part of what is asked for is not done; everything else is.
    optional: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """Return it as people would say it."""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''}{where}"


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


def is_granted(api: Api, right: Right) -> bool:
    """Ask the API server whether we have a right; every authenticated user may ask. Raises ClusterError."""
    asked = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "namespace": right.namespace,
        "name": right.name,
    }
    answer = api.post(
        ACCESS_REVIEWS,
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
        },
    )
    status = answer.get("status")
    if not isinstance(status, dict):
        raise Malformed("the API server's answer to a SelfSubjectAccessReview has no status")
    return status.get("allowed") is True
