"""A GKE to rehearse on: the real REST API over a socket, nodes in a real cluster, failures on demand."""

from provisioner.simulator.app import Simulator, cli_arguments, run_from_args
from provisioner.simulator.faults import Fault, FaultKind
from provisioner.simulator.records import NodeState, PoolStatus, PoolView
from provisioner.simulator.settings import SimulatorSettings

__all__ = [
    "Fault",
    "FaultKind",
    "NodeState",
    "PoolStatus",
    "PoolView",
    "Simulator",
    "SimulatorSettings",
    "cli_arguments",
    "run_from_args",
]
