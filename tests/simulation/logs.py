"""What the product logs while it is simulated: into the history, and a crash that it caught is a violation."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

from tests.simulation.stage import Stage

#: Events that say: something was raised that nobody had thought of.
_CRASHES = frozenset(
    {
        "call.crashed",
        "create.crashed",
        "delete.crashed",
        "lease.step_failed",
        "lease.listener_failed",
        "watch.step_failed",
        "watch.listener_failed",
    }
)


@contextmanager
def told_to(stage: Stage) -> Iterator[None]:
    """Let the product log into a run's history."""

    def take(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
        name = event.pop("event")
        crashed = event.pop("exc_info", None)
        if stage.recording:
            stage.note("log", "%s %s", name, " ".join(f"{key}={value!r}" for key, value in event.items()))
        if name in _CRASHES:
            error = sys.exc_info()[1]
            stage.violate("0 no round crashes", f"{name}: {crashed and type(error).__name__}: {error}")
        raise structlog.DropEvent

    level = logging.INFO if stage.recording else logging.ERROR
    before = structlog.get_config()
    structlog.configure(
        processors=[take], wrapper_class=structlog.make_filtering_bound_logger(level), cache_logger_on_first_use=False
    )
    try:
        yield
    finally:
        structlog.configure(**before)
