"""The simulated V-IPU server as a whole, for use in a process: `with VipuSimulator() as vipu: ...`."""

from __future__ import annotations

import random

from rehearsal.simulators.http.app import LocalSimulator
from rehearsal.simulators.http.timeline import Clock, system_clock
from rehearsal.simulators.vipu.model import World
from rehearsal.simulators.vipu.records import PartitionView
from rehearsal.simulators.vipu.service import VipuService
from rehearsal.simulators.vipu.settings import VipuSettings


class VipuSimulator(LocalSimulator[World, VipuSettings]):
    """A V-IPU server on a local port; use it as a context, or call `start` and `stop`. Several are several servers."""

    def __init__(
        self,
        settings: VipuSettings | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        clock = clock or system_clock()
        world = World(settings or VipuSettings(), clock=clock, rng=rng)
        super().__init__(world, clock=clock, address=(host, port))

    def start(self) -> None:
        """Open the port. Raises OSError where it is taken."""
        self._listen(lambda address: VipuService(self.world, self._calls, address))
        self._run()

    @property
    def host(self) -> str:
        """The address that it listens on, without the port."""
        return self._address[0]

    @property
    def partitions(self) -> tuple[PartitionView, ...]:
        """All partitions, as they are."""
        return self.world.all_partitions()
