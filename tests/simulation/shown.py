"""What people are shown, judged by what was decided and, once the world has settled, by the world itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from provisioner.simulators.gke.records import PoolStatus
from provisioner.slices.planning.plan import Plan
from provisioner.slices.view import State, View, build_view
from tests.simulation.pools import is_ours

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
    """Say what a process shows that is not what it decided."""
    process.decisions += 1
    if process.decisions % _EVERY:
        return
    view = view_of(process)
    if view is None:
        yield "nothing is shown"
        return
    created = {each.name: each for each in plan.pools if not each.phase.before_create}
    shown = {each.name: each for each in view.pools}
    if shown.keys() != created.keys():
        yield f"shown are pools {sorted(shown)}, there are {sorted(created)}"
    for name, pool in shown.items():
        nodes = created[name].nodes
        if len(pool.hosts) < nodes or pool.hosts.count("r") + pool.hosts.count("R") != created[name].ready_nodes:
            yield f"pool {name} has {created[name].ready_nodes} of {nodes} hosts, shown as {pool.hosts!r}"
        if not pool.reason:
            yield f"pool {name} is {pool.state}, and nothing says why"
    wanting = {each.slice_id for each in plan.pools if each.phase.before_create}
    waiting = [each for each in view.slices if each.state is State.WAITING]
    if len(waiting) != len(wanting):
        yield f"{len(wanting)} slices want pools, shown are {[each.id for each in waiting]}"
    for each in view.slices:
        if not each.reason:
            yield f"slice {each.id} is {each.state}, and nothing says why"
        if each.pool and each.pool not in shown:
            yield f"slice {each.id} is shown on pool {each.pool}, which is not"
    if len({each.id for each in view.slices}) != len(view.slices):
        yield f"ids are not unique: {sorted(each.id for each in view.slices)}"
    last = {each.pool: each.segments[-1] for each in process.board.timeline.tracks()}
    for name, pool in shown.items():
        if last[name].state is not pool.state or last[name].until is not None:
            yield f"pool {name} is {pool.state}, the timeline says {last[name].state} until {last[name].until}"


def false_of_world(simulation: Simulation) -> Iterator[str]:
    """Say what the leader shows of a world that has settled that is not so."""
    for process in simulation.processes:
        view = view_of(process)
        if view is None or not process.leads:
            continue
        shown = {each.name: each.state for each in view.pools}
        there = {each.name for each in simulation.cloud.pools.values() if is_ours(each)}
        if shown.keys() != there:
            yield f"{process.name} shows pools {sorted(shown)}, there are {sorted(there)}"
        busy = {pod.pool for pod in simulation.cluster.pods if pod.node and not pod.finished}
        for pool in simulation.cloud.pools.values():
            used = pool.name in busy & shown.keys() and pool.status is PoolStatus.RUNNING
            if used and shown[pool.name] not in (State.RUNNING, State.DRAINING):
                yield f"{process.name} shows pool {pool.name} as {shown[pool.name]}, and pods are on it"
