"""Determines machine type and number of hosts of a slice from the node selectors and chips of a pod."""

import contextlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from provisioner import constants
from provisioner.model import bounds, wording
from provisioner.tpu import catalogue
from provisioner.tpu.catalogue import ACCELERATORS, LONGEST_AXIS, Accelerator, MachineType, Topology, TopologyError

#: Chips per VM of multi-host slices. An accelerator without such a machine type (none is known) uses its largest type.
_MULTI_HOST_VM_CHIPS = 4
_SUGGESTIONS = 3


class ShapeError(wording.ProblemError):
    """A pod requests no valid slice. The message has the invalid value and the reason."""


# No slots, because `cached_property` needs a `__dict__`. Each decision reads these properties many times.
@dataclass(frozen=True, kw_only=True)
class Shape:
    """Type of a slice that Google sells, with the number of chips of each pod."""

    accelerator: Accelerator
    topology: Topology
    machine_type: MachineType
    chips_per_pod: int

    @cached_property
    def multi_host(self) -> bool:
        """Whether the slice has several VMs. GKE's rule: the slice and one VM have different numbers of chips."""
        return self.topology.chips != self.machine_type.chips

    @cached_property
    def _hosts(self) -> int:
        return self.topology.chips // self.machine_type.chips

    @property
    def documented(self) -> bool:
        """Whether Google's tools or the cluster list the topology, which otherwise only follows the rule for cubes."""
        return self.accelerator.documents(self.topology)

    @property
    def warning(self) -> str:
        """Warning for users that GKE may reject the slice; empty if none is needed."""
        max_chips = self.accelerator.documented_cubes * catalogue.CUBE_CHIPS
        if max_chips and self.topology.chips > max_chips:
            return (
                f"topology {self.topology} has more chips than the largest {self.accelerator.label} slice in Google's "
                f"documentation, which has {max_chips:,}; GKE decides whether it creates the slice"
            )
        if self.documented:
            return ""
        return (
            f"topology {self.topology} for {self.accelerator.label} is not on Google's lists; it follows the rule for "
            f"slices of whole 4x4x4 cubes, and GKE decides whether it creates the slice"
        )

    def nodes(self, pods: int) -> int:
        """Return the number of hosts; for a single-host shape, the number of VMs for `pods` pods, at least 1."""
        if self.multi_host:
            return self._hosts
        return max(1, -(-pods * self.chips_per_pod // self.machine_type.chips))

    def pods_problem(self, pods: int, *, several: bool) -> tuple[str, ...]:
        """Return why `pods` pods do not fill one slice or, with `several`, whole slices; empty if they do, or for 0."""
        hosts, label = self.nodes(1), self.accelerator.label
        if pods % hosts == 0 if several else pods in (0, hosts):
            return ()
        chips = self.chips_per_pod
        return not_whole_slices(label, self.topology, pods=hosts, chips_per_pod=chips, wanted=pods, several=several)


def extend(offers: Iterable[Accelerator]) -> list[str]:
    """Call `catalogue.extend`, and clear the cache of `resolve`."""
    contradictions = catalogue.extend(offers)
    _outcome.cache_clear()
    return contradictions


def find_accelerator(label: str) -> Accelerator:
    """Return machine types and topologies for an accelerator label. Raises ShapeError if the label is unknown."""
    offer = ACCELERATORS.get(label)
    if offer is None:
        # Labels that are too long are not compared with valid labels, because the time grows with their length squared.
        nearest = _nearest_labels(label) if len(label) <= bounds.LABEL_VALUE else ""
        raise ShapeError(
            f"there is no TPU accelerator {bounds.quoted(label)}{nearest}", f"valid are {', '.join(ACCELERATORS)}"
        )
    return offer


def shapes_of(offer: Accelerator, grid: Topology) -> Iterator[Shape]:
    """Yield the shapes of a valid topology, for all possible machine types and numbers of chips per pod."""
    for machine in offer.machine_types:
        for chips_per_pod in range(1, machine.chips + 1):
            alone = machine.single_host_topology == str(grid) and machine.chips % chips_per_pod == 0
            if alone or _multi_host(offer, machine, grid, chips_per_pod):
                yield Shape(accelerator=offer, topology=grid, machine_type=machine, chips_per_pod=chips_per_pod)


def resolve(accelerator: str, topology: str, chips_per_pod: int, machine_type: str = "") -> Shape:
    """Return the shape that a pod requests; `only_on_request` types need a `machine_type`. Raises ShapeError."""
    for title, text in (("accelerator", accelerator), ("topology", topology), ("machine type", machine_type)):
        if len(text) > bounds.LABEL_VALUE:
            raise ShapeError(*bounds.too_long(title, text, bounds.LABEL_VALUE))
    outcome = _outcome(accelerator, topology, chips_per_pod, machine_type)
    if isinstance(outcome, Shape):
        return outcome
    raise ShapeError(*outcome)


def chips_of_host(accelerator: str, topology: str, machine_type: str = "") -> int:
    """Return the chips of a host of the slice, with the largest possible machine type; 1 if the slice is invalid."""
    offer = ACCELERATORS.get(accelerator)
    for chips in sorted({type_.chips for type_ in offer.machine_types}, reverse=True) if offer else ():
        with contextlib.suppress(ShapeError):
            return resolve(accelerator, topology, chips, machine_type).machine_type.chips
    return 1


def may_be_sold(accelerator: str, topology: str, machine_type: str) -> bool:
    """Return whether Google may sell a slice that `resolve` rejects: unknown accelerator or machine, or `any_order`."""
    offer = ACCELERATORS.get(accelerator)
    if offer is None or (machine_type and catalogue.machine_type(machine_type) is None):
        return True
    try:
        grid = Topology.parse(topology).dimensions
    except TopologyError:
        return False
    in_order = tuple(sorted(grid))
    return offer.any_order and grid != in_order and Topology(in_order) in offer.topologies()


def not_whole_slices(
    label: str, topology: Topology, *, pods: int, chips_per_pod: int, wanted: int, several: bool
) -> tuple[str, str]:
    """Return problem and next step if there are `wanted` pods, but a slice has `pods`; `several` allows more slices."""
    return (
        f"a {label} slice of topology {topology} has {pods} pods of {chips_per_pod} chips, but there are {wanted}",
        f"make it {'a multiple of ' if several else ''}{pods}",
    )


@lru_cache(maxsize=4096)
def _outcome(accelerator: str, topology: str, chips_per_pod: int, machine_type: str) -> Shape | tuple[str, ...]:
    """Return the shape, or the clauses of the error. Errors are cached too, because each decision repeats them."""
    try:
        return _resolved(accelerator, topology, chips_per_pod, machine_type)
    except ShapeError as error:
        return error.args


def _resolved(accelerator: str, topology: str, chips_per_pod: int, machine_type: str) -> Shape:
    offer = find_accelerator(accelerator)
    grid = _valid_topology(offer, topology)
    names = [machine.name for machine in offer.machine_types]
    if machine_type and machine_type not in names:
        raise ShapeError(
            f"accelerator {accelerator} has no machine type {bounds.quoted(machine_type)}",
            f"valid are {', '.join(names)}",
        )
    shapes = list(shapes_of(offer, grid))
    possible = [
        shape
        for shape in shapes
        if (shape.machine_type.name == machine_type if machine_type else not shape.machine_type.only_on_request)
    ]
    if not possible:
        makers = ", ".join(dict.fromkeys(shape.machine_type.name for shape in shapes))
        one = machine_type or f"machine types that a pod does not have to select by {constants.INSTANCE_TYPE}"
        raise ShapeError(f"topology {grid} of {accelerator} cannot consist of {one}, only of {makers or 'none at all'}")
    for shape in possible:
        if shape.chips_per_pod == chips_per_pod:
            return shape
    valid = sorted({shape.chips_per_pod for shape in possible}, key=lambda chips: abs(chips - chips_per_pod))
    raise ShapeError(
        f"a pod requests {chips_per_pod} chips, and no host of a {accelerator} slice of topology {grid} offers that",
        f"nearest valid: {', '.join(map(str, valid[:_SUGGESTIONS]))} chips per pod",
    )


def _multi_host(offer: Accelerator, machine: MachineType, grid: Topology, chips_per_pod: int) -> bool:
    counts = [type_.chips for type_ in offer.machine_types]
    # Each pod gets all chips of its host: 2x4 is one VM if a pod requests 8 chips, and two VMs if it requests 4.
    return (
        machine.chips == (_MULTI_HOST_VM_CHIPS if _MULTI_HOST_VM_CHIPS in counts else max(counts)) == chips_per_pod
        and grid.chips > machine.chips
        and grid.chips % machine.chips == 0
    )


def _valid_topology(offer: Accelerator, text: str) -> Topology:
    try:
        grid = Topology.parse(text)
    except TopologyError as error:
        raise ShapeError(f"topology {error}", _nearest_topologies(offer, _numbers(text))) from error
    valid = offer.topologies()
    if grid in valid:
        return grid
    sorted_grid = tuple(sorted(grid.dimensions))
    if len(grid.dimensions) != len(valid[0].dimensions):
        reason = f"{offer.label} slices have {len(valid[0].dimensions)} dimensions"
    elif sorted_grid != grid.dimensions and Topology(sorted_grid) in valid:
        reason = "dimensions must be in ascending order"
    elif grid.chips > valid[-1].chips:
        reason = f"the largest {offer.label} slice has {valid[-1].chips} chips, this has {grid.chips}"
    elif offer.max_cubes:
        below = ", ".join(offer.listed_topologies)
        reason = (
            f"Google offers {below}, and above those only slices with dimensions that are multiples of 4, up to "
            f"{LONGEST_AXIS}, in ascending order"
        )
    else:
        reason = "it is not among the sizes that Google offers"
    raise ShapeError(
        f"topology {text} is not valid for {offer.label}: {reason}", _nearest_topologies(offer, grid.dimensions)
    )


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers in a malformed topology, such as "4X4", "04x4" or "4 x 4"."""
    return tuple(map(int, re.findall(r"[0-9]{1,4}", text)))


def _nearest_topologies(offer: Accelerator, target: tuple[int, ...]) -> str:
    valid = offer.topologies()
    if target:

        def distance(topology: Topology) -> tuple[int, int]:
            equal_axes = sum(a == b for a, b in zip(topology.dimensions, sorted(target), strict=False))
            return abs(topology.chips - math.prod(target)), -equal_axes

        valid = tuple(sorted(valid, key=distance))
    return f"nearest valid: {', '.join(map(str, valid[:_SUGGESTIONS]))}"


def _nearest_labels(text: str) -> str:
    import difflib  # noqa: PLC0415 - only for mistakes

    generation = text.removeprefix("tpu-")
    # Copied, because another thread may extend the table.
    offers = dict(ACCELERATORS)
    close = (
        [label for label in offers if text and label.startswith(text)]
        or [label for label, offer in offers.items() if offer.generation == generation]
        or difflib.get_close_matches(text, offers, n=1)
    )
    return f" (did you mean {' or '.join(close)}?)" if close else ""
