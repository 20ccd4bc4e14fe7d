"""The simulator as a whole: for use in a process (`with Simulator() as gke: ...`) and as a command.

State lives in memory: after a restart there are no pools, and Node objects of an earlier life are removed from the
cluster of the kubeconfig.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rehearsal.simulators.gke.api import Api
from rehearsal.simulators.gke.errors import ClusterError
from rehearsal.simulators.gke.model import World
from rehearsal.simulators.gke.records import PoolStatus, PoolView
from rehearsal.simulators.gke.service import GkeService
from rehearsal.simulators.gke.settings import SimulatorSettings
from rehearsal.simulators.http.app import LocalSimulator
from rehearsal.simulators.http.server import Server
from rehearsal.simulators.http.timeline import Clock

if TYPE_CHECKING:
    from rehearsal.simulators.gke.kube import KubeNodes
    from rehearsal.simulators.gke.registrar import Registrar


class Simulator(LocalSimulator[World, SimulatorSettings]):
    """A GKE on a local port; use it as a context, or call `start` and `stop`."""

    _registrar: Registrar | None = None

    def __init__(
        self, settings: SimulatorSettings | None = None, *, kubeconfig: Path | str | None = None, **options: Any
    ) -> None:
        super().__init__(settings, **options)
        self._kubeconfig = Path(kubeconfig) if kubeconfig is not None else None

    def _make_world(self, settings: SimulatorSettings | None, clock: Clock, rng: random.Random | None) -> World:
        return World(settings or SimulatorSettings(), clock=clock, rng=rng)

    def start(self) -> None:
        """Open the port, and take charge of the cluster's simulated Nodes.

        Raises OSError where the port is taken, and ClusterError where the kubeconfig or its cluster can't be used.
        """
        kube: KubeNodes | None = None
        if self._kubeconfig is not None:
            # Imported only where a cluster is given: the kubernetes package takes half a second.
            from rehearsal.simulators.gke.kube import KubeNodes  # noqa: PLC0415

            kube = KubeNodes(self._kubeconfig)
        server = self._listen(
            lambda address: GkeService(
                self.world,
                self._calls,
                Api(
                    self.world,
                    ca_certificate=kube.ca_certificate if kube else "",
                    endpoint=kube.endpoint if kube else address,
                ),
            )
        )
        # Only with the port in hand: another simulator that has it owns the Nodes, too.
        if kube is not None:
            self._take_charge(kube, server)
        self._run()

    def _take_charge(self, kube: KubeNodes, server: Server) -> None:
        from rehearsal.simulators.gke.registrar import Registrar  # noqa: PLC0415

        registrar = Registrar(kube, self.world)
        try:
            registrar.start()
        except ClusterError:
            server.server_close()
            self._server = None
            kube.close()
            raise
        self._registrar = registrar
        self.world.attach(registrar)

    def stop(self) -> None:
        """Close the port and end all threads; Nodes stay where they are."""
        super().stop()
        if self._registrar is not None:
            self._registrar.stop()

    @property
    def pools(self) -> tuple[PoolView, ...]:
        """Pictures of all pools."""
        return self.world.views()

    def pool(self, name: str) -> PoolView | None:
        """Return the picture of the first pool of that name, or None."""
        return next((view for view in self.pools if view.name == name), None)

    def preempt(self, pool: str, *, hosts: int | None = None) -> tuple[str, ...]:
        """Take nodes from a pool; return their names."""
        return self.world.preempt(pool, hosts=hosts)

    def remove_policy(self, name: str) -> bool:
        """Take away workload policies that were made; False where there is none of that name."""
        return self.world.remove_policy(name)

    def set_pool_status(self, pool: str, status: PoolStatus, *, message: str = "") -> None:
        """Put a pool into a state."""
        self.world.set_status(pool, status, message=message)


def serve(settings: SimulatorSettings, *, kubeconfig: Path | None, host: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM; return 1 where the port or the cluster cannot be used."""
    try:
        return Simulator(settings, kubeconfig=kubeconfig, host=host, port=port).serve("GKE simulator", _use)
    except ClusterError as error:
        sys.stderr.write(f"GKE simulator: can't use the cluster of {kubeconfig}: {error}\n")
        return 1


def _use(url: str) -> str:
    return f"set GKE_ENDPOINT={url} for the provisioner, or CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER={url}/ for gcloud"
