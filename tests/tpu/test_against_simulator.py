"""Comparison of catalogue and simulator, which were written separately from the same documents."""

from __future__ import annotations

import pytest

from provisioner import tpu
from rehearsal.simulators.machines import _TPU_MACHINES, Machine, PolicyRule, find_machine

MACHINES = [machine.name for offer in tpu.ACCELERATORS.values() for machine in offer.machine_types]

#: Intended differences by machine type, with the reasons.
KNOWN_DIFFERENCES = {
    "ct5l-hightpu-4t": "lists of topologies name the serving family too, so the catalogue asks GKE for its multi-host "
    "slices; the simulator takes them for single-host alone and refuses",
}


def read(name: str) -> tuple[tpu.Accelerator, tpu.MachineType, Machine]:
    known, simulated = tpu.machine_type(name), find_machine(name)
    assert known is not None
    assert simulated is not None
    return *known, simulated


def hosts_by_catalogue(offer: tpu.Accelerator, name: str) -> dict[str, int]:
    return {
        str(topology): shape.nodes(1)
        for topology in offer.topologies()
        for shape in tpu.shapes_of(offer, topology)
        if shape.machine_type.name == name
    }


def hosts_by_simulator(machine: Machine, offer: tpu.Accelerator) -> dict[str, int]:
    """Return the number of hosts of every topology of the accelerator, as the simulated GKE calculates it."""
    found = {str(topology): machine.hosts_of(str(topology)) for topology in offer.topologies()}
    return {topology: hosts for topology, hosts in found.items() if hosts is not None}


def test_catalogue_and_simulator_have_the_same_machine_types() -> None:
    """A machine type of only the catalogue or only the simulator is a mistake in reading Google's documents."""
    assert set(MACHINES) == set(_TPU_MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_catalogue_and_simulator_agree_on_each_machine_type(name: str) -> None:
    offer, machine, simulated = read(name)
    assert (simulated.accelerator, simulated.chips) == (offer.label, machine.chips)
    assert (simulated.vcpus, simulated.memory_gib) == (machine.vcpus, machine.memory_gib)
    assert (simulated.own_topology or "") == machine.single_host_topology
    assert set(simulated.disks) == set(machine.disk_types)
    assert simulated.flex_start is machine.flex_start
    assert (simulated.policy is PolicyRule.REQUIRED) is offer.workload_policy


@pytest.mark.parametrize("name", [name for name in MACHINES if name not in KNOWN_DIFFERENCES])
def test_catalogue_and_simulator_agree_on_the_hosts_of_each_topology(name: str) -> None:
    offer, _, simulated = read(name)
    assert hosts_by_catalogue(offer, name) == hosts_by_simulator(simulated, offer)


@pytest.mark.parametrize("name", KNOWN_DIFFERENCES)
def test_known_differences_still_exist(name: str) -> None:
    """Catalogue and simulator still agree on the topologies that both have."""
    offer, _, simulated = read(name)
    ours, theirs = hosts_by_catalogue(offer, name), hosts_by_simulator(simulated, offer)
    assert ours != theirs
    assert {topology: hosts for topology, hosts in ours.items() if topology in theirs} == theirs
