"""Rights in Kubernetes, and whether we have them."""

from __future__ import annotations

from dataclasses import dataclass, field

from provisioner.kube.errors import Malformed
from provisioner.kube.protocol import Api

ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


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
