"""A GKE to rehearse on: the real REST API over a socket, nodes in a real cluster, failures on demand."""

from provisioner.simulators.gke.app import Simulator, serve
from provisioner.simulators.gke.faults import Fault, FaultKind
from provisioner.simulators.gke.records import NodeState, PoolStatus, PoolView
from provisioner.simulators.gke.settings import SimulatorSettings

__all__ = [
    "Fault",
    "FaultKind",
    "NodeState",
    "PoolStatus",
    "PoolView",
    "Simulator",
    "SimulatorSettings",
    "serve",
]
