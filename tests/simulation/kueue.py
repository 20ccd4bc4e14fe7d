"""Kueue, in some runs: JobSets that start when the ProvisioningRequest for all their slices is served.

After a request that fails, or that expires before its JobSet is resumed, another request with a new name follows. A
revoked request suspends its JobSet until a user activates the JobSet again. A preempted JobSet gets a new request. A
request that its JobSet no longer uses is deleted within 400 s. Pods are not pinned to the pools that a request names,
and no quota is counted.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from provisioner import constants
from provisioner.workloads import JOBSET, KINDS
from tests.simulation.asks import REQUEST, TEMPLATES, QueuedRun, RequestRun, helper_of, raw_template, template_path
from tests.simulation.objects import NAMESPACE, Shape
from tests.simulation.store import Change
from tests.simulation.team import Team

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

#: Share of JobSets whose request can never be served.
_IMPOSSIBLE = 0.1
_SEES_AFTER_SECONDS = (0.05, 3.0)
_ASKS_AGAIN_SECONDS = (5.0, 60.0)
_TEMPLATE_LATE_SECONDS = (0.0, 0.0, 0.5, 20.0)
_LEFT_BEHIND_SECONDS = (0.0, 0.0, 30.0, 400.0)
#: Share of requests served during the storm that lose a node to a foreign pod before the pods of the JobSet come.
_TAKEN = 0.2
#: Number of failures after which Kueue gives up a JobSet: the first if its request is impossible, otherwise either one.
_MAX_FAILURES = (3, 100)


class Kueue(Team[QueuedRun]):
    """Kueue's controller, and the users whose JobSets it suspends."""

    run_type = QueuedRun
    title, presence, creates = "kueue", 1.0, 0.3
    names = ("queue",)
    late_kind = REQUEST

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        # Unlike most teams, Kueue may be present with scarce capacity, because its JobSets then all end.
        self.present = REQUEST in simulation.asks and not simulation.hostile.present

    def begin(self) -> None:
        if self.present:
            self.stage.store.listen(KINDS[REQUEST].resource, self._see)
            self.stage.store.listen(JOBSET.resource, self._see)
        super().begin()

    def runs(self) -> list[QueuedRun]:
        return [workload for workload in self.simulation.cluster.workloads.values() if isinstance(workload, QueuedRun)]

    def _make(self, name: str) -> QueuedRun:
        rng, market = self._rng, self.simulation.market
        shape, replicas = rng.choice(self._shapes), rng.choice((1, 1, 2, 3))
        if rng.random() < _IMPOSSIBLE:
            # The topology does not exist, or the pods do not fill whole slices.
            if shape.hosts == 1 or rng.random() < 0.5:
                shape = replace(shape, topology="3x3x3", feasible=False)
            else:
                shape, replicas = replace(shape, parallelism=shape.hosts + 1, feasible=False), 1
        run = QueuedRun(
            name=name,
            exclusive=self.simulation.admission.exclusive(NAMESPACE),
            priority=self.simulation.admission.priority(),
            uid=self.stage.store.new_uid("queued"),
            shape=shape,
            replicas=replicas,
            run_seconds=rng.uniform(5.0, 90.0),
            fate=rng.choices(("complete", "fail", "forever"), weights=(6, 1, 0 if market.scarce else 3))[0],
            restarts_left=rng.choice((0, 2, 3)),
            ordered=rng.random() < 0.2,
            created=self.stage.agenda.now,
            labels_uid=self.simulation.labels_uid,
            suspended=True,
            max_failures=rng.choice(_MAX_FAILURES) if shape.feasible else _MAX_FAILURES[0],
        )
        self.stage.agenda.after(rng.uniform(*_SEES_AFTER_SECONDS), lambda: self._ask(run))
        return run

    def _change(self, run: QueuedRun) -> None:
        match self._rng.choice(("delete", "preempt", "preempt", "touch", "touch", "activate", "templates", "lag")):
            case "delete":
                self.simulation.cluster.delete(run)
                self._drop(run)
            case "preempt" if run.active and not run.terminal:
                self._preempt(run)
            case "touch" if run.request is not None and not run.request.gone:
                # The write changes the version, so that a status write with the last version gets a conflict.
                self.simulation.cluster.write(run.request)
            case "activate" if not run.active and not run.terminal:
                run.active, run.failures = True, 0
                self._ask_later(run)
            case "templates":
                self._forbid_templates()
            case "lag":
                self._silence_templates()
            case _:
                pass

    def _preempt(self, run: QueuedRun) -> None:
        self.stage.fault("preemption by Kueue", run.name)
        if not run.suspended:
            self.simulation.cluster.suspend(run, suspended=True)
        self._drop(run)
        self._ask_later(run)

    def _forbid_templates(self) -> None:
        """Reject lists and new watches of PodTemplates for 5 to 200 s."""
        self.stage.fault("templates refused", "to whoever lists them")
        refused = self._rng.choice((self.stage.store.absent, self.stage.store.forbidden))
        refused.add(TEMPLATES)
        for process in self.simulation.processes:
            for feed in process.feeds:
                if feed.resource == TEMPLATES:
                    feed.lose_server()
        self.stage.agenda.after(self._rng.uniform(5.0, 200.0), lambda: refused.discard(TEMPLATES))

    def _silence_templates(self) -> None:
        """Delay events of PodTemplates, so that they may arrive after the events of requests."""
        for process in self.simulation.processes:
            for feed in process.feeds:
                if feed.resource == TEMPLATES:
                    self.stage.fault("templates late", process.name)
                    feed.fall_silent(self._rng.uniform(2.0, 60.0))

    def _ask(self, run: QueuedRun) -> None:
        """Create the request for a JobSet and its templates, in any order."""
        if run.gone or run.deleting or run.terminal or not run.active or run.request is not None or not run.suspended:
            return
        rng = self._rng
        run.asked_times += 1
        name = f"{run.name}-{run.uid}-{run.asked_times}"
        sets = [run.replicas] if run.replicas == 1 or rng.random() < 0.7 else [1, run.replicas - 1]
        if rng.random() < 0.3:
            sets.insert(rng.randint(0, len(sets)), 0)
        run.request = request = RequestRun(
            name=name,
            uid=self.stage.store.new_uid("request"),
            shape=run.shape,
            replicas=run.replicas,
            sets=tuple(sets),
            template=f"{name}-main",
            created=self.stage.agenda.now,
        )
        for template, shape in ((request.template, run.shape), (helper_of(request.template), None)):
            put = functools.partial(self._put_template, request, template, shape)
            self.stage.agenda.after(rng.choice(_TEMPLATE_LATE_SECONDS), put)
        self.simulation.cluster.create(request)

    def _put_template(self, request: RequestRun, name: str, shape: Shape | None) -> None:
        if not request.gone:
            self.stage.store.put(template_path(name), raw_template(name, shape))

    def _ask_later(self, run: QueuedRun) -> None:
        self.stage.agenda.after(self._rng.uniform(*_ASKS_AGAIN_SECONDS), lambda: self._ask(run))

    def _drop(self, run: QueuedRun) -> None:
        """Delete the request of a JobSet and its templates, now or up to 400 s later."""
        request, run.request = run.request, None
        if request is None:
            return

        def remove() -> None:
            if not request.gone:
                self.simulation.cluster.remove(request)
                for name in (request.template, helper_of(request.template)):
                    self.stage.store.remove(template_path(name))

        self.stage.agenda.after(self._rng.choice(_LEFT_BEHIND_SECONDS), remove)

    def _see(self, change: Change) -> None:
        found = self.simulation.cluster.workloads.get(change.path)
        run = next((queued for queued in self.runs() if found is not None and found in (queued, queued.request)), None)
        if run is not None and run.request is not None:
            request = run.request
            self.stage.agenda.after(self._rng.uniform(*_SEES_AFTER_SECONDS), lambda: self._look(run, request))

    def _look(self, run: QueuedRun, request: RequestRun) -> None:
        if run.request is not request or run.gone or run.deleting:
            return
        if run.terminal:
            self._drop(run)
        elif request.is_true(constants.FAILED) or (run.suspended and request.is_true(constants.BOOKING_EXPIRED)):
            self._drop(run)
            run.failures += 1
            if run.failures >= run.max_failures:
                self._deactivate(run, "it was tried often enough")
            else:
                self._ask_later(run)
        elif request.is_true(constants.CAPACITY_REVOKED):
            self._drop(run)
            self._deactivate(run, "its capacity was revoked")
        elif run.suspended and request.is_true(constants.PROVISIONED):
            run.failures = 0
            run.consumes = request.name
            if self._rng.random() < _TAKEN and self.stage.stormy:
                self._take(self._rng.choice(list(request.last_pool.values())))
            self.simulation.cluster.suspend(run, suspended=False)

    def _take(self, pool: str) -> None:
        """Bind a foreign pod to a pool before the pods for which the pool is kept."""
        cluster = self.simulation.cluster
        nodes = [node.name for node in cluster.nodes.values() if node.pool_name == pool]
        if nodes:
            self.stage.fault("pool of a request taken", pool)
            shape = self._rng.choice(self._shapes)
            cluster.add_foreign(shape, lasting_seconds=self._rng.uniform(10.0, 200.0), node=self._rng.choice(nodes))

    def _deactivate(self, run: QueuedRun, why: str) -> None:
        run.active = False
        self.stage.note("kueue", "deactivates %s: %s", run.name, why)
        if not run.suspended:
            self.simulation.cluster.suspend(run, suspended=True)
