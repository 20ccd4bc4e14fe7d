"""The simulated Compute Engine as a whole, for use in a process: `with ComputeSimulator() as compute: ...`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from rehearsal.simulators.compute.model import World
from rehearsal.simulators.compute.records import Loss, MachineView
from rehearsal.simulators.compute.service import ComputeService
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http.app import LocalSimulator
from rehearsal.simulators.http.timeline import Clock

if TYPE_CHECKING:
    from rehearsal.simulators.compute.guests.crew import Crew


class ComputeSimulator(LocalSimulator[World, ComputeSettings]):
    """A Compute Engine on a local port; use it as a context, or call `start` and `stop`."""

    _crew: Crew | None = None

    def _make_world(self, settings: ComputeSettings | None, clock: Clock, rng: random.Random | None) -> World:
        return World(settings or ComputeSettings(), clock=clock, rng=rng)

    def start(self) -> None:
        """Open the port, and let VMs join where the settings say so. Raises OSError where the port is taken."""
        self._listen(lambda _address: ComputeService(self.world, self._calls))
        if self.settings.machines_join:
            # Imported only where they do: certificates take a tenth of a second.
            from rehearsal.simulators.compute.guests.crew import Crew  # noqa: PLC0415

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
    def machines(self) -> tuple[MachineView, ...]:
        """Pictures of all VMs."""
        return self.world.machines()

    def lose(self, name: str, loss: Loss) -> bool:
        """Take away VMs of that name; False where there is none that could go."""
        return self.world.lose(name, loss)


def serve(settings: ComputeSettings, *, host: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM; return 1 where the port cannot be used."""
    simulator = ComputeSimulator(settings, host=host, port=port)
    return simulator.serve(
        "Compute Engine simulator", lambda url: f"set GCE_ENDPOINT={url} for the controller of node groups"
    )
