"""The metrics of one process: a registry whose metrics have one prefix, and which can tell what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest


class Described(NamedTuple):
    """What a metric is, for its line in a page of documentation."""

    #: As queries name it; of a histogram without `_bucket`, `_sum` and `_count`.
    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


class Picture:
    """A gauge with labels that is set as a whole."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._shown: dict[str | tuple[str, ...], float] = {}

    def replace(self, values: Mapping[Any, float]) -> None:
        """Set all values, by label or by labels in order.

        What is gone goes to 0, since a series that ends looks like a failed scrape.
        """
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
        self.described: list[Described] = []
        # process_cpu_seconds_total, process_resident_memory_bytes and the like, as Go programs have them.
        ProcessCollector(registry=self)
        self.gauge("build_info", "Always 1; the label is the release.", "version").labels(version).set(1)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Add a counter; queries name it with `_total`."""
        self.described.append(Described(f"{self._prefix}{name}_total", "counter", labels, text))
        return Counter(self._prefix + name, text, labels, registry=self)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Add a gauge."""
        self.described.append(Described(self._prefix + name, "gauge", labels, text))
        return Gauge(self._prefix + name, text, labels, registry=self)

    def picture(self, name: str, text: str, *labels: str) -> Picture:
        """Add a gauge with labels that is set as a whole."""
        return Picture(self.gauge(name, text, *labels))

    def histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        """Add a histogram."""
        self.described.append(Described(self._prefix + name, "histogram", labels, text))
        return Histogram(self._prefix + name, text, labels, buckets=buckets, registry=self)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self)
