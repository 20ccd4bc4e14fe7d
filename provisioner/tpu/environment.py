"""The variables by which libtpu and frameworks learn of a slice, as GKE's device plugin sets them in containers.

Source: the formulas of GoogleCloudPlatform/container-engine-accelerators (cmd/tpu_device_plugin) and what its tests
expect. GKE sets these itself; clusters without its device plugin need somebody else to.
"""

from __future__ import annotations

from collections.abc import Iterable

from provisioner.tpu.catalogue import Topology, TopologyError

#: How the plugin calls the generations of labels that do not tell them by themselves.
_GENERATIONS = {
    "tpu-v3-device": "v3",
    "tpu-v3-slice": "v3",
    "tpu-v4-lite-device": "v4lite",
    "tpu-v4-podslice": "v4",
    "tpu-v5-lite-device": "v5lite",
    "tpu-v5-lite-podslice": "v5litepod",
    "tpu-v5p-slice": "v5p",
    "tpu-v6e-slice": "v6e",
}
#: Generations with one core a chip; the others have two.
_ONE_CORE = ("v4lite", "v5lite", "v5litepod", "v6e")
#: Generations whose axes wrap around where they are as long as they can be; the others do in whole cubes alone.
_WRAP_BY_AXIS = ("v5lite", "v5litepod", "v6e")
_LONGEST_LITE_AXIS = 16
_CUBE_EDGE = 4
#: Generations that can route around a failed link, in whole cubes.
_RESILIENT = ("v4", "v5p", "tpu7x", "tpu7")
#: Generations with two metrics ports a chip.
_TWO_PORTS = ("tpu7x", "tpu7")
_FIRST_METRICS_PORT = 8431
#: Chips that a container requests, and how they lie in a host.
_GRIDS_IN_HOST = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
#: What pods may shrink the topology of their slice to.
_PARTS = frozenset(
    {"1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"} | {"2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4"}
)


def generation_of(accelerator: str) -> str:
    """Return the generation in the plugin's words; from tpu7 on the label is the generation."""
    return _GENERATIONS.get(accelerator, accelerator)


def topology_in_use(topology: Topology, part: str) -> Topology:
    """Return the topology that a pod uses of its slice: the part of it that its annotation names, if it can be.

    One that is invalid, or larger than the slice, has no effect, as on GKE.
    """
    if part not in _PARTS:
        return topology
    try:
        smaller = Topology.parse(part)
    except TopologyError:
        return topology
    fits = len(smaller.dimensions) == len(topology.dimensions) and all(
        own <= whole for own, whole in zip(smaller.dimensions, topology.dimensions, strict=True)
    )
    return smaller if fits else topology


def topology_variables(
    accelerator: str, topology: Topology, *, container_chips: int, host_chips: int, resilient: bool = True
) -> dict[str, str]:
    """Return the variables that tell a container the grid of its slice.

    `container_chips` is what the container requests, `host_chips` what its VM has. `resilient` is false where the pod
    selects nodes with `cloud.google.com/gke-tpu-ici-resiliency: "false"`. Worker ids and host names are not among them.
    """
    generation = generation_of(accelerator)
    cores = topology.chips if generation in _ONE_CORE else 2 * topology.chips
    ports = host_chips * (2 if generation in _TWO_PORTS else 1)
    variables = {
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_RUNTIME_METRICS_PORTS": _joined(range(_FIRST_METRICS_PORT, _FIRST_METRICS_PORT + ports)),
        "TPU_TOPOLOGY": str(topology),
        "TPU_ACCELERATOR_TYPE": f"{generation}-{cores}",
    }
    in_host = _GRIDS_IN_HOST.get(container_chips)
    if in_host is None or accelerator.endswith("-device"):
        return variables
    grid = (*topology.dimensions, 1)[:3]
    bounds = {
        "HOST_BOUNDS": _joined(axis // own for axis, own in zip(grid, in_host, strict=True)),
        "CHIPS_PER_HOST_BOUNDS": _joined(in_host),
    }
    shape = {"WRAP": _wrap(generation, grid), "ALT": "false"}
    variables |= {f"TPU_{name}": value for name, value in bounds.items()}
    variables |= {f"TPU_TOPOLOGY_{name}": value for name, value in shape.items()}
    # Frameworks of before the prefix read these.
    variables |= bounds | shape
    if generation in _RESILIENT and _of_cubes(grid):
        variables["ENABLE_ICI_RESILIENCY"] = "true" if resilient else "false"
    return variables


def _wrap(generation: str, grid: tuple[int, ...]) -> str:
    """Tell for each axis whether its ends are connected."""
    if generation in _WRAP_BY_AXIS:
        return _joined("true" if axis == _LONGEST_LITE_AXIS else "false" for axis in grid)
    return _joined(["true" if _of_cubes(grid) else "false"] * 3)


def _of_cubes(grid: tuple[int, ...]) -> bool:
    return min(grid) >= _CUBE_EDGE


def _joined(values: Iterable[object]) -> str:
    return ",".join(map(str, values))
