"""The simulated Compute Engine as a whole, for use in a process: `with ComputeSimulator() as compute: ...`."""

from __future__ import annotations

import random
import sys
import threading
from typing import TYPE_CHECKING, Any

from provisioner.runtime import signals
from provisioner.simulators.compute.model import World
from provisioner.simulators.compute.records import Loss, MachineView
from provisioner.simulators.compute.service import ComputeService
from provisioner.simulators.compute.settings import ComputeSettings
from provisioner.simulators.http.app import LocalSimulator
from provisioner.simulators.http.timeline import Clock, system_clock

if TYPE_CHECKING:
    from provisioner.simulators.compute.guests.crew import Crew


class ComputeSimulator(LocalSimulator[World]):
    """A Compute Engine on a local port; use it as a context, or call `start` and `stop`."""

    def __init__(
        self,
        settings: ComputeSettings | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        clock = clock or system_clock()
        world = World(settings or ComputeSettings(), clock=clock, rng=rng)
        super().__init__(world, clock=clock, address=(host, port))
        self._crew: Crew | None = None

    def start(self) -> None:
        """Open the port, and let VMs join where the settings say so. Raises OSError where the port is taken."""
        self._listen(lambda _address: ComputeService(self.world, self._calls))
        if self.settings.machines_join:
            # Imported only where they do: certificates take a tenth of a second.
            from provisioner.simulators.compute.guests.crew import Crew  # noqa: PLC0415

            self._crew = Crew(settings=lambda: self.settings, faults=self.world.faults, clock=self._clock)
            self.world.attach(self._crew)
            self._crew.start()
        self._run()

    def stop(self) -> None:
        """Close the port and end all threads; Nodes of VMs stay where they are."""
        super().stop()
        if self._crew is not None:
            self._crew.stop()

    @property
    def settings(self) -> ComputeSettings:
        """The settings in force."""
        return self.world.settings

    def set(self, **changes: Any) -> ComputeSettings:
        """Change settings while it runs."""
        return self.world.change_settings(changes)

    @property
    def machines(self) -> tuple[MachineView, ...]:
        """Pictures of all VMs."""
        return self.world.machines()

    def lose(self, name: str, loss: Loss) -> bool:
        """Take away VMs of that name; False where there is none that could go."""
        return self.world.lose(name, loss)


def serve(settings: ComputeSettings, *, host: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM; return 1 where the port cannot be used."""
    ended = threading.Event()
    signals.on_end(lambda _signal_name: ended.set())
    simulator = ComputeSimulator(settings, host=host, port=port)
    try:
        simulator.start()
    except OSError as error:
        sys.stderr.write(f"simulator-gce: can't listen on {host}:{port}: {error.strerror or error}\n")
        return 1
    url = simulator.url
    sys.stdout.write(
        f"Compute Engine simulator on {url}: set GCE_ENDPOINT={url} for the controller of node groups; "
        f"{url}/simulator/v1/state shows the state\n"
    )
    sys.stdout.flush()
    ended.wait()
    simulator.stop()
    return 0
