"""Tests of worlds with random events: the view is true, no limit is exceeded, and pools of running slices are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants, tpu
from provisioner.cli import gc, status
from provisioner.cli.explain import lines
from provisioner.model.capacity import Failure, FailureKind, NodePool, PoolName, PoolStatus, expected_pool
from provisioner.model.choices import parse_choices
from provisioner.model.workloads import Workload
from provisioner.runtime.clock import shifted
from provisioner.settings import Settings
from provisioner.slices import hints
from provisioner.slices.board import Board
from provisioner.slices.planning.memory.answers import DeleteAnswer, DeleteResult
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import Create, DeleteReason, Plan
from provisioner.slices.view.explain import explain
from provisioner.slices.view.types import View
from tests.support.board import make_board
from tests.support.models import make_jobset, make_lws, make_pod, make_requirements
from tests.support.settings import settings
from tests.support.truths import untrue
from tests.support.world import World, failure

#: Template of pods that request half of the chips of a host, so two pods share a host.
_V5E = make_requirements(accelerator="tpu-v5-lite-podslice", topology="2x2", chips=2, tolerations=())
_LARGE = make_requirements(topology="2x2x4", tolerations=())
_SETTINGS: tuple[Settings, ...] = (
    settings(),
    settings(max_chips=16, max_pools_per_jobset=1),
    settings(max_creates_per_hour=3),
    settings(max_chips=40, max_chips_per_namespace=(("default", 24), ("*", 8)), max_chips_per_accelerator=(("*", 20),)),
    settings(keep_suspended=True, ready_timeout_seconds=120.0),
    settings(replace_stuck_slices=True, partial_hold_seconds=120.0),
    settings(capacity=parse_choices("spot,on-demand"), deletion_delay_seconds=120.0),
)
_KINDS = (
    FailureKind.STOCKOUT,
    FailureKind.UNAVAILABLE,
    FailureKind.INVALID,
    FailureKind.PERMISSION,
    FailureKind.TOO_MANY_OPERATIONS,
    FailureKind.UNKNOWN_OUTCOME,
)


def workloads() -> list[Workload]:
    """Return JobSets and a LeaderWorkerSet: some have the same requirements, are all-or-nothing, or share hosts."""
    return [
        make_jobset("one"),
        make_jobset("two", replicas=2, namespace="other"),
        make_jobset("all", replicas=2, annotations={constants.ALL_OR_NOTHING: "true"}),
        make_jobset(
            "every", replicas=2, annotations={constants.ALL_OR_NOTHING: "true"}, template=_LARGE, parallelism=4
        ),
        make_jobset("small", replicas=2, parallelism=1, template=_V5E),
        make_lws("serve", uid="uid-of-lws", replicas=2),
    ]


class Trial:
    """One world, with a board that shows each decision."""

    def __init__(self, settings_: Settings) -> None:
        self.all = workloads()
        self.world = World(*self.all, settings_=settings_)
        self.looks = 0
        self.board: Board = make_board(lambda: self.world.now, lambda: float(self.looks))
        self.again = 0
        self.made_at: list[datetime] = []
        #: Whether the responses of GKE are held back.
        self.late = False
        self.unanswered: list[Any] = []
        #: Pools that GKE has created and does not list yet.
        self.unlisted: list[NodePool] = []

    def look(self, plan: Plan) -> None:
        world = self.world
        self.looks += 1
        snapshot = world.snapshot()
        self.board.publish(snapshot, plan, world.settings, world.now)
        document = replace(self.board.document(), leading=True)
        view = document.view
        assert view is not None
        assert view.at == world.now
        assert list(untrue(snapshot, plan, view)) == []
        self.explain_all(plan, view)
        shown = "\n".join(status.page(document))
        assert [pool.name for pool in view.pools if pool.name not in shown] == []
        assert [slice_.group for slice_ in view.slices if slice_.group not in shown] == []
        assert [pool.name for pool in view.pools if pool.name not in "\n".join(gc.page(document))] == []
        self.check_pools(plan)
        self.check_limits(plan)

    def users(self) -> dict[PoolName, set[str]]:
        """Return the namespaces of the unfinished pods on each pool, without pods that are being deleted."""
        found: dict[PoolName, set[str]] = {}
        for pod in self.world.pods.values():
            node = self.world.nodes.get(pod.node_name)
            if node is not None and not pod.finished and pod.deletion_deadline is None:
                found.setdefault(node.pool_name, set()).add(pod.namespace)
        return found

    def check_pools(self, plan: Plan) -> None:
        """Check that no pool with pods is deleted, except for a stuck slice, and that no slice has two pools."""
        used = self.users()
        gone = [
            delete.name
            for delete in plan.deletes
            if delete.name in used and delete.reason is not DeleteReason.SLICE_STUCK
        ]
        assert gone == []
        counted_on = [pool.slice_id for pool in plan.pools if pool.phase in (Phase.PROVISIONING, Phase.READY)]
        wanted = [*(create.slice_id for create in plan.creates), *filter(None, counted_on)]
        assert len(set(wanted)) == len(wanted)

    def check_limits(self, plan: Plan) -> None:
        """Check that no create exceeds a limit, counting all existing pools and all pending creates."""
        world, limits, used = self.world, self.world.settings, self.users()
        sent = {name: expected_pool(call.request) for name, call in world.memory.creates.items()}
        chips: Counter[str] = Counter()
        for pool in {**sent, **world.pools}.values():
            namespace = (
                pool.labels.get(constants.POOL_JOBSET_NAMESPACE) or pool.labels[constants.POOL_WORKLOAD_NAMESPACE]
            )
            accelerator, machine = _sold(pool.machine_type)
            amount = pool.hosts * machine.chips
            chips.update({"all": amount, accelerator.label: amount})
            # A pool with pods of another namespace is charged to that namespace, so its chips are left out here.
            chips[namespace] += amount if used.get(pool.name, {namespace}) == {namespace} else 0
        for create in plan.creates:
            namespace, label = create.workload.namespace, _sold(create.request.machine_type)[0].label
            for scope, most in (
                ("all", limits.max_chips),
                (namespace, _most(limits.max_chips_per_namespace, namespace)),
                (label, _most(limits.max_chips_per_accelerator, label)),
            ):
                assert most is None or chips[scope] <= most, (scope, chips[scope])
        hour = [at for at in self.made_at if at > world.now - timedelta(hours=1)]
        assert len(hour) <= (limits.max_creates_per_hour or len(hour))

    def explain_all(self, plan: Plan, view: View) -> None:
        def asked(name: str, namespace: str = "") -> list[str]:
            found = explain(view, view.at, self.board.timeline.tracks(), (), name, namespace)
            assert [explanation for explanation in found if not list(lines(explanation))] == []
            return [explanation.id for explanation in found]

        for pool in view.pools:
            assert asked(f"pool/{pool.name}") == [pool.name]
        for wanted in plan.pools:
            if wanted.phase.before_create:
                assert asked(wanted.name) == [wanted.name]
        for workload in view.workloads:
            assert asked(workload.id) == [workload.id]
            assert workload.id in asked(workload.name)
        for slice_ in view.slices:
            assert asked(slice_.id) == [slice_.id]
            assert slice_.id in asked(slice_.group)
            if slice_.leader:
                assert slice_.id in asked(f"pod/{slice_.leader}", slice_.id.split("/")[1])

    def step(self, seconds: float) -> None:
        world = self.world
        answers = world.answer
        told: list[Any] = []
        # Answers are held back, because the view must be checked before the answers change the memory.
        world.answer = told.append  # type: ignore[method-assign]
        there = set(world.pools)
        plan = world.step(seconds=0.0)
        world.answer = answers  # type: ignore[method-assign]
        made = world.pools.keys() - there
        self.made_at += [world.now] * len(made)
        self.look(plan)
        self.unanswered += told
        if self.late:
            self.unlisted += [world.pools.pop(name) for name in made]
        else:
            self.receive()
        world.pass_time(seconds)

    def receive(self) -> None:
        self.world.put(*self.unlisted)
        for answer in self.unanswered:
            self.world.answer(answer)
        self.unlisted.clear()
        self.unanswered.clear()

    def end(self) -> None:
        world = self.world
        _accept(self, 0)
        self.receive()
        world.workloads.clear()
        world.pods.clear()
        for name, pool in world.pools.items():
            if pool.status is not PoolStatus.STOPPING:
                world.put(replace(world.pools[name], status=PoolStatus.RUNNING))
        for _ in range(60):
            world.step(seconds=60.0)
            world.finish_creates()
            world.finish_deletes()
        assert world.pools == {}


def _sold(machine_type: str) -> tuple[tpu.Accelerator, tpu.MachineType]:
    found = tpu.machine_type(machine_type)
    assert found is not None
    return found


def _most(limits: tuple[tuple[str, int], ...], name: str) -> int | None:
    return dict(limits).get(name, dict(limits).get("*"))


def _refuse(trial: Trial, which: int) -> None:
    kind = _KINDS[which % len(_KINDS)]
    trial.world.refuse_create = lambda _: failure(kind, "GKE says no.")


def _lose(trial: Trial, _which: int) -> None:
    """Let creates take effect with an unknown outcome."""

    def refuse(create: Create) -> Failure:
        if create.request.name in trial.world.pools:
            return failure(FailureKind.ALREADY_EXISTS)
        trial.world.put(expected_pool(create.request))
        return failure(FailureKind.UNKNOWN_OUTCOME)

    trial.world.refuse_create = refuse


def _delay(trial: Trial, _which: int) -> None:
    trial.late = not trial.late


def _accept(trial: Trial, _which: int) -> None:
    trial.world.refuse_create, trial.world.refuse_delete = lambda _: None, lambda _: None


def _keep(trial: Trial, _which: int) -> None:
    trial.world.refuse_delete = lambda _: failure(FailureKind.UNAVAILABLE, "unfinished pods are on it: a/b on c")


def _on_pool(change: Callable[[World, Any], None]) -> Callable[[Trial, int], None]:
    def happen(trial: Trial, which: int) -> None:
        names = sorted(trial.world.pools)
        if names:
            change(trial.world, names[which % len(names)])

    return happen


def _set_status(status_: PoolStatus) -> Callable[[Trial, int], None]:
    return _on_pool(lambda world, name: world.put(replace(world.pools[name], status=status_, failure=None)))


def _unready(world: World, name: Any) -> None:
    for node in sorted(node.name for node in world.nodes.values() if node.pool_name == name)[:1]:
        world.put(replace(world.nodes[node], ready=not world.nodes[node].ready))


def _guest(world: World, name: Any) -> None:
    gone = make_jobset("gone")
    for node in sorted(node.name for node in world.nodes.values() if node.pool_name == name):
        world.put(make_pod(gone, job=len(world.pods), node=node))


def _needed(world: World, name: Any) -> None:
    """Let the gate find that the workload of a pool lives."""
    if name in world.memory.deletes:
        reason = "JobSet default/one lives"
        world.answer(DeleteAnswer(name=name, at=world.now, result=DeleteResult.NEEDED, reason=reason))


def _on_workload(change: Callable[[Trial, Workload], None]) -> Callable[[Trial, int], None]:
    def happen(trial: Trial, which: int) -> None:
        workload = trial.world.workloads.get(trial.all[which % len(trial.all)].uid)
        if workload is not None:
            change(trial, workload)

    return happen


def _suspend(trial: Trial, workload: Workload) -> None:
    trial.world.workloads[workload.uid] = replace(workload, suspended=not workload.suspended)
    if not workload.suspended:
        trial.world.end_pods(workload)
    else:
        trial.world.start_pods(workload)


def _elsewhere(trial: Trial, workload: Workload) -> None:
    trial.world.put(make_pod(workload, node="their-node"))


def _missing(trial: Trial, workload: Workload) -> None:
    trial.world.put(make_pod(workload, index=1, unschedulable=True, unschedulable_since=trial.world.now))


def _ending(trial: Trial, workload: Workload) -> None:
    world = trial.world
    for pod in [
        candidate
        for candidate in world.pods.values()
        if candidate.workload_name == workload.name and candidate.node_name
    ]:
        world.put(replace(pod, deletion_deadline=world.now + timedelta(seconds=30)))


def _again(trial: Trial, workload: Workload) -> None:
    trial.again += 1
    trial.world.remove_jobset(workload)
    anew = replace(workload, uid=type(workload.uid)(f"again-{trial.again}"), suspended=False, terminal_state="")
    trial.all[[other.name for other in trial.all].index(workload.name)] = anew
    trial.world.add(anew)


def _restart(trial: Trial, _which: int) -> None:
    """Restart the process: the answers to its calls are lost."""
    world = trial.world
    trial.unanswered.clear()
    trial.receive()
    world.memory, world.last_round = hints.from_text(hints.to_text(world.memory)), None


def _set_clock(trial: Trial, which: int) -> None:
    by = timedelta(hours=2) * (1 if which % 2 else -1)
    trial.world.now += by
    trial.world.memory = shifted(trial.world.memory, by)
    trial.board.timeline.shift(by)
    trial.made_at = [at + by for at in trial.made_at]


def _change_settings(trial: Trial, which: int) -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"pause_creation": True},
        {"pause_creation": False},
        {"max_chips": 8},
        {"max_chips": None},
        {"namespaces": ("other",)},
        {"namespaces": ()},
    )
    trial.world.settings = replace(trial.world.settings, **changes[which % len(changes)])


def _limit_operations(trial: Trial, which: int) -> None:
    memory = trial.world.memory
    trial.world.memory = replace(memory, operations=replace(memory.operations, limit=1 + which % 3))


def _vanish(trial: Trial, _which: int) -> None:
    trial.world.workloads.clear()
    trial.world.pods.clear()


_EVENTS: dict[str, Callable[[Trial, int], None]] = {
    "a second": lambda trial, _: trial.step(1.0),
    "half a minute": lambda trial, _: trial.step(30.0),
    "a while": lambda trial, _: trial.step(700.0),
    "pools come up": lambda trial, _: trial.world.finish_creates(),
    "pools are gone": lambda trial, _: trial.world.finish_deletes(),
    "pods are bound": lambda trial, _: trial.world.schedule(),
    "creates are refused": _refuse,
    "answers to creates are lost": _lose,
    "answers are late, or come again": _delay,
    "all is accepted": _accept,
    "deletes are held up": _keep,
    "somebody deletes a pool": _set_status(PoolStatus.STOPPING),
    "a pool fails": _set_status(PoolStatus.ERROR),
    "a pool has another status": _set_status(PoolStatus.UNKNOWN),
    "a pool is repaired": _set_status(PoolStatus.RECONCILING),
    "a pool is up without nodes": _set_status(PoolStatus.RUNNING),
    "a pool vanishes": _on_pool(lambda world, name: world.remove_pool(name)),
    "a node changes": _on_pool(_unready),
    "guests come": _on_pool(_guest),
    "the gate finds a workload": _on_pool(_needed),
    "a workload ends": _on_workload(lambda trial, workload: trial.world.finish(workload)),
    "a workload is deleted": _on_workload(lambda trial, workload: trial.world.remove_jobset(workload)),
    "a workload is made again": _on_workload(_again),
    "a workload is suspended or resumed": _on_workload(_suspend),
    "pods restart": _on_workload(
        lambda trial, workload: (trial.world.end_pods(workload), trial.world.start_pods(workload))[0]
    ),
    "pods end": _on_workload(lambda trial, workload: trial.world.end_pods(workload)),
    "pods are being deleted": _on_workload(_ending),
    "a leader is bound elsewhere": _on_workload(_elsewhere),
    "a follower cannot be placed": _on_workload(_missing),
    "all vanish": _vanish,
    "the process restarts": _restart,
    "the clock is set": _set_clock,
    "the settings change": _change_settings,
    "operations are limited": _limit_operations,
}
_STEPS = ("a second", "half a minute", "a while")
_HISTORIES = st.lists(st.tuples(st.sampled_from([*_EVENTS, *4 * _STEPS]), st.integers(0, 11)), max_size=40)


@pytest.mark.timeout(120)
@given(st.sampled_from(range(len(_SETTINGS))), st.booleans(), _HISTORIES)
def test_view_is_true_and_decisions_are_safe_after_random_events(
    which: int, late: bool, events: list[tuple[str, int]]
) -> None:
    trial = Trial(_SETTINGS[which])
    trial.late = late
    trial.step(1.0)
    for event, number in events:
        _EVENTS[event](trial, number)
    for _ in range(3):
        trial.world.finish_creates()
        trial.world.schedule()
        trial.step(30.0)
    trial.end()
