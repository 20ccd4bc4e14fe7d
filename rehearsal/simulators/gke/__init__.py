"""A simulated GKE, with its REST API on a socket, nodes in a real cluster, and failures on demand."""

from rehearsal.simulators.gke.app import Simulator, serve
from rehearsal.simulators.gke.faults import Fault, FaultKind
from rehearsal.simulators.gke.records import NodeState, PoolStatus, PoolView
from rehearsal.simulators.gke.settings import SimulatorSettings

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
