"""From what a pod selects to the machine type and the number of hosts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from provisioner.tpu.catalogue import ACCELERATORS, Accelerator, MachineType
from provisioner.tpu.topology import Topology, TopologyError

#: Chips a VM of the machine types that multi-host slices are made of; GKE documents no other.
_MULTI_HOST_VM_CHIPS = 4
#: How many valid values an error names.
_SUGGESTIONS = 3


class ShapeError(ValueError):
    """No slice is of this shape; the message names the value, says why, and gives the nearest valid ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A slice that can be bought."""

    accelerator: Accelerator
    topology: Topology
    machine_type: MachineType
    chips_per_pod: int

    @property
    def multi_host(self) -> bool:
        """Whether several VMs make one slice (GKE's rule: chips of the slice differ from chips of the VM)."""
        return self.topology.chips != self.machine_type.chips

    def nodes(self, pods: int) -> int:
        """Nodes of the pool: exactly the hosts of a multi-host slice, else what `pods` pods fill, at least one."""
        if self.multi_host:
            return self.topology.chips // self.machine_type.chips
        return max(1, -(-pods * self.chips_per_pod // self.machine_type.chips))


@lru_cache(maxsize=4096)
def resolve(accelerator: str, topology: str, chips_per_pod: int, machine_type: str = "") -> Shape:
    """Find the machine type and layout of the slice that a pod asks for.

    `machine_type` is the one that the pod pins, empty for none. Raises ShapeError where GKE sells no such slice.
    """
    offer = ACCELERATORS.get(accelerator)
    if offer is None:
        raise ShapeError(
            f"there is no TPU accelerator {accelerator!r}{_nearest_words(accelerator, ACCELERATORS)}; "
            f"valid are {', '.join(ACCELERATORS)}"
        )
    grid = _valid_topology(offer, topology)
    machines = [
        machine
        for machine in offer.machine_types
        if (machine.name == machine_type if machine_type else not machine.only_on_request)
    ]
    if not machines:
        valid = ", ".join(machine.name for machine in offer.machine_types)
        raise ShapeError(f"accelerator {accelerator} has no machine type {machine_type!r}; valid are {valid}")
    for machine in machines:
        if _multi_host(machine, grid, chips_per_pod) or _single_host(machine, grid, chips_per_pod):
            return Shape(accelerator=offer, topology=grid, machine_type=machine, chips_per_pod=chips_per_pod)
    raise ShapeError(_chips_problem(offer, grid, chips_per_pod, machines))


def _multi_host(machine: MachineType, grid: Topology, chips_per_pod: int) -> bool:
    # One pod a host: the chips a pod asks for tell 2x4 on one 8-chip VM from 2x4 on two 4-chip VMs.
    return (
        machine.chips == _MULTI_HOST_VM_CHIPS == chips_per_pod
        and grid.chips > machine.chips
        and grid.chips % machine.chips == 0
    )


def _single_host(machine: MachineType, grid: Topology, chips_per_pod: int) -> bool:
    return (
        machine.single_host_topology == str(grid)
        and 0 < chips_per_pod <= machine.chips
        and machine.chips % chips_per_pod == 0
    )


def _valid_topology(offer: Accelerator, text: str) -> Topology:
    try:
        grid = Topology.parse(text)
    except TopologyError as error:
        raise ShapeError(f"topology {error}{_nearest_topologies(offer, None)}") from error
    if grid in offer.topologies():
        return grid
    wanted = len(offer.topologies()[0].dimensions)
    if len(grid.dimensions) != wanted:
        why = f"{offer.label} slices have {wanted} dimensions"
    elif tuple(sorted(grid.dimensions)) != grid.dimensions:
        why = "dimensions must be in ascending order"
    elif grid.chips > offer.topologies()[-1].chips:
        why = f"the largest {offer.label} slice has {offer.topologies()[-1].chips} chips, this has {grid.chips}"
    elif offer.max_cubes:
        below = ", ".join(offer.listed_topologies)
        why = f"Google makes {below}, and above those only slices with dimensions that are multiples of 4"
    else:
        why = "it is not among the sizes that Google makes"
    raise ShapeError(f"topology {text} is not valid for {offer.label}: {why}{_nearest_topologies(offer, grid)}")


def _chips_problem(offer: Accelerator, grid: Topology, chips_per_pod: int, machines: Iterable[MachineType]) -> str:
    counts = sorted(
        {
            chips
            for machine in machines
            for chips in range(1, machine.chips + 1)
            if _multi_host(machine, grid, chips) or _single_host(machine, grid, chips)
        },
        key=lambda chips: abs(chips - chips_per_pod),
    )
    if not counts:
        names = ", ".join(machine.name for machine in machines)
        return f"topology {grid} of {offer.label} cannot be made of {names}"
    return (
        f"a pod that asks for {chips_per_pod} chips fits no host of a {offer.label} slice of topology {grid}; "
        f"nearest valid: {', '.join(map(str, counts[:_SUGGESTIONS]))} chips a pod"
    )


def _nearest_topologies(offer: Accelerator, grid: Topology | None) -> str:
    valid = offer.topologies()
    if grid is not None:
        target = grid

        def distance(other: Topology) -> tuple[int, int]:
            same = sum(a == b for a, b in zip(sorted(other.dimensions), sorted(target.dimensions), strict=False))
            return abs(other.chips - target.chips), -same

        valid = tuple(sorted(valid, key=distance))
    return f"; nearest valid: {', '.join(map(str, valid[:_SUGGESTIONS]))}"


def _nearest_words(value: str, valid: Iterable[str]) -> str:
    known = list(valid)
    close = [word for word in known if value and word.startswith(value)] or difflib.get_close_matches(value, known)
    return f" (did you mean {close[0]}?)" if close else ""
