"""Tests of the predicted resources of nodes against amounts that were measured or that GKE's autoscaler computes."""

from __future__ import annotations

import pytest

from provisioner import tpu
from rehearsal.simulators.machines import find_machine, resources_of

GIB = 2**30


def machine(name: str) -> tpu.MachineType:
    known = tpu.machine_type(name)
    assert known is not None
    return known[1]


def test_node_of_tpu7x_has_the_measured_resources() -> None:
    """A node of tpu7x-standard-4t reported 963568636Ki and 223370m (public run, 2026-08)."""
    found = tpu.allocatable(machine("tpu7x-standard-4t"))
    assert found.cpu_millicores == 223370
    assert found.memory_bytes == pytest.approx(963568636 * 1024, rel=0.0005)


@pytest.mark.parametrize(
    ("disk_gb", "want"), [(100, 43.8), (200, 97.4), (250, 124.7), (300, 162.0), (500, 339.1), (1000, 782.1)]
)
def test_boot_disk_offers_ephemeral_storage_without_the_reservations(disk_gb: int, want: float) -> None:
    found = tpu.allocatable(machine("ct6e-standard-4t"), disk_gb=disk_gb)
    assert found.ephemeral_bytes / GIB == pytest.approx(want, rel=0.005)


@pytest.mark.parametrize("max_pods", [15, 110, 256])
@pytest.mark.parametrize("name", [type_.name for offer in tpu.ACCELERATORS.values() for type_ in offer.machine_types])
def test_prediction_never_exceeds_the_node_of_the_simulator(name: str, max_pods: int) -> None:
    """The simulator was written separately. Versions from 1.37 on reserve less memory, so their nodes offer more."""
    found, simulated = tpu.allocatable(machine(name), max_pods=max_pods), find_machine(name)
    assert simulated is not None
    old, new = (
        resources_of(simulated, version=version, max_pods=max_pods, disk_gib=100) for version in ("1.34.1", "1.37.0")
    )
    assert found.cpu_millicores == pytest.approx(old.milli_cpu, abs=1)
    assert found.memory_bytes == pytest.approx(old.memory_kib * 1024, abs=2**20)
    assert found.ephemeral_bytes == pytest.approx(old.disk_bytes, abs=2**10)
    assert found.memory_bytes <= new.memory_kib * 1024 + 2**20
