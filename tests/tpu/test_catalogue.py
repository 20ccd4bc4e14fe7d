"""The catalogue says what Google's own autoscaler says, row by row."""

from __future__ import annotations

import pytest

from provisioner import tpu

_PD = ("pd-standard", "pd-balanced", "pd-ssd")
_FAST = ("pd-balanced", "pd-ssd")
_HYPER = ("hyperdisk-balanced",)

#: accelerator, machine type, chips a VM, single-host topology, vCPU, memory, disks, flex-start.
ROWS = [
    ("tpu-v3-device", "ct3-hightpu-4t", 4, "2x2", 96, 340, _PD, False),
    ("tpu-v3-slice", "ct3p-hightpu-4t", 4, "", 48, 340, _PD, False),
    ("tpu-v4-lite-device", "ct4l-hightpu-4t", 4, "2x2", 48, 340, (*_PD, *_HYPER), False),
    ("tpu-v4-podslice", "ct4p-hightpu-4t", 4, "2x2x1", 240, 407, (*_PD, *_HYPER), False),
    ("tpu-v5-lite-device", "ct5l-hightpu-1t", 1, "1x1", 24, 48, _FAST, False),
    ("tpu-v5-lite-device", "ct5l-hightpu-4t", 4, "2x2", 112, 192, _FAST, False),
    ("tpu-v5-lite-device", "ct5l-hightpu-8t", 8, "2x4", 224, 384, _FAST, False),
    ("tpu-v5-lite-podslice", "ct5lp-hightpu-1t", 1, "1x1", 24, 48, _FAST, True),
    ("tpu-v5-lite-podslice", "ct5lp-hightpu-4t", 4, "2x2", 112, 192, _FAST, True),
    ("tpu-v5-lite-podslice", "ct5lp-hightpu-8t", 8, "2x4", 224, 384, _FAST, True),
    ("tpu-v5p-slice", "ct5p-hightpu-4t", 4, "2x2x1", 208, 448, _FAST, True),
    ("tpu-v6e-slice", "ct6e-standard-1t", 1, "1x1", 44, 176, _HYPER, True),
    ("tpu-v6e-slice", "ct6e-standard-4t", 4, "2x2", 180, 720, _HYPER, True),
    ("tpu-v6e-slice", "ct6e-standard-8t", 8, "2x4", 180, 1440, _HYPER, True),
    ("tpu7x", "tpu7x-standard-1t", 1, "1x1x1", 56, 248, _HYPER, True),
    ("tpu7x", "tpu7x-standard-4t", 4, "2x2x1", 224, 992, _HYPER, True),
    ("tpu7x", "tpu7x-ultranet-4t", 4, "2x2x1", 224, 992, _HYPER, True),
    ("tpu7", "tpu7-standard-1t", 1, "1x1x1", 56, 240, _HYPER, True),
    ("tpu7", "tpu7-standard-4t", 4, "2x2x1", 224, 960, _HYPER, True),
]


@pytest.mark.parametrize(
    ("label", "name", "chips", "alone", "vcpus", "memory", "disks", "flex_start"), ROWS, ids=[r[1] for r in ROWS]
)
def test_each_machine_type_is_known_as_the_autoscaler_knows_it(
    *,
    label: str,
    name: str,
    chips: int,
    alone: str,
    vcpus: int,
    memory: int,
    disks: tuple[str, ...],
    flex_start: bool,
) -> None:
    """One row of facts, one row of the catalogue."""
    known = tpu.machine_type(name)
    assert known is not None
    accelerator, machine = known
    found = (machine.chips, machine.single_host_topology, machine.vcpus, machine.memory_gib)
    assert accelerator.label == label
    assert found == (chips, alone, vcpus, memory)
    assert machine.disk_types == disks
    assert machine.flex_start is flex_start


def test_the_catalogue_has_no_machine_type_beyond_the_facts() -> None:
    """Nothing is sold that no source lists."""
    names = {machine.name for each in tpu.ACCELERATORS.values() for machine in each.machine_types}
    assert names == {row[1] for row in ROWS}


