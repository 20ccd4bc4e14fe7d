"""A Compute Engine to rehearse on: the real REST API over a socket, groups of VMs with TPUs, failures on demand."""

from provisioner.simulators.compute.app import ComputeSimulator
from provisioner.simulators.compute.faults import Fault, FaultKind
from provisioner.simulators.compute.records import Loss, MachineView
from provisioner.simulators.compute.settings import ComputeSettings

__all__ = ["ComputeSettings", "ComputeSimulator", "Fault", "FaultKind", "Loss", "MachineView"]
