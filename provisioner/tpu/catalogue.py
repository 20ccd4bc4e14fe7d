"""Catalogue of machine types and topologies (grids of chips such as "4x4" and "2x2x4") by accelerator label.

Chips per VM, single-host topologies, vCPU, memory (except of tpu7x and tpu7) and disks are from GKE's autoscaler
(GoogleCloudPlatform/cluster-autoscaler). All other topologies are from cluster-toolkit, xpk and the Cloud TPU
documentation: lists of 2-D topologies and of 3-D topologies below 4x4x4 chips, and whole 4x4x4 cubes by a rule.
Documented 3-D topologies are those that xpk creates by default, with additions for v4 and tpu7x.
Each process has one table. A controller extends it by offers of the cluster (`extend`) only between decisions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, lru_cache
from itertools import combinations_with_replacement

from provisioner.model import bounds

#: Pattern of accelerator labels since tpu7. Such a label is also the name of the generation.
GENERATION_LABEL = re.compile(r"tpu[0-9]{1,2}[a-z]?")
_MACHINE_NAME = re.compile(r"(tpu[0-9]{1,2}[a-z]?)-[-a-z0-9]{1,40}-([0-9]{1,2})t")
_FORM = re.compile(r"[1-9][0-9]{0,3}(x[1-9][0-9]{0,3}){1,2}")


class TopologyError(ValueError):
    """A text is not a topology; the message quotes the text."""


@dataclass(frozen=True, slots=True, order=True)
class Topology:
    """A 2-D or 3-D grid of chips; `dimensions` has the number of chips along each axis."""

    dimensions: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Read "AxB" or "AxBxC"; raise TopologyError for anything else."""
        if not _FORM.fullmatch(text):
            raise TopologyError(
                f"{bounds.quoted(text)} is not of the form AxB or AxBxC with whole numbers from 1 to 9999"
            )
        return cls(tuple(int(part) for part in text.split("x")))

    @property
    def chips(self) -> int:
        """Number of chips."""
        return math.prod(self.dimensions)

    def __str__(self) -> str:
        return "x".join(map(str, self.dimensions))


_PD = ("pd-standard", "pd-balanced", "pd-ssd")
_PD_FAST = ("pd-balanced", "pd-ssd")
_HYPERDISK = ("hyperdisk-balanced",)

#: Edge, in chips, of the cubes that larger 3-D slices are composed of.
_CUBE_EDGE = 4
CUBE_CHIPS = _CUBE_EDGE**3
#: Maximum length of an axis of a 3-D slice, in chips.
LONGEST_AXIS = 256

_TWO_DIMENSIONAL = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
#: Topologies of multi-host v3, from the only known report of such slices (see `_ALL`).
_V3_SLICE = ("4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32", "32x64")


def _texts(text: str) -> tuple[str, ...]:
    return tuple(text.split())


BELOW_CUBE = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")

V4 = (*BELOW_CUBE, *_texts("4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16 16x16x16"))

V5P = (
    *BELOW_CUBE,
    *_texts("""
    4x4x4 4x4x8 4x4x12 4x8x8 4x4x20 4x8x12 4x4x28 8x8x8 4x12x12 4x8x20 4x4x44 8x8x12 4x4x52 4x8x28 4x12x20 8x8x16
    4x4x68 8x12x12 4x4x76 8x8x20 4x12x28 4x8x44 4x4x92 8x12x16 4x20x20 4x8x52 12x12x12 8x8x28 4x4x116 8x12x20
    4x4x124 8x16x16 4x12x44 4x8x68 4x20x28 12x12x16 4x4x148 4x8x76 4x12x52 8x16x20 4x4x164 8x12x28 4x4x172 8x8x44
    12x12x20 4x8x92 4x4x188 12x16x16 4x28x28 8x20x20 4x12x68 8x8x52 4x4x212 12x12x24 4x20x44 8x16x28 4x12x76
    4x8x116 4x4x236 12x16x20 4x4x244 4x8x124 12x12x28 16x16x16 4x20x52 8x12x44 8x8x68 4x12x92 8x20x28 12x16x24
    4x8x148 12x20x20 8x8x76 4x28x44 8x12x52 16x16x20 12x12x36 4x8x164 12x16x28 4x20x68 4x8x172 4x12x116 8x16x44
    12x20x24 4x28x52 8x8x92 4x12x124 4x8x188 4x20x76 16x16x24 12x24x24 16x20x28
    """),
)

TPU7X = (
    "1x1x1",
    *V5P,
    "16x16x32",
    "16x24x24",
    *_texts("""
    4x4x16 4x4x24 4x8x16 4x4x32 4x12x16 4x8x24 4x8x32 4x16x16 4x12x24 4x16x20 8x8x24 4x16x24 8x8x32 4x16x32 8x12x24
    8x16x24 8x16x32
    """),
)

TPU7 = ("1x1x1", *BELOW_CUBE, "4x4x4", "4x4x8", "4x4x12", "4x4x16", "4x8x8")


