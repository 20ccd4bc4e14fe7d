"""Extension of the catalogue by the offers of a cluster; the built-in table has priority."""

from __future__ import annotations

import pytest

from provisioner import tpu

pytestmark = pytest.mark.usefixtures("catalogue")
V6E = "tpu-v6e-slice"


def _machine(name: str, chips: int, alone: str = "", *, on_request: bool = False) -> tpu.MachineType:
    return tpu.MachineType(name, chips, alone, 64, 512, ("hyperdisk-balanced",), only_on_request=on_request, arch="")


def _offer(label: str, *machines: tpu.MachineType, topologies: str = "2x2 4x4") -> tpu.Accelerator:
    listed = tuple(topologies.split())
    return tpu.Accelerator(label=label, generation=label, machine_types=machines, listed_topologies=listed)


def _made_of(label: str, topology: str, chips: int, machine_type: str = "") -> tuple[str, int]:
    shape = tpu.resolve(label, topology, chips, machine_type)
    return shape.machine_type.name, shape.nodes(1)


def test_generation_is_added_and_removed_with_its_offer() -> None:
    """Cached results are dropped with their offers, and an offer that is added twice is in the table once."""
    before = dict(tpu.ACCELERATORS)
    for _ in range(2):
        with pytest.raises(tpu.ShapeError, match="there is no TPU accelerator 'tpu9x'"):
            tpu.resolve("tpu9x", "4x4", 4)
        assert tpu.machine_type("tpu9x-4t") is None
        for _ in range(2):
            assert tpu.extend([_offer("tpu9x", _machine("tpu9x-4t", 4, "2x2"))]) == []
        assert (_made_of("tpu9x", "2x2", 4), _made_of("tpu9x", "4x4", 4)) == (("tpu9x-4t", 1), ("tpu9x-4t", 4))
        assert tpu.machine_type("tpu9x-4t") is not None
        tpu.extend(())
    assert before == tpu.ACCELERATORS


def test_known_accelerator_gets_missing_machine_types_and_topologies() -> None:
    """Added topologies count as documented by Google."""
    sixteen = _machine("ct6e-standard-16t", 16, "4x4")
    assert tpu.extend([_offer(V6E, sixteen, topologies="4x4 32x32"), _offer("tpu7x", topologies="4x4x200")]) == []
    assert _made_of(V6E, "32x32", 4) == ("ct6e-standard-4t", 256)
    assert _made_of(V6E, "4x4", 16) == ("ct6e-standard-16t", 1)
    assert [name.name for name in tpu.ACCELERATORS[V6E].machine_types].count("ct6e-standard-4t") == 1
    assert tpu.resolve("tpu7x", "4x4x200", 4).warning == ""
    assert tpu.resolve("tpu7x", "4x4x196", 4).warning != ""


def test_table_has_priority_over_contradicting_offers() -> None:
    """If two offers of a cluster contradict each other, the first is used."""
    found = tpu.extend(
        [
            _offer(V6E, _machine("ct6e-standard-4t", 8, "2x2"), _machine("ct6e-standard-1t", 1, "1x1")),
            _offer("tpu9x", _machine("tpu9x-4t", 4, "2x2"), _machine("ct5p-hightpu-4t", 4, "2x2x1")),
            _offer("tpu9y", _machine("tpu9x-4t", 4, "2x2")),
        ]
    )
    assert [text.partition(" is listed as ")[0] for text in found] == [
        "ct6e-standard-4t",
        "ct5p-hightpu-4t",
        "tpu9x-4t",
    ]
    assert found[0].endswith("8 chips of tpu-v6e-slice, 2x2 alone, and used as 4 chips of tpu-v6e-slice, 2x2 alone")
    assert _made_of(V6E, "2x2", 4) == ("ct6e-standard-4t", 1)
    # tpu9y has no machine type left, so the accelerator is not added.
    assert "tpu9y" not in tpu.ACCELERATORS


def test_slices_without_vms_of_four_chips_consist_of_the_largest_vms() -> None:
    machines = (_machine("tpu9x-1t", 1, "1x1"), _machine("tpu9x-8t", 8, "2x4"))
    tpu.extend([_offer("tpu9x", *machines, topologies="1x1 2x4 4x4")])
    assert _made_of("tpu9x", "4x4", 8) == ("tpu9x-8t", 2)
    with pytest.raises(tpu.ShapeError, match="no host of"):
        tpu.resolve("tpu9x", "4x4", 1)


def test_machine_type_on_request_is_used_only_if_selected() -> None:
    """The message names the node selector, also for a topology without any machine type."""
    tpu.extend([_offer("tpu9x", _machine("tpu9x-4t", 4, on_request=True), topologies="2x2 4x4")])
    with pytest.raises(
        tpu.ShapeError, match=r"does not have to select by node.kubernetes.io/instance-type, only of tpu9x-4t"
    ):
        tpu.resolve("tpu9x", "4x4", 4)
    assert _made_of("tpu9x", "4x4", 4, "tpu9x-4t") == ("tpu9x-4t", 4)
    with pytest.raises(tpu.ShapeError, match="only of none at all"):
        tpu.resolve("tpu9x", "2x2", 4)
