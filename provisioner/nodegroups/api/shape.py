"""Derives the machines of a group from topology, machine type, node count and mode. Rejects contradictions. Pure."""

import difflib
import functools
from dataclasses import dataclass

from provisioner import tpu
from provisioner.model import bounds
from provisioner.nodegroups.api.specs import SizePolicyMode, TpuNodeGroupSpec
from provisioner.nodegroups.api.statuses import TpuNodeGroupStatus
from provisioner.tpu import Accelerator, MachineType, ShapeError, Topology, TopologyError

#: Prefixes of the supported machine types: TPU generations v6e, tpu7 and tpu7x.
MACHINE_TYPE_PREFIXES = ("tpu7x-", "tpu7-", "ct6e-")
_OFFERED = tuple(
    machine.name
    for offer in tpu.ACCELERATORS.values()
    for machine in offer.machine_types
    if machine.name.startswith(MACHINE_TYPE_PREFIXES)
)
_SUGGESTIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """Machines of a group. With BULK, all machines are one slice; with INDIVIDUAL, each machine is a slice."""

    #: Value of the accelerator label of the nodes; empty if unknown (`of_status`).
    accelerator: str
    topology: str
    chips_per_machine: int
    node_count: int
    mode: SizePolicyMode
    #: Warning for the user if the topology is not on Google's lists; otherwise empty.
    warning: str = ""

    @property
    def one_slice(self) -> bool:
        """Whether the machines form one slice together; False if each machine is a slice, even if there is only one."""
        return self.mode is SizePolicyMode.BULK


def resolve(spec: TpuNodeGroupSpec, machine_type: str) -> GroupShape:
    """Return the machines of a group. Raises ShapeError if fields contradict each other or have unsupported values."""
    offer, machine = _offered(machine_type)
    if not spec.topology:
        return _without_topology(spec, offer, machine)
    shape = tpu.resolve(offer.label, spec.topology, machine.chips, machine.name)
    if shape.multi_host:
        return _one_slice(spec, shape)
    if spec.target_size_policy_mode is SizePolicyMode.BULK:
        fitting = _topologies_of(offer, machine, spec.node_count)
        raise ShapeError(
            f"targetSizePolicyMode BULK is for slices of several machines, and topology {spec.topology} is one "
            f"{machine.name}; set INDIVIDUAL, or leave it out{_named(fitting)}"
        )
    return _machines(spec, offer, machine)


def of_status(status: TpuNodeGroupStatus) -> GroupShape | None:
    """Return the machines in a status, without accelerator; None if topology, count or mode is missing or invalid."""
    mode, count = status.target_size_policy_mode, status.node_count
    try:
        chips = Topology.parse(status.topology).chips
    except TopologyError:
        return None
    if mode is None or not count:
        return None
    chips = chips // count if mode is SizePolicyMode.BULK else chips
    return GroupShape(accelerator="", topology=status.topology, chips_per_machine=chips, node_count=count, mode=mode)


def _offered(machine_type: str) -> tuple[Accelerator, MachineType]:
    machine = tpu.machine_type(machine_type)
    if machine is not None and machine_type in _OFFERED:
        return machine
    close = difflib.get_close_matches(machine_type[: bounds.LABEL_VALUE], _OFFERED, n=_SUGGESTIONS)
    raise ShapeError(
        f"there is no machine type {bounds.quoted(machine_type)} that a TPUNodeGroup can have; "
        f"{'nearest valid' if close else 'valid are'}: {', '.join(close or _OFFERED)}"
    )


def _without_topology(spec: TpuNodeGroupSpec, offer: Accelerator, machine: MachineType) -> GroupShape:
    several = spec.node_count is not None and spec.node_count > 1
    if spec.target_size_policy_mode is SizePolicyMode.BULK or (several and spec.target_size_policy_mode is None):
        fitting = _topologies_of(offer, machine, spec.node_count)
        raise ShapeError(
            f"topology is missing: it says how the machines of one slice are wired{_named(fitting)}; for machines that "
            f"are a slice each set targetSizePolicyMode INDIVIDUAL"
        )
    return _machines(spec, offer, machine)


def _machines(spec: TpuNodeGroupSpec, offer: Accelerator, machine: MachineType) -> GroupShape:
    return GroupShape(
        accelerator=offer.label,
        topology=machine.single_host_topology,
        chips_per_machine=machine.chips,
        node_count=1 if spec.node_count is None else spec.node_count,
        mode=SizePolicyMode.INDIVIDUAL,
    )


def _one_slice(spec: TpuNodeGroupSpec, shape: tpu.Shape) -> GroupShape:
    offer, machine = shape.accelerator, shape.machine_type
    hosts = shape.nodes(0)
    if spec.target_size_policy_mode is SizePolicyMode.INDIVIDUAL:
        raise ShapeError(
            f"targetSizePolicyMode INDIVIDUAL makes machines that are a slice each, of topology "
            f"{machine.single_host_topology} with {machine.name}, and topology {shape.topology} is one slice of "
            f"{hosts}; set BULK, or leave it out"
        )
    if spec.node_count is not None and spec.node_count != hosts:
        fitting = _topologies_of(offer, machine, spec.node_count)
        raise ShapeError(
            f"nodeCount {spec.node_count} does not go with topology {shape.topology}: it has {shape.topology.chips} "
            f"chips, and {machine.name} has {machine.chips}; set {hosts}, or leave it out{_named(fitting)}"
        )
    return GroupShape(
        accelerator=offer.label,
        topology=str(shape.topology),
        chips_per_machine=machine.chips,
        node_count=hosts,
        mode=SizePolicyMode.BULK,
        warning=""
        if shape.documented
        else f"topology {shape.topology} for {offer.label} is not on Google's lists; it follows the rule for slices of "
        "whole 4x4x4 cubes, and Compute Engine decides whether it creates the slice",
    )


def _named(topologies: tuple[Topology, ...]) -> str:
    return f"; topologies of that size: {', '.join(map(str, topologies))}" if topologies else ""


@functools.cache
def _topologies_of(offer: Accelerator, machine: MachineType, node_count: int | None) -> tuple[Topology, ...]:
    if node_count is None:
        return ()
    fitting = [
        grid
        for grid in offer.topologies()
        if grid.chips == node_count * machine.chips
        and any(shape.machine_type is machine and shape.multi_host for shape in tpu.shapes_of(offer, grid))
    ]
    return tuple(sorted(fitting, key=lambda grid: not offer.documents(grid))[:_SUGGESTIONS])
