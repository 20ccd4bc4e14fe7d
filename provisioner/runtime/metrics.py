"""The metrics of one process: a registry whose metrics have one prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest


class Picture:
    """A gauge with labels that is set as a whole."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._shown: dict[str | tuple[str, ...], float] = {}

    def replace(self, values: Mapping[Any, float]) -> None:
        """Set all values, by label; what is gone goes to 0: a series that ends looks like a failed scrape."""
        for label in {**self._shown, **values}:
            value = values.get(label, 0)
            if self._shown.get(label) != value:
                self._shown[label] = value
                self._gauge.labels(*((label,) if isinstance(label, str) else label)).set(value)


class Registry(CollectorRegistry):
    """Metrics under one prefix; from the start it has the release, and what every process tells of itself."""

    def __init__(self, prefix: str, *, version: str) -> None:
        super().__init__(auto_describe=True)
        self._prefix = prefix
        # process_cpu_seconds_total, process_resident_memory_bytes and the like, as Go programs have them.
        ProcessCollector(registry=self)
        self.gauge("build_info", "Always 1; the label is the release.", "version").labels(version).set(1)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Add a counter; queries name it with `_total`."""
        return Counter(self._prefix + name, text, labels, registry=self)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Add a gauge."""
        return Gauge(self._prefix + name, text, labels, registry=self)

    def picture(self, name: str, text: str, *labels: str) -> Picture:
        """Add a gauge with labels that is set as a whole."""
        return Picture(self.gauge(name, text, *labels))

    def histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        """Add a histogram."""
        return Histogram(self._prefix + name, text, labels, buckets=buckets, registry=self)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self)


ROUND_RESULTS = ("ok", "crashed")
_ROUND_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DECIDE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopMetrics:
    """The metrics of a controller that observes, decides and acts in rounds; setters may be called from any thread."""

    def __init__(self, registry: Registry) -> None:
        self.registry, self.exposition = registry, registry.exposition
        self._rounds = registry.counter("rounds", "Rounds of observe, decide, act, by result.", "result")
        # Prometheus' `increase` and `rate` miss what a series begins with.
        for result in ROUND_RESULTS:
            self._rounds.labels(result)
        self._round_seconds = registry.histogram("round_duration_seconds", "Duration of a round.", _ROUND_BUCKETS)
        self.decide_seconds = registry.histogram(
            "decide_duration_seconds", "Duration of the decision in a round.", _DECIDE_BUCKETS
        )
        self._last_round = registry.gauge("loop_last_round_timestamp_seconds", "When the last round ended (Unix time).")
        self.loop_lag_seconds = registry.histogram(
            "loop_lag_seconds",
            "Time from the first event that asked for a round to that round.",
            _ROUND_BUCKETS,
        )
        self._watch_synced = registry.gauge("watch_synced", "1 while a list-watch is complete.", "resource")
        self._watch_age = registry.gauge(
            "watch_last_contact_age_seconds", "Time since a list-watch last heard from the API server.", "resource"
        )
        self.leader = registry.gauge("leader", "1 while this process is the leader.")
        self._events_dropped = registry.counter(
            "events_dropped", "Events that were not written: too many, or rejected."
        )
        self._dropped = 0

    def observe_round(self, *, seconds: float, result: str, ended_at_seconds: float) -> None:
        """Take note of the end of a round; `ended_at_seconds` since 1970."""
        self._rounds.labels(result).inc()
        self._round_seconds.observe(seconds)
        self._last_round.set(ended_at_seconds)

    def set_watch(self, resource: str, *, synced: bool, last_contact: float | None, now: float) -> None:
        """Set the state of one list-watch by a monotonic clock; None: it has not heard from the API server yet."""
        age = now - last_contact if last_contact is not None else float("inf")
        self._watch_synced.labels(resource).set(synced)
        self._watch_age.labels(resource).set(age)

    def forget_watch(self, resource: str) -> None:
        """Show no state of a list-watch for which there is nothing to watch."""
        self._watch_synced.remove(resource)
        self._watch_age.remove(resource)

    def set_events_dropped(self, total: int) -> None:
        """Set how many Events were not written since the start."""
        self._events_dropped.inc(total - self._dropped)
        self._dropped = total
