"""What people are shown, judged by what was decided and, once the world has settled, by the world itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from provisioner.slices.planning.plan import Plan
from provisioner.slices.view.build import build_view
from provisioner.slices.view.explain import explain
from provisioner.slices.view.types import State, View
from rehearsal.simulators.gke.records import PoolStatus
from tests.simulation.pools import is_ours
from tests.support.truths import untrue

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation

#: One of so many decisions is looked at: building a view takes as long as a decision.
_EVERY = 30


def view_of(process: Process) -> View | None:
    """Return what the last decision of a process shows; None where there was none."""
    published = process.board._published
    if published is None:
        return None
    return build_view(published.snapshot, published.plan, published.settings, published.at)


def false_of_decision(process: Process, plan: Plan) -> Iterator[str]:
    """Say what a process shows that is not what it decided, or not what it saw."""
    process.decisions += 1
    if process.decisions % _EVERY:
        return
    view, published = view_of(process), process.board._published
    if view is None or published is None:
        yield "nothing is shown"
        return
    yield from untrue(published.snapshot, plan, view)
    tracks = process.board.timeline.tracks()
    last = {each.pool: each.segments[-1] for each in tracks}
    for pool in view.pools:
        if last[pool.name].state is not pool.state or last[pool.name].until is not None:
            yield f"pool {pool.name} is {pool.state}, the timeline says {last[pool.name]}"
    # Names as people have them at hand: of what is shown, and of the pools that Events name before they exist.
    names = [*(each.id for each in view.slices), *(f"pool/{each.name}" for each in plan.pools)]
    explained = {name: explain(view, view.at, tracks, (), name) for name in names}
    for name, found in explained.items():
        if [each.id for each in found] != [name.removeprefix("pool/")]:
            yield f"asked for {name}, {[each.id for each in found]} are explained"
    process.stage.note_digest(process.name, "shows", view, explained)


def false_of_world(simulation: Simulation) -> Iterator[str]:
    """Say what the leader shows of a world that has settled that is not so."""
    for process in simulation.processes:
        view, published = view_of(process), process.board._published
        if view is None or published is None or not process.leads:
            continue
        shown = {each.name: each.state for each in view.pools}
        there = {each.name for each in simulation.cloud.pools.values() if is_ours(each)}
        # A create whose outcome is not known yet counts as a pool; some requests never get an answer.
        sent = {name for name in published.plan.memory.creates if shown.get(name) is State.CREATING}
        if shown.keys() - sent != there - sent:
            yield f"{process.name} shows pools {sorted(shown)}, there are {sorted(there)}"
        busy = {pod.pool for pod in simulation.cluster.pods if pod.node and not pod.finished}
        for pool in simulation.cloud.pools.values():
            used = pool.name in busy & shown.keys() and pool.status is PoolStatus.RUNNING
            if used and shown[pool.name] not in (State.RUNNING, State.DRAINING):
                yield f"{process.name} shows pool {pool.name} as {shown[pool.name]}, and pods are on it"
