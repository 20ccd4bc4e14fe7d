"""Base class of the reporters of node groups and partitions."""

from dataclasses import dataclass, field
from typing import Any

import structlog

from provisioner.kube.events import EventRecorder
from provisioner.model.writes import AnsweredWrite, WriteFailure
from provisioner.runtime.metrics import WRITTEN, ActionMetrics
from provisioner.runtime.repeats import FailureLog

_log = structlog.get_logger(__name__)
#: Failures that are not logged as warnings, because they are expected: a later round writes again.
_PASSING = frozenset({WriteFailure.CONFLICT, WriteFailure.NOT_NOW})


@dataclass(slots=True, kw_only=True)
class PlanReporter:
    """Reports decisions and results as Events, log lines and metrics. Used by the loop's thread."""

    recorder: EventRecorder
    metrics: ActionMetrics
    _lasting: FailureLog = field(default_factory=FailureLog)

    def _count_write(self, answer: AnsweredWrite[Any], label: str, **said: Any) -> bool:
        """Count a write by `label`. Log a postponed write or a new failure; return whether a warning was logged."""
        key, failure = answer.write.key, answer.failure
        self.metrics.writes.labels(label, failure.value if failure is not None else WRITTEN).inc()
        said |= {"write": label, "object": key, "message": answer.message}
        if failure is None:
            self._lasting.ended(key)
        elif failure in _PASSING:
            _log.info("write.postponed", kind=failure.value, **said)
        elif self._lasting.fails(key, answer.message):
            _log.warning("write.refused" if failure is WriteFailure.REFUSED else "write.failed", **said)
            return True
        return False
