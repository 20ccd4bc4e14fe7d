"""Every metric of the webhook server."""

from __future__ import annotations

from provisioner.runtime.metrics import Registry

PREFIX = "tpu_provisioner_webhook_"
OUTCOMES = ("admitted", "patched", "warned", "denied", "malformed", "failed")
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics of one process; setters may be called from any thread."""

    def __init__(self, *, version: str) -> None:
        self.registry = registry = Registry(PREFIX, version=version)
        self._reviews = registry.counter("reviews", "Reviews by webhook and what became of them.", "hook", "outcome")
        self._seconds = registry.histogram(
            "review_duration_seconds", "Time from a whole review to its answer.", _BUCKETS, "hook"
        )
        self._problem = registry.gauge(
            "certificates_problem", "1: the certificates are not as they should be; the log says why."
        )

    def know(self, hook: str) -> None:
        """Show a webhook before its first review."""
        for outcome in OUTCOMES:
            self._reviews.labels(hook, outcome)
        self._seconds.labels(hook)

    def reviewed(self, hook: str, outcome: str, seconds: float) -> None:
        """Count a review."""
        self._reviews.labels(hook, outcome).inc()
        self._seconds.labels(hook).observe(seconds)

    def certificates(self, problem: str) -> None:
        """Show whether there is a problem with the certificates."""
        self._problem.set(bool(problem))

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return self.registry.exposition()