@dataclass(frozen=True, slots=True)
class MachineType:
    """A type of TPU VM."""

    name: str
    chips: int
    #: Topology of a slice that is one VM of this type; empty if GKE has no such slice.
    single_host_topology: str
    vcpus: int
    memory_gib: int
    #: Types of boot disks that GKE accepts; the first is GKE's default.
    disk_types: tuple[str, ...]
    _: KW_ONLY
    #: Whether the type is also sold as flex-start, through the Dynamic Workload Scheduler.
    flex_start: bool = True
    #: Whether only pods that select this machine type get it.
    only_on_request: bool = False
    #: Label kubernetes.io/arch of nodes of this type; empty if unknown.
    arch: str = "amd64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Machine types and topologies for one value of `cloud.google.com/gke-tpu-accelerator`."""

    label: str
    generation: str
    machine_types: tuple[MachineType, ...]
    #: Valid topologies, without those that follow from `max_cubes`.
    listed_topologies: tuple[str, ...]
    #: Topologies in Google's tools and in offers of the cluster (`extend`). GKE may reject other topologies of cubes.
    documented_topologies: tuple[str, ...] = ()
    #: Maximum number of 4x4x4 cubes in a slice; 0 for generations without cubes.
    max_cubes: int = 0
    #: Number of cubes in the largest slice of Google's documentation; 0 if equal to `max_cubes`.
    documented_cubes: int = 0
    #: Whether GKE places multi-host pools by a workload policy of Compute Engine, instead of COMPACT placement.
    workload_policy: bool = False
    #: Whether GKE may accept topologies with unsorted axes, because sources disagree.
    any_order: bool = False

    def topologies(self) -> tuple[Topology, ...]:
        """Return every valid topology, smallest first."""
        return _topologies(self.listed_topologies, self.max_cubes)

    def documents(self, topology: Topology) -> bool:
        """Return whether a valid topology is documented; true for all topologies if `max_cubes` is 0."""
        return not self.max_cubes or str(topology) in self.documented_topologies


@cache
def _topologies(listed: tuple[str, ...], max_cubes: int) -> tuple[Topology, ...]:
    shapes = {Topology.parse(text) for text in listed} | set(_cubes(max_cubes))
    return tuple(sorted(shapes, key=lambda topology: (topology.chips, topology.dimensions)))


def _cubes(max_cubes: int) -> Iterator[Topology]:
    axes = range(_CUBE_EDGE, LONGEST_AXIS + 1, _CUBE_EDGE)
    for grid in combinations_with_replacement(axes, 3):
        if math.prod(grid) <= max_cubes * CUBE_CHIPS:
            yield Topology(grid)


# fmt: off
_ALL = (
    Accelerator(
        label="tpu-v3-device", generation="v3",
        machine_types=(MachineType("ct3-hightpu-4t", 4, "2x2", 96, 340, _PD, flex_start=False),),
        listed_topologies=("2x2",)),
    Accelerator(
        # GKE's autoscaler has this label. A comment in its code, and one report, name tpu-v3-podslice instead.
        label="tpu-v3-slice", generation="v3",
        machine_types=(MachineType("ct3p-hightpu-4t", 4, "", 48, 340, _PD, flex_start=False),),
        listed_topologies=_V3_SLICE),
    Accelerator(
        label="tpu-v4-lite-device", generation="v4",
        machine_types=(MachineType("ct4l-hightpu-4t", 4, "2x2", 48, 340, (*_PD, *_HYPERDISK), flex_start=False),),
        listed_topologies=("2x2",)),
    Accelerator(
        label="tpu-v4-podslice", generation="v4",
        machine_types=(MachineType("ct4p-hightpu-4t", 4, "2x2x1", 240, 407, (*_PD, *_HYPERDISK), flex_start=False),),
        listed_topologies=BELOW_CUBE, documented_topologies=V4, max_cubes=64,
        # xpk also lists topologies with unsorted axes; the documentation and cluster-toolkit require sorted axes.
        any_order=True),
    Accelerator(
        # Google's lists of topologies do not separate v5-lite devices from podslices. No report has multi-host devices.
        label="tpu-v5-lite-device", generation="v5e",
        machine_types=(
            MachineType("ct5l-hightpu-1t", 1, "1x1", 24, 48, _PD_FAST, flex_start=False),
            MachineType("ct5l-hightpu-4t", 4, "2x2", 112, 192, _PD_FAST, flex_start=False),
            MachineType("ct5l-hightpu-8t", 8, "2x4", 224, 384, _PD_FAST, flex_start=False)),
        listed_topologies=_TWO_DIMENSIONAL),
    Accelerator(
        label="tpu-v5-lite-podslice", generation="v5e",
        machine_types=(
            MachineType("ct5lp-hightpu-1t", 1, "1x1", 24, 48, _PD_FAST),
            MachineType("ct5lp-hightpu-4t", 4, "2x2", 112, 192, _PD_FAST),
            MachineType("ct5lp-hightpu-8t", 8, "2x4", 224, 384, _PD_FAST)),
        listed_topologies=_TWO_DIMENSIONAL),
    Accelerator(
        label="tpu-v5p-slice", generation="v5p",
        # cluster-toolkit also lists ct5p-hightpu-1t and -2t. GKE's autoscaler does not, so they are left out.
        machine_types=(MachineType("ct5p-hightpu-4t", 4, "2x2x1", 208, 448, _PD_FAST),),
        listed_topologies=BELOW_CUBE, documented_topologies=V5P, max_cubes=140,
        # The largest slice in cloud.google.com/tpu/docs/v5p is 16x16x24; other sources list up to 140 cubes.
        documented_cubes=96),
    Accelerator(
        label="tpu-v6e-slice", generation="v6e",
        machine_types=(
            MachineType("ct6e-standard-1t", 1, "1x1", 44, 176, _HYPERDISK),
            MachineType("ct6e-standard-4t", 4, "2x2", 180, 720, _HYPERDISK),
            MachineType("ct6e-standard-8t", 8, "2x4", 180, 1440, _HYPERDISK)),
        listed_topologies=_TWO_DIMENSIONAL),
    Accelerator(
        label="tpu7x", generation="tpu7x",
        machine_types=(
            # GKE's autoscaler has 992 GiB, but a node of tpu7x-standard-4t reported 963568636Ki allocatable. GKE's
            # formula gives that amount for 960 GiB. Other tpu7x and tpu7 types are assumed to have as much per vCPU.
            MachineType("tpu7x-standard-1t", 1, "1x1x1", 56, 240, _HYPERDISK),
            MachineType("tpu7x-standard-4t", 4, "2x2x1", 224, 960, _HYPERDISK),
            MachineType("tpu7x-ultranet-4t", 4, "2x2x1", 224, 960, _HYPERDISK, only_on_request=True)),
        listed_topologies=("1x1x1", *BELOW_CUBE), documented_topologies=TPU7X, max_cubes=144,
        workload_policy=True),
    Accelerator(
        label="tpu7", generation="tpu7",
        machine_types=(
            MachineType("tpu7-standard-1t", 1, "1x1x1", 56, 240, _HYPERDISK),
            MachineType("tpu7-standard-4t", 4, "2x2x1", 224, 960, _HYPERDISK)),
        listed_topologies=("1x1x1", *BELOW_CUBE), documented_topologies=TPU7, max_cubes=4,
        workload_policy=True),
)
# fmt: on

