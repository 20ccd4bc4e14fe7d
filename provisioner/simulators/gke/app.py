"""The simulator as a whole: for use in a process (`with Simulator() as gke: ...`) and as a command.

State lives in memory: after a restart there are no pools, and Node objects of an earlier life are removed from the
cluster of the kubeconfig.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from provisioner.runtime import signals
from provisioner.simulators.gke.api import Api
from provisioner.simulators.gke.calls import Call, CallLog
from provisioner.simulators.gke.errors import ClusterError
from provisioner.simulators.gke.faults import Fault
from provisioner.simulators.gke.model import World
from provisioner.simulators.gke.records import PoolStatus, PoolView
from provisioner.simulators.gke.server import Server
from provisioner.simulators.gke.settings import SimulatorSettings
from provisioner.simulators.gke.timeline import Clock, system_clock

if TYPE_CHECKING:
    from provisioner.simulators.gke.kube import KubeNodes
    from provisioner.simulators.gke.registrar import Registrar

_LONGEST_PAUSE_SECONDS = 1.0
_SHORTEST_PAUSE_SECONDS = 0.005


class Simulator:
    """A GKE on a local port; use it as a context, or call `start` and `stop`."""

    def __init__(
        self,
        settings: SimulatorSettings | None = None,
        *,
        kubeconfig: Path | str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._clock = clock or system_clock()
        self.world = World(settings or SimulatorSettings(), clock=self._clock, rng=rng)
        self._calls = CallLog(kept=self.world.settings.calls_kept)
        self._kubeconfig = Path(kubeconfig) if kubeconfig is not None else None
        self._address = (host, port)
        self._server: Server | None = None
        self._threads: list[threading.Thread] = []
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._registrar: Registrar | None = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://{self._running.address}"

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._running.server_port)

    @property
    def _running(self) -> Server:
        if self._server is None:
            raise RuntimeError("the simulator is not started: call start() or use it as a context")
        return self._server

    def start(self) -> None:
        """Open the port, and take charge of the cluster's simulated Nodes.

        Raises OSError where the port is taken, and ClusterError where the kubeconfig or its cluster can't be used.
        """
        self._stopping.clear()
        kube: KubeNodes | None = None
        if self._kubeconfig is not None:
            # Imported only where a cluster is given: the kubernetes package takes half a second.
            from provisioner.simulators.gke.kube import KubeNodes  # noqa: PLC0415

            kube = KubeNodes(self._kubeconfig)
        self._server = Server(
            self._address,
            make_api=lambda address: Api(
                self.world,
                ca_certificate=kube.ca_certificate if kube else "",
                endpoint=kube.endpoint if kube else address,
            ),
            world=self.world,
            calls=self._calls,
            clock=self._clock,
        )
        # Only with the port in hand: another simulator that has it owns the Nodes, too.
        if kube is not None:
            self._take_charge(kube, self._server)
        self.world.timeline.on_added = self._wake.set
        for name, target in (("http", self._server.listen), ("ticker", self._tick)):
            thread = threading.Thread(target=target, name=f"simulator-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _take_charge(self, kube: KubeNodes, server: Server) -> None:
        from provisioner.simulators.gke.registrar import Registrar  # noqa: PLC0415

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
        self._stopping.set()
        self._wake.set()
        if self._server is not None:
            self._server.stop()
        if self._registrar is not None:
            self._registrar.stop()
        for thread in self._threads:
            thread.join()

    def _tick(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            due = self.world.advance()
            pause = _LONGEST_PAUSE_SECONDS
            if due is not None:
                pause = min(pause, (due - self._clock()).total_seconds())
            self._wake.wait(max(pause, _SHORTEST_PAUSE_SECONDS))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def settings(self) -> SimulatorSettings:
        """The settings in force."""
        return self.world.settings

    def set(self, **changes: Any) -> SimulatorSettings:
        """Change settings while it runs."""
        return self.world.change_settings(changes)

    @property
    def pools(self) -> tuple[PoolView, ...]:
        """Pictures of all pools."""
        return self.world.views()

    def pool(self, name: str) -> PoolView | None:
        """Return the picture of the first pool of that name, or None."""
        return next((view for view in self.pools if view.name == name), None)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The API calls still remembered, oldest first."""
        return self._calls.all()

    def count(self, method: str) -> int:
        """Return how many calls of that method were answered, whatever the answer."""
        return sum(self._calls.counts().get(method, {}).values())

    def call_counts(self) -> dict[str, dict[str, int]]:
        """Return how many calls were answered, by method and HTTP status."""
        return self._calls.counts()

    def reset_calls(self) -> None:
        """Forget calls and counts."""
        self._calls.reset()

    def inject(self, fault: Fault) -> str:
        """Put a fault in force and return its id."""
        return self.world.faults.add(fault).fault_id

    def clear(self, fault_id: str | None = None) -> None:
        """Take back one fault, or all; what they held goes on."""
        if fault_id is None:
            self.world.faults.clear()
        else:
            self.world.faults.remove(fault_id)
        self.world.release()

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
    ended = threading.Event()
    signals.on_end(lambda _signal_name: ended.set())
    simulator = Simulator(settings, kubeconfig=kubeconfig, host=host, port=port)
    try:
        simulator.start()
    except ClusterError as error:
        sys.stderr.write(f"simulator: can't use the cluster of {kubeconfig}: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"simulator: can't listen on {host}:{port}: {error.strerror or error}\n")
        return 1
    url = simulator.url
    sys.stdout.write(
        f"GKE simulator on {url}: set GKE_ENDPOINT={url} for the provisioner, or "
        f"CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER={url}/ for gcloud; {url}/simulator/v1/state shows the state\n"
    )
    sys.stdout.flush()
    ended.wait()
    simulator.stop()
    return 0