def test_an_unknown_machine_type_is_none() -> None:
    """Pools of other machines are looked up too."""
    assert tpu.machine_type("e2-standard-4") is None


@pytest.mark.parametrize(
    ("label", "chips"),
    [
        ("tpu-v3-slice", 2048),
        ("tpu-v4-podslice", 4096),
        ("tpu-v5-lite-podslice", 256),
        ("tpu-v5p-slice", 8960),
        ("tpu-v6e-slice", 256),
        ("tpu7x", 9216),
        ("tpu7", 256),
    ],
)
def test_the_largest_slice_is_a_whole_pod(label: str, chips: int) -> None:
    """The cap on cubes is that of each generation."""
    assert tpu.ACCELERATORS[label].topologies()[-1].chips == chips


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


#: What Google's tools create by default.
V5P = words(
    """
    2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x12 4x8x8 4x4x20 4x8x12 4x4x28 8x8x8 4x12x12 4x8x20 4x4x44 8x8x12
    4x4x52 4x8x28 4x12x20 8x8x16 4x4x68 8x12x12 4x4x76 8x8x20 4x12x28 4x8x44 4x4x92 8x12x16 4x20x20 4x8x52
    12x12x12 8x8x28 4x4x116 8x12x20 4x4x124 8x16x16 4x12x44 4x8x68 4x20x28 12x12x16 4x4x148 4x8x76 4x12x52 8x16x20
    4x4x164 8x12x28 4x4x172 8x8x44 12x12x20 4x8x92 4x4x188 12x16x16 4x28x28 8x20x20 4x12x68 8x8x52 4x4x212
    12x12x24 4x20x44 8x16x28 4x12x76 4x8x116 4x4x236 12x16x20 4x4x244 4x8x124 12x12x28 16x16x16 4x20x52 8x12x44
    8x8x68 4x12x92 8x20x28 12x16x24 4x8x148 12x20x20 8x8x76 4x28x44 8x12x52 16x16x20 12x12x36 4x8x164 12x16x28
    4x20x68 4x8x172 4x12x116 8x16x44 12x20x24 4x28x52 8x8x92 4x12x124 4x8x188 4x20x76 16x16x24 12x24x24 16x20x28
    """
)
V4 = words(
    """
    2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16 16x16x16
    """
)
#: The tools' defaults, and what a reference list for tpu7x adds.
TPU7X = words(
    """
    1x1x1 16x16x32 16x24x24
    4x4x16 4x4x24 4x8x16 4x4x32 4x12x16 4x8x24 4x8x32 4x16x16 4x12x24 4x16x20 8x8x24 4x16x24 8x8x32 4x16x32 8x12x24
    8x16x24 8x16x32
    """
)
TPU7 = words(
    """
    1x1x1 2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x12 4x4x16 4x8x8
    """
)
TWO_D = words(
    """
    1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16
    """
)


@pytest.mark.parametrize(
    ("label", "listed"),
    [
        ("tpu-v4-podslice", V4),
        ("tpu-v5p-slice", V5P),
        ("tpu7x", [*V5P, *TPU7X]),
        ("tpu7", TPU7),
        ("tpu-v5-lite-podslice", TWO_D),
        ("tpu-v5-lite-device", TWO_D),
        ("tpu-v6e-slice", TWO_D),
        ("tpu-v3-slice", ["4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32", "32x64"]),
    ],
)
def test_exactly_the_topologies_that_googles_tools_make_are_documented(label: str, listed: list[str]) -> None:
    """And all of them are valid: no shape that works today is refused."""
    valid = {str(topology) for topology in tpu.ACCELERATORS[label].topologies()}
    assert set(listed) <= valid
    documented = {str(each) for each in tpu.ACCELERATORS[label].topologies() if tpu.ACCELERATORS[label].documents(each)}
    assert set(listed) == documented


@pytest.mark.parametrize("label", ["tpu-v5-lite-podslice", "tpu-v6e-slice"])
def test_two_dimensional_generations_have_exactly_the_listed_topologies(label: str) -> None:
    """They follow a list, not a rule."""
    assert [str(topology) for topology in tpu.ACCELERATORS[label].topologies()] == TWO_D
