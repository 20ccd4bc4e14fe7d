"""Runs the rounds of the controller: observe, decide, act, report."""

import functools
from dataclasses import dataclass, field, replace
from datetime import timedelta

from provisioner import constants
from provisioner.controller.loop import LONGEST_PAUSE_SECONDS, RoundLoop
from provisioner.kube.errors import ClusterError
from provisioner.kube.machineconfigs import Listed, extend_catalogue
from provisioner.model.sources import HINTS
from provisioner.model.workloads import Workloads
from provisioner.settings import Settings
from provisioner.slices import hints
from provisioner.slices.act import Actor
from provisioner.slices.board import Board
from provisioner.slices.demand.slices import all_slices, find_by_workload
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.metrics import Metrics
from provisioner.slices.observe import REQUIRED, PoolList, Watches, not_synced, read_sources, take_snapshot, unknown_in
from provisioner.slices.planning.memory import answers
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.pipeline import decide
from provisioner.slices.planning.plan import Plan, notice
from provisioner.slices.planning.round import Round, Snapshot, policy_of
from provisioner.slices.report import Reporter
from provisioner.slices.suppliers.gke.identity_check import ClusterProof

#: Maximum age in seconds of the list of node pools for a create. A delete needs a list that the same round has read.
_CREATE_LIST_AGE_SECONDS = 5.0
#: Minimum seconds between writes of the hints, except the last write. Maximum seconds before a failed read is retried.
_HINTS_GAP_SECONDS = 2.0
#: Time in seconds without a decision after which the owners of waiting slices are notified.
_STALLED_SECONDS = 60.0
#: Minimum interval in seconds between two notifications that no decision is possible.
_STALLED_GAP_SECONDS = 30.0
#: Minimum interval in seconds between changes of the catalogue of machine types, which cause new lists of pods.
_CATALOGUE_GAP_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class Loop(RoundLoop[answers.Answer]):
    """Loop that serves slices. Only its thread runs rounds and uses `memory`; any thread may call `problems`."""

    settings: Settings
    watches: Watches
    pools: PoolList
    #: Proof that GKE and Kubernetes are one cluster; None if node pools are objects of the Kubernetes API server.
    identity: ClusterProof | None
    actor: Actor
    reporter: Reporter
    metrics: Metrics
    board: Board
    store: hints.HintsStore
    memory: Memory = field(default_factory=Memory)
    last_plan: Plan | None = None
    #: Hints that were last loaded or saved; None before they were loaded.
    _hints: dict[str, str] | None = None
    _hints_saved_monotonic: float = float("-inf")
    _problems: tuple[str, ...] = ()
    #: Monotonic time since which rounds have made no decision; None after a decision, and while not leading.
    _stalled_since: float | None = None
    _notified_stalled: float | None = None
    #: Last round, whose slices and pools the next one reuses; None at first, and after a change of the catalogue.
    _last_round: Round | None = None
    _machine_configs: Listed = field(default_factory=dict)
    _extended_monotonic: float = float("-inf")

    def run(self) -> None:
        """Run rounds until `stopping` is set, then save the hints if this process leads."""
        RoundLoop.run(self)
        if self.is_leader():
            # If this process no longer leads, another process may have saved newer hints.
            self._save_hints(force=True)

    def problems(self) -> tuple[str, ...]:
        """Return the known reasons why no decision is possible, except a missing Lease."""
        return (*not_synced(self.watches), *self._problems)

    def round(self) -> float:
        """Do one round; return the maximum pause in seconds before the next one."""
        watches = self.watches.named()
        leading = self.begin(watches, optional=watches.keys() - REQUIRED)
        unknown = unknown_in(read_sources(self.watches))
        if leading:
            unknown |= self.pools.supplier.unknown_sources() | ({HINTS} if self._hints is None else set())
        self.metrics.set_unknown_sources(unknown)
        if not leading:
            self._problems = ()
            self._stalled_since = None
            self.board.leading = False
            return LONGEST_PAUSE_SECONDS
        if wait_seconds := self._prepare():
            self.board.leading = True
            self._tell_stalled(take_snapshot(self.watches, self.pools))
            return min(LONGEST_PAUSE_SECONDS, wait_seconds)
        plan, snapshot = self._decide()
        plan = self.last_plan = replace(plan, alerts=(*plan.alerts, *self.actor.alerts()))
        self.report(lambda: self.board.publish(snapshot, plan, self._adapted(), self.clock()))
        self.carry_out(plan, snapshot)
        if snapshot.not_synced:
            self._tell_stalled(snapshot)
        else:
            self._stalled_since = None
            self._save_hints()
        return self.pause_seconds(plan.wake_at, due_in_seconds=self._due_in_seconds())

    def _tell_stalled(self, snapshot: Snapshot) -> None:
        now = self.monotonic()
        if self._stalled_since is None:
            self._stalled_since = now
        due = self._notified_stalled is None or now - self._notified_stalled >= _STALLED_GAP_SECONDS
        if now - self._stalled_since < _STALLED_SECONDS or not due or not_synced(self.watches):
            return
        self._notified_stalled = now
        message = f"No node pools are created or deleted at the moment: {'; '.join(self._problems)}"
        policy = policy_of(snapshot, self.settings)
        by_workload = find_by_workload(Workloads.of(snapshot.workloads), snapshot.pods, policy)
        notices = tuple(
            notice(slice_, EventReason.NOT_READY, message, key="not ready")
            for slice_ in all_slices(by_workload).values()
            if slice_.pending
        )
        self.report(lambda: self.reporter.tell_notices(notices))

    def fold(self, answer: answers.Answer) -> None:
        """Record the answer of a call in `memory`."""
        self.memory = answers.fold(self.memory, answer, self.pools.by_name())

    def clock_set(self, by: timedelta) -> None:
        """Shift the times in the memory, the list of pools, the proof and the timeline."""
        RoundLoop.clock_set(self, by)
        self.pools.clock_set(by)
        if self.identity is not None:
            self.identity.clock_set(by)
        self.board.timeline.shift(by)

    def _follow_catalogue(self) -> bool:
        """Add new or changed MachineConfigs to the catalogue, at most once in 60 s; return whether any have to wait."""
        watch, before, now = self.watches.machine_configs, self._machine_configs, self.monotonic()
        listed = watch.records() if watch is not None else {}
        # Between two changes, at least one decision is made, even if a user edits MachineConfigs continuously.
        waits = self._stalled_since is not None or now - self._extended_monotonic < _CATALOGUE_GAP_SECONDS
        if before and waits:
            return {**before, **listed} != before
        self._machine_configs = extend_catalogue(listed, before)
        if self._machine_configs is not before:
            self._last_round, self._extended_monotonic = None, now
            # The number of pods of a slice depends on the catalogue, so pods and workloads are listed and parsed again.
            for objects in (self.watches.pods, *self.watches.workloads.values()):
                objects.invalidate()
        return False

    def _prepare(self) -> float:
        """Prove the cluster and read the hints; return the seconds until the next attempt, 0 if both are done."""
        proof = self.identity
        wait_seconds = proof.follow() if proof is not None else 0.0
        self.metrics.proven.set(not wait_seconds)
        self._problems = (proof.problem,) if proof is not None and wait_seconds else ()
        if self._hints is not None or wait_seconds:
            return wait_seconds
        try:
            self._hints = self.store.load()
        except ClusterError as error:
            self._problems = (f"ConfigMap {constants.HINTS_CONFIGMAP_NAME} cannot be read: {error}",)
            return _HINTS_GAP_SECONDS
        self.memory = hints.from_text(self._hints)
        return 0.0

    def _adapted(self) -> Settings:
        return self.settings if self.identity is None else self.settings.on_channel(self.identity.release_channel)

    def _decide(self) -> tuple[Plan, Snapshot]:
        due = self._due_in_seconds() <= 0
        if due:
            self.pools.fetch()
        plan, snapshot = self._decide_once()
        old = self.pools.age_seconds(self.clock()) > _CREATE_LIST_AGE_SECONDS
        if not due and (plan.deletes or (plan.creates and old)):
            # The plan is discarded, because its creates and deletes need a newer list of the pools.
            self.pools.fetch()
            plan, snapshot = self._decide_once()
        self._problems = (self.pools.problem,) if self.pools.problem else ()
        self.metrics.list_age.set(self.pools.age_seconds(self.clock()))
        return plan, snapshot

    def _decide_once(self) -> tuple[Plan, Snapshot]:
        observe = functools.partial(
            take_snapshot, self.watches, self.pools, self.actor.live_calls(), self.actor.rejected().keys()
        )
        snapshot, before = observe(), self._machine_configs
        # The catalogue must contain all MachineConfigs of the snapshot, so it is updated after the snapshot was taken.
        incomplete = self._follow_catalogue()
        if incomplete or self._machine_configs is not before:
            snapshot = observe(lacks_machine_configs=incomplete)
        rules = self.pools.supplier.rules
        with self.metrics.decide_seconds.time():
            plan = decide(snapshot, self.memory, self._adapted(), rules, self.clock(), self._last_round)
        self._last_round = plan.round
        return plan, snapshot

    def _due_in_seconds(self) -> float:
        every_seconds = self.last_plan.poll_seconds if self.last_plan is not None else 0.0
        return self.pools.due_in_seconds(self.clock(), every_seconds=every_seconds)

    def _save_hints(self, *, force: bool = False) -> None:
        due = self.monotonic() - self._hints_saved_monotonic >= _HINTS_GAP_SECONDS
        if self._hints is None or not (force or due):
            return
        text = hints.to_text(self.memory)
        if text != self._hints:
            self._hints_saved_monotonic = self.monotonic()
            if self.store.save(text):
                self._hints = text
