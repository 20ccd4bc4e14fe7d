"""Changes of nodes that Kubernetes rejects: tried again after longer and longer waits, and told to administrators."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from provisioner.model.waits import doubled_seconds
from provisioner.model.wording import first_of
from provisioner.slices.planning.plan import Alert

_log = structlog.get_logger(__name__)

_FIRST_SECONDS = 1.0
_CAP_SECONDS = 60.0
#: A change that is rejected for this long is an alert.
_ALERT_SECONDS = 600.0


class _Rejection(NamedTuple):
    """What is known of a node whose change is rejected."""

    since: float
    failures: int
    retry_at: float
    error: str


@dataclass(slots=True, kw_only=True)
class RejectedChanges:
    """By node. Told of outcomes by the threads that make the changes, and asked by the loop's."""

    monotonic: Callable[[], float] = time.monotonic
    _by_node: dict[str, _Rejection] = field(default_factory=dict)

    def forget_all_but(self, nodes: Collection[str]) -> None:
        """Forget the nodes that nobody wants to change any more."""
        for node in list(self._by_node):
            if node not in nodes:
                self._by_node.pop(node, None)

    def waits(self, node: str) -> bool:
        """Whether it is too early to try again."""
        rejection = self._by_node.get(node)
        return rejection is not None and self.monotonic() < rejection.retry_at

    def rejected(self, node: str, change: str, error: str) -> None:
        """Take note of a change that failed; the first failure is logged."""
        now, before = self.monotonic(), self._by_node.get(node)
        if before is None:
            _log.warning("node.change_failed", node=node, change=change, error=error)
        failures = before.failures + 1 if before is not None else 1
        self._by_node[node] = _Rejection(
            since=before.since if before is not None else now,
            failures=failures,
            retry_at=now + doubled_seconds(_FIRST_SECONDS, _CAP_SECONDS, failures, node),
            error=error,
        )

    def accepted(self, node: str, change: str) -> None:
        """Take note of a change that succeeded."""
        if self._by_node.pop(node, None) is not None:
            _log.info("node.change_recovered", node=node, change=change)

    def alerts(self) -> tuple[Alert, ...]:
        """Say what has been rejected for long."""
        limit = self.monotonic() - _ALERT_SECONDS
        # A copy: threads take notes meanwhile.
        long = {node: each for node, each in sorted(self._by_node.copy().items()) if each.since <= limit}
        if not long:
            return ()
        error = next(iter(long.values())).error
        message = (
            f"Kubernetes has rejected each cordon, uncordon or removal of a taint of {len(long)} node(s) for "
            f"{_ALERT_SECONDS / 60:.0f} minutes ({first_of(list(long))}): {error}"
        )
        return (Alert(kind="node_change_rejected", message=message),)
