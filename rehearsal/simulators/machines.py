"""Machine types of the simulated GKE: chips, labels, topologies, disks, and resources of nodes.

Deliberately separate from the provisioner's catalogue: a rehearsal proves more if both were written independently from
Google's documentation. Not covered: zones, prices, and the GKE version that a machine type needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

_TOPOLOGY = re.compile(r"[1-9]\d{0,3}(?:x[1-9]\d{0,3}){1,2}")
_PD = ("pd-standard", "pd-balanced", "pd-ssd")
_FLAT_SLICES = ("2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_V3_SLICES = ("4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32", "32x64")
_SMALL_CUBOIDS = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")


class PolicyRule(Enum):
    """Whether node pools of a machine family may or must have a workload policy in placementPolicy.policyName."""

    REFUSED = "refused"
    ALLOWED = "allowed"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine type; `chips` is 0 for types without TPUs.

    `slices` lists the multi-host topologies of a two-dimensional family. `max_cubes` is the maximum number of 4x4x4
    cubes in a topology of a three-dimensional family.
    """

    name: str
    vcpus: int
    memory_gib: float
    disks: tuple[str, ...] = (*_PD, "hyperdisk-balanced")
    chips: int = 0
    accelerator: str = ""
    own_topology: str | None = None
    slices: tuple[str, ...] = ()
    max_cubes: int = 0
    policy: PolicyRule = PolicyRule.REFUSED
    flex_start: bool = False

    @property
    def is_tpu(self) -> bool:
        """Whether VMs of this type have chips."""
        return self.chips > 0

    def hosts_of(self, topology: str) -> int | None:
        """Return the number of VMs of a topology; None if this machine type cannot form it."""
        if topology == self.own_topology:
            return 1
        dimensions = parse_topology(topology)
        if dimensions is None or not self.chips:
            return None
        if self.max_cubes:
            valid = len(dimensions) == 3 and _is_cuboid(dimensions, self.max_cubes)
        else:
            valid = topology in self.slices
        chips = prod(dimensions)
        if not valid or chips % self.chips or chips == self.chips:
            return None
        return chips // self.chips


def parse_topology(text: str) -> tuple[int, ...] | None:
    """Return the dimensions of a text such as 4x8; None if it is not a topology."""
    return tuple(int(part) for part in text.split("x")) if _TOPOLOGY.fullmatch(text) else None


def _is_cuboid(dimensions: tuple[int, ...], max_cubes: int) -> bool:
    if "x".join(map(str, dimensions)) in _SMALL_CUBOIDS:
        return True
    whole_cubes = all(size % 4 == 0 and size <= 256 for size in dimensions)
    return whole_cubes and tuple(sorted(dimensions)) == dimensions and prod(dimensions) // 64 <= max_cubes


def _family(
    prefix: str,
    sizes: Iterable[tuple[int, str | None, int, float]],
    *,
    slices: tuple[str, ...] = (),
    max_cubes: int = 0,
    **shared: Any,
) -> list[Machine]:
    """Return the machine types of a family; `sizes` are (chips, own topology, vCPUs, GiB)."""
    return [
        Machine(
            name=f"{prefix}-{chips}t",
            chips=chips,
            own_topology=own,
            vcpus=vcpus,
            memory_gib=memory_gib,
            # Slices of several hosts consist only of four-chip VMs.
            slices=slices if chips == 4 else (),
            max_cubes=max_cubes if chips == 4 else 0,
            **shared,
        )
        for chips, own, vcpus, memory_gib in sizes
    ]


_PD_AND_HYPERDISK = (*_PD, "hyperdisk-balanced")
_FAST_PD = ("pd-balanced", "pd-ssd")
_HYPERDISK = ("hyperdisk-balanced",)
_V5E_SIZES = ((1, "1x1", 24, 48), (4, "2x2", 112, 192), (8, "2x4", 224, 384))

