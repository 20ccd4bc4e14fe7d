"""Specs of TPUNodeGroups and their children, with the API server's defaults. The folder crds describes the fields.

Names, requirements and defaults are mostly those of gke-labs/tpu-operator, but fields that can be derived are optional,
and combinations that never work are rejected. Fields without effect, such as minNodeCount, are not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from provisioner.nodegroups.api.codec import INLINE


class SizePolicyMode(StrEnum):
    """Whether a managed instance group creates all its machines together (BULK) or one by one (INDIVIDUAL)."""

    BULK = "BULK"
    INDIVIDUAL = "INDIVIDUAL"


class ProvisioningModel(StrEnum):
    """Terms on which Compute Engine provides machines."""

    STANDARD = "STANDARD"
    SPOT = "SPOT"
    RESERVATION_BOUND = "RESERVATION_BOUND"
    FLEX_START = "FLEX_START"


class FailureAction(StrEnum):
    """Reaction of a managed instance group to a machine that failed."""

    DO_NOTHING = "DO_NOTHING"
    REPAIR = "REPAIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccount:
    """The account that a machine acts as."""

    email: str
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """Configuration of a machine: part of the spec of a TPUNodeGroup, and of an InstanceTemplate."""

    machine_type: str
    provisioning_model: ProvisioningModel | None = None
    reservation: str = ""
    reservation_affinity: str = ""
    max_run_duration_seconds: int | None = None
    image: str = ""
    boot_disk_size_gb: Annotated[int | None, "bootDiskSizeGB"] = None
    disk_type: str = ""
    secure_boot: bool = False
    subnetwork: str = "default"
    #: At most one account, because Compute Engine accepts only one.
    service_accounts: tuple[ServiceAccount, ...] = ()
    network_tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def effective_provisioning_model(self) -> ProvisioningModel:
        """Provisioning model of the spec; if unset, RESERVATION_BOUND with a reservation, otherwise STANDARD."""
        if self.provisioning_model is not None:
            return self.provisioning_model
        return ProvisioningModel.RESERVATION_BOUND if self.reservation else ProvisioningModel.STANDARD


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapConfig:
    """Data for the join. Unset fields come from settings or the cluster. `control_plane_port` is 6443 by default."""

    #: Minor version of Kubernetes, such as 1.31.
    version: str = ""
    control_plane_ip: Annotated[str, "controlPlaneIP"] = ""
    control_plane_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuNodeGroupSpec:
    """Spec of a group. `shape.resolve` decides whether its machines are one slice together, or one slice each."""

    project: str
    #: Zone of the machines.
    node_location: str
    instance_template_uri: Annotated[str, "instanceTemplateURI"] = ""
    instance_config: InstanceConfig | None = None
    node_count: int | None = None
    topology: str = ""
    bootstrap_kubernetes: BootstrapConfig | None = None
    target_size_policy_mode: SizePolicyMode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPolicySpec:
    """Spec of a workload policy of Compute Engine, which wires the machines of one slice."""

    project: str
    region: str
    accelerator_topology: str
    type: str = "HIGH_THROUGHPUT"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTemplateSpec:
    """Spec of an instance template of Compute Engine."""

    project: str
    config: Annotated[InstanceConfig, INLINE]
    maintenance_policy: str = "TERMINATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedInstanceGroupSpec:
    """Spec of a managed instance group of Compute Engine."""

    project: str
    #: Zone of the machines.
    location: str
    instance_template: str
    target_size: int
    #: Address of the workload policy that wires the machines of one slice; empty if each machine is a slice.
    workload_policy: str = ""
    target_size_policy_mode: SizePolicyMode | None = None
    default_action_on_failure: FailureAction = FailureAction.DO_NOTHING

    @property
    def effective_mode(self) -> SizePolicyMode:
        """Mode of the spec; if unset, BULK with a workload policy, otherwise INDIVIDUAL."""
        if self.target_size_policy_mode is not None:
            return self.target_size_policy_mode
        return SizePolicyMode.BULK if self.workload_policy else SizePolicyMode.INDIVIDUAL
