"""Writes Events, log lines and metrics. Decides nothing. The Events of a status are written after the status."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from provisioner.controller.report import PlanReporter
from provisioner.model.capacity import FailureKind, Operation
from provisioner.model.writes import AnsweredWrite
from provisioner.nodegroups.api.types import TpuNodeGroup
from provisioner.nodegroups.compute.records import Manager
from provisioner.nodegroups.metrics import Metrics, reason_of, values_of
from provisioner.nodegroups.planning import actions
from provisioner.nodegroups.planning.decide import Crashed, Plan
from provisioner.nodegroups.planning.round import Snapshot
from provisioner.runtime.clock import wall_clock
from provisioner.runtime.repeats import Repeats, place_of

_log = structlog.get_logger(__name__)

_PASSING = frozenset({FailureKind.OPERATION_IN_THE_WAY, FailureKind.ALREADY_EXISTS})


@dataclass(slots=True, kw_only=True)
class Reporter(PlanReporter):
    """Reports plans and the results of calls and writes as Events, log lines and metrics."""

    metrics: Metrics
    #: Whether this is a dry run. If so, Events and changes are not reported, because the actor logs the changes.
    dry_run: bool = False
    clock: Callable[[], datetime] = wall_clock
    #: Reason of the condition Ready in the last round, and time since which this process sees it, by UID of the group.
    _reasons: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    _repeats: Repeats = field(default_factory=Repeats)

    def tell(self, plan: Plan, snapshot: Snapshot) -> None:
        """Report a plan: exceptions, orphaned resources and metrics."""
        for crashed in plan.crashed:
            self._tell_crash(crashed)
        self._tell_strays(plan.strays)
        self.metrics.set_events_dropped(self.recorder.dropped_total)
        self.metrics.show(values_of(plan.memory, snapshot, self._oldest(snapshot.groups)))

    def _oldest(self, groups: Iterable[TpuNodeGroup]) -> dict[str, float]:
        now, before, self._reasons = self.clock(), self._reasons, {}
        oldest: dict[str, float] = {}
        for group in groups:
            reason = reason_of(group)
            last, since = before.get(group.meta.uid, (reason, now))
            since = since if last == reason else now
            self._reasons[group.meta.uid] = reason, since
            oldest[reason] = max(oldest.get(reason, 0.0), (now - since).total_seconds())
        return oldest

    def _tell_strays(self, strays: Mapping[str, tuple[Manager, ...]]) -> None:
        for project, managers in strays.items():
            self.metrics.strays.labels(project).set(len(managers))
        for stray in itertools.chain.from_iterable(strays.values()):
            if self._lasting.fails(stray.url, stray.description):
                _log.warning("resource.orphaned", resource=stray.url, mark=stray.description)

    def _tell_crash(self, crashed: Crashed) -> None:
        self.metrics.crashed.inc()
        left_out = self._repeats.left_out(place_of(crashed.error))
        if left_out is None:
            return
        about = crashed.object
        details = {"kind": about.kind, "namespace": about.namespace, "name": about.name}
        _log.error("node_group.decide_crashed", **details, left_out=left_out, exc_info=crashed.error)

    def tell_answer(self, answer: actions.Answer) -> None:
        """Report the result of a call or a write."""
        if isinstance(answer, AnsweredWrite):
            if not self.dry_run:
                self._tell_write(answer)
        elif not (self.dry_run and answer.call.sort is actions.Sort.CHANGE):
            self._tell_call(answer)

    def _tell_write(self, answer: actions.WriteAnswer) -> None:
        write, label = answer.write, _label(answer.write)
        self._count_write(answer, label)
        if answer.failure is None:
            # Statuses are logged as debug, because they change often and their important changes have Events.
            log = _log.debug if isinstance(write, actions.PatchStatus) else _log.info
            log("object.written", write=label, object=write.key)
            for event in write.events if isinstance(write, actions.PatchStatus) else ():
                self._tell_event(event)

    def _tell_call(self, answer: actions.CallAnswer) -> None:
        key, failure, details = answer.call.key, answer.failure, _of(answer)
        if answer.kept:
            self.metrics.kept.inc()
            if self._lasting.fails(key, answer.kept):
                _log.warning("resource.delete_kept", **details)
        elif failure is None:
            self._lasting.ended(key)
            _tell_success(answer)
        elif failure.kind in _PASSING:
            _log.info("call.postponed", **details, kind=failure.kind.value)
        elif self._lasting.fails(key, f"{failure.kind.value} {failure.message}"):
            details["kind"] = failure.kind.value
            match answer.call:
                case actions.Insert():
                    _log.warning("resource.create_failed", **details)
                case actions.Delete():
                    _log.warning("resource.delete_failed", **details)
                case actions.SetMetadata():
                    _log.warning("machine.metadata_failed", **details)
                case _:
                    _log.warning("compute.read_failed", **details)

    def _tell_event(self, event: actions.Event) -> None:
        details = {"kind": event.object.kind, "namespace": event.object.namespace, "name": event.object.name}
        if event.warning:
            _log.warning("node_group.notice", reason=event.reason, message=event.message, **details)
        else:
            _log.info("node_group.changed", reason=event.reason, message=event.message, **details)
        self.recorder.emit(event.object, event.reason, event.message, warning=event.warning)


def _tell_success(answer: actions.CallAnswer) -> None:
    operation = answer.result if isinstance(answer.result, Operation) else None
    details = {**_of(answer), **({"operation": operation.name} if operation is not None else {})}
    match answer.call:
        case actions.Insert():
            _log.info("resource.create_accepted", **details)
        case actions.Delete() if operation is None:
            _log.info("resource.gone", **details)
        case actions.Delete():
            _log.info("resource.delete_accepted", **details)
        case actions.SetMetadata():
            _log.info("machine.metadata_set", **details)
        case actions.Poll(type=kind) if operation is not None and operation.done:
            if operation.failure is None:
                _log.info("operation.done", type=kind.value, **details)
            else:
                failure = operation.failure
                _log.warning(
                    "operation.failed", type=kind.value, **details, kind=failure.kind.value, message=failure.message
                )


def _of(answer: actions.CallAnswer) -> dict[str, str]:
    """Return the keys of a log line about a call. Metadata is left out, because it contains tokens."""
    call, failure = answer.call, answer.failure
    details = {"resource": f"{call.target.scope.path} {call.target.name}", "object": call.target.kind.value}
    if isinstance(call, actions.SetMetadata):
        details["machine"] = call.machine.provider_id
    if call.sort is not actions.Sort.CHANGE:
        details["call"] = _label(call)
    if failure is not None:
        details["message"] = failure.message
    if answer.kept:
        details["reason"] = answer.kept
    return details


def _label(call: object) -> str:
    return actions.words_of(type(call).__name__).replace(" ", "_")