ACCELERATORS = {accelerator.label: accelerator for accelerator in _ALL}


@lru_cache(maxsize=1024)
def machine_type(name: str) -> tuple[Accelerator, MachineType] | None:
    """Return a machine type with its accelerator; None if it is not in the catalogue."""
    pairs = ((offer, type_) for offer in tuple(ACCELERATORS.values()) for type_ in offer.machine_types)
    return next((pair for pair in pairs if pair[1].name == name), None)


def machine_of(name: str) -> tuple[str, int]:
    """Return the accelerator label and number of chips of a machine type; "" and 0 if unknown."""
    # Since tpu7, names contain label and chips: tpu7x-standard-4t is a machine of tpu7x with 4 chips.
    entry, named = machine_type(name), _MACHINE_NAME.fullmatch(name)
    if entry is not None:
        return entry[0].label, entry[1].chips
    return (named[1], int(named[2])) if named is not None else ("", 0)


def extend(offers: Iterable[Accelerator]) -> list[str]:
    """Set the table to the built-in table plus the offers of the cluster; return contradictions, as messages.

    The built-in table has priority over offers, and earlier offers over later ones. Called only by `tpu.extend`.
    """
    extended, contradictions = {offer.label: offer for offer in _ALL}, []
    machines = {machine.name: (offer, machine) for offer in _ALL for machine in offer.machine_types}
    for offer in offers:
        existing, added = extended.get(offer.label, replace(offer, machine_types=())), []
        for machine in offer.machine_types:
            used = machines.setdefault(machine.name, (offer, machine))
            if used[1] is machine:
                added.append(machine)
            elif (listed := _description(offer, machine)) != _description(*used):
                contradictions.append(f"{machine.name} is listed as {listed}, and used as {_description(*used)}")
        valid = {str(topology) for topology in existing.topologies()}
        fresh = tuple(text for text in offer.listed_topologies if text not in valid)
        extended[offer.label] = replace(
            existing,
            machine_types=(*existing.machine_types, *added),
            listed_topologies=existing.listed_topologies + fresh,
            documented_topologies=tuple(dict.fromkeys((*existing.documented_topologies, *offer.listed_topologies))),
        )
    usable = {label: offer for label, offer in extended.items() if offer.machine_types and offer.topologies()}
    # Each usable entry is replaced in place, so another thread always finds the old or the new entry.
    ACCELERATORS.update(usable)
    for label in ACCELERATORS.keys() - usable.keys():
        del ACCELERATORS[label]
    machine_type.cache_clear()
    return contradictions


def _description(offer: Accelerator, machine: MachineType) -> str:
    return f"{machine.chips} chips of {offer.label}, {machine.single_host_topology or 'no topology'} alone"
