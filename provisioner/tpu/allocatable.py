"""Predicts the resources that a GKE node offers to pods, by GKE's formula for Container-Optimized OS. Pure.

Sources: GKE's page "Plan node sizes", reserved.go of GoogleCloudPlatform/cluster-autoscaler, gce_reserved.go of
kubernetes/autoscaler. Valid for nodes before 1.37; GKE may reserve less memory on later nodes. Ignores DaemonSets.
"""

from collections.abc import Iterable
from typing import NamedTuple

from provisioner.tpu.catalogue import MachineType

#: GKE's size of the boot disk, in GB, for a create request without a size.
DEFAULT_DISK_GB = 100
_GIB = 1024**3
_MIB = 1024**2


class Amounts(NamedTuple):
    """Resources that a node offers to pods."""

    cpu_millicores: int
    memory_bytes: int
    ephemeral_bytes: int


#: Parts of a machine's vCPUs, and the share of each part that GKE reserves. The last part contains all remaining vCPUs.
_CPU_SHARES = ((1.0, 0.06), (1.0, 0.01), (2.0, 0.005), (float("inf"), 0.0025))
#: Parts of the memory in MiB (multiples of 1,000, as in the sources), and the share of each part that GKE reserves.
_MEMORY_SHARES = ((4000.0, 0.25), (4000.0, 0.2), (8000.0, 0.1), (112_000.0, 0.06), (float("inf"), 0.02))
#: Number of pods on a node above which GKE reserves more CPU, and the additional millicores.
_MANY_PODS, _MANY_PODS_MILLICORES = 110, 400
_EVICTION_MIB = 100.0


def allocatable(machine: MachineType, *, disk_gb: int = DEFAULT_DISK_GB, max_pods: int = 0) -> Amounts:
    """Return the allocatable resources of a GKE node. With `max_pods` 0, GKE's default of 110 pods applies."""
    memory_mib = machine.memory_gib * 1024.0
    kernel_mib = memory_mib / 64 + 16 + 64 + min(0.00175 * memory_mib, 248)
    memory_mib -= kernel_mib + _reserved(memory_mib, _MEMORY_SHARES) + _EVICTION_MIB
    cpu_millicores = 1000 * (machine.vcpus - _reserved(machine.vcpus, _CPU_SHARES))
    # The sources calculate with GiB, although the node pool's disk size is in GB.
    disk = float(disk_gb)
    capacity = disk - (0.015635 * disk + 4.148 + min(100 / 1024, 0.001 * disk))
    ephemeral = 0.9 * capacity - min(0.5 * disk, 6 + 0.35 * disk, 100.0)
    return Amounts(
        cpu_millicores=int(cpu_millicores) - (_MANY_PODS_MILLICORES if max_pods > _MANY_PODS else 0),
        memory_bytes=int(memory_mib * _MIB),
        ephemeral_bytes=int(ephemeral * _GIB),
    )


def _reserved(amount: float, shares: Iterable[tuple[float, float]]) -> float:
    reserved = 0.0
    for size, share in shares:
        part = min(size, amount)
        reserved += part * share
        amount -= part
    return reserved
