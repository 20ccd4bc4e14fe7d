"""Reports decisions and their results as Events, log lines and metrics. Makes no decisions."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

import structlog

from provisioner.kube.events import EventRecorder
from provisioner.model.capacity import PoolName
from provisioner.model.choices import choice_of
from provisioner.model.workloads import ObjectRef, pod_ref, workload_ref
from provisioner.runtime.clock import wall_clock
from provisioner.slices.board import Journal
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.messages.states import WHY_DELETED
from provisioner.slices.messages.waits import note_of
from provisioner.slices.metrics import TIMED_PHASES, Meter, Metrics
from provisioner.slices.planning.memory.answers import Answer, CreateAnswer, DeleteAnswer, DeleteResult
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import Alert, Create, Delete, Notice, Plan, PoolState, Transition
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.view.types import slice_of_pool, workload_of_pool

_log = structlog.get_logger(__name__)

#: Interval in seconds between Events of a lasting notice. `EventRecorder` does not repeat an Event within 300 s.
_REPEAT_SECONDS = 310.0
#: Minimum interval in seconds between two log lines about a notice that ended and returned.
_LOG_AGAIN_SECONDS = 10.0
#: Maximum number of past notices whose last reports are remembered, so that the intervals hold if a notice returns.
_MAX_PAST_NOTICES = 4096
#: UID of a notice's first object, the notice's reason, and its key (or, without a key, its message).
_Identity = tuple[str, str, str]


@dataclass(slots=True)
class _Reported:
    emitted_at: float = float("-inf")
    logged_at: float = float("-inf")


@dataclass(slots=True, kw_only=True)
class Reporter:
    """Reports plans and answers. Used only by the loop's thread."""

    recorder: EventRecorder
    metrics: Metrics
    #: Measures rounds; None in some tests.
    meter: Meter | None = None
    supplier_name: str = "GKE"
    journal: Journal = field(default_factory=Journal)
    clock: Callable[[], datetime] = wall_clock
    monotonic: Callable[[], float] = time.monotonic
    _creates: dict[PoolName, Create] = field(default_factory=dict)
    _deletes: dict[PoolName, Delete] = field(default_factory=dict)
    _delete_accepted: set[PoolName] = field(default_factory=set)
    #: Pools that were kept because of DeleteResult.NEEDED, which is logged once per pool.
    _needed: set[PoolName] = field(default_factory=set)
    _states: Mapping[PoolName, PoolState] = field(default_factory=dict)
    _wanted_at: dict[PoolName, datetime] = field(default_factory=dict)
    #: Pools and phases whose time was measured. A pool that becomes ready again is not measured again.
    _timed: set[tuple[PoolName, Phase]] = field(default_factory=set)
    #: Kind and pool of each current alert; the pool is empty if the alert is not about exactly one pool.
    _alerts: frozenset[tuple[str, PoolName]] = frozenset()
    _current_notices: set[_Identity] = field(default_factory=set)
    #: Last reports of notices. Past notices come first, in the order of their ends; current notices come last.
    _reported: OrderedDict[_Identity, _Reported] = field(default_factory=OrderedDict)

    def tell(self, plan: Plan, snapshot: Snapshot) -> None:
        """Report the result of one decision."""
        self._creates |= {create.request.name: create for create in plan.creates}
        self._deletes |= {delete.name: delete for delete in plan.deletes}
        states = plan.states
        # The plan lacks pools that no longer exist, so their last states are kept for the report that they are gone.
        self._states = {**self._states, **states}
        for transition in plan.transitions:
            try:
                self._tell_transition(transition, plan)
            except Exception:  # noqa: BLE001 - one pool must not prevent the others' reports
                _log.exception("report.crashed", node_pool=transition.pool)
        self._states = states
        self.tell_notices(plan.notices)
        self._tell_alerts(plan.alerts)
        self.metrics.set_events_dropped(self.recorder.dropped_total)
        if self.meter is not None:
            self.meter.look(plan, snapshot, self.clock())

    def tell_answer(self, answer: Answer) -> None:
        """Report the answer of a submitted create, delete or look-up."""
        match answer:
            case CreateAnswer():
                self._tell_create(answer)
            case DeleteAnswer():
                self._tell_delete(answer)
            case _:
                kind = "operation" if answer.look_up.operation else "pool"
                _log.info("call.looked_up", node_pool=answer.look_up.name, kind=kind)

    def _tell_create(self, answer: CreateAnswer) -> None:
        create, log = self._creates.pop(answer.name, None), self._log_of(answer.name)
        self.metrics.creates.labels(answer.failure.kind.value if answer.failure is not None else "ok").inc()
        if answer.failure is not None:
            kind, message = answer.failure.kind.value, answer.failure.message
            reason = f"{kind.replace('_', ' ')}: {message}"
            self._write("create", f"The create of node pool {answer.name} failed: {reason}", answer.name, warning=True)
            log.warning("node_pool.create_failed", kind=kind, message=message)
            return
        log.info("node_pool.create_accepted", operation=answer.operation)
        if create is not None:
            request = create.request
            message = (
                f"Creating node pool {request.name}: {request.hosts} x {request.machine_type}, {choice_of(request)}"
            )
            self._write("create", message, answer.name)
            self.recorder.emit(create.pod, EventReason.CREATION_STARTED, message)

    def _tell_delete(self, answer: DeleteAnswer) -> None:
        delete, log = self._deletes.get(answer.name), self._log_of(answer.name)
        reason = delete.reason.value if delete is not None else "unknown"
        kind = answer.failure.kind.value if answer.failure is not None else answer.result.value
        accepted = answer.result in (DeleteResult.ACCEPTED, DeleteResult.GONE)
        self.metrics.deletes.labels(reason, "ok" if accepted else kind).inc()
        if accepted:
            self._delete_accepted.add(answer.name)
            log.info("node_pool.delete_accepted", reason=reason)
            why_deleted = WHY_DELETED[delete.reason] if delete is not None else "nothing needs it"
            message = f"Deleting node pool {answer.name}: {why_deleted}"
            self._write("delete", message, answer.name)
            self._on_pool(answer.name, EventReason.DELETION_STARTED, message)
            return
        if answer.result is DeleteResult.NEEDED:
            if answer.name not in self._needed:
                self._needed.add(answer.name)
                log.info("node_pool.needed", reason=answer.reason)
            return
        if answer.result is DeleteResult.SETTLING:
            log.info("node_pool.settles", seconds=round(answer.wait_seconds or 0.0, 3))
            self._write("delete", f"Node pool {answer.name} is not deleted yet: {answer.reason}", answer.name)
            return
        log.warning("node_pool.delete_postponed", kind=kind, reason=answer.reason)
        beginning = f"Node pool {answer.name} is not deleted yet: "
        self._write("delete", f"{beginning}{answer.reason}", answer.name, warning=True)
        public = f"{beginning}{answer.public or answer.reason}"
        self._on_pool(answer.name, EventReason.DELETION_FAILED, public, warning=True, key=f"{answer.name} {kind}")

    def _tell_transition(self, transition: Transition, plan: Plan) -> None:
        name, new = transition.pool, transition.new
        state = self._states.get(name)
        seconds = (transition.at - transition.since).total_seconds() if transition.since is not None else None
        self._log_of(name).info(
            "node_pool.phase_changed",
            old=transition.old.value if transition.old is not None else None,
            new=new.value,
            seconds_in_old=round(seconds, 3) if seconds is not None else None,
            **_describe(state, plan),
        )
        existed = transition.old is None or not transition.old.planned or name in self._delete_accepted
        sentence = _SENTENCES[new] if existed or new is not Phase.GONE else "was not created"
        self._write("pool", f"Node pool {name} {sentence}", name, warning=new is Phase.FAILED)
        if new.planned:
            self._wanted_at.setdefault(name, transition.at)
        elif new in TIMED_PHASES and name in self._wanted_at:
            # Earlier phases are measured as well, because the pool may have passed several phases since the last round.
            for phase in TIMED_PHASES[: TIMED_PHASES.index(new) + 1]:
                if (name, phase) not in self._timed:
                    self._timed.add((name, phase))
                    took = (transition.at - self._wanted_at[name]).total_seconds()
                    self.metrics.phase_seconds.labels(phase.value).observe(took)
        leader = pod_ref(state.leader) if state is not None and state.leader is not None else None
        workload = workload_ref(state.workload) if state is not None and state.workload is not None else None
        made = transition.old is not None and (transition.old.planned or transition.old is Phase.PROVISIONING)
        if made and new is Phase.READY and leader is not None and state is not None:
            message = f"Node pool {name} is ready: {state.nodes} x {state.machine_type}"
            self.recorder.emit(leader, EventReason.CREATION_SUCCEEDED, message)
        if new is Phase.FAILED:
            note = state.note if state is not None and state.note else f"{self.supplier_name} gives no reason"
            when = " when the pods on it have ended" if state is not None and state.holders else ""
            message = f"Node pool {name} failed; it is deleted and replaced{when}: {note}"
            for ref in dict.fromkeys((leader, workload)):
                if ref is not None:
                    self.recorder.emit(ref, EventReason.CREATION_FAILED, message, warning=True, key=name)
        if new is Phase.GONE:
            self._tell_gone(transition, workload)

    def _tell_gone(self, transition: Transition, workload: ObjectRef | None) -> None:
        name = transition.pool
        self._wanted_at.pop(name, None)
        self._timed -= {(name, phase) for phase in TIMED_PHASES}
        # A pool that vanished between two rounds after an accepted delete was never seen in the phase DELETING.
        if transition.old is Phase.DELETING or name in self._delete_accepted:
            self._on_pool(name, EventReason.DELETION_SUCCEEDED, f"Node pool {name} is deleted")
        elif workload is not None and (transition.old is None or not transition.old.planned):
            message = f"Node pool {name} is gone, but the provisioner did not delete it"
            self.recorder.emit(workload, EventReason.POOL_NOT_FOUND, message, warning=True)
        self._deletes.pop(name, None)
        self._needed.discard(name)
        self._delete_accepted.discard(name)

    def _on_pool(self, name: PoolName, reason: str, message: str, *, warning: bool = False, key: str = "") -> None:
        """Emit an Event about the delete of a pool on the pool's workload or, without a workload, on a node."""
        delete = self._deletes.get(name)
        ref = (delete.workload or delete.node) if delete is not None else None
        if ref is not None:
            self.recorder.emit(ref, reason, message, warning=warning, key=key)

    def tell_notices(self, notices: tuple[Notice, ...]) -> None:
        """Report the notices that are new or due again. A notice that is missing in `notices` counts as ended."""
        now, current = self.monotonic(), set[_Identity]()
        for notice in notices:
            identity = (notice.objects[0].uid, notice.reason, notice.key or notice.message)
            if identity in current:
                # Slices of a workload may have the same notice, which is reported once.
                continue
            current.add(identity)
            last = self._reported[identity] = self._reported.pop(identity, _Reported())
            if identity not in self._current_notices and now - last.logged_at >= _LOG_AGAIN_SECONDS:
                self._log_notice(notice)
                last.logged_at = now
            if now - last.emitted_at >= _REPEAT_SECONDS:
                last.emitted_at = now
                for ref in notice.objects:
                    self.recorder.emit(ref, notice.reason, notice.message, warning=notice.warning, key=notice.key)
        self._current_notices = current
        while len(self._reported) > len(current) + _MAX_PAST_NOTICES:
            self._reported.popitem(last=False)

    def _tell_alerts(self, alerts: tuple[Alert, ...]) -> None:
        now = {(alert.kind, alert.pool): alert.message for alert in alerts}
        for kind, pool in sorted(now.keys() - self._alerts):
            message = now[kind, pool]
            _log.error("alert.began", kind=kind, problem=message)
            self.journal.write(self.clock(), "alert", message, warning=True, pool=pool)
        for kind, pool in sorted(self._alerts - now.keys()):
            _log.info("alert.ended", kind=kind, node_pool=pool or None)
            self.journal.write(self.clock(), "alert", f"Over: {kind.replace('_', ' ')} {pool}".rstrip(), pool=pool)
        self._alerts = frozenset(now)

    def _log_of(self, pool: PoolName) -> structlog.stdlib.BoundLogger:
        log = cast(structlog.stdlib.BoundLogger, _log.bind(node_pool=pool))
        state = self._states.get(pool)
        if state is None or not state.named.name:
            return log
        return log.bind(workload=workload_of_pool(state), slice=slice_of_pool(state) or None)

    def _write(self, kind: str, message: str, pool: PoolName, *, warning: bool = False) -> None:
        state = self._states.get(pool)
        workload = workload_of_pool(state) if state is not None else ""
        self.journal.write(self.clock(), kind, message, warning=warning, pool=pool, workload=workload)

    def _log_notice(self, notice: Notice) -> None:
        """Write a notice to the log and the journal. The last of its objects is always the workload."""
        first, last = notice.objects[0], notice.objects[-1]
        _log.warning(
            "slice.notice",
            kind=first.kind,
            namespace=first.namespace,
            name=first.name,
            reason=notice.reason,
            message=notice.message,
        )
        workload = f"{last.kind}/{last.namespace}/{last.name}"
        self.journal.write(self.clock(), "notice", notice.message, warning=notice.warning, workload=workload)


_SENTENCES = {
    Phase.WANTED: "is needed",
    Phase.BLOCKED: "is needed, but cannot be created yet",
    Phase.CREATING: "is being created",
    Phase.PROVISIONING: "exists; its hosts are joining",
    Phase.READY: "is ready",
    Phase.IN_USE: "is in use: pods are bound to it",
    Phase.IDLE: "is not needed any more",
    Phase.DELETING: "is being deleted",
    Phase.FAILED: "failed",
    Phase.GONE: "is gone",
}


def _describe(state: PoolState | None, plan: Plan) -> dict[str, object]:
    if state is None:
        return {}
    note = note_of(state, plan)
    return {
        "machine_type": state.machine_type,
        "topology": state.topology,
        "nodes": f"{state.ready_nodes}/{state.nodes}",
        "chips": state.chips,
        **({"note": note} if note else {}),
    }
