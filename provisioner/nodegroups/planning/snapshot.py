"""Everything of Kubernetes that one decision sees. What Compute Engine has is read call by call, and remembered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from provisioner.model.capacity import Taint
from provisioner.nodegroups.api.types import InstanceTemplate, ManagedInstanceGroup, TpuNodeGroup, WorkloadPolicy
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
