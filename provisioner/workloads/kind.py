"""What every kind of workloads is described by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from provisioner.model.workloads import Workload, WorkloadKind
from provisioner.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a pod says of the workload that it belongs to; the group is told by its controller reference alone."""

    kind: WorkloadKind
    name: str
    #: Empty where the pods of the kind, or of the installed release, do not carry it.
    uid: str = ""
    #: The group of pods that it is one of; empty where nothing controls it.
    group_name: str = ""
    #: Its place in the group; 0 is the leader.
    index: int | None = None
    #: Pods of the group; 0 where the workload alone tells it.
    group_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Where the objects of a kind live, and how they and their pods are read."""

    kind: WorkloadKind
    #: Plural, as in the address of a collection.
    resource: str
    #: As people call several of them.
    plural: str
    #: The label that all its pods carry; its value is the name of the workload.
    pod_label: str
    #: Reads an object; None for one that is not to be served. Raises MalformedObject.
    parse: Callable[[object], Workload | None]
    #: Leaves out of an object what says nothing of whether it lives, and may be malformed all the same.
    without_templates: Callable[[dict[str, Any]], dict[str, Any]]
    #: Reads a pod's claim, given the pod's namespace and metadata; None for a pod of no workload of the kind.
    claim_of: Callable[[str, dict[str, Any]], Claim | None]
    #: The page on how to install it; empty for a kind that every API server has.
    installation: str = ""
    #: A label selector for what else holds of all its objects and pods.
    selector: str = ""
    #: Where the API server does not know it, or does not let us read it, all other kinds are served as ever.
    optional: bool = False
    #: Whether the settings ask for it.
    served: Callable[[Settings], bool] = lambda _settings: True

    @property
    def root(self) -> str:
        """The address of its API, such as /apis/jobset.x-k8s.io/v1alpha2."""
        return f"/apis/{self.kind.api_version}"

    @property
    def api_group(self) -> str:
        """The group of its API, as RBAC names it."""
        return self.kind.api_version.partition("/")[0]

    @property
    def pod_selector(self) -> str:
        """The label selector of its pods."""
        return ",".join(filter(None, (self.pod_label, self.selector)))

    @property
    def install_hint(self) -> str:
        """Say what to do where the API server does not know the kind."""
        if not self.installation:
            return ""
        remedy = (
            f"{self.plural} are served once it is" if self.optional else f"install {self.kind} ({self.installation})"
        )
        return f"the {self.kind} CRD is not installed: {remedy}"
