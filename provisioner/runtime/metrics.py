"""Metrics of one process: a registry that adds a prefix, and the metrics that controllers have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from provisioner.model.writes import WriteFailure


class Shown(NamedTuple):
    """A metric. `values` is a number, or a mapping by the value of the label or by the tuple of all label values."""

    name: str
    text: str
    values: float | Mapping[Any, float]
    labels: tuple[str, ...] = ()
    family: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily


class LastRound(Collector):
    """Collector of metrics, each with the values of its last `show`. One thread calls `show`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._shown: dict[str, tuple[Shown, dict[tuple[str, ...], float]]] = {}

    def show(self, metrics: Iterable[Shown]) -> None:
        """Replace metrics' values. Labels without a new value get 0: a missing series looks like a failed scrape."""
        for metric in metrics:
            labelled = metric.values if isinstance(metric.values, Mapping) else {(): metric.values}
            values = {(key,) if isinstance(key, str) else tuple(key): value for key, value in labelled.items()}
            _, before = self._shown.get(metric.name, (metric, {}))
            self._shown[metric.name] = metric, dict.fromkeys(before, 0.0) | values

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Implement Collector.collect."""
        for metric, values in [*self._shown.values()]:
            family = metric.family(self._prefix + metric.name, metric.text, labels=metric.labels)
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family


class Registry(CollectorRegistry):
    """Registry that adds a prefix to the names of metrics, except `process_...`. It has the metric `build_info`."""

    def __init__(self, prefix: str, *, version: str) -> None:
        super().__init__(auto_describe=True)
        self._prefix = prefix
        ProcessCollector(registry=self)
        self.gauge("build_info", "Always 1; the label is the release.", "version").labels(version).set(1)
        self.last_round = LastRound(prefix)
        self.register(self.last_round)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Add a counter. Queries must append `_total` to the name."""
        return Counter(self._prefix + name, text, labels, registry=self)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Add a gauge."""
        return Gauge(self._prefix + name, text, labels, registry=self)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        """Add a histogram."""
        return Histogram(self._prefix + name, text, labels, buckets=buckets, registry=self)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self)


ROUND_RESULTS = ("ok", "crashed")
_ROUND_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_REQUEST_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
_DECIDE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopMetrics:
    """Metrics of a controller that works in rounds. Thread-safe, except `show` and `set_events_dropped`."""

    def __init__(self, registry: Registry) -> None:
        self.registry, self.exposition, self.show = registry, registry.exposition, registry.last_round.show
        self._rounds = registry.counter("rounds", "Rounds of observe, decide, act, by result.", "result")
        # Each series begins with 0, because Prometheus' `increase` and `rate` ignore the first value of a series.
        for result in ROUND_RESULTS:
            self._rounds.labels(result)
        self._round_seconds = registry.histogram("round_duration_seconds", "Duration of a round.", _ROUND_BUCKETS)
        self.decide_seconds = registry.histogram(
            "decide_duration_seconds", "Duration of the decision in a round.", _DECIDE_BUCKETS
        )
        self._last_round = registry.gauge("loop_last_round_timestamp_seconds", "When the last round ended (Unix time).")
        self.loop_lag_seconds = registry.histogram(
            "loop_lag_seconds", "Time from the first event that asked for a round to that round.", _ROUND_BUCKETS
        )
        self._watch_synced = registry.gauge("watch_synced", "1 while a list-watch is complete.", "resource")
        self._watch_age = registry.gauge(
            "watch_last_contact_age_seconds", "Time since a list-watch last heard from the API server.", "resource"
        )
        self.leader = registry.gauge("leader", "1 while this process is the leader.")
        self.set_events_dropped(0)

    def observe_round(self, *, seconds: float, result: str, ended_at_seconds: float) -> None:
        """Record the end of a round; `ended_at_seconds` is a Unix time."""
        self._rounds.labels(result).inc()
        self._round_seconds.observe(seconds)
        self._last_round.set(ended_at_seconds)

    def set_watch(self, resource: str, *, synced: bool, last_contact: float | None, now: float) -> None:
        """Set the state of a list-watch. `last_contact` and `now` are monotonic times in seconds; None means never."""
        age = now - last_contact if last_contact is not None else float("inf")
        self._watch_synced.labels(resource).set(synced)
        self._watch_age.labels(resource).set(age)

    def forget_watch(self, resource: str) -> None:
        """Remove the metrics of a list-watch, because the API server does not have the kind."""
        self._watch_synced.remove(resource)
        self._watch_age.remove(resource)

    def set_events_dropped(self, total: int) -> None:
        """Set the number of Events that were dropped since the start."""
        text = "Events that were not written: too many, or rejected."
        self.show([Shown("events_dropped", text, total, family=CounterMetricFamily)])


class RequestMetrics:
    """Metrics of the calls to one API of Google."""

    def __init__(self, registry: Registry, prefix: str, api: str) -> None:
        self._seconds = registry.histogram(
            f"{prefix}_request_duration_seconds", f"Duration of calls to {api}.", _REQUEST_BUCKETS, "method"
        )
        text = f"Calls to {api} that failed, by kind of failure."
        self._errors = registry.counter(f"{prefix}_request_errors", text, "method", "kind")
        text = f"Calls to {api}, by method and HTTP status."
        self._requests = registry.counter(f"{prefix}_requests", text, "method", "code")

    def observe(self, method: str, *, seconds: float, error_kind: str | None, code: str = "200") -> None:
        """Record one call. Successful calls have no `error_kind`. `code` is the HTTP status, "none" or "other"."""
        self._seconds.labels(method).observe(seconds)
        self._requests.labels(method, code).inc()
        if error_kind is not None:
            self._errors.labels(method, error_kind).inc()


#: Value of the label `result` of a write that succeeded, and all values of this label for writes.
WRITTEN = "ok"
WRITE_RESULTS = (WRITTEN, *(failure.value for failure in WriteFailure))

#: Meaning of labels that several controllers use, for docs/metrics.md.
LABELS = {
    "kind": "the kind of a failure",
    "result": "`ok`, `crashed`, or the kind of a failure; of writes "
    + ", ".join(f"`{result}`" for result in WRITE_RESULTS),
    "write": "what is written to Kubernetes, such as `patch_status`",
    "method": "the method of the client of GKE or Compute Engine",
    "code": "the HTTP status; `none`: no answer, or none with a status",
    "resource": "what a list-watch lists, such as `pods`",
}


class ActionMetrics(LoopMetrics, ABC):
    """Metrics of a controller whose plans have API calls and writes to Kubernetes."""

    #: Number of deletes that were not sent, because a live check failed or found a reason to keep the object.
    kept: Counter

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.writes = registry.counter(
            "writes", "Writes to Kubernetes, by what is written and result.", "write", "result"
        )

    @abstractmethod
    def observe_call(self, method: str, *, seconds: float, error_kind: str | None, code: int) -> None:
        """Record one call. Successful calls have no `error_kind`. `code` is the HTTP status, 0 without a response."""
