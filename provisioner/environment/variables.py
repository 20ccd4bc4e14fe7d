"""Computes the TPU variables of containers. Pure. Source: cmd/tpu_device_plugin of container-engine-accelerators."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provisioner import constants, tpu
from provisioner.environment.numbering import PROCESS_PORT, Numbering, NumberingError
from provisioner.environment.pods import LOCAL, NUM_SLICES, PROCESS_ADDRESSES, WORKER_HOSTNAMES, Container, TpuPod
from provisioner.model import bounds
from provisioner.tpu.catalogue import Topology
from provisioner.workloads.raycluster import RAY_CLUSTER_TYPE

WORKER_ID = "TPU_WORKER_ID"
PROCESS_PORTS = "TPU_PROCESS_PORT"
SLICE_ID = "MEGASCALE_SLICE_ID"
COORDINATOR = "MEGASCALE_COORDINATOR_ADDRESS"
SLICES_PORT = "MEGASCALE_PORT"
OF_WORKERS = (WORKER_ID, WORKER_HOSTNAMES, PROCESS_ADDRESSES, PROCESS_PORTS)
OF_SLICES = (NUM_SLICES, SLICE_ID, COORDINATOR)
#: Generations whose libtpu always needs the addresses of all processes.
_WITH_ADDRESSES = ("tpu7x", "tpu7")
#: Generations by accelerator label, with the names in GKE's device plugin. Since tpu7, the label is the generation.
GENERATIONS = {
    "tpu-v3-device": "v3",
    "tpu-v3-slice": "v3",
    "tpu-v4-lite-device": "v4lite",
    "tpu-v4-podslice": "v4",
    "tpu-v5-lite-device": "v5lite",
    "tpu-v5-lite-podslice": "v5litepod",
    "tpu-v5p-slice": "v5p",
    "tpu-v6e-slice": "v6e",
}
#: Generations with one core per chip; all other generations have two.
_ONE_CORE = ("v4lite", "v5lite", "v5litepod", "v6e")
#: Generations whose links close an axis to a ring (TPU_TOPOLOGY_WRAP) only if the axis has 16 chips. In the others,
#: all axes are rings if the slice consists of whole cubes of 4x4x4 chips.
_WRAP_BY_AXIS = ("v5lite", "v5litepod", "v6e")
_LONGEST_LITE_AXIS = 16
_CUBE_EDGE = 4
#: Generations that can route around a failed link if the slice consists of whole cubes.
_RESILIENT = ("v4", "v5p", "tpu7x", "tpu7")
#: Generations with two metrics ports per chip.
_TWO_PORTS = ("tpu7x", "tpu7")
#: Variable with the ports on which libtpu serves its metrics, and the first of these ports.
METRICS_PORTS, FIRST_METRICS_PORT = "TPU_RUNTIME_METRICS_PORTS", 8431
#: Chips of a container along each axis, by number of chips.
_GRIDS_IN_HOST = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
#: Topologies that pods may request as a part of their slice.
_PARTS = frozenset(
    {"1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"} | {"2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4"}
)


def topology_in_use(topology: Topology, part: str) -> Topology:
    """Return the part of a topology that a pod uses; the whole topology if `part` is invalid or does not fit."""
    if part not in _PARTS:
        return topology
    smaller = Topology.parse(part)
    fits = len(smaller.dimensions) == len(topology.dimensions) and all(
        own <= whole for own, whole in zip(smaller.dimensions, topology.dimensions, strict=True)
    )
    return smaller if fits else topology


def topology_variables(
    accelerator: str, topology: Topology, *, container_chips: int, host_chips: int, resilient: bool
) -> dict[str, str]:
    """Return the variables about the grid of a slice. `host_chips` is the number of chips of the container's VM."""
    generation = GENERATIONS.get(accelerator, accelerator)
    cores = topology.chips if generation in _ONE_CORE else 2 * topology.chips
    ports = host_chips * (2 if generation in _TWO_PORTS else 1)
    variables = {
        "TPU_SKIP_MDS_QUERY": "true",
        METRICS_PORTS: _joined(range(FIRST_METRICS_PORT, FIRST_METRICS_PORT + ports)),
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
    # Older frameworks read the names without a prefix.
    variables |= bounds | shape
    if generation in _RESILIENT and _of_cubes(grid):
        variables["ENABLE_ICI_RESILIENCY"] = "true" if resilient else "false"
    return variables


def _wrap(generation: str, grid: tuple[int, ...]) -> str:
    if generation in _WRAP_BY_AXIS:
        return _joined("true" if axis == _LONGEST_LITE_AXIS else "false" for axis in grid)
    return _joined(["true" if _of_cubes(grid) else "false"] * 3)


def _of_cubes(grid: tuple[int, ...]) -> bool:
    return not any(axis % _CUBE_EDGE for axis in grid)


def _joined(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The slice that a pod belongs to."""

    accelerator: str
    #: Topology of the slice, or of the part of the slice that the pod requests (SLICE_TOPOLOGY).
    topology: tpu.Topology
    #: Number of pods that fill the topology: with several hosts, one per host.
    pods: int
    host_chips: int

    @property
    def one_host(self) -> bool:
        """Whether the topology in use fits on one VM."""
        return self.topology.chips <= self.host_chips


def layout_of(pod: TpuPod) -> Layout | None:
    """Return the slice of a pod; None without accelerator or topology. Raises ShapeError if the slice is invalid."""
    if not (pod.accelerator and pod.topology):
        return None
    shape = tpu.resolve(pod.accelerator, pod.topology, pod.chips, pod.machine_type)
    used = topology_in_use(shape.topology, pod.marks.get(constants.SLICE_TOPOLOGY, ""))
    return Layout(
        accelerator=pod.accelerator,
        topology=used,
        pods=max(1, used.chips // pod.chips),
        host_chips=shape.machine_type.chips,
    )


def workers_of(pod: TpuPod, layout: Layout | None, numbering: Numbering | None) -> list[dict[str, str]]:
    """Return the variables about workers for each container. A slice of one VM needs no `numbering`."""
    processes = len(pod.workers)
    hosts = hosts_of(layout, numbering)
    index = numbering.index % len(hosts) if numbering is not None else 0
    first_port = numbering.port if numbering is not None else PROCESS_PORT
    # A container that is `alone` counts as the only process of its pod, so its lists name each host once.
    names = {count: ",".join(host for host in hosts for _ in range(count)) for count in {1, processes}}
    ports = {count: range(first_port, first_port + count) for count in {1, processes}}
    # For pods of generations in _WITH_ADDRESSES but without selectors, GKE's webhook has set PROCESS_ADDRESSES.
    all_have = pod.accelerator in _WITH_ADDRESSES or any(
        PROCESS_ADDRESSES in container.given for container in pod.containers
    )
    addresses = {
        count: ",".join(f"{host}:{port}" for host in hosts for port in ports[count])
        for count in ({1, processes} if processes > 1 or all_have else ())
    }
    by_container = []
    place = 0
    for container in pod.containers:
        together, own = (1, 0) if container.alone else (processes, place)
        place += not container.alone
        variables = {WORKER_ID: str(index * together + own), WORKER_HOSTNAMES: names[together]}
        if together in addresses:
            variables[PROCESS_ADDRESSES] = addresses[together]
            variables[PROCESS_PORTS] = str(ports[together][own])
        by_container.append(variables)
    return by_container


def hosts_of(layout: Layout | None, numbering: Numbering | None) -> list[str]:
    """Return the host names of the slice's pods, in order; only localhost without a numbering."""
    if numbering is None:
        return [LOCAL]
    pods = slice_pods(layout, numbering)
    first = numbering.index - numbering.index % pods
    return [numbering.host(index) for index in range(first, first + pods)]


def check_size(pod: TpuPod, layout: Layout | None, numbering: Numbering) -> None:
    """Raise NumberingError if the slice would have more than SLICE_WORKERS workers."""
    workers = slice_pods(layout, numbering) * max(1, len(pod.workers))
    if workers > bounds.SLICE_WORKERS:
        raise NumberingError(
            f"its slice would have {workers:,} workers, and {WORKER_HOSTNAMES} lists at most {bounds.SLICE_WORKERS:,}; "
            f"create fewer pods, or select an accelerator and a topology, which determine the size of a slice"
        )


def check_lengths(workers: Iterable[Mapping[str, str]]) -> None:
    """Raise NumberingError if a variable is too long for Linux, or all variables together are too long for a pod."""
    total = 0
    for name, value in (pair for variables in workers for pair in variables.items()):
        length = len(name) + len(value)
        if length > bounds.VARIABLE:
            raise NumberingError(
                f"{name} would have {length:,} characters, and Linux starts no process with a variable of more than "
                f"{bounds.VARIABLE:,}; use shorter names for the owner of the pods and for their Service"
            )
        total += length
    if total > bounds.VARIABLES:
        raise NumberingError(
            f"its TPU variables would have {total:,} characters, and a pod gets at most {bounds.VARIABLES:,}; request "
            f"the chips in fewer containers, or use shorter names for the owner of the pods and for their Service"
        )


def slice_pods(layout: Layout | None, numbering: Numbering) -> int:
    """Return the number of pods of a slice; if the topology is unknown, all pods of the numbering."""
    if layout is not None:
        return layout.pods
    return max(numbering.pods, numbering.index + 1)


def slices_of(pod: TpuPod, layout: Layout | None, numbering: Numbering) -> dict[str, str]:
    """Return the variables about the multislice of a pod; empty if its slice is not part of a multislice."""
    pods = slice_pods(layout, numbering)
    if numbering.slices:
        count, own = numbering.slices, numbering.slices_before
    else:
        # Pods beyond the last whole slice form an incomplete slice, which counts.
        count, own = -(-max(numbering.pods, numbering.index + 1) // pods), numbering.index // pods
    mark = pod.marks.get(constants.MULTISLICE, "")
    if count <= 1 or not (mark == "true" if mark in ("true", "false") else numbering.together):
        return {}
    coordinator = numbering.coordinator or numbering.host(0)
    if len(pod.workers) > 1:
        given = pod.workers[0].given.get(SLICES_PORT)
        coordinator = f"{coordinator}:{(given and given.value) or _slices_port(pod)}"
    return {NUM_SLICES: str(count), SLICE_ID: str(own), COORDINATOR: coordinator}


def beside_slices(pod: TpuPod, container: Container, variables: Mapping[str, object]) -> dict[str, str]:
    """Return the variables for a container's multislice port and, in a RayCluster, for the name of the slice."""
    group, replica = (pod.marks.get(key, "") for key in (constants.RAY_GROUP, constants.RAY_REPLICA_INDEX))
    named = {"TPU_NAME": f"{group}-{replica}"} if _is_ray(pod) and group and replica else {}
    if COORDINATOR not in variables or not is_absent(COORDINATOR, container, variables):
        return named
    # Containers that run at the same time share the pod's network, so each needs its own port.
    place = 0 if container.alone else pod.workers.index(container)
    several = _is_ray(pod) or len(pod.workers) > 1
    return named | ({SLICES_PORT: str(_slices_port(pod) + place)} if several else {})


def _is_ray(pod: TpuPod) -> bool:
    return pod.owner is not None and pod.owner.type == RAY_CLUSTER_TYPE


def _slices_port(pod: TpuPod) -> int:
    """Return the first port for a multislice. Ray's metrics use libtpu's default, 8080, so a RayCluster gets 8081."""
    return 8081 if _is_ray(pod) else 8080


def is_absent(name: str, container: Container, variables: Mapping[str, object]) -> bool:
    """Return whether a variable is missing, or must be replaced because it is GKE's default for a single host.

    GKE's default lists only localhost, which is wrong if `variables` contain other hosts. The worker index -1 counts as
    missing, because LeaderWorkerSet up to 0.9 sets it on some leaders (kubernetes-sigs/lws#918).
    """
    given = container.given.get(name)
    if given is None or (name == WORKER_ID and given.value == "-1"):
        return True
    if name not in OF_WORKERS or given.value in (None, variables.get(name)):
        return False
    return bool(container.localhosts) and variables.get(WORKER_HOSTNAMES) not in container.localhosts
