"""The simulated Compute Engine as a whole, for use in a process: `with ComputeSimulator() as compute: ...`."""

from __future__ import annotations

import random
from typing import Any

from provisioner.simulators.compute.model import World
from provisioner.simulators.compute.records import Loss, MachineView
from provisioner.simulators.compute.service import ComputeService
from provisioner.simulators.compute.settings import ComputeSettings
from provisioner.simulators.http.app import LocalSimulator
from provisioner.simulators.http.timeline import Clock, system_clock


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

    def start(self) -> None:
        """Open the port. Raises OSError where it is taken."""
        self._listen(lambda _address: ComputeService(self.world, self._calls))
        self._run()

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
