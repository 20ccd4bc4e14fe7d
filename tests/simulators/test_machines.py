"""Resources of simulated nodes against amounts that were measured, documented, or computed by GKE's autoscaler."""

from __future__ import annotations

import pytest

from rehearsal.simulators.machines import find_machine, resources_of

OLD, NEW = "1.34.1-gke.3084001", "1.37.0-gke.1"
GIB = 1024**2


@pytest.mark.parametrize(
    ("name", "cpu", "memory", "memory_by_pods"),
    [
        ("ct5lp-hightpu-1t", 23.87, 42.5, 46.3),
        ("ct5lp-hightpu-4t", 111.65, 178.1, 187.9),
        ("ct5lp-hightpu-8t", 223.37, 363.3, 376.9),
        ("ct4p-hightpu-4t", 239.33, 385.5, 399.5),
        ("ct5p-hightpu-4t", 207.41, 425.0, 439.9),
        ("ct6e-standard-1t", 43.82, 162.7, 172.1),
        ("ct6e-standard-4t", 179.48, 687.3, 707.6),
        ("ct6e-standard-8t", 179.48, 1381.7, 1416.4),
    ],
)
def test_node_has_the_cpu_and_memory_of_the_formulas(
    name: str, cpu: float, memory: float, memory_by_pods: float
) -> None:
    machine = find_machine(name)
    assert machine is not None
    old, new = (resources_of(machine, version=version, max_pods=16, disk_gib=100) for version in (OLD, NEW))
    assert old.milli_cpu / 1000 == pytest.approx(cpu, abs=0.01)
    assert old.memory_kib / GIB == pytest.approx(memory, abs=0.1)
    assert new.memory_kib / GIB == pytest.approx(memory_by_pods, abs=0.1)
    assert new.memory_capacity_kib == old.memory_capacity_kib
    # With 256 pods, less memory is left than with 16, but not less than by the old formula; at most 1 CPU is reserved.
    many = resources_of(machine, version=NEW, max_pods=256, disk_gib=100)
    assert old.memory_kib <= many.memory_kib < new.memory_kib
    assert machine.vcpus * 1000 - many.milli_cpu <= 1000


def test_node_of_tpu7x_has_the_measured_cpu_and_memory() -> None:
    """A node of tpu7x-standard-4t reported 963568636Ki and 223370m (public run, 2026-08)."""
    machine = find_machine("tpu7x-standard-4t")
    assert machine is not None
    found = resources_of(machine, version=OLD, max_pods=16, disk_gib=100)
    assert found.milli_cpu == pytest.approx(223370, abs=10)
    assert found.memory_kib == pytest.approx(963568636, rel=0.0005)


@pytest.mark.parametrize(
    ("disk_gib", "want"), [(100, 43.8), (200, 97.4), (250, 124.7), (300, 162.0), (500, 339.1), (1000, 782.1)]
)
def test_boot_disk_without_the_reservations_is_allocatable(disk_gib: int, want: float) -> None:
    machine = find_machine("ct6e-standard-4t")
    assert machine is not None
    found = resources_of(machine, version=OLD, max_pods=16, disk_gib=disk_gib)
    assert found.disk_bytes / 1024**3 == pytest.approx(want, rel=0.005)


def test_disk_of_the_documented_example_has_the_documented_sizes() -> None:
    """The example of a boot disk of 100 GB is on GKE's page about node sizes."""
    machine = find_machine("e2-standard-2")
    assert machine is not None
    found = resources_of(machine, version=OLD, max_pods=110, disk_gib=100)
    assert found.disk_capacity_kib == pytest.approx(98831908, rel=0.002)
    assert found.disk_bytes == pytest.approx(47060071478, rel=0.002)
