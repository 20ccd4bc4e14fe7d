"""What one decision goes by: Kubernetes and the settings. What Compute Engine has is remembered (`memory`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from provisioner.model.capacity import Taint
from provisioner.nodegroups.api.types import Child, InstanceTemplate, ManagedInstanceGroup, TpuNodeGroup, WorkloadPolicy
from provisioner.nodegroups.bootstrap import approval, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that is a machine of Compute Engine, or that carries a group's labels."""

    name: str
    uid: str
    resource_version: str = ""
    #: As gce://PROJECT/ZONE/INSTANCE.
    provider_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    #: spec.unschedulable.
    unschedulable: bool = False
    #: Its condition Ready is True.
    ready: bool = False
    #: google.com/tpu in status.capacity and in status.allocatable.
    capacity_chips: int = 0
    allocatable_chips: int = 0

    @property
    def is_named_as_its_machine(self) -> bool:
        """Whether it has its machine's name, short or with a domain: a kubelet may give any provider id."""
        machine = self.provider_id.rpartition("/")[2]
        return self.name == machine or self.name.startswith(f"{machine}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that is bound to one of these nodes."""

    namespace: str
    name: str
    uid: str
    node: str
    chips: int = 0
    #: Succeeded or Failed: it needs its node no more.
    finished: bool = False
    #: metadata.deletionTimestamp: when its grace ends; None while nobody deletes it.
    deletion_deadline: datetime | None = None
    #: Of a DaemonSet or a mirror of a static pod: it ends with its node, and cannot be evicted in a way that helps.
    bound_to_node: bool = False

    def keeps_machine(self, now: datetime) -> bool:
        """Whether it needs its machine: it has neither ended nor outlived its grace, and does not end with its node."""
        over = self.deletion_deadline is not None and self.deletion_deadline <= now
        return not self.finished and not self.bound_to_node and not over


#: As the bootstrap makes and reads them.
Token = tokens.Token
Request = approval.Request


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlugin:
    """The DaemonSet of the device plugin."""

    uid: str
    #: Hash of the manifest that it was last applied from; empty for one that we did not make.
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What machines have to know of the cluster; a text that could not be found out is empty."""

    #: UID of the namespace kube-system.
    uid: str
    #: The project that the provisioner itself runs in.
    project: str = ""
    #: As "sha256:<hex>", of the CA that signs the API server's certificate.
    ca_hash: str = ""
    #: HOST:PORT that machines reach the API server at.
    api_server: str = ""
    #: As "1.31".
    kubernetes_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The caches, as they were at one moment. Each may be older than the others, and than what was written last."""

    cluster: Cluster
    groups: tuple[TpuNodeGroup, ...] = ()
    policies: tuple[WorkloadPolicy, ...] = ()
    templates: tuple[InstanceTemplate, ...] = ()
    managers: tuple[ManagedInstanceGroup, ...] = ()
    nodes: tuple[Node, ...] = ()
    #: Those on these nodes that may need them: unfinished, and not such as end with their node.
    pods: tuple[Pod, ...] = ()
    #: All Secrets that carry the labels of a group.
    tokens: tuple[Token, ...] = ()
    #: Open requests of kubelets that came with one of these.
    requests: tuple[Request, ...] = ()
    #: None: there is no such DaemonSet.
    device_plugin: DevicePlugin | None = None
    #: Keys of calls and writes that are being sent, or have been answered and the answer not read (`Call.key`).
    live: frozenset[str] = frozenset()
    #: Why nothing may be decided on this snapshot, such as a cache that is not synced; empty: it may.
    not_synced: tuple[str, ...] = ()

    @property
    def children(self) -> tuple[Child, ...]:
        """All children of groups, and such as are nobody's."""
        return (*self.policies, *self.templates, *self.managers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningSettings:
    """What the administrator decides: lists of what is allowed, times and limits."""

    #: What machines that are to join the cluster run at each boot (`bootstrap.script`).
    startup_script: str
    #: Projects in which resources may be made; none: the project that the provisioner runs in.
    projects: frozenset[str] = frozenset()
    #: Namespaces whose objects are served; none: all.
    namespaces: frozenset[str] = frozenset()
    #: Machines that the objects of one namespace may have together; 0: any number.
    machines_per_namespace: int = 0
    #: Hash of the manifest that the device plugin is to be applied from; empty: it is not our job.
    device_plugin_version: str = ""
    #: A slice is made anew when a machine of it has been lost for so long, and so often within a day.
    repair_after_seconds: float = 300.0
    repairs_per_day: int = 3
    #: A machine that runs has so long to become a node that is ready, before it counts as lost.
    join_seconds: float = 1800.0
    #: So long pods without chips may keep the machines of a group that is deleted; those with chips always may.
    drain_seconds: float = 3600.0
    #: Calls to Compute Engine per second of each sort that it counts (changes, reads, lists, polls of operations) in a
    #: project, for each region and globally; and so many seconds' worth of them at once. It counts by the minute, and
    #: allows 1,500 calls unless another quota was agreed on: these are 1,400 at most.
    calls_per_second: float = 20.0
    burst_seconds: float = 10.0
    #: Calls under way at once.
    most_calls: int = 64
