"""The rights that the provisioner uses in Kubernetes, and whether it has them.

The one list: the manifests in deploy/ grant exactly these, and `tpu-provisioner check` asks the API server for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from provisioner import constants
from provisioner.kube.errors import Malformed
from provisioner.kube.protocol import Api

ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_JOBSETS, _COORDINATION = "jobset.x-k8s.io", "coordination.k8s.io"
_LEADERWORKERSETS, _BATCH = "leaderworkerset.x-k8s.io", "batch"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource, by name where RBAC says so; namespace "" where it holds in all."""

    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""
    #: Without it one kind of workloads is not served; everything else is.
    optional: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """Return it as people would say it."""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''}{where}"


def rights_used(
    own_namespace: str,
    *,
    served_namespaces: Sequence[str] = (),
    reads_namespaces: bool = False,
    serves_jobs: bool = False,
) -> tuple[Right, ...]:
    """Return every right that is used; `reads_namespaces` where an opt-in label may be on namespaces.

    With served namespaces workloads are read, and pods are watched, in these alone. Pods are listed on nodes, and
    Events are written, in all.
    """
    reading = ("get", "list", "watch")
    watched = [
        *(Right(_JOBSETS, "jobsets", verb) for verb in reading),
        *(Right(_LEADERWORKERSETS, "leaderworkersets", verb, optional=True) for verb in reading),
        *(Right(_BATCH, "jobs", verb, optional=True) for verb in reading if serves_jobs),
        Right("", "pods", "watch"),
    ]
    if served_namespaces:
        watched = [replace(right, namespace=namespace) for right in watched for namespace in served_namespaces]
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
        *(Right("", "configmaps", verb, own_namespace, constants.HINTS_CONFIGMAP_NAME) for verb in ("get", "update")),
    ]
    if reads_namespaces:
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
