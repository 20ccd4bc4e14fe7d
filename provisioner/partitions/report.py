"""Reports decisions, and outcomes of calls and writes, as Events on pods, log lines and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import structlog

from provisioner.controller.report import PlanReporter
from provisioner.model.capacity import FailureKind
from provisioner.model.workloads import ObjectRef
from provisioner.model.writes import AnsweredWrite, WriteFailure
from provisioner.partitions.demand import Pod
from provisioner.partitions.metrics import Metrics, values_of
from provisioner.partitions.planning import actions
from provisioner.partitions.planning.decide import Plan
from provisioner.partitions.planning.events import FAILED, RELEASED
from provisioner.partitions.planning.round import Snapshot

_log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Reporter(PlanReporter):
    """Reports decisions, calls and writes. Used by the loop's thread."""

    metrics: Metrics
    clock: Callable[[], datetime]

    def tell(self, plan: Plan, snapshot: Snapshot) -> None:
        """Report the Events and faults of one decision, and set the metrics."""
        for event in plan.events:
            self.recorder.emit(_ref(event.pod), event.reason, event.message, warning=event.warning)
        for fault in plan.faults:
            if self._lasting.fails(fault.subject, fault.error):
                _log.error("decision.failed", subject=fault.subject, error=fault.error)
        self.metrics.faults.inc(len(plan.faults))
        self.metrics.set_events_dropped(self.recorder.dropped_total)
        self.metrics.show(values_of(plan.view, snapshot.servers, self.clock()))

    def tell_answer(self, answer: actions.Answer) -> None:
        """Report the outcome of a call or a write."""
        if isinstance(answer, AnsweredWrite):
            self._tell_write(answer)
        else:
            self._tell_call(answer)

    def _tell_call(self, answer: actions.CallAnswer) -> None:
        call, key, failure = answer.call, answer.call.key, answer.failure
        details: dict[str, object] = {"server": call.server}
        if isinstance(call, actions.CreatePartition):
            details |= {"partition": call.request.id, "size": call.request.size, "allocation": call.request.allocation}
        elif isinstance(call, actions.RemovePartition):
            details["partition"] = call.id
            if call.pod is not None:
                details |= {"namespace": call.pod[0], "pod": call.pod[1]}
        if answer.kept:
            self.metrics.kept.inc()
            if self._lasting.fails(key, answer.kept):
                _log.warning("partition.kept", **details, reason=answer.kept)
        elif failure is None:
            self._tell_done(call, details, failed_before=self._lasting.ended(key))
        elif failure.kind is FailureKind.ALREADY_EXISTS:
            # The id is derived from the pod, so an earlier create for this pod took effect.
            self._lasting.ended(key)
            _log.info("partition.exists", **details)
        elif self._lasting.fails(key, f"{failure.kind.value} {failure.message}"):
            details |= {"kind": failure.kind.value, "message": failure.message}
            match call:
                case actions.ReadServer():
                    _log.warning("server.not_read", **details)
                case actions.CreatePartition():
                    _log.warning("partition.create_failed", **details)
                case actions.RemovePartition():
                    _log.warning("partition.remove_failed", **details)

    def _tell_done(self, call: actions.Call, details: Mapping[str, object], *, failed_before: bool) -> None:
        match call:
            case actions.CreatePartition():
                _log.info("partition.created", **details)
            case actions.RemovePartition():
                _log.info("partition.removed", **details)
                if call.pod is None:
                    self.metrics.orphans.inc()
            case actions.ReadServer() if failed_before:
                _log.info("server.read_again", **details)

    def _tell_write(self, answer: actions.WriteAnswer) -> None:
        write, details = answer.write, dict[str, object]()
        if not isinstance(write, actions.SaveLedger):
            details = {"namespace": write.pod.namespace, "pod": write.pod.name, "partition": write.partition_id}
        is_new_failure = self._count_write(answer, write.name, **details)
        details |= {"write": write.name, "object": write.key}
        if answer.failure is None and isinstance(write, actions.TakeBack):
            _log.info("partition.taken_back", **details)
            message = (
                f"The scheduler has found no node for it, and others wait for IPUs: partition {write.partition_id} is "
                "given to them. Create the pod again when a node fits it."
            )
            self.recorder.emit(_ref(write.pod), RELEASED, message, warning=True)
        elif answer.failure is None and isinstance(write, actions.OpenGate):
            _log.info("pod.released_to_scheduler", **details)
            self.metrics.waited.observe(max(0.0, (answer.at - write.pod.created_at).total_seconds()))
        elif is_new_failure and answer.failure is WriteFailure.REFUSED and isinstance(write, actions.OpenGate):
            # The pod occupies its IPUs and waits until a user corrects the cause, so an Event is necessary.
            message = (
                f"Partition {write.partition_id} is active, but the pod's scheduling gate cannot be removed: "
                f"{answer.message}"
            )
            self.recorder.emit(_ref(write.pod), FAILED, message, warning=True)


def _ref(pod: Pod) -> ObjectRef:
    return ObjectRef(kind="Pod", api_version="v1", namespace=pod.namespace, name=pod.name, uid=pod.uid)
