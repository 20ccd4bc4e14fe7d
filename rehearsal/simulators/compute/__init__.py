"""A simulated Compute Engine: its REST API over a socket, groups of VMs with TPUs, failures on demand."""

from rehearsal.simulators.compute.app import ComputeSimulator
from rehearsal.simulators.compute.faults import Fault, FaultKind
from rehearsal.simulators.compute.records import Loss, MachineView
from rehearsal.simulators.compute.settings import ComputeSettings

__all__ = ["ComputeSettings", "ComputeSimulator", "Fault", "FaultKind", "Loss", "MachineView"]