_FAMILIES = (
    _family("ct3-hightpu", ((4, "2x2", 96, 340),), accelerator="tpu-v3-device", disks=_PD),
    _family("ct3p-hightpu", ((4, None, 48, 340),), accelerator="tpu-v3-slice", disks=_PD, slices=_V3_SLICES),
    _family("ct4l-hightpu", ((4, "2x2", 48, 340),), accelerator="tpu-v4-lite-device", disks=_PD_AND_HYPERDISK),
    _family(
        "ct4p-hightpu", ((4, "2x2x1", 240, 407),), accelerator="tpu-v4-podslice", disks=_PD_AND_HYPERDISK, max_cubes=64
    ),
    _family("ct5l-hightpu", _V5E_SIZES, accelerator="tpu-v5-lite-device", disks=_FAST_PD),
    _family(
        "ct5lp-hightpu",
        _V5E_SIZES,
        accelerator="tpu-v5-lite-podslice",
        disks=_FAST_PD,
        slices=_FLAT_SLICES,
        flex_start=True,
    ),
    _family(
        "ct5p-hightpu",
        ((4, "2x2x1", 208, 448),),
        accelerator="tpu-v5p-slice",
        disks=_FAST_PD,
        max_cubes=140,
        flex_start=True,
    ),
    _family(
        "ct6e-standard",
        ((1, "1x1", 44, 176), (4, "2x2", 180, 720), (8, "2x4", 180, 1440)),
        accelerator="tpu-v6e-slice",
        disks=_HYPERDISK,
        slices=_FLAT_SLICES,
        policy=PolicyRule.ALLOWED,
        flex_start=True,
    ),
    _family(
        "tpu7x-standard",
        # A measured node has 963568636Ki allocatable, which is right for 960 GiB; GKE's autoscaler assumes 992 GiB.
        ((1, "1x1x1", 56, 240), (4, "2x2x1", 224, 960)),
        accelerator="tpu7x",
        disks=_HYPERDISK,
        max_cubes=144,
        policy=PolicyRule.REQUIRED,
        flex_start=True,
    ),
    _family(
        "tpu7x-ultranet",
        ((4, "2x2x1", 224, 960),),
        accelerator="tpu7x",
        disks=_HYPERDISK,
        max_cubes=144,
        policy=PolicyRule.REQUIRED,
        flex_start=True,
    ),
    _family(
        "tpu7-standard",
        ((1, "1x1x1", 56, 240), (4, "2x2x1", 224, 960)),
        accelerator="tpu7",
        disks=_HYPERDISK,
        max_cubes=4,
        policy=PolicyRule.REQUIRED,
        flex_start=True,
    ),
)
_TPU_MACHINES = {machine.name: machine for family in _FAMILIES for machine in family}

_GENERAL = re.compile(r"(?:[nce]\d[a-z]?)-(standard|highmem|highcpu)-(\d{1,3})")
_GIB_PER_VCPU = {"standard": 4.0, "highmem": 8.0, "highcpu": 1.0}
_SHARED_CORE = {"e2-micro": (2, 1.0), "e2-small": (2, 2.0), "e2-medium": (2, 4.0)}


def find_machine(name: str) -> Machine | None:
    """Return the machine type with that name; None if it does not exist."""
    if name in _TPU_MACHINES:
        return _TPU_MACHINES[name]
    if name in _SHARED_CORE:
        vcpus, memory_gib = _SHARED_CORE[name]
        return Machine(name=name, vcpus=vcpus, memory_gib=memory_gib)
    match = _GENERAL.fullmatch(name)
    if match is None or int(match[2]) == 0:
        return None
    vcpus = int(match[2])
    return Machine(name=name, vcpus=vcpus, memory_gib=vcpus * _GIB_PER_VCPU[match[1]])


#: First version of GKE whose nodes reserve memory by their maximum number of pods. GKE's autoscaler also requires a
#: flag, which the simulator assumes to be set.
_MEMORY_BY_PODS_SINCE = (1, 37)
_MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources of a node, as its kubelet reports them."""

    milli_cpu: int
    memory_capacity_kib: int
    memory_kib: int
    disk_capacity_kib: int
    disk_bytes: int


def resources_of(machine: Machine, *, version: str, max_pods: int, disk_gib: float) -> Resources:
    """Return the resources of a node with Container-Optimized OS, by the formulas of GKE's autoscaler.

    The sources are reserved.go of GoogleCloudPlatform/cluster-autoscaler and gce_reserved.go of kubernetes/autoscaler.
    """
    by_pods = tuple(map(int, re.findall(r"\d+", version)[:2])) >= _MEMORY_BY_PODS_SINCE
    memory_mib = machine.memory_gib * _MIB_PER_GIB
    kernel_mib = memory_mib / 64 + 16 + (64 if machine.memory_gib > 3 else 0) + min(0.00175 * memory_mib, 248)
    # The limits of the tiers are multiples of 1,000 MiB, not of 1,024 MiB.
    kept_mib = _tiered(memory_mib, ((4000, 0.25), (4000, 0.20), (8000, 0.10), (112_000, 0.06)), 0.02)
    kept_cpu = _tiered(machine.vcpus, ((1, 0.06), (1, 0.01), (2, 0.005)), 0.0025) + (0.4 if max_pods > 110 else 0)
    if by_pods:
        kept_mib, kept_cpu = min(kept_mib, 15 * max_pods + 500), min(kept_cpu, 1.0)
    eviction_mib = 100
    disk_capacity_gib = disk_gib - (0.015635 * disk_gib + 4.148 + min(100 / _MIB_PER_GIB, 0.001 * disk_gib))
    kept_gib = min(0.5 * disk_gib, 6 + 0.35 * disk_gib, 100) + 0.1 * disk_capacity_gib
    return Resources(
        milli_cpu=int((machine.vcpus - kept_cpu) * 1000),
        memory_capacity_kib=int((memory_mib - kernel_mib) * 1024),
        memory_kib=int((memory_mib - kernel_mib - kept_mib - eviction_mib) * 1024),
        disk_capacity_kib=int(disk_capacity_gib * 1024**2),
        disk_bytes=int((disk_capacity_gib - kept_gib) * 1024**3),
    )


def _tiered(amount: float, tiers: Iterable[tuple[float, float]], rest_share: float) -> float:
    """Divide an amount into tiers and a rest; return the sum of the given share of each."""
    kept, left = 0.0, amount
    for size, share in tiers:
        part = min(size, left)
        kept += part * share
        left -= part
    return kept + left * rest_share
