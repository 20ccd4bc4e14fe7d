"""Compares the status page with decisions and, once the world has settled, with the simulated world."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from provisioner.slices.planning.plan import Plan
from provisioner.slices.view.build import build_view
from provisioner.slices.view.explain import explain
from provisioner.slices.view.types import State, View
from rehearsal.simulators.gke.records import PoolStatus
from tests.simulation.objects import PodRun, WorkloadRun
from tests.simulation.pools import is_ours
from tests.support.truths import untrue

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation

#: One in this number of decisions is checked, because building a view takes as long as a decision.
_EVERY = 30


def view_of(process: Process) -> View | None:
    """Return the view of the last decision of a process; None if it has not decided yet."""
    published = process.board._published
    if published is None:
        return None
    return build_view(published.snapshot, published.plan, published.settings, published.at)


def false_of_decision(process: Process, plan: Plan) -> Iterator[str]:
    """Yield differences between the view of a process and its decision or snapshot, at each `_EVERY`th decision."""
    process.decisions += 1
    if process.decisions % _EVERY:
        return
    view, published = view_of(process), process.board._published
    if view is None or published is None:
        yield "nothing is shown"
        return
    yield from untrue(published.snapshot, plan, view)
    tracks = process.board.timeline.tracks()
    last = {track.pool: track.segments[-1] for track in tracks}
    for pool in view.pools:
        if last[pool.name].state is not pool.state or last[pool.name].until is not None:
            yield f"pool {pool.name} is {pool.state}, the timeline says {last[pool.name]}"
    # Users may ask for ids of shown slices, and for names of pools that Events report before the pools exist.
    names = [*(slice_.id for slice_ in view.slices), *(f"pool/{pool.name}" for pool in plan.pools)]
    explained = {name: explain(view, view.at, tracks, (), name) for name in names}
    for name, found in explained.items():
        if [explanation.id for explanation in found] != [name.removeprefix("pool/")]:
            yield f"asked for {name}, {[explanation.id for explanation in found]} are explained"
    process.stage.note_digest(process.name, "shows", view, explained)


def _is_unseen(simulation: Simulation, pod: PodRun) -> bool:
    return pod.workload is None and simulation.checker.shared.class_of(pod) is None


def false_of_world(simulation: Simulation) -> Iterator[str]:
    """Yield differences between the leader's view and a world that has settled."""
    for process in simulation.processes:
        view, published = view_of(process), process.board._published
        if view is None or published is None or not process.leads:
            continue
        shown = {pool.name: pool.state for pool in view.pools}
        there = {pool.name for pool in simulation.cloud.pools.values() if is_ours(pool)}
        # Pools in creation are left out: the page shows them even if the outcome of the create is unknown.
        sent = {name for name in published.plan.memory.creates if shown.get(name) is State.CREATING}
        if shown.keys() - sent != there - sent:
            yield f"{process.name} shows pools {sorted(shown)}, there are {sorted(there)}"
        # A pool may also be SPLIT: each pod that a deleted multi-host Job has left behind is a slice.
        alone = (State.SPLIT,) if simulation.pods.serves else ()
        # Pods that SERVE_PODS excludes are left out: a process does not watch them, and sees them only before deletes.
        seen = (pod for pod in simulation.cluster.pods if not (simulation.pods.present and _is_unseen(simulation, pod)))
        using = [pod for pod in seen if pod.node and not (pod.finished or pod.is_guest)]
        busy = {pod.pool for pod in using}
        # Without placement, bare pods can take nodes of a slice, so that the slice's pods are bound to two pools.
        pools_of: defaultdict[tuple[WorkloadRun | None, int], set[str]] = defaultdict(set)
        for pod in using:
            pools_of[pod.workload, pod.job].add(pod.pool)
        split = {pod.pool for pod in using if len(pools_of[pod.workload, pod.job]) > 1}
        for pool in simulation.cloud.pools.values():
            used = pool.name in busy & shown.keys() and pool.status is PoolStatus.RUNNING
            allowed = (State.RUNNING, State.DRAINING, *((State.SPLIT,) if pool.name in split else alone))
            if used and shown[pool.name] not in allowed:
                yield f"{process.name} shows pool {pool.name} as {shown[pool.name]}, and pods are on it"
