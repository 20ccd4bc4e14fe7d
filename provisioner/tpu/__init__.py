"""Tables of machine types, topologies and slices that Google sells. GKE may reject a slice that is in the tables."""

from provisioner.tpu.allocatable import DEFAULT_DISK_GB, Amounts, allocatable
from provisioner.tpu.catalogue import (
    ACCELERATORS,
    Accelerator,
    MachineType,
    Topology,
    TopologyError,
    machine_of,
    machine_type,
)
from provisioner.tpu.shapes import (
    Shape,
    ShapeError,
    chips_of_host,
    extend,
    find_accelerator,
    may_be_sold,
    not_whole_slices,
    resolve,
    shapes_of,
)

__all__ = [
    "ACCELERATORS",
    "DEFAULT_DISK_GB",
    "Accelerator",
    "Amounts",
    "MachineType",
    "Shape",
    "ShapeError",
    "Topology",
    "TopologyError",
    "allocatable",
    "chips_of_host",
    "extend",
    "find_accelerator",
    "machine_of",
    "machine_type",
    "may_be_sold",
    "not_whole_slices",
    "resolve",
    "shapes_of",
]
