"""The simulator's own reading of what TPU machine types can build."""

from __future__ import annotations

import pytest

from rehearsal.simulators.machines import allocatable, find_machine


@pytest.mark.parametrize(
    ("machine", "topology", "hosts"),
    [
        pytest.param("ct5lp-hightpu-4t", "2x2", 1, id="v5e four chips is one host"),
        pytest.param("ct5lp-hightpu-4t", "2x4", 2, id="2x4 on four-chip hosts is two hosts"),
        pytest.param("ct5lp-hightpu-8t", "2x4", 1, id="2x4 on an eight-chip host is one host"),
        pytest.param("ct6e-standard-4t", "16x16", 64, id="the largest v6e slice"),
        pytest.param("ct6e-standard-4t", "2x3", None, id="no such flat shape"),
        pytest.param("ct6e-standard-4t", "16x32", None, id="larger than a v6e pod"),
        pytest.param("ct6e-standard-8t", "4x4", None, id="eight-chip hosts build no slices"),
        pytest.param("ct6e-standard-1t", "2x2", None, id="one-chip hosts build no slices"),
        pytest.param("ct4p-hightpu-4t", "2x2x1", 1, id="v4 single host"),
        pytest.param("ct4p-hightpu-4t", "2x2x4", 4, id="v4 below a cube"),
        pytest.param("ct4p-hightpu-4t", "16x16x16", 1024, id="the largest v4 slice"),
        pytest.param("ct4p-hightpu-4t", "16x16x20", None, id="larger than a v4 pod"),
        pytest.param("ct5p-hightpu-4t", "4x4x8", 32, id="v5p of two cubes"),
        pytest.param("ct5p-hightpu-4t", "8x4x4", None, id="dimensions out of order"),
        pytest.param("ct5p-hightpu-4t", "4x4x6", None, id="not a multiple of four"),
        pytest.param("ct5p-hightpu-4t", "4x4", None, id="flat topology on a cubic family"),
        pytest.param("tpu7x-standard-4t", "16x24x24", 2304, id="the largest tpu7x slice"),
        pytest.param("tpu7-standard-4t", "4x8x8", 64, id="the largest tpu7 slice"),
        pytest.param("tpu7-standard-4t", "8x8x8", None, id="larger than tpu7 gets"),
        pytest.param("ct3p-hightpu-4t", "4x4", 4, id="v3 slice"),
        pytest.param("ct3p-hightpu-4t", "2x2", None, id="v3 slices have no single host"),
        pytest.param("ct5l-hightpu-4t", "4x4", None, id="serving v5e builds no slices"),
        pytest.param("n2-standard-8", "2x2", None, id="no chips, no topology"),
        pytest.param("ct5lp-hightpu-4t", "0x4", None, id="a dimension of nothing"),
    ],
)
def test_hosts_of_a_topology(machine: str, topology: str, hosts: int | None) -> None:
    """Hosts are chips by chips a VM, where the family can build the shape at all."""
    found = find_machine(machine)

    assert found is not None
    assert hosts == found.hosts_of(topology)


@pytest.mark.parametrize("name", ["ct9x-standard-4t", "n2-standard-0", "", "ct5lp-hightpu-2t"])
def test_unknown_machine_types(name: str) -> None:
    """A machine type that Google doesn't sell is not found."""
    assert find_machine(name) is None


def test_allocatable_is_less_than_the_machine() -> None:
    """What pods may ask for is less than the machine has, but most of it."""
    for name in ("ct3p-hightpu-4t", "ct5lp-hightpu-1t", "ct6e-standard-8t", "tpu7x-standard-4t", "n2-highmem-8"):
        machine = find_machine(name)
        assert machine is not None
        milli_cpu, kib = allocatable(machine)

        assert 0.9 * machine.vcpus * 1000 < milli_cpu < machine.vcpus * 1000
        assert 0.7 * machine.memory_gib * 1024**2 < kib < machine.memory_gib * 1024**2
