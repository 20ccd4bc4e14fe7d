"""What Google sells: accelerators, machine types, topologies, and the shapes that they allow.

Tables and arithmetic; only `extend` changes the tables. The facts are those of Google's own cluster autoscaler and of
the Cloud TPU documentation; GKE has the last word, and what it refuses comes back through the error table of
`provisioner.slices.suppliers.gke`.
"""

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
    "Accelerator",
    "MachineType",
    "Shape",
    "ShapeError",
    "Topology",
    "TopologyError",
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
