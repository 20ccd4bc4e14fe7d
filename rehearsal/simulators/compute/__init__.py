"""A simulated Compute Engine, with its REST API on a socket, groups of VMs with TPUs, and failures on demand."""

from rehearsal.simulators.compute.app import ComputeSimulator
from rehearsal.simulators.compute.faults import Fault, FaultKind
from rehearsal.simulators.compute.records import Loss, MachineView
from rehearsal.simulators.compute.settings import ComputeSettings

__all__ = ["ComputeSettings", "ComputeSimulator", "Fault", "FaultKind", "Loss", "MachineView"]
