"""Those who keep warm slices with CapacityBuffers, in some runs: they make, scale, limit and delete them.

Where a zone has few chips there are none: a buffer gives way to work that a limit keeps out, not to a stockout. Buffers
that follow a workload are not played.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.asks import BUFFER, BufferRun, raw_template, template_path
from tests.simulation.team import Team

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

_TEMPLATE_LATE_SECONDS = (0.0, 0.0, 20.0)


class BufferTeam(Team[BufferRun]):
    """Those who make CapacityBuffers."""

    title, presence, creates = "buffer team", 1.0, 0.2
    names = ("warm",)

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        market = simulation.market
        self.present = BUFFER in simulation.asks and not simulation.hostile.present and market.stock_chips is None

    def _runs(self) -> list[BufferRun]:
        return [each for each in self.simulation.cluster.workloads.values() if isinstance(each, BufferRun)]

    def _make(self, name: str) -> BufferRun:
        rng = self._rng
        shape = rng.choice([each for each in self.simulation.people.shapes if each.feasible])
        shape = replace(shape, parallelism=shape.hosts)
        template = f"{name}-main"
        put = functools.partial(self.stage.store.put, template_path(template), raw_template(template, shape))
        self.stage.agenda.after(rng.choice(_TEMPLATE_LATE_SECONDS), put)
        return BufferRun(
            name=name,
            uid=self.stage.store.new_uid("buffer"),
            shape=shape,
            replicas=rng.choice((1, 1, 2)),
            most_chips=shape.hosts * shape.chips * rng.choice((0, 1, 1)) + 1 if rng.random() < 0.2 else None,
            template=template,
            created=self.stage.agenda.now,
        )

    def _change(self, run: BufferRun) -> None:
        rng, cluster = self._rng, self.simulation.cluster
        match rng.choice(("delete", "again", "scale", "scale", "touch", "touch")):
            case "delete":
                cluster.remove(run)
            case "again":
                cluster.remove(run)
                self._create(run.name)
            case "scale":
                run.replicas = rng.choice((0, 1, 2))
                run.touch(self.stage.agenda.now)
                self.stage.note("user", "scales %s %s to %d", run.kind, run.name, run.replicas)
                cluster.write(run)
            case _:
                cluster.write(run)
